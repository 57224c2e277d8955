//! The line of each rank: written by it alone, read by all. Only what comes with an arrival, and is too much for its first cache
//! line, lies in the other's at times where they are two (`trade.rs`).
//!
//! One cache miss on a peer's [`Card`] brings its arrival, the check that both mean the same call, and the data of a tiny
//! call; other cache lines have the data of a small one. There are two cards, used in turn: a rank writes the card of call
//! `e + 2` over that of call `e` only after every peer has arrived at `e + 1`, and so has read all it wanted of `e`.

use crate::{
    atomics::{AtomicPtr, AtomicU32, AtomicU64, Ordering},
    copy::{copy, fetch, fetch_to_write, put_up},
    flow::Volume,
    trade,
    wait::Bell,
};
use consonance_spec::Kind;
use std::{cell::UnsafeCell, mem, ptr};

/// Bytes that ride along with an arrival.
pub(crate) const PAYLOAD_BYTES: usize = 8 << 10;

/// As many of them as fit in the pair of cache lines by which a peer sees the arrival.
pub(crate) const FIRST_BYTES: usize = 80;

/// As many as fit in the first of the two.
pub(crate) const TINY_BYTES: usize = 16;

/// Traded payloads of up to so many bytes are [awaited](await_payload). Between 2 processes an all-reduce takes 0.7 of the time at
/// 64 bytes, and 0.85 from 128 to 512; at 1 KiB it would take 1.25.
pub(crate) const AWAITED_BYTES: usize = 512;

/// All that one rank tells the others. All zero is a fresh line: of processes it lies in memory that the system gave.
#[repr(C)]
#[derive(Default)]
pub(crate) struct Line {
    cards: [Card; 2],
    pub(crate) progress: Progress,
    pub(crate) rest: Rest,
}

impl Line {
    /// The card of call number `epoch`.
    pub(crate) fn card(&self, epoch: u64) -> &Card {
        &self.cards[(epoch & 1) as usize]
    }
}

/// Where `rank` has its payload of `bytes` in call `epoch`, whatever is called: ranks that do not call the same write before they
/// know that.
#[inline]
pub(crate) fn payload(lines: &[Line], rank: usize, epoch: u64, bytes: usize) -> *mut u8 {
    if is_traded(lines.len(), bytes) {
        lines[trade::place(rank, epoch)].card(epoch).rest()
    } else {
        lines[rank].card(epoch).payload()
    }
}

/// As many bytes of a payload as lie beside the arrival. Two ranks trade the places of more.
#[inline]
pub(crate) fn first_bytes(ranks: usize) -> usize {
    if ranks == 2 { TINY_BYTES } else { FIRST_BYTES }
}

/// Whether payloads of so many bytes lie in places that the ranks [trade].
#[inline]
pub(crate) fn is_traded(ranks: usize, bytes: usize) -> bool {
    ranks == 2 && bytes > TINY_BYTES
}

/// Asks for the `bytes` that the peer of `rank` brings, if they are few and not beside its arrival: so they come with that, and not
/// after it.
#[inline]
pub(crate) fn await_payload(lines: &[Line], rank: usize, epoch: u64, bytes: usize) {
    if is_traded(lines.len(), bytes) && bytes <= AWAITED_BYTES {
        let place = payload(lines, 1 - rank, epoch, bytes);
        fetch(place, bytes);
    }
}

/// How many pauses a rank makes before it looks for the others' cards for the first time, when payloads have up to so many bytes. Who
/// looks before a card is written takes its lines away from who writes it, and both pay a trip more: of calls of one size some took half
/// as long again as others, by chance. (A rank of an all-reduce has something else to do meanwhile. To note the call in its ring, as a
/// rank does that is in a process of a group, takes about a pause.)
#[inline]
pub(crate) fn pauses(ranks: usize, kind: Kind, bytes: usize, has_ring: bool) -> u32 {
    let for_payload = is_traded(ranks, bytes) && trade::slots(ranks, kind) && kind != Kind::AllReduce;
    u32::from(for_payload) + u32::from(!has_ring && ranks > 1)
}

/// One arrival. Everything but `epoch` is valid while `epoch` is the number of the call that the reader is in.
#[repr(C, align(128))]
pub(crate) struct Card {
    /// The number of the call, from 1; stored last.
    epoch: AtomicU64,
    fingerprint: AtomicU64,
    /// The exact part of the check: what a hash must not decide, since memory is touched by it.
    head: AtomicU32,
    bytes: AtomicU64,
    input: AtomicPtr<u8>,
    output: AtomicPtr<u8>,
    payload: UnsafeCell<[u8; FIRST_BYTES + PAYLOAD_BYTES]>,
}

// SAFETY: only `payload` is not atomic. It is written by one rank before it releases the `epoch` of its card, and read by others
// after they acquired it; the next write comes two calls later (module doc).
unsafe impl Sync for Card {}

/// What a card says.
#[derive(Clone, Copy)]
pub(crate) struct Arrival<'a> {
    pub(crate) fingerprint: u64,
    pub(crate) head: u32,
    /// Bytes of this rank's data.
    pub(crate) bytes: usize,
    pub(crate) payload: &'a [u8],
    /// Where the others may read this rank's data; null if nowhere.
    pub(crate) input: *const u8,
    /// Where the others may write this rank's result; null if nowhere.
    pub(crate) output: *mut u8,
}

impl Default for Card {
    fn default() -> Self {
        Card {
            epoch: AtomicU64::new(0),
            fingerprint: AtomicU64::new(0),
            head: AtomicU32::new(0),
            bytes: AtomicU64::new(0),
            input: AtomicPtr::default(),
            output: AtomicPtr::default(),
            payload: UnsafeCell::new([0; FIRST_BYTES + PAYLOAD_BYTES]),
        }
    }
}

impl Card {
    /// Publishes an arrival, with its payload at `place`, of which this core may have the lines.
    ///
    /// # Safety
    /// Called by the card's rank alone, which has seen every peer arrive at call `epoch - 1`; `place` is its [`payload`].
    pub(crate) unsafe fn publish(&self, epoch: u64, arrival: &Arrival<'_>, place: *mut u8, has_lines: bool) {
        assert!(arrival.payload.len() <= PAYLOAD_BYTES, "payload of {} bytes", arrival.payload.len());
        self.fingerprint.store(arrival.fingerprint, Ordering::Relaxed);
        self.head.store(arrival.head, Ordering::Relaxed);
        self.bytes.store(arrival.bytes as u64, Ordering::Relaxed);
        self.input.store(arrival.input.cast_mut(), Ordering::Relaxed);
        self.output.store(arrival.output, Ordering::Relaxed);
        let (payload, bytes) = (arrival.payload.as_ptr(), arrival.payload.len());
        // SAFETY: the length was checked; nobody reads there now, as the caller promises.
        unsafe {
            match has_lines {
                true => copy(payload, place, bytes, Volume::Near),
                false => put_up(payload, place, bytes, Volume::Near, false),
            }
        }
        // SYNC POINT arrival: pairs with `arrived`.
        self.epoch.store(epoch, Ordering::Release);
    }

    /// Asks for what one of so many ranks writes first of it, and others have read when it was published last, so that the lines are this
    /// core's again when it is [published](Card::publish) next. More of them would not be here in time.
    pub(crate) fn fetch(&self, ranks: usize) {
        fetch_to_write(ptr::from_ref(self).cast(), mem::offset_of!(Card, payload) + first_bytes(ranks));
    }

    /// Whether the rank has arrived at call `epoch`; if so, the rest of the card may be read until this rank's next call.
    pub(crate) fn arrived(&self, epoch: u64) -> bool {
        // SYNC POINT arrival: pairs with `publish`.
        self.epoch.load(Ordering::Acquire) == epoch
    }

    pub(crate) fn epoch(&self) -> u64 {
        // Relaxed: for reports.
        self.epoch.load(Ordering::Relaxed)
    }

    pub(crate) fn fingerprint(&self) -> u64 {
        self.fingerprint.load(Ordering::Relaxed)
    }

    pub(crate) fn head(&self) -> u32 {
        self.head.load(Ordering::Relaxed)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed) as usize
    }

    /// The start of more than [`PAYLOAD_BYTES`] bytes, of which the first come with the arrival.
    pub(crate) fn payload(&self) -> *mut u8 {
        self.payload.get().cast()
    }

    /// The start of [`PAYLOAD_BYTES`] bytes behind those.
    pub(crate) fn rest(&self) -> *mut u8 {
        self.payload().wrapping_add(FIRST_BYTES)
    }

    pub(crate) fn input(&self) -> *const u8 {
        self.input.load(Ordering::Relaxed)
    }

    pub(crate) fn output(&self) -> *mut u8 {
        self.output.load(Ordering::Relaxed)
    }
}

/// How far the rank is with what it does in the others' memory. A line of its own: it is written in every large call.
///
/// Counts of calls and windows begin at [`Round::base`] and only grow, so that what is left from an earlier round, or from a
/// group that had this place before, is never taken for news.
#[repr(C, align(128))]
#[derive(Default)]
pub(crate) struct Progress {
    /// The last call in which this rank touches no memory of others any more.
    pub(crate) done: AtomicU64,
    /// Windows of its data that this rank has put up for the others.
    pub(crate) staged: AtomicU64,
    /// Windows of which this rank has put up its block of the result.
    pub(crate) folded: AtomicU64,
    /// Windows in which this rank reads nothing of others any more.
    pub(crate) read: AtomicU64,
    /// The round that this rank is in.
    pub(crate) round: AtomicU64,
    /// The round, plus 1, in which this rank has left: it will arrive at no further call.
    pub(crate) left: AtomicU64,
    /// The round, plus 1, in which this rank took its seat, in a group that was split from another.
    pub(crate) taken: AtomicU64,
    /// 1 while this rank is in a chunk of others' memory.
    pub(crate) inside: AtomicU32,
    /// 1 while this rank rests: it makes no call before its company has ended theirs.
    pub(crate) resting: AtomicU32,
}

/// A stretch in a group's life that ends with an abort; the ranks may then agree to begin the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Round(pub(crate) u64);

impl Round {
    /// Calls that a round has room for: more than can be made in its time.
    const BITS: u32 = 44;

    /// What the last round would be; no group comes so far.
    pub(crate) const END: Round = Round((1 << (64 - Self::BITS)) - 2);

    /// This round, unless it is past what can be counted.
    pub(crate) fn below_end(self) -> Option<Round> {
        Some(self).filter(|&round| round < Self::END)
    }

    /// The number before that of the first call, or window, of the round.
    pub(crate) fn base(self) -> u64 {
        self.0 << Self::BITS
    }

    /// How many calls of its round come before and with this one.
    pub(crate) fn number_of(epoch: u64) -> u64 {
        epoch & ((1 << Self::BITS) - 1)
    }

    /// Whether a count has come to `wanted`, in the same round: what is counted in a later one says nothing of this.
    pub(crate) fn reached(count: u64, wanted: u64) -> bool {
        count >= wanted && count >> Self::BITS == wanted >> Self::BITS
    }

    /// How a line says that something happened in this round: 0 says that it never did.
    pub(crate) fn mark(self) -> u64 {
        self.0 + 1
    }
}

/// Where the rank sleeps. A line of its own: others look at it in every call, and it changes only in slow ones.
#[repr(C, align(128))]
#[derive(Default)]
pub(crate) struct Rest {
    /// The peer waited for, plus 1; 0 when awake.
    pub(crate) waits_for: AtomicU32,
    /// Where the rank's process has the group's name, for those who would read its memory; in the group split from none.
    pub(crate) mark: AtomicU64,
    pub(crate) bell: Bell,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_ranks_have_payloads_in_one_place() {
        let lines: Box<[Line]> = (0..2).map(|_| Line::default()).collect();
        let sizes = [0, 1, 15, 16, 17, 31, 79, 80, 81, 82, 128, 130, 4000, PAYLOAD_BYTES];
        for (epoch, own, other) in (0..4)
            .flat_map(|epoch| sizes.into_iter().flat_map(move |own| sizes.map(move |other| (epoch, own, other))))
            .filter(|(_, own, other)| own.min(other) > &0)
        {
            let place = |rank, bytes| {
                let start = payload(&lines, rank, epoch, bytes);
                start.addr()..start.addr() + bytes
            };
            let (first, second) = (place(0, own), place(1, other));
            assert!(first.end <= second.start || second.end <= first.start, "{own} and {other} bytes in call {epoch}");
            for place in [first, second] {
                let is_within = lines.iter().flat_map(|line| &line.cards).any(|card| {
                    let card = ptr::from_ref(card).addr()..ptr::from_ref(card).addr() + size_of::<Card>();
                    card.contains(&place.start) && card.contains(&(place.end - 1))
                });
                assert!(is_within, "{own} and {other} bytes in call {epoch}");
            }
        }
    }
}
