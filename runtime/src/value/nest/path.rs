//! The path of a leaf in its nest.

use consonance_kernels::digest::digest;
use std::fmt;

/// The path of a leaf in its nest, such as `/weights/0`. The path of the top is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Path {
    keys: String,
}

impl Path {
    /// Returns the path of `key` below this path.
    pub fn join(&self, key: impl fmt::Display) -> Path {
        Path { keys: format!("{}/{key}", self.keys) }
    }

    /// Returns the path of what is at this path in the value of `key`.
    pub(crate) fn below(&self, key: impl fmt::Display) -> Path {
        Path { keys: format!("/{key}{}", self.keys) }
    }

    pub(crate) fn digest(&self) -> u64 {
        digest(&self.keys)
    }
}

/// Prints `value` for the top and `value/weights/0` below it.
impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "value{}", self.keys)
    }
}
