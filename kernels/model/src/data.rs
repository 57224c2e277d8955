//! Elements that ranks pass to the protocol.

use crate::{shm::Segment, watched_memory};
use std::{slice, sync::Arc};

/// Elements of one rank, which other ranks may access.
pub(crate) struct Data(Elements);

enum Elements {
    Own(Vec<u64>),
    /// All of this rank's heap.
    Heap(Arc<Segment>, usize),
}

impl Data {
    pub(crate) fn new(elements: impl Iterator<Item = u64>) -> Data {
        let elements: Vec<u64> = elements.collect();
        watched_memory::watch(elements.as_ptr().cast(), size_of_val(elements.as_slice()), 128);
        Data(Elements::Own(elements))
    }

    /// Returns the heap of `rank`. Other processes write there when the rank posts its buffer.
    pub(crate) fn in_heap(segment: &Arc<Segment>, rank: usize) -> Data {
        Data(Elements::Heap(segment.clone(), rank))
    }

    /// Returns the elements for the calling rank to write.
    pub(crate) fn write(&mut self) -> &mut [u64] {
        let elements = self.share();
        watched_memory::write(elements.as_mut_ptr().cast(), size_of_val(elements));
        elements
    }

    /// Returns the elements to pass to the protocol.
    pub(crate) fn share(&mut self) -> &mut [u64] {
        match &mut self.0 {
            Elements::Own(elements) => elements,
            Elements::Heap(segment, rank) => {
                let (start, count) = segment.heap(*rank);
                // SAFETY: the elements belong to the segment, which lives as long as `self`. The
                // model reports any other access.
                unsafe { slice::from_raw_parts_mut(start, count) }
            }
        }
    }

    /// Returns the elements for the calling rank to read.
    pub(crate) fn read(&mut self) -> &[u64] {
        let elements = self.share();
        watched_memory::read(elements.as_ptr().cast(), size_of_val(elements));
        elements
    }
}
