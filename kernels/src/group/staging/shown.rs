//! Data that the others read in place: in a heap or, by a system call, in the rank's own process.
//!
//! Each rank tests once whether the system allows the latter, after all ranks have arrived for the
//! first time. A rank that has staged nothing passes the address of its data. The others read them
//! there if every rank's descriptor announces that it can read the memory of all others. All ranks
//! see the same descriptors, and so choose the same. If not all can read, the data are staged late.
//!
//! # The races, by name
//!
//! * **Gone in the middle.** A rank's process is killed while others read its memory, and another
//!   process gets its id. With the data the system reads the group's name from the same memory. No
//!   other process has the name at that address, so the data came from that process, or the read
//!   fails.
//! * **Given up in the middle.** A rank that gives up ends the group before it returns to code that
//!   may write its data. A rank that read them checks afterwards whether the group was ended,
//!   before it passes on any result ([`Member::check_after_reads`]).
//! * **Read after return.** A rank whose data were read in place returns when all have *read* them.

#[cfg(doc)]
use crate::group::member::Member;
use crate::shm::records::CallDescriptor;
use std::ptr;

/// A reference to data that a rank has not copied in, encoded in a word that the descriptor holds
/// in the place of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::group) struct BufferRef {
    pub(in crate::group) place: Option<Shown>,
    /// Whether this rank can read the memory of all others.
    pub(in crate::group) reads: bool,
}

/// The location of data that are not copied in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::group) enum Shown {
    /// Offset in the heaps.
    Heap(usize),
    /// Address in the rank's own process.
    Own(usize),
}

impl BufferRef {
    const READS: usize = 1 << (usize::BITS - 1);
    const HEAP: usize = Self::READS >> 1;

    pub(in crate::group) fn to_word<T>(self) -> *mut T {
        let place = self.place.map_or(0, |place| match place {
            Shown::Heap(byte) => Self::HEAP | byte,
            Shown::Own(address) => address,
        });
        ptr::without_provenance_mut(place | if self.reads { Self::READS } else { 0 })
    }

    pub(in crate::group) fn read<T>(word: *const T) -> BufferRef {
        let (word, reads) = (word.addr() & !Self::READS, word.addr() & Self::READS != 0);
        let place = match word & Self::HEAP {
            0 => Some(word).filter(|&word| word != 0).map(Shown::Own),
            _ => Some(Shown::Heap(word & !Self::HEAP)),
        };
        BufferRef { place, reads }
    }
}

/// Whether this rank reads the memory of all others.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum PeerRead {
    /// Not tested before all ranks have arrived once.
    Untried,
    Yes,
    /// This rank cannot, or not all ranks can.
    No,
}

/// Whether every rank can read the memory of all others, according to their descriptors.
pub(in crate::group) fn all_read<'d>(mut descriptors: impl Iterator<Item = &'d CallDescriptor>) -> bool {
    descriptors.all(|descriptor| BufferRef::read(descriptor.input()).reads)
}
