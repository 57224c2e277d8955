//! The GPU of a rank, as its process says it. Processes number GPUs differently, so it has the
//! identity, too.
//!
//! # The protocol
//!
//! A rank says its GPU once. It claims the words, writes the identity, and stores the number. A
//! reader reads the number first. Nobody waits, and no half of an identity is read: a process that
//! dies meanwhile leaves the words claimed, and its rank without a GPU.
//!
//! ```text
//!        claim                    number
//!  none ───────► being written ──────────► said
//! ```

use crate::sync::atomics::{AtomicU32, AtomicU64, Ordering};

record! {
    /// The words of a rank. All bits zero is a rank on no GPU.
    #[derive(Default)]
    pub(crate) struct RankGpu {
        /// [`NONE`], [`CLAIMED`], or the GPU's number above that.
        state: AtomicU32,
        identity: [AtomicU64; 2],
    }
}

const NONE: u32 = 0;
const CLAIMED: u32 = 1;

impl RankGpu {
    /// Says that the rank is on this GPU, by its number in the rank's process and its identity. A
    /// rank that is on another one stays there.
    pub(crate) fn say(&self, ordinal: usize, identity: [u8; 16]) {
        let Some(said) = u32::try_from(ordinal).ok().and_then(|ordinal| ordinal.checked_add(CLAIMED + 1)) else {
            return;
        };
        // Relaxed: nothing was written before. Another thread of the rank may have a part of its
        // group on another GPU.
        if self.state.compare_exchange(NONE, CLAIMED, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            return;
        }
        let (halves, _) = identity.as_chunks::<8>();
        for (word, half) in self.identity.iter().zip(halves) {
            word.store(u64::from_le_bytes(*half), Ordering::Relaxed);
        }
        // SYNC POINT gpu: a reader that sees the number sees the identity; pairs with the acquire
        // in `read`.
        self.state.store(said, Ordering::Release);
    }

    /// Returns the number and the identity of the rank's GPU, if it has said them.
    pub(crate) fn read(&self) -> Option<(usize, [u8; 16])> {
        // SYNC POINT gpu: pairs with the release in `say`.
        let ordinal = self.state.load(Ordering::Acquire).checked_sub(CLAIMED + 1)?;
        let mut identity = [0; 16];
        for (half, word) in identity.as_chunks_mut::<8>().0.iter_mut().zip(&self.identity) {
            *half = word.load(Ordering::Relaxed).to_le_bytes();
        }
        Some((ordinal as usize, identity))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: [u8; 16] = *b"0123456789abcdef";

    #[test]
    fn a_gpu_is_read_as_it_was_said() {
        for ordinal in [0, 1, 300, u32::MAX as usize - 2] {
            let gpu = RankGpu::default();
            assert_eq!(gpu.read(), None);
            gpu.say(ordinal, ONE);
            assert_eq!(gpu.read(), Some((ordinal, ONE)));
        }
    }

    #[test]
    fn the_first_gpu_is_kept() {
        let gpu = RankGpu::default();
        gpu.say(2, ONE);
        gpu.say(3, [9; 16]);
        assert_eq!(gpu.read(), Some((2, ONE)));
    }

    #[test]
    fn a_number_without_a_word_is_not_said() {
        for ordinal in [u32::MAX as usize - 1, u32::MAX as usize, usize::MAX] {
            let gpu = RankGpu::default();
            gpu.say(ordinal, ONE);
            assert_eq!(gpu.read(), None);
        }
    }

    #[test]
    fn half_an_identity_is_not_read() {
        let gpu = RankGpu::default();
        gpu.state.store(CLAIMED, Ordering::Relaxed);
        gpu.identity[0].store(5, Ordering::Relaxed);
        assert_eq!(gpu.read(), None);
        gpu.say(0, ONE);
        assert_eq!(gpu.read(), None, "another thread is at it, or was");
    }

    #[test]
    fn any_words_of_a_peer_are_read() {
        for state in [0, 1, 2, 3, 1 << 31, u32::MAX] {
            let gpu = RankGpu::default();
            gpu.state.store(state, Ordering::Relaxed);
            gpu.identity.iter().for_each(|word| word.store(u64::MAX, Ordering::Relaxed));
            assert_eq!(gpu.read(), (state as usize).checked_sub(2).map(|ordinal| (ordinal, [0xff; 16])));
        }
    }
}
