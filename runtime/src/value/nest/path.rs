//! Where a leaf lies in its nest.

use consonance_spec::call::digest;
use std::fmt;

/// Where a leaf lies in its nest: `/weights/0`; the top is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Path(String);

impl Path {
    /// The path of `key` below this one.
    pub fn join(&self, key: impl fmt::Display) -> Path {
        Path(format!("{}/{key}", self.0))
    }

    pub(crate) fn digest(&self) -> u64 {
        digest(&self.0)
    }
}

/// `value` at the top, else `value/weights/0`.
impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "value{}", self.0)
    }
}
