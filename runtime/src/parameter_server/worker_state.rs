//! State of a worker that outlives closures: its places in data sets, and values of its own.

use crate::{Error, Result};
use std::{
    any::Any,
    cell::{Cell, RefCell},
    fmt, iter,
    sync::Arc,
};

/// A declaration of something that each worker makes for itself.
#[derive(Clone, Debug)]
pub(super) struct Named {
    pub(super) name: Arc<str>,
    /// The name of its type.
    pub(super) of: &'static str,
}

/// The state of a worker that outlives closures, each part made at its first use.
pub(super) struct Kept {
    /// The iteration of each data set.
    pub(super) iterations: Vec<RefCell<Option<Box<dyn Any>>>>,
    /// The values that are its own.
    pub(super) values: Vec<RefCell<Option<Arc<dyn Any + Send + Sync>>>>,
}

/// The state of its worker, as a closure has it.
pub(super) struct Own<'a> {
    pub(super) kept: &'a Kept,
    /// The elements of each data set that committed closures of this worker have taken. `None` if
    /// this closure may take none.
    pub(super) positions: Option<Vec<usize>>,
    /// The elements of each data set that this closure has taken.
    pub(super) taken: Vec<Cell<usize>>,
}

impl Kept {
    /// Makes the state of a worker that has run nothing, with so many data sets and values.
    pub(super) fn new(datasets: usize, values: usize) -> Kept {
        Kept {
            iterations: iter::repeat_with(RefCell::default).take(datasets).collect(),
            values: iter::repeat_with(RefCell::default).take(values).collect(),
        }
    }
}

impl<'a> Own<'a> {
    pub(super) fn new(kept: &'a Kept, positions: Option<Vec<usize>>) -> Own<'a> {
        let taken = iter::repeat_with(Cell::default).take(kept.iterations.len()).collect();
        Own { kept, positions, taken }
    }

    /// Returns the number of elements of each data set that the closure has taken.
    pub(super) fn taken(&self) -> Vec<usize> {
        self.taken.iter().map(Cell::get).collect()
    }
}

impl Named {
    /// Adds a declaration to those of its kind, and returns its number.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] if there is one of this name.
    pub(super) fn add(all: &mut Vec<Named>, call: &'static str, name: &str, of: &'static str) -> Result<Named> {
        if all.iter().any(|other| &*other.name == name) {
            return Err(Error::invalid(call, "name", "one that was not declared before", format!("{name:?}")));
        }
        all.push(Named { name: name.into(), of });
        Ok(all[all.len() - 1].clone())
    }

    /// Returns the number of this declaration among those of its kind.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] if it is none of them.
    pub(super) fn number_in(&self, all: &[Named], call: &'static str, argument: &'static str) -> Result<usize> {
        all.iter()
            .position(|other| Arc::ptr_eq(&other.name, &self.name))
            .ok_or_else(|| Error::invalid(call, argument, "one of this strategy", "one of another strategy"))
    }
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kept").finish_non_exhaustive()
    }
}
