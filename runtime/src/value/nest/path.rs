//! The path of a leaf in its nest.

use consonance_kernels::digest::{digest, mix};
use std::fmt;

/// The path of a leaf in its nest, such as `/weights/0`. The path of the top is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Path {
    keys: String,
    /// The number of backward passes whose sum the leaf is, less 1. Replicas compare it.
    more_passes: usize,
}

impl Path {
    /// Returns the path of `key` below this path.
    pub fn join(&self, key: impl fmt::Display) -> Path {
        Path { keys: format!("{}/{key}", self.keys), ..*self }
    }

    /// Returns the same path, for the sum of this many backward passes, at least one.
    pub(crate) fn of_passes(&self, passes: usize) -> Path {
        Path { keys: self.keys.clone(), more_passes: passes - 1 }
    }

    /// Returns the number of backward passes whose sum the leaf is.
    pub(crate) fn passes(&self) -> usize {
        self.more_passes + 1
    }

    /// Returns the path of what is at this path in the value of `key`.
    pub(crate) fn below(&self, key: impl fmt::Display) -> Path {
        Path { keys: format!("/{key}{}", self.keys), ..*self }
    }

    pub(crate) fn digest(&self) -> u64 {
        mix(digest(&self.keys), self.more_passes as u64)
    }
}

/// Prints `value` for the top and `value/weights/0` below it.
impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "value{}", self.keys)
    }
}
