//! Data that lie in the heaps, where every process can read and write them.

use crate::group::{endpoint::Endpoint, fault::Fault};

/// Where in [`Addresses::seen`] there is what a rank has shown of its heap: as the input of a step,
/// and as the output.
pub(super) const INPUT: usize = 0;

pub(super) const OUTPUT: usize = 1;

impl Endpoint {
    /// Where these data lie in the heaps: on `whole` pages of their own, if others are to write
    /// there.
    pub(super) fn find(&self, address: *const u8, bytes: usize, whole: bool) -> Option<usize> {
        self.segment().find(address, bytes, whole)
    }

    /// Where these `bytes` of the heaps are, which `rank` shows as its `INPUT` or `OUTPUT`; nowhere
    /// if there is no such place.
    ///
    /// # Errors
    /// [`Fault::CorruptPeer`] if nobody has allocated them.
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
        // This rank's own were found in its own account.
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
