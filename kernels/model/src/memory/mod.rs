//! Memory: the pages are the model's.

mod pages;
#[path = "../../../src/memory/view.rs"]
#[allow(dead_code, reason = "the model needs a part of it")]
mod view;
#[path = "../../../src/memory/owned.rs"]
#[allow(dead_code, reason = "the model needs a part of it")]
mod owned;

pub(crate) use owned::HostMemory;
pub(crate) use view::{HostBuf, HostBufMut, make_valid};
