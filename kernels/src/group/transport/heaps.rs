//! Data in the shared heaps, where every process can read and write them.

use crate::group::{end::abort::Fault, endpoint::Endpoint};

/// Index in [`Addresses::seen`] of the heap range that a rank passes as the input of a step;
/// `OUTPUT` is that of the output.
pub(super) const INPUT: usize = 0;

pub(super) const OUTPUT: usize = 1;

impl Endpoint {
    /// Returns the offset of these data in the heaps. With `whole` they must be on pages of their
    /// own, because peers are to write there.
    pub(super) fn find(&self, address: *const u8, bytes: usize, whole: bool) -> Option<usize> {
        self.segment().find(address, bytes, whole)
    }

    /// Returns the address of these `bytes` bytes of the heaps, which `rank` passes as its `INPUT`
    /// or `OUTPUT`; `None` if the heaps have no such range.
    ///
    /// # Errors
    /// [`Fault::CorruptPeer`] if no rank has allocated them.
    pub(super) fn in_heap(
        &mut self,
        rank: usize,
        which: usize,
        byte: usize,
        bytes: usize,
    ) -> Result<Option<*mut u8>, Fault> {
        let Some(start) = self.segment().in_heaps(byte, bytes) else { return Ok(None) };
        self.addresses.seen.resize(self.world.size(), [0..0, 0..0]);
        let seen = &self.addresses.seen[rank][which];
        // This rank has found its own range in its own account already.
        if rank != self.world.rank() && !(seen.start <= byte && byte + bytes <= seen.end) {
            let present = self.segment().present(byte);
            if present < bytes {
                return Err(self.nonsense(rank));
            }
            self.addresses.seen[rank][which] = byte..byte + present;
        }
        Ok(Some(start.as_ptr()))
    }
}
