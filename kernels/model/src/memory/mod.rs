//! Memory: the pages are the model's.

mod pages;
#[path = "../../../src/memory/view.rs"]
#[allow(dead_code, reason = "the model needs a part of it")]
mod view;
#[path = "../../../src/memory/host_memory.rs"]
#[allow(dead_code, reason = "the model needs a part of it")]
mod host_memory;

pub(crate) use host_memory::HostMemory;
pub(crate) use view::{HostBuf, HostBufMut, make_valid};
