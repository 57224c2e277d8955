//! Where everything lies in a segment, from the shape alone: no word of the segment itself takes
//! part.
//!
//! ```text
//! header and heads | lines of all ranks | call logs || lines of splits | pairs | staging of each rank of each area | heaps
//!                               reserved at once ─┘└─ reserved by who needs it first
//! ```
//!
//! An *area* is what one group shares: a head and a line for each rank. The heads lie together at
//! the front, so that anyone can see which areas are in use; those of pairs, which are too many,
//! before the pair's lines. The lines of each area, the call logs together, and the staging of each
//! rank in each area begin at a page of their own, and each heap at a huge one.

use super::{
    call_log::CallLog,
    codes,
    error::SegmentError,
    mapping::{HUGE_PAGE, PAGE},
    records::{Head, PAYLOAD_BYTES, RankRecord},
};
use crate::sync::record;
use consonance_spec::call::mix;
use std::ops::Range;

/// How many groups can be split from the group of all ranks and live at a time.
pub(super) const SPLITS: usize = 16;

/// The group of all ranks, and those that are split from it. Each pair of ranks has an area in each
/// of them.
const GROUPS: usize = 1 + SPLITS;

/// The most ranks that a segment has lines for. So many, with 1 MiB of staging each, take 5 TiB of
/// addresses.
const RANKS_MAX: usize = 1024;

/// The staging of a rank is a multiple of this: chunks of 64 KiB, and up to four of them in turn.
const STAGING_UNIT: usize = 4 * (64 << 10);

/// How much less staging the ranks of a pair have: pairs are many.
const PAIR_SHARE: usize = 4;

/// Addresses that the heaps of all ranks have together, as far as they are not too few or too many
/// for one.
const HEAPS_BYTES: usize = 1 << 40;

/// The addresses of one rank's heap.
fn heap_bytes(ranks: usize) -> usize {
    (HEAPS_BYTES / ranks.next_power_of_two()).clamp(4 << 30, 64 << 30)
}

/// Counts changes in how a segment is used that its layout does not show.
pub(super) const VERSION: u64 = 7;

/// How large a segment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    ranks: usize,
    staging_bytes: usize,
}

/// What one group shares.
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
    /// What a header says.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) struct Header {
        pub(super) magic: u64,
        pub(super) version: u64,
        pub(super) layout: u64,
        pub(super) id: [u8; 16],
        pub(super) ranks: u64,
        pub(super) staging_bytes: u64,
        pub(super) size: u64,
    }
}

/// The bytes of a header, from the segment's first on.
pub(super) const HEADER_BYTES: usize = size_of::<Header>();

/// The places in a segment of one shape. All sums stay below `size`, which was computed with
/// checks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    ranks: usize,
    staging_bytes: usize,
    call_logs: usize,
    splits: usize,
    pairs: usize,
    staging: usize,
    pairs_staging: usize,
    heaps: usize,
    pub(super) size: usize,
}

impl Shape {
    /// The staging that a rank has in each group if nobody asks for another: 1 MiB.
    pub const STAGING_BYTES: usize = 1 << 20;

    /// A segment for `ranks` ranks, each with `staging_bytes` bytes of staging in each group, and a
    /// quarter of it in each pair.
    ///
    /// # Errors
    /// If there are not 1 to 1024 ranks, the staging is no multiple of 256 KiB above 0, or all of
    /// it has no addresses.
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
            return Err(wrong("bytes of staging", "a multiple of 262144, above 0", staging_bytes));
        }
        match Layout::checked(shape) {
            Some(_) => Ok(shape),
            None => {
                Err(wrong("bytes of staging", "fewer: the segment has no room in the address space", staging_bytes))
            }
        }
    }

    /// How many ranks there are, in all processes.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// The staging of one rank in one group, in bytes; in a pair it is a quarter of this.
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
        let splits = call_logs + (ranks * size_of::<CallLog>()).next_multiple_of(PAGE);
        let pairs = splits + SPLITS * lines_bytes(ranks);
        let staging = pairs + pairs_count * PAIR_BYTES;
        let pairs_staging = (GROUPS * ranks).checked_mul(staging_bytes)?.checked_add(staging)?;
        let end = (2 * pairs_count).checked_mul(staging_bytes / PAIR_SHARE)?.checked_add(pairs_staging)?;
        let heaps = end.checked_next_multiple_of(HUGE_PAGE)?;
        let size = heaps.checked_add(ranks * heap_bytes(ranks))?;
        isize::try_from(size).ok()?;
        Some(Layout { ranks, staging_bytes, call_logs, splits, pairs, staging, pairs_staging, heaps, size })
    }

    /// What is reserved when the segment is made: the header and the heads, the lines of all ranks,
    /// and the call logs.
    pub(super) fn reserved(&self) -> Range<usize> {
        0..self.splits
    }

    /// The heaps of all ranks.
    pub(super) fn heaps(&self) -> Range<usize> {
        self.heaps..self.size
    }

    /// The heap of a rank, as bytes of all heaps.
    ///
    /// # Panics
    /// If there is no such rank.
    pub(super) fn heap(&self, rank: usize) -> Range<usize> {
        assert!(rank < self.ranks, "rank {rank} of {}", self.ranks);
        let bytes = heap_bytes(self.ranks);
        rank * bytes..(rank + 1) * bytes
    }

    /// The pages of the call logs.
    pub(super) fn call_logs(&self) -> Range<usize> {
        self.call_logs..self.splits
    }

    /// Where the ring of a rank begins.
    ///
    /// # Panics
    /// If there is no such rank.
    pub(super) fn call_log(&self, rank: usize) -> usize {
        assert!(rank < self.ranks, "rank {rank} of {}", self.ranks);
        self.call_logs + rank * size_of::<CallLog>()
    }

    /// Where the head of an area begins.
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

    /// Where the lines of an area begin.
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

    /// The pages in which the lines of an area are, and its head if it is a pair's.
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

    /// The bytes of staging that each rank of an area has.
    pub(super) fn staging_bytes(&self, area: Area) -> usize {
        match area {
            Area::Root | Area::Split(_) => self.staging_bytes,
            Area::Pair { .. } => self.staging_bytes / PAIR_SHARE,
        }
    }

    /// The staging of a rank, in the numbering of the area's lines. Those of one area follow each
    /// other.
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
        let bytes = self.staging_bytes(area);
        let start = start + (row + rank) * bytes;
        start..start + bytes
    }

    /// The index of a pair among those of all groups.
    fn pair(&self, group: usize, lower: usize, higher: usize) -> usize {
        assert!(group < GROUPS, "group {group} of {GROUPS}");
        assert!(lower < higher && higher < self.ranks, "ranks {lower} and {higher} of {}", self.ranks);
        group * pairs_of(self.ranks) + pairs_of(higher) + lower
    }
}

/// All areas of a segment for so many ranks, and how many ranks each has.
#[cfg(any(test, debug_assertions))]
pub(super) fn areas(ranks: usize) -> Vec<(Area, usize)> {
    let splits = (0..SPLITS).map(|index| (Area::Split(index), ranks));
    let pairs_of = move |group| {
        (0..ranks).flat_map(move |higher| (0..higher).map(move |lower| (Area::Pair { group, lower, higher }, 2)))
    };
    let pairs = (0..GROUPS).flat_map(pairs_of);
    [(Area::Root, ranks)].into_iter().chain(splits).chain(pairs).collect()
}

fn split(index: usize) -> usize {
    assert!(index < SPLITS, "split {index} of {SPLITS}");
    index
}

/// How many pairs so many ranks make; they have the first indices, however many ranks there are
/// more.
const fn pairs_of(ranks: usize) -> usize {
    ranks * ranks.saturating_sub(1) / 2
}

/// Where the heads of all groups begin, behind the header.
const HEADS: usize = HEADER_BYTES.next_multiple_of(align_of::<Head>());

/// Where the lines of all ranks begin.
const LINES: usize = (HEADS + GROUPS * size_of::<Head>()).next_multiple_of(PAGE);

const fn lines_bytes(ranks: usize) -> usize {
    (ranks * size_of::<RankRecord>()).next_multiple_of(PAGE)
}

const PAIR_BYTES: usize = (size_of::<Head>() + 2 * size_of::<RankRecord>()).next_multiple_of(PAGE);

/// A digest of all that must be the same in the programs that share a segment.
pub(super) const HASH: u64 = hash(codes::digest(&codes::CODES));

/// The digest for a build whose codes have the digest `codes`.
const fn hash(codes: u64) -> u64 {
    let words = [
        VERSION,
        codes,
        size_of::<usize>() as u64,
        PAGE as u64,
        HEADS as u64,
        LINES as u64,
        SPLITS as u64,
        HEAPS_BYTES as u64,
        PAIR_SHARE as u64,
        PAYLOAD_BYTES as u64,
        record::digest::<Header>(),
        record::digest::<Head>(),
        record::digest::<RankRecord>(),
        record::digest::<CallLog>(),
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
const _: () = assert!(PAGE.is_multiple_of(align_of::<CallLog>()) && STAGING_UNIT.is_multiple_of(PAIR_SHARE * PAGE));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_code_changes_the_hash() {
        for index in 0..codes::CODES.len() {
            let mut renumbered = codes::CODES;
            renumbered[index].0 += 1;
            let mut renamed = codes::CODES;
            renamed[index].1 = "another";
            for codes in [renumbered, renamed] {
                assert_ne!(hash(codes::digest(&codes)), HASH, "{:?}", codes[index]);
            }
        }
        let fewer = &codes::CODES[..codes::CODES.len() - 1];
        assert_ne!(hash(codes::digest(fewer)), HASH);
    }

    #[test]
    fn every_part_has_its_place_and_no_page_is_left_but_before_the_heaps() {
        for ranks in [1, 2, 3, 5, 8, 20] {
            let layout = Layout::new(Shape::new(ranks, STAGING_UNIT).unwrap());
            let areas = areas(ranks);
            let mut pages = vec![0..LINES, layout.call_logs()];
            pages.extend(areas.iter().map(|&(area, _)| layout.pages(area)));
            pages
                .extend(areas.iter().flat_map(|&(area, count)| (0..count).map(move |rank| layout.staging(area, rank))));
            pages.push(layout.heaps());
            pages.sort_by_key(|part| part.start);
            for pair in pages.windows(2) {
                let end = if pair[1] == layout.heaps() { pair[0].end.next_multiple_of(HUGE_PAGE) } else { pair[0].end };
                assert_eq!(end, pair[1].start, "{ranks} ranks");
            }
            assert!((0..ranks).all(|rank| layout.heap(rank).start.is_multiple_of(HUGE_PAGE)));
            assert!(pages.iter().all(|part| part.start % PAGE == 0));
            assert_eq!((pages[0].start, pages.last().unwrap().end), (0, layout.size));
        }
    }

    #[test]
    fn no_two_things_overlap() {
        let layout = Layout::new(Shape::new(5, STAGING_UNIT).unwrap());
        let part = |start: usize, bytes: usize| start..start + bytes;
        let mut parts = vec![part(0, HEADER_BYTES)];
        for (area, count) in areas(5) {
            parts.push(part(layout.head(area), size_of::<Head>()));
            parts.push(part(layout.records(area), count * size_of::<RankRecord>()));
            parts.extend((0..count).map(|rank| layout.staging(area, rank)));
            assert!(layout.records(area) + count * size_of::<RankRecord>() <= layout.pages(area).end);
        }
        parts.extend((0..5).map(|rank| part(layout.call_log(rank), size_of::<CallLog>())));
        parts.sort_by_key(|part| part.start);
        for pair in parts.windows(2) {
            assert!(pair[0].end <= pair[1].start, "{pair:?}");
        }
        assert!(parts.last().unwrap().end <= layout.size);
        // What is read before anybody has reserved anything more.
        for area in [Area::Root, Area::Split(0), Area::Split(SPLITS - 1)] {
            assert!(layout.head(area) + size_of::<Head>() <= layout.reserved().end);
        }
        assert!(layout.pages(Area::Root).end <= layout.reserved().end);
        assert!(layout.call_log(4) + size_of::<CallLog>() <= layout.reserved().end);
    }

    #[test]
    fn shapes_without_a_place_are_refused() {
        assert!(Shape::new(1024, Shape::STAGING_BYTES).is_ok());
        let text = |ranks, bytes| Shape::new(ranks, bytes).unwrap_err().to_string();
        assert_eq!(text(0, 1 << 20), "a segment's number of ranks: expected 1 to 1024, found 0");
        assert_eq!(text(1025, 1 << 20), "a segment's number of ranks: expected 1 to 1024, found 1025");
        for bytes in [0, 1, STAGING_UNIT - 1, STAGING_UNIT + PAGE] {
            let expected =
                format!("a segment's bytes of staging: expected a multiple of 262144, above 0, found {bytes}");
            assert_eq!(text(2, bytes), expected);
        }
        let most = usize::MAX / STAGING_UNIT * STAGING_UNIT;
        for bytes in [most, most / 64 / STAGING_UNIT * STAGING_UNIT] {
            assert!(text(2, bytes).contains("no room in the address space"));
        }
    }

    #[test]
    fn areas_and_ranks_that_are_not_there_have_no_place() {
        let layout = Layout::new(Shape::new(3, STAGING_UNIT).unwrap());
        let no_place = |find: &dyn Fn()| assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(find)).is_err());
        let pair = |group, lower, higher| Area::Pair { group, lower, higher };
        let pairs = [pair(GROUPS, 0, 1), pair(0, 1, 1), pair(0, 2, 1), pair(0, 0, 3), pair(0, 3, 4)];
        for area in [&[Area::Split(SPLITS)], &pairs[..]].concat() {
            no_place(&|| _ = layout.head(area));
            no_place(&|| _ = layout.records(area));
            no_place(&|| _ = layout.pages(area));
            no_place(&|| _ = layout.staging(area, 0));
        }
        no_place(&|| _ = layout.staging(Area::Root, 3));
        no_place(&|| _ = layout.staging(pair(0, 0, 1), 2));
        no_place(&|| _ = layout.call_log(3));
    }
}
