//! The layout of a segment. It is computed from the shape alone: no word of the segment itself
//! takes part.
//!
//! ```text
//! reserved at creation:  header and heads | records of all ranks | call logs | lives |
//! reserved at first use: records of splits | pairs | staging of each rank of each area |
//!                        ends of rings | cells of rings | heaps
//! ```
//!
//! An *area* is the part of a segment that one group shares: a head, and a record for each rank.
//! The heads lie together at the front, so that any process can see which areas are in use. Pairs
//! are too many for that: the head of a pair lies before the pair's records. Each of these begins
//! at a page of its own: the records of an area (with the head, for a pair), all call logs
//! together, the words of all lives together, the staging of each rank in each area, the ends of
//! the rings that one rank of a group reads, and the cells of each ring. Each heap begins at a huge
//! page.

use super::{
    call_log::{CallLog, Outcome},
    codes::{self, Access, Code, Reason},
    error::SegmentError,
    life::Life,
    mapping::{HUGE_PAGE, PAGE},
    records::{Head, PAYLOAD_BYTES, RankRecord},
    ring::{CELLS, Cell, RingEnds},
};
use crate::digest::mix;
use crate::{sync::record, tuning::Tuning};
use std::ops::Range;

/// Limit on the groups that are split from the group of all ranks and live at a time.
pub(super) const SPLITS: usize = 16;

/// The number of groups in which each pair of ranks has an area: the group of all ranks, and the
/// groups that are split from it.
const GROUPS: usize = 1 + SPLITS;

/// Limit on the ranks of a segment. This many ranks, with 1 MiB of staging each, take about 8.6 TiB
/// of addresses.
const RANKS_MAX: usize = 1024;

/// The staging of a rank is a multiple of these bytes: each of its four slots has whole pairs of
/// cache lines, in a pair of ranks, too.
const STAGING_UNIT: usize = PAIR_SHARE * 4 * 128;

/// Limit on the ranks of a segment in which the staging of a rank in a pair is as large as in a
/// group. The pairs of 8 ranks take 1 GiB of addresses, and their number grows as the square of the
/// ranks. Memory is only reserved for pairs that are used.
const FEW_RANKS: usize = 8;

/// The ratio of a rank's staging in a group to its staging in a pair of more ranks.
const PAIR_SHARE: usize = 4;

/// Returns the bytes of a rank's staging in a pair of `ranks` ranks.
fn pair_bytes(ranks: usize, staging_bytes: usize) -> usize {
    if ranks <= FEW_RANKS { staging_bytes } else { staging_bytes / PAIR_SHARE }
}

/// Bytes of addresses of the heaps of all ranks together, unless the heap of one rank would be
/// outside the bounds in [`heap_bytes`].
const HEAPS_BYTES: usize = 1 << 40;

/// Returns the bytes of addresses of one rank's heap.
fn heap_bytes(ranks: usize) -> usize {
    (HEAPS_BYTES / ranks.next_power_of_two()).clamp(4 << 30, 64 << 30)
}

/// Counts the changes in how a segment is used that its layout does not show.
pub(super) const VERSION: u64 = 12;

/// The size of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    ranks: usize,
    staging_bytes: usize,
}

/// The part of a segment that one group shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Area {
    /// The group of all ranks.
    Root,
    /// One of [`SPLITS`] groups of any ranks.
    Split(usize),
    /// Two ranks of one of these groups: 0 is the group of all ranks, `i + 1` the `i`-th split.
    Pair { group: usize, lower: usize, higher: usize },
}

record! {
    /// The contents of a segment's header.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) struct Header {
        pub(super) magic: u64,
        pub(super) version: u64,
        pub(super) layout: u64,
        pub(super) id: [u8; 16],
        pub(super) ranks: u64,
        pub(super) staging_bytes: u64,
        pub(super) size: u64,
        /// The knobs of the process that made the segment, in the order of their table.
        pub(super) tuning: [u64; Tuning::WORDS],
    }
}

/// The number of bytes of a header, which begins at the segment's first byte.
pub(super) const HEADER_BYTES: usize = size_of::<Header>();

/// The offsets of the parts of a segment of one shape. All sums stay at or below `size`, which was
/// computed with overflow checks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    ranks: usize,
    staging_bytes: usize,
    call_logs: usize,
    lives: usize,
    splits: usize,
    pairs: usize,
    staging: usize,
    pairs_staging: usize,
    rings_ends: usize,
    rings: usize,
    heaps: usize,
    pub(super) size: usize,
}

impl Shape {
    /// The default bytes of a rank's staging in each group: 1 MiB.
    pub const STAGING_BYTES: usize = 1 << 20;

    /// Returns the shape of a segment for `ranks` ranks. Each rank has `staging_bytes` bytes of
    /// staging in each group, and a quarter of that in each pair.
    ///
    /// # Errors
    /// If `ranks` is not 1 to 1024, if `staging_bytes` is not a multiple of 2 KiB above 0, or if
    /// the segment does not fit in the address space.
    pub fn new(ranks: usize, staging_bytes: usize) -> Result<Shape, SegmentError> {
        let shape = Shape { ranks, staging_bytes };
        let wrong = |what, expected: &str, found: usize| SegmentError::Shape {
            what,
            expected: expected.to_owned(),
            found: found.to_string(),
        };
        if !(1..=RANKS_MAX).contains(&ranks) {
            return Err(wrong("number of ranks", "1 to 1024", ranks));
        }
        if staging_bytes == 0 || !staging_bytes.is_multiple_of(STAGING_UNIT) {
            return Err(wrong("bytes of staging", "a multiple of 2048, above 0", staging_bytes));
        }
        match Layout::checked(shape) {
            Some(_) => Ok(shape),
            None => {
                Err(wrong("bytes of staging", "fewer: the segment has no room in the address space", staging_bytes))
            }
        }
    }

    /// Returns the number of ranks, in all processes.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// Returns the bytes of one rank's staging in one group. In a pair they are a quarter of this.
    pub fn staging_bytes(&self) -> usize {
        self.staging_bytes
    }
}

impl Layout {
    pub(super) fn new(shape: Shape) -> Layout {
        Layout::checked(shape).expect("a shape that was checked")
    }

    fn checked(Shape { ranks, staging_bytes }: Shape) -> Option<Layout> {
        let pairs_count = GROUPS * pairs_of(ranks);
        let call_logs = LINES + lines_bytes(ranks);
        let lives = call_logs + (ranks * size_of::<CallLog>()).next_multiple_of(PAGE);
        let splits = lives + (ranks * size_of::<Life>()).next_multiple_of(PAGE);
        let pairs = splits + SPLITS * lines_bytes(ranks);
        let staging = pairs + pairs_count * PAIR_BYTES;
        let apart = staging_bytes.checked_next_multiple_of(PAGE)?;
        let pairs_staging = (GROUPS * ranks).checked_mul(apart)?.checked_add(staging)?;
        let apart = pair_bytes(ranks, staging_bytes).checked_next_multiple_of(PAGE)?;
        let end = (2 * pairs_count).checked_mul(apart)?.checked_add(pairs_staging)?;
        let rings_ends = end;
        let rings = (GROUPS * ranks * ends_bytes(ranks)).checked_add(rings_ends)?;
        let end = (GROUPS * ranks * ranks * RING_BYTES).checked_add(rings)?;
        let heaps = end.checked_next_multiple_of(HUGE_PAGE)?;
        let size = heaps.checked_add(ranks * heap_bytes(ranks))?;
        isize::try_from(size).ok()?;
        Some(Layout {
            ranks,
            staging_bytes,
            call_logs,
            lives,
            splits,
            pairs,
            staging,
            pairs_staging,
            rings_ends,
            rings,
            heaps,
            size,
        })
    }

    /// Returns the bytes that are reserved when the segment is made: the header and the heads, the
    /// records of all ranks, the call logs, and the words of lives.
    pub(super) fn reserved(&self) -> Range<usize> {
        0..self.splits
    }

    /// Returns the heaps of all ranks.
    pub(super) fn heaps(&self) -> Range<usize> {
        self.heaps..self.size
    }

    /// Returns the heap of a rank, relative to the start of all heaps.
    ///
    /// # Panics
    /// If there is no such rank.
    pub(super) fn heap(&self, rank: usize) -> Range<usize> {
        assert!(rank < self.ranks, "rank {rank} of {}", self.ranks);
        let bytes = heap_bytes(self.ranks);
        rank * bytes..(rank + 1) * bytes
    }

    /// Returns the pages of the call logs.
    pub(super) fn call_logs(&self) -> Range<usize> {
        self.call_logs..self.lives
    }

    /// Returns the offset of the word of the process whose first rank this is.
    ///
    /// # Panics
    /// If there is no such rank.
    pub(super) fn life(&self, rank: usize) -> usize {
        assert!(rank < self.ranks, "rank {rank} of {}", self.ranks);
        self.lives + rank * size_of::<Life>()
    }

    /// Returns the offset of a rank's call log.
    ///
    /// # Panics
    /// If there is no such rank.
    pub(super) fn call_log(&self, rank: usize) -> usize {
        assert!(rank < self.ranks, "rank {rank} of {}", self.ranks);
        self.call_logs + rank * size_of::<CallLog>()
    }

    /// Returns the offset of the head of an area.
    ///
    /// # Panics
    /// If there is no such area.
    pub(super) fn head(&self, area: Area) -> usize {
        match area {
            Area::Root => HEADS,
            Area::Split(index) => HEADS + (1 + split(index)) * size_of::<Head>(),
            Area::Pair { group, lower, higher } => self.pairs + self.pair(group, lower, higher) * PAIR_BYTES,
        }
    }

    /// Returns the offset of the records of an area.
    ///
    /// # Panics
    /// If there is no such area.
    pub(super) fn records(&self, area: Area) -> usize {
        match area {
            Area::Root => LINES,
            Area::Split(index) => self.splits + split(index) * lines_bytes(self.ranks),
            Area::Pair { .. } => self.head(area) + size_of::<Head>(),
        }
    }

    /// Returns the pages of the records of an area, and of its head if it is a pair.
    ///
    /// # Panics
    /// If there is no such area.
    pub(super) fn pages(&self, area: Area) -> Range<usize> {
        let (start, bytes) = match area {
            Area::Root | Area::Split(_) => (self.records(area), lines_bytes(self.ranks)),
            Area::Pair { .. } => (self.head(area), PAIR_BYTES),
        };
        start..start + bytes
    }

    /// Returns the bytes of staging of each rank of an area.
    pub(super) fn staging_bytes(&self, area: Area) -> usize {
        match area {
            Area::Root | Area::Split(_) => self.staging_bytes,
            Area::Pair { .. } => pair_bytes(self.ranks, self.staging_bytes),
        }
    }

    /// Returns the bytes from the start of a rank's staging in an area to that of the next rank.
    pub(super) fn staging_apart(&self, area: Area) -> usize {
        self.staging_bytes(area).next_multiple_of(PAGE)
    }

    /// Returns the staging of a rank, in the numbering of the area's records. It begins at a page.
    ///
    /// # Panics
    /// If there is no such area, or it has no such rank.
    pub(super) fn staging(&self, area: Area, rank: usize) -> Range<usize> {
        let (start, row, ranks) = match area {
            Area::Root => (self.staging, 0, self.ranks),
            Area::Split(index) => (self.staging, (1 + split(index)) * self.ranks, self.ranks),
            Area::Pair { group, lower, higher } => (self.pairs_staging, 2 * self.pair(group, lower, higher), 2),
        };
        assert!(rank < ranks, "rank {rank} of {ranks}");
        let start = start + (row + rank) * self.staging_apart(area);
        start..start + self.staging_bytes(area)
    }

    /// Returns the ends of the rings that `to` reads, in the order of their writers.
    ///
    /// # Panics
    /// If the area is a pair, or there is no such area or rank.
    pub(super) fn ring_ends(&self, area: Area, to: usize) -> Range<usize> {
        let bytes = ends_bytes(self.ranks);
        let start = self.rings_ends + self.reader(area, to) * bytes;
        start..start + bytes
    }

    /// Returns the cells of the ring in which `from` writes and `to` reads.
    ///
    /// # Panics
    /// If the area is a pair, or there is no such area or rank.
    pub(super) fn ring(&self, area: Area, from: usize, to: usize) -> Range<usize> {
        assert!(from < self.ranks, "rank {from} of {}", self.ranks);
        let start = self.rings + (self.reader(area, to) * self.ranks + from) * RING_BYTES;
        start..start + RING_BYTES
    }

    /// Returns the index of a rank of a group among those of all groups.
    fn reader(&self, area: Area, rank: usize) -> usize {
        assert!(rank < self.ranks, "rank {rank} of {}", self.ranks);
        let group = match area {
            Area::Root => 0,
            Area::Split(index) => 1 + split(index),
            Area::Pair { .. } => unreachable!("a pair has no rings"),
        };
        group * self.ranks + rank
    }

    /// Returns the index of a pair among the pairs of all groups.
    fn pair(&self, group: usize, lower: usize, higher: usize) -> usize {
        assert!(group < GROUPS, "group {group} of {GROUPS}");
        assert!(lower < higher && higher < self.ranks, "ranks {lower} and {higher} of {}", self.ranks);
        group * pairs_of(self.ranks) + pairs_of(higher) + lower
    }
}

/// Returns all areas of a segment for `ranks` ranks, and the number of ranks of each area.
#[cfg(any(test, debug_assertions))]
pub(super) fn areas(ranks: usize) -> Vec<(Area, usize)> {
    let splits = (0..SPLITS).map(|index| (Area::Split(index), ranks));
    let pairs_of = move |group| {
        (0..ranks).flat_map(move |higher| (0..higher).map(move |lower| (Area::Pair { group, lower, higher }, 2)))
    };
    let pairs = (0..GROUPS).flat_map(pairs_of);
    [(Area::Root, ranks)].into_iter().chain(splits).chain(pairs).collect()
}

/// Returns the areas that have rings.
#[cfg(any(test, debug_assertions))]
pub(super) fn groups() -> impl Iterator<Item = Area> {
    [Area::Root].into_iter().chain((0..SPLITS).map(Area::Split))
}

fn split(index: usize) -> usize {
    assert!(index < SPLITS, "split {index} of {SPLITS}");
    index
}

/// Returns the number of pairs of `ranks` ranks. These pairs have the first indices, however many
/// more ranks there are.
const fn pairs_of(ranks: usize) -> usize {
    ranks * ranks.saturating_sub(1) / 2
}

/// The offset of the heads of all groups, behind the header.
const HEADS: usize = HEADER_BYTES.next_multiple_of(align_of::<Head>());

/// The offset of the records of all ranks.
const LINES: usize = (HEADS + GROUPS * size_of::<Head>()).next_multiple_of(PAGE);

const fn lines_bytes(ranks: usize) -> usize {
    (ranks * size_of::<RankRecord>()).next_multiple_of(PAGE)
}

/// Returns the bytes of the ends of the rings that one rank reads.
const fn ends_bytes(ranks: usize) -> usize {
    (ranks * size_of::<RingEnds>()).next_multiple_of(PAGE)
}

const RING_BYTES: usize = CELLS * size_of::<Cell>();

const PAIR_BYTES: usize = (size_of::<Head>() + 2 * size_of::<RankRecord>()).next_multiple_of(PAGE);

/// The digest of everything that must be the same in programs that share a segment.
pub(super) const HASH: u64 = hash(&CODES);

/// Every number that travels in a word, with its name.
const CODES: [&[Code]; 4] = [&codes::CODES, Access::CODES, Reason::CODES, Outcome::CODES];

/// Returns the digest for a build with these codes.
const fn hash(tables: &[&[Code]; 4]) -> u64 {
    let words = [
        VERSION,
        codes::digest_of(tables[0]),
        codes::digest_of(tables[1]),
        codes::digest_of(tables[2]),
        codes::digest_of(tables[3]),
        size_of::<usize>() as u64,
        PAGE as u64,
        HEADS as u64,
        LINES as u64,
        SPLITS as u64,
        HEAPS_BYTES as u64,
        FEW_RANKS as u64,
        PAIR_SHARE as u64,
        PAYLOAD_BYTES as u64,
        Tuning::DIGEST,
        record::digest::<Header>(),
        record::digest::<Head>(),
        record::digest::<RankRecord>(),
        record::digest::<CallLog>(),
        record::digest::<Life>(),
        CELLS as u64,
        record::digest::<Cell>(),
        record::digest::<RingEnds>(),
    ];
    let mut hash = 0;
    let mut index = 0;
    while index < words.len() {
        hash = mix(hash, words[index]);
        index += 1;
    }
    let release = env!("CARGO_PKG_VERSION").as_bytes();
    let mut index = 0;
    while index < release.len() {
        hash = mix(hash, release[index] as u64);
        index += 1;
    }
    hash
}

const _: () = assert!(
    PAGE.is_multiple_of(align_of::<RankRecord>()) && size_of::<Head>().is_multiple_of(align_of::<RankRecord>())
);
const _: () = assert!(RING_BYTES.is_multiple_of(PAGE) && PAGE.is_multiple_of(align_of::<Cell>()));
const _: () = assert!(PAGE.is_multiple_of(size_of::<Life>()));
const _: () = assert!(PAGE.is_multiple_of(align_of::<CallLog>()));

#[cfg(test)]
mod tests;
