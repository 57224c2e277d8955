//! The core of a thread: the model's ranks share one, and each says so when it wakes another.

/// Returns the number of the core plus 1, the same in each run.
pub(crate) fn current() -> u32 {
    1
}

/// Returns false: the model has no time in which a yield would be long.
pub(crate) fn leave() -> bool {
    false
}
