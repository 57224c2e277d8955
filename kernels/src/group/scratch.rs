//! What a endpoint keeps between steps, so that none allocates.

use crate::{cpu::reduce::Reducer, os::process_memory::Process, shm::records::FIRST_BYTES};
use std::ops::Range;

/// Room for the addresses of all ranks' buffers, so that a step allocates nothing.
pub(crate) struct Addresses {
    /// Where each rank's input lies in this step; null where it cannot be read.
    pub(crate) inputs: Vec<*const u8>,
    /// Where each rank's output lies in this step; null where there is none.
    pub(crate) outputs: Vec<*mut u8>,
    pub(crate) sources: Vec<*const u8>,
    pub(crate) targets: Vec<*mut u8>,
    /// What data each rank has in this step, and where they lie.
    pub(crate) data: Vec<Data>,
    /// Bytes of the heaps that each rank has shown, as inputs and as outputs, and that have pages;
    /// empty until one has.
    pub(crate) seen: Vec<[Range<usize>; 2]>,
    /// Room for what is read of other processes.
    pub(crate) scratch: Vec<u64>,
    /// This rank's payload, if it has up to [`FIRST_BYTES`].
    pub(crate) own: InlinePayload,
}

/// A payload of up to [`FIRST_BYTES`], with room for whole small tiles.
pub(crate) type InlinePayload = [u8; FIRST_BYTES + Reducer::SMALL_BYTES];

impl Addresses {
    pub(super) fn new(size: usize) -> Addresses {
        let (inputs, outputs) = (Vec::with_capacity(size), Vec::with_capacity(size));
        let (sources, targets) = (Vec::with_capacity(size), Vec::with_capacity(size + 1));
        let (data, scratch, own) = (Vec::with_capacity(size), Vec::new(), [0; _]);
        Addresses { inputs, outputs, sources, targets, data, seen: Vec::new(), scratch, own }
    }
}

// SAFETY: the addresses mean something only within a step, which one thread makes; between steps
// the vectors are empty.
unsafe impl Send for Addresses {}

/// One rank's data in a step of processes.
#[derive(Clone, Copy)]
pub(crate) struct Data {
    pub(crate) bytes: usize,
    pub(crate) place: Source,
}

/// Where data can be read.
#[derive(Clone, Copy)]
pub(crate) enum Source {
    /// They are put up, a window at a time.
    Slot,
    /// All of them lie here.
    Here(*const u8),
    /// All of them lie at this address of another process.
    There(Process, usize),
}
