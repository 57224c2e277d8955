//! The declarations of a program that its closures use: all but functions.

use super::{
    kept::{Kept, Named},
    update_function::{DeclaredUpdate, UpdateFunction},
    variable::Layout,
};
use crate::{Error, Result};
use std::sync::Arc;

/// The declarations that closures use.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// The number of workers.
    pub(super) workers: usize,
    pub(super) update_functions: Vec<DeclaredUpdate>,
    pub(super) variables: Vec<Arc<Layout>>,
    /// The data sets, of which each worker has its own.
    pub(super) datasets: Vec<Named>,
    /// The values that each worker makes.
    pub(super) worker_values: Vec<Named>,
}

impl Known {
    /// Makes the state of a worker that has run nothing.
    pub(super) fn kept(&self) -> Kept {
        Kept::new(self.datasets.len(), self.worker_values.len())
    }

    /// Checks that an update function is one of this program.
    pub(super) fn check_update<const N: usize>(&self, call: &'static str, function: &UpdateFunction<N>) -> Result<()> {
        let own = self.update_functions.get(function.number);
        match own.is_some_and(|own| Arc::ptr_eq(&own.name, &function.name)) {
            true => Ok(()),
            false => Err(Error::invalid(call, "function", "one of this strategy", "one of another strategy")),
        }
    }
}
