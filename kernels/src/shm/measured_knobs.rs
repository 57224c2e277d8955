//! The knobs of processes that one process of a group has measured, for the others.

use crate::{
    sync::atomics::{AtomicU64, Ordering},
    tuning::Tuning,
};

record! {
    /// Knobs, as words. All zero: nobody has measured. The process that makes the segment writes
    /// them, if it has measured before, and else the process of rank 0, once. After a loss another
    /// process may be rank 0 of the same segment. A reader may then have some words of each: every
    /// knob of a process is right by itself.
    #[repr(align(128))]
    pub(crate) struct Measured {
        /// 1 once the words are there; stored last.
        pub(crate) is_told: AtomicU64,
        /// Every knob, in the order of their table.
        pub(crate) words: [AtomicU64; Tuning::WORDS],
    }
}

impl Measured {
    /// Tells the peers these knobs.
    pub(super) fn tell(&self, tuning: &Tuning) {
        for (place, word) in self.words.iter().zip(tuning.words()) {
            place.store(word, Ordering::Relaxed);
        }
        // SYNC POINT measured: pairs with `read`.
        self.is_told.store(1, Ordering::Release);
    }

    /// Whether anybody has told knobs.
    pub(super) fn is_told(&self) -> bool {
        // Relaxed: nothing else is read because of it.
        self.is_told.load(Ordering::Relaxed) != 0
    }

    /// Returns the knobs that a peer has told; `None` if nobody has, or if one is not allowed.
    pub(super) fn read(&self) -> Option<Tuning> {
        // SYNC POINT measured: pairs with `tell`.
        if self.is_told.load(Ordering::Acquire) == 0 {
            return None;
        }
        let words = std::array::from_fn(|index| self.words[index].load(Ordering::Relaxed));
        Tuning::of_words(&words).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured() -> Measured {
        Measured { is_told: AtomicU64::new(0), words: std::array::from_fn(|_| AtomicU64::new(0)) }
    }

    #[test]
    fn knobs_are_read_once_published() {
        let measured = measured();
        assert_eq!(measured.read(), None);
        let tuning = Tuning { read_bytes: 12_345, ..Tuning::DEFAULT };
        measured.tell(&tuning);
        assert_eq!(measured.read(), Some(tuning));
    }

    #[test]
    fn an_invalid_knob_is_not_taken() {
        let measured = measured();
        measured.tell(&Tuning::DEFAULT);
        let some_payload_bytes = Tuning::KNOBS.iter().position(|knob| knob.name == "some_payload_bytes").unwrap();
        measured.words[some_payload_bytes].store(8193, Ordering::Relaxed);
        assert_eq!(measured.read(), None);
    }
}
