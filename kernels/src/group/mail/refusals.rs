//! The refusals of messages: the reader of a ring tells the writer of each message that does not
//! fit its receive.
//!
//! There are places for [`REFUSALS`] refusals, used in turn. The writer says in each cell how many
//! it has heard. It hears before it begins a message. So of the messages that it does not know to
//! be taken, which have no more than one cell each in the ring and one that is written in part, it
//! has not heard of more than the cells of a ring and one: for these a place is always free. The
//! other places are for messages that were taken before they were refused. If the writer has not
//! heard of as many, it is not told of more.

use super::ring::{self, Envelope};
use crate::{
    shm::{
        records::Generation,
        ring::{CELLS, REFUSALS, RingEnds},
    },
    sync::atomics::Ordering,
};
use std::collections::VecDeque;

/// Limit on the refusals, not heard of yet, at which a message that was taken is still one of them.
const TAKEN: u64 = (REFUSALS - CELLS - 1) as u64;

/// A message that was refused.
#[derive(Clone, Copy)]
pub(super) struct Refusal {
    pub(super) message: u64,
    pub(super) sent: Envelope,
    pub(super) expected: Envelope,
}

/// The end of the reader, who refuses.
pub(super) struct Refuser {
    /// The refusals that were told, from the generation's base.
    told: u64,
    /// The number of them that the writer has heard, as far as its cells say.
    heard: u64,
}

/// The end of the writer, who hears of it.
pub(super) struct Refused {
    heard: u64,
    /// The refusals that were heard and not taken.
    waiting: VecDeque<Refusal>,
}

impl Refuser {
    pub(super) fn new(generation: Generation) -> Refuser {
        Refuser { told: generation.base(), heard: generation.base() }
    }

    /// Notes how many refusals the writer has heard. Returns whether a correct rank says so.
    pub(super) fn note(&mut self, heard: u32) -> bool {
        let told = Generation::number_of(self.told);
        let unheard = u64::from((told as u32).wrapping_sub(heard));
        self.heard = self.told - unheard.min(told);
        unheard <= told.min(REFUSALS as u64)
    }

    /// Tells of a refusal. `is_taken`: the writer may know that the message was taken as a whole.
    pub(super) fn tell(&mut self, ends: &RingEnds, refusal: Refusal, is_taken: bool) {
        let Refusal { message, sent, expected } = refusal;
        // If there is no place for a message that was not taken, the writer is not correct.
        if self.told - self.heard >= if is_taken { TAKEN } else { REFUSALS as u64 } {
            return;
        }
        let place = &ends.reader.refusals[Generation::number_of(self.told) as usize % REFUSALS];
        place.message.store(message, Ordering::Relaxed);
        place.tag.store(sent.tag, Ordering::Relaxed);
        place.forms.store(ring::form(sent) | ring::form(expected) << 32, Ordering::Relaxed);
        place.sent_bytes.store(sent.bytes as u64, Ordering::Relaxed);
        place.expected_bytes.store(expected.bytes as u64, Ordering::Relaxed);
        self.told += 1;
        // SYNC POINT refused: pairs with `Refused::hear`.
        place.number.store(self.told, Ordering::Release);
    }
}

impl Refused {
    pub(super) fn new(generation: Generation) -> Refused {
        Refused { heard: generation.base(), waiting: VecDeque::new() }
    }

    /// Returns how many refusals were heard, as a cell says it.
    pub(super) fn heard(&self) -> u32 {
        Generation::number_of(self.heard) as u32
    }

    /// Hears the refusals that the reader has told. The last message that was begun is `messages`.
    pub(super) fn hear(&mut self, ends: &RingEnds, messages: u64) {
        for _ in 0..REFUSALS {
            let place = &ends.reader.refusals[Generation::number_of(self.heard) as usize % REFUSALS];
            // SYNC POINT refused: pairs with `Refuser::tell`.
            let is_told = place.number.load(Ordering::Acquire) == self.heard + 1;
            // Only a corrupt process refuses more messages than there were.
            if !is_told || self.heard == messages {
                return;
            }
            self.heard += 1;
            let (message, tag) = (place.message.load(Ordering::Relaxed), place.tag.load(Ordering::Relaxed));
            let forms = place.forms.load(Ordering::Relaxed);
            let sent = ring::envelope(forms & u64::from(u32::MAX), place.sent_bytes.load(Ordering::Relaxed), tag);
            let expected = ring::envelope(forms >> 32, place.expected_bytes.load(Ordering::Relaxed), tag);
            // As above.
            if let (Some(sent), Some(expected), true) = (sent, expected, message <= messages) {
                self.waiting.push_back(Refusal { message, sent, expected });
            }
        }
    }

    /// Whether a refusal of this message was heard and not taken.
    pub(super) fn has(&self, message: u64) -> bool {
        self.waiting.iter().any(|refusal| refusal.message == message)
    }

    /// Takes the first refusal that was heard of a message for which `is_meant` holds.
    pub(super) fn take(&mut self, is_meant: impl Fn(u64) -> bool) -> Option<Refusal> {
        let place = self.waiting.iter().position(|refusal| is_meant(refusal.message))?;
        self.waiting.remove(place)
    }
}
