//! The model has no forks.

use std::sync::OnceLock;

/// A value that the model makes once.
pub(crate) struct PerProcess<T> {
    made: OnceLock<T>,
    make: fn() -> T,
}

impl<T> PerProcess<T> {
    pub(crate) const fn new(make: fn() -> T) -> PerProcess<T> {
        PerProcess { made: OnceLock::new(), make }
    }

    pub(crate) fn get(&self) -> &T {
        self.made.get_or_init(self.make)
    }
}
