//! The amount of available memory, which the model does not need.

pub(crate) fn bytes() -> Option<u64> {
    None
}
