//! The declarations of a program that its closures use: all but functions.

use super::{
    update_function::{DeclaredUpdate, UpdateFunction},
    variable::{Accessed, Layout, check_own},
    worker_state::{Kept, Named},
};
use crate::{Error, Result, value::nest::sent::Reference};
use std::sync::{Arc, Weak};

/// The declarations that closures use.
#[derive(Debug)]
pub(super) struct Known {
    /// The strategy of this process.
    pub(super) strategy: Weak<dyn Accessed>,
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
    pub(super) fn new(strategy: Weak<dyn Accessed>, workers: usize) -> Known {
        Known {
            strategy,
            workers,
            update_functions: Vec::new(),
            variables: Vec::new(),
            datasets: Vec::new(),
            worker_values: Vec::new(),
        }
    }

    /// Makes the state of a worker that has run nothing.
    pub(super) fn kept(&self) -> Kept {
        Kept::new(self.datasets.len(), self.worker_values.len())
    }

    /// Checks that a nest refers to variables of this program alone.
    pub(super) fn check_references(&self, call: &'static str, references: &[Reference]) -> Result<()> {
        references.iter().try_for_each(|reference| {
            let variable = reference.to.downcast_ref::<Layout>().expect("nests refer to variables");
            check_own(call, &reference.path.to_string(), &self.variables, variable)
        })
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
