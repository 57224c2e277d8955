//! Pages of memory, in the model an ordinary allocation.

use std::{io, ptr::NonNull};

pub(crate) struct Pages(Vec<u64>);

impl Pages {
    pub(crate) fn zeroed(bytes: usize) -> io::Result<Pages> {
        Ok(Pages(vec![0; bytes.div_ceil(size_of::<u64>())]))
    }

    pub(crate) fn used(_: usize) -> Option<Pages> {
        None
    }

    pub(crate) fn start(&mut self) -> NonNull<u8> {
        NonNull::from(self.0.as_mut_slice()).cast()
    }
}
