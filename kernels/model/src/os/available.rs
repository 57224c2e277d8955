//! The amount of available memory, of which the model has enough.

pub(crate) fn bytes() -> Option<u64> {
    None
}

pub(crate) fn room(bytes: usize) -> Option<Vec<u8>> {
    Some(Vec::with_capacity(bytes))
}
