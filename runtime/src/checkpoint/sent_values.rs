//! The values of a checkpoint on their way from the chief to the other workers.

use super::Saveable;
use crate::{Error, Result, Strategy, Tensor, kind};
use consonance_kernels::memory::HostMemory;
use consonance_spec::DType;
use serde::{Serialize, de::DeserializeOwned};
use std::io;

/// Returns what the chief has found: the values of `variables`, if there are some, and what it
/// knows of the file. The other workers pass `None`. All have agreed on the variables.
///
/// Each value is sent by itself, so that a worker has memory for all values and for copies of one.
///
/// # Errors
/// Those of a collective. Then no worker returns values.
pub(super) fn by_chief<T: Serialize + DeserializeOwned>(
    strategy: &Strategy,
    variables: &[(String, Saveable<'_>)],
    found: Option<(Option<Vec<Tensor>>, T)>,
) -> Result<(Option<Vec<Tensor>>, T)> {
    let kind = kind::RESTORE;
    let send = |part: &str, tensor: Tensor| strategy.chiefs(kind, ("part", part), tensor);
    let (has_values, about) = send_about(strategy, found.as_ref())?;
    if !has_values {
        return Ok((None, about));
    }
    let mut values: Vec<Option<Tensor>> = match found {
        Some((Some(values), _)) => values.into_iter().map(Some).collect(),
        _ => variables.iter().map(|_| None).collect(),
    };
    // The places of variables in this process say nothing about those in others. Their names do.
    let mut places: Vec<usize> = (0..variables.len()).collect();
    places.sort_by_key(|&place| &variables[place].0);
    for place in places {
        let (name, variable) = &variables[place];
        let own = match &values[place] {
            Some(value) => Ok(value.clone()),
            None => room(variable.dtype(), variable.shape()),
        };
        let sent = send(name, strategy.or_refuse(kind, own)?)?;
        values[place].get_or_insert(sent);
    }
    strategy.agree(kind, ("values", "all"))?;
    Ok((values.into_iter().collect(), about))
}

/// Sends what the chief knows of the file, and whether it has values.
fn send_about<T: Serialize + DeserializeOwned>(
    strategy: &Strategy,
    found: Option<&(Option<Vec<Tensor>>, T)>,
) -> Result<(bool, T)> {
    let kind = kind::RESTORE;
    let failed =
        |error: serde_json::Error| Error::system("pass on the words about a checkpoint", io::Error::from(error));
    let text = found.map(|(values, about)| serde_json::to_vec(&(values.is_some(), about)).map_err(failed));
    let text = strategy.or_refuse(kind, text.transpose())?;
    let bytes = text.as_ref().map_or(0, Vec::len) as u64;
    let bytes: u64 = strategy.chiefs(kind, ("part", "size of words"), Tensor::from(bytes))?.item()?;
    let own = match text {
        Some(text) => Ok(Tensor::from(text)),
        None => room(DType::U8, &[usize::try_from(bytes).unwrap_or(usize::MAX)]),
    };
    let text = strategy.chiefs(kind, ("part", "words"), strategy.or_refuse(kind, own)?)?;
    let read = text.as_slice::<u8>().and_then(|text| serde_json::from_slice(text).map_err(failed));
    strategy.or_refuse(kind, read)
}

/// Returns a tensor for a value that arrives.
fn room(dtype: DType, shape: &[usize]) -> Result<Tensor> {
    let count = shape.iter().product();
    let memory = HostMemory::try_unspecified(dtype, count).map_err(Error::no_memory(dtype, count))?;
    Tensor::from_memory(shape.to_vec(), memory)
}
