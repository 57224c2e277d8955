//! Memory that all ranks of a group read and write in place.

use crate::{
    comm::{COMMS, Comm, write},
    failure::Failure,
};
use consonance::SharedMemory;
use std::{
    collections::HashMap,
    ffi::c_void,
    sync::{LazyLock, Mutex, PoisonError},
};

/// The blocks by address.
static BLOCKS: LazyLock<Mutex<HashMap<usize, SharedMemory<u64>>>> = LazyLock::new(Mutex::default);

functions! {
    /// Allocates zero bytes, aligned for any element type.
    fn cons_alloc(comm: Comm, bytes: usize, memory: *mut *mut c_void) of comm; {
        let shared = COMMS.get(comm)?;
        let words = bytes.div_ceil(size_of::<u64>()).max(1);
        let mut block = shared.queue.with(shared.timeout(), |communicator| communicator.alloc::<u64>(words))?;
        let start = block.as_mut_ptr();
        // SAFETY: the pointer is null or valid.
        unsafe { write("memory", memory, start.cast()) }?;
        BLOCKS.lock().unwrap_or_else(PoisonError::into_inner).insert(start.addr(), block);
        Ok(())
    }

    /// Frees memory of `cons_alloc`.
    fn cons_free(memory: *mut c_void) of 0; {
        let block = BLOCKS.lock().unwrap_or_else(PoisonError::into_inner).remove(&memory.addr());
        let expected = "what cons_alloc gave and nobody freed";
        block.map(drop).ok_or_else(|| Failure::argument("memory", expected, format!("{memory:?}")))
    }
}
