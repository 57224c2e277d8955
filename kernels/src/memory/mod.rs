//! Memory whose element type is a value: the single place where the type is erased.
//!
//! A [`HostBuf`] or [`HostBufMut`] is made from a typed slice and gives back slices of that type
//! alone. [`Memory`] owns its elements.

mod view;
mod space;
mod owned;
mod pages;

pub use owned::Memory;
pub use space::{Buf, BufMut, Space};
pub(crate) use view::make_valid;
pub use view::{HostBuf, HostBufMut};
