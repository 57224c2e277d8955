//! The error of processes that have not met.

use std::{error, fmt};

/// The reason why processes have not met.
#[derive(Debug, PartialEq, Eq)]
pub struct NotMet {
    /// The reason in words.
    pub problem: String,
    /// The tasks that did not come.
    pub missing: Vec<usize>,
}

impl NotMet {
    pub(super) fn because(problem: impl Into<String>) -> NotMet {
        NotMet { problem: problem.into(), missing: Vec::new() }
    }
}

impl fmt::Display for NotMet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.problem)
    }
}

impl error::Error for NotMet {}
