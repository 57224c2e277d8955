//! Counts how often this process reads each part of the memory that it shares with others: tests
//! use the counts to learn which reads a peer can influence by writing there. Only builds with
//! debug assertions count, and only after [`start`].
#![cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "only Linux has segments"))]

use super::plain::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::{ops::Range, sync::OnceLock};

/// Limit on the mappings that are watched at a time.
const MAPS: usize = 16;

static IS_ON: AtomicBool = AtomicBool::new(false);
static COUNTS: OnceLock<Counts> = OnceLock::new();
static MAPPED: [Map; MAPS] =
    [const { Map { start: AtomicUsize::new(0), bytes: AtomicUsize::new(0), offset: AtomicUsize::new(0) } }; MAPS];

struct Counts {
    /// The parts as byte ranges of a segment, in order.
    parts: Vec<Range<usize>>,
    reads: Vec<AtomicU32>,
}

/// A mapping of bytes of a segment. An entry of 0 bytes is free.
struct Map {
    start: AtomicUsize,
    bytes: AtomicUsize,
    /// Offset of the first mapped byte in the segment.
    offset: AtomicUsize,
}

/// Starts to count reads of these parts, in all segments that are mapped from now on. The parts are
/// byte ranges of a segment, in order.
///
/// # Panics
/// If this was called before.
pub fn start(parts: Vec<Range<usize>>) {
    let reads = parts.iter().map(|_| AtomicU32::new(0)).collect();
    assert!(COUNTS.set(Counts { parts, reads }).is_ok(), "reads are counted already");
    IS_ON.store(true, Ordering::Release);
}

/// Returns how often each part was read since the last call, and resets the counts.
pub fn reads() -> Vec<u32> {
    let counts = COUNTS.get().map_or(&[][..], |counts| &counts.reads);
    counts.iter().map(|count| count.swap(0, Ordering::Relaxed)).collect()
}

/// Counts a read of memory that may be in a segment.
#[inline]
pub(crate) fn read(start: *const u8, bytes: usize) {
    if is_on() {
        read_in_map(start.addr(), bytes);
    }
}

/// Counts a read of these bytes of a segment's file.
pub(crate) fn read_file(bytes: Range<usize>) {
    let Some(Counts { parts, reads }) = COUNTS.get().filter(|_| is_on()) else { return };
    let first = parts.partition_point(|part| part.end <= bytes.start);
    let read = parts[first..].iter().zip(&reads[first..]).take_while(|(part, _)| part.start < bytes.end);
    read.for_each(|(_, count)| _ = count.fetch_add(1, Ordering::Relaxed));
}

/// Notes that `bytes` bytes of a segment, from byte `offset` on, are mapped at `start`.
pub(crate) fn map(start: *const u8, bytes: usize, offset: usize) {
    if !is_on() {
        return;
    }
    let is_free = |map: &&Map| map.bytes.compare_exchange(0, bytes, Ordering::Relaxed, Ordering::Relaxed).is_ok();
    if let Some(map) = MAPPED.iter().find(is_free) {
        map.offset.store(offset, Ordering::Relaxed);
        map.start.store(start.addr(), Ordering::Release);
    }
}

/// Notes that nothing is mapped at `start` any more.
pub(crate) fn unmap(start: *const u8) {
    let is_this = |map: &&Map| map.start.load(Ordering::Relaxed) == start.addr();
    if let Some(map) = MAPPED.iter().find(is_this).filter(|_| is_on()) {
        map.start.store(0, Ordering::Relaxed);
        map.bytes.store(0, Ordering::Release);
    }
}

#[inline]
fn is_on() -> bool {
    cfg!(debug_assertions) && IS_ON.load(Ordering::Relaxed)
}

#[cold]
fn read_in_map(start: usize, bytes: usize) {
    for map in &MAPPED {
        let (first, length) = (map.start.load(Ordering::Acquire), map.bytes.load(Ordering::Relaxed));
        if first != 0 && start >= first && start - first < length {
            let at = start - first + map.offset.load(Ordering::Relaxed);
            return read_file(at..at + bytes);
        }
    }
}
