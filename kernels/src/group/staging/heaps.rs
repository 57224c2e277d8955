//! Data in the shared heaps, where every process can read and write them.

use crate::group::{end::abort::Fault, member::Member};
use std::ops::Range;

/// The index of the heap range that a rank passes as the input of a step; `OUTPUT` is that of the
/// output.
pub(in crate::group) const INPUT: usize = 0;

pub(in crate::group) const OUTPUT: usize = 1;

/// The heaps, as one rank knows them.
#[derive(Default)]
pub(in crate::group) struct Heaps {
    /// The ranges of the heaps that each rank has passed as inputs and as outputs, and that have
    /// pages; empty until a rank has passed one.
    seen: Vec<[Range<usize>; 2]>,
}

impl Heaps {
    /// Returns the address of these `bytes` bytes of the heaps, which `rank` passes as its `INPUT`
    /// or `OUTPUT`; `None` if the heaps have no such range. `member` is this rank.
    ///
    /// # Errors
    /// [`Fault::CorruptPeer`] if no rank has allocated them.
    pub(in crate::group) fn address(
        &mut self,
        member: &Member,
        rank: usize,
        which: usize,
        byte: usize,
        bytes: usize,
    ) -> Result<Option<*mut u8>, Fault> {
        let Some(start) = member.segment().in_heaps(byte, bytes) else { return Ok(None) };
        self.seen.resize(member.world.size(), [0..0, 0..0]);
        let seen = &self.seen[rank][which];
        // This rank has found its own range in its own account already.
        if rank != member.world.rank() && !(seen.start <= byte && byte + bytes <= seen.end) {
            let present = member.segment().present(byte);
            if present < bytes {
                return Err(member.corrupt(rank));
            }
            self.seen[rank][which] = byte..byte + present;
        }
        Ok(Some(start.as_ptr()))
    }
}
