//! The model of prefetches, which do nothing: the model has no cache lines.

pub(crate) fn fetch(_: *const u8, _: usize) {}

pub(crate) fn fetch_to_write(_: *const u8, _: usize) {}
