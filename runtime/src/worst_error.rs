//! The most telling of several replicas' errors.

use crate::{Error, Result};

/// Returns all values, or the most telling error with its position: a replica's own error comes
/// before one that is the consequence of another replica's.
pub(crate) fn all_or_worst<R>(results: Vec<Result<R>>) -> Result<Vec<R>, (usize, Error)> {
    let mut values = Vec::with_capacity(results.len());
    let mut worst: Option<(usize, Error)> = None;
    for (place, result) in results.into_iter().enumerate() {
        match result {
            Ok(value) => values.push(value),
            Err(error) => {
                if worst.as_ref().is_none_or(|(_, worst)| tells_of_another(worst) > tells_of_another(&error)) {
                    worst = Some((place, error));
                }
            }
        }
    }
    worst.map_or(Ok(values), Err)
}

/// Ranks how much an error is the consequence of another replica's: 0 for a replica's own.
fn tells_of_another(error: &Error) -> u8 {
    match error.root() {
        Error::Aborted { .. } => 3,
        Error::Left { .. } => 2,
        Error::Mismatch { .. } | Error::Timeout { .. } => 1,
        _ => 0,
    }
}
