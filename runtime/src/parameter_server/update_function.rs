//! Update functions: what a server does to a shard of a variable and to those of its slots.

use crate::{Error, IndexedSlices, Result, Tensor, panics, variable::update::Update};
use consonance_kernels::memory::HostMemory;
use std::{fmt, sync::Arc};

/// A function of the program, which servers run to update a variable with its `N` slots: see
/// [`ParameterServerStrategy::update_function`](crate::ParameterServerStrategy::update_function). A
/// clone is the same function.
#[derive(Clone)]
pub struct UpdateFunction<const N: usize> {
    pub(super) number: usize,
    pub(super) name: Arc<str>,
}

/// An update function, as servers run it.
#[derive(Clone)]
pub(super) struct DeclaredUpdate {
    pub(super) name: Arc<str>,
    pub(super) slots: usize,
    run: Arc<Run>,
}

/// Updates rows of a variable, which come first, and those of its slots.
type Run = dyn Fn(&mut [Tensor], &Tensor) -> Result<()> + Send + Sync;

impl DeclaredUpdate {
    pub(super) fn new<const N: usize>(
        name: &Arc<str>,
        update: impl Fn(&mut Tensor, &mut [Tensor; N], &Tensor) -> Result<()> + Send + Sync + 'static,
    ) -> DeclaredUpdate {
        let run = move |rows: &mut [Tensor], gradient: &Tensor| {
            let (variable, slots) = rows.split_first_mut().expect("the rows of the variable");
            update(variable, slots.try_into().expect("as many as are declared"), gradient)
        };
        DeclaredUpdate { name: name.clone(), slots: N, run: Arc::new(run) }
    }

    /// Updates rows.
    ///
    /// # Errors
    /// That of the function; [`Error::System`] if it panics or changes a dtype or a shape.
    pub(super) fn run(&self, rows: &mut [Tensor], gradient: &Tensor) -> Result<()> {
        let specs: Vec<String> = rows.iter().map(Tensor::spec).collect();
        let failed = |problem: String| Error::other(format!("update function {:?}: {problem}", self.name));
        let ended = panics::catch(|| (self.run)(rows, gradient));
        ended.map_err(|panic| failed(format!("panicked: {panic}")))?.map_err(|error| failed(error.to_string()))?;
        for (spec, rows) in specs.iter().zip(rows) {
            if *spec != rows.spec() {
                return Err(failed(format!("it was given {spec} and left {}", rows.spec())));
            }
            rows.host().map_err(|error| failed(error.to_string()))?;
        }
        Ok(())
    }
}

/// Returns the rows that have gradients, in order and each once, and the gradient of each:
/// gradients of the same row are added, one after the other. `rows` has the row of each gradient.
///
/// # Errors
/// None for gradients in host memory.
pub(super) fn summed(rows: &[usize], gradients: &IndexedSlices) -> Result<(Vec<usize>, Tensor)> {
    let values = gradients.values();
    if rows.is_sorted_by(|row, next| row < next) {
        return Ok((rows.to_vec(), values.clone()));
    }
    let mut places: Vec<(usize, usize)> = rows.iter().copied().zip(0..).collect();
    places.sort_unstable();
    let mut distinct = rows.to_vec();
    distinct.sort_unstable();
    distinct.dedup();
    let count = values.shape()[1..].iter().product::<usize>();
    let elements = |row: usize| row * count..(row + 1) * count;
    let mut memory = HostMemory::try_unspecified(values.dtype(), distinct.len() * count)
        .map_err(Error::no_memory(values.dtype(), distinct.len() * count))?;
    let (values, mut sums) = (values.host()?, memory.as_buf_mut());
    for (to, of_row) in places.chunk_by(|(row, _), (next, _)| row == next).enumerate() {
        for (nth, &(_, from)) in of_row.iter().enumerate() {
            let update = if nth == 0 { Update::Assign } else { Update::AssignAdd };
            update.apply_to(&mut sums.reborrow().slice(elements(to)), values.slice(elements(from)));
        }
    }
    let shape = [&[distinct.len()], &gradients.values().shape()[1..]].concat();
    Ok((distinct, Tensor::from_memory(shape, memory)?))
}

impl<const N: usize> fmt::Debug for UpdateFunction<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UpdateFunction").field("name", &self.name).finish_non_exhaustive()
    }
}

impl fmt::Debug for DeclaredUpdate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeclaredUpdate").field("name", &self.name).finish_non_exhaustive()
    }
}
