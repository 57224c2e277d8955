//! Buffers whose element type is a value. The type is erased here and nowhere else.
//!
//! A [`HostBuf`] or [`HostBufMut`] is made from a typed slice and gives back only slices of that
//! type. [`Memory`] owns its elements.

mod view;
mod space;
mod owned;
mod pages;

pub use owned::Memory;
pub use space::{Buf, BufMut, Space};
pub(crate) use view::make_valid;
pub use view::{HostBuf, HostBufMut};
