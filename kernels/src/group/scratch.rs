//! Buffers that an endpoint keeps between steps, so that no step allocates.

use crate::{
    cpu::reduce::Reducer,
    os::process_memory::Process,
    shm::records::{FIRST_BYTES, TILE_BYTES},
};

/// The addresses of all ranks' buffers, and buffers for their data.
pub(crate) struct Addresses {
    /// Each rank's input in this step; null where it cannot be read.
    pub(crate) inputs: Vec<*const u8>,
    /// Each rank's output in this step; null where there is none.
    pub(crate) outputs: Vec<*mut u8>,
    pub(crate) sources: Vec<*const u8>,
    pub(crate) targets: Vec<*mut u8>,
    /// The size and location of each rank's data in this step.
    pub(crate) data: Vec<Data>,
    /// Buffer for data read out of other processes.
    pub(crate) scratch: Vec<u64>,
    /// The words with which this rank's payload ends.
    pub(crate) words: Vec<u64>,
}

/// A payload of at most [`FIRST_BYTES`], with room for whole small tiles.
pub(crate) type InlinePayload = [u8; FIRST_BYTES + TILE_BYTES];

const _: () = assert!(TILE_BYTES >= Reducer::SMALL_BYTES);

impl Addresses {
    pub(super) fn new(size: usize) -> Addresses {
        let (inputs, outputs) = (Vec::with_capacity(size), Vec::with_capacity(size));
        let (sources, targets) = (Vec::with_capacity(size), Vec::with_capacity(size + 1));
        let data = Vec::with_capacity(size);
        Addresses { inputs, outputs, sources, targets, data, scratch: Vec::new(), words: Vec::new() }
    }
}

// SAFETY: the addresses are used only within a step, which one thread makes; between steps the
// vectors are empty.
unsafe impl Send for Addresses {}

/// One rank's data in a step of processes.
#[derive(Clone, Copy)]
pub(crate) struct Data {
    pub(crate) bytes: usize,
    pub(crate) place: Source,
}

/// The place where data can be read.
#[derive(Clone, Copy)]
pub(crate) enum Source {
    /// Staged, a window at a time.
    Slot,
    /// All of them at this address of this process.
    Here(*const u8),
    /// All of them at this address of another process.
    There(Process, usize),
}
