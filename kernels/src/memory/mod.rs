//! Buffers whose element type is a value. The type is erased here and nowhere else.
//!
//! A [`HostBuf`] or [`HostBufMut`] is made from a typed slice and gives back slices of that type
//! alone. A [`HostMemory`] owns its elements. A [`Buf`] or [`Memory`] may be of a device.

mod view;
mod space;
mod host_memory;
mod device;
#[doc(hidden)]
pub mod pretended;
mod pages;
mod page_cache;

pub use device::{DeviceBlock, DeviceMemory, Memory};
pub use host_memory::HostMemory;
pub use space::{Buf, BufMut, Space};
pub(crate) use view::make_valid;
pub use view::{HostBuf, HostBufMut};
