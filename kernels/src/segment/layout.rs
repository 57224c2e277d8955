//! Where everything lies in a segment, from the shape alone: no word of the segment itself takes part.
//!
//! ```text
//! header | root area | rings || split areas | pair areas | staging of each rank of each area
//!                reserved at once ─┘└─ reserved by who needs it first
//! ```
//!
//! An *area* is what one group shares: a head and a line for each rank. Areas, the rings together, and the staging of each
//! rank in each area begin at a page of their own.

use super::{SegmentError, header};
use crate::{
    hub::Head,
    line::{Card, Line, PAYLOAD_BYTES, Progress, Rest},
    ring::Ring,
};
use consonance_spec::call::mix;
use std::{mem::offset_of, ops::Range};

/// What areas and staging are aligned to. Where the system's pages are larger, neighbours are reserved together.
pub(super) const PAGE: usize = 4096;

/// How many groups can be split from the group of all ranks and live at a time.
pub(super) const SPLITS: usize = 16;

/// The most ranks that a segment has lines for: all pairs of so many take terabytes of addresses.
const RANKS_MAX: usize = 1024;

/// The staging of a rank is a multiple of this: chunks of 64 KiB, and up to four of them in turn.
const STAGING_UNIT: usize = 4 * (64 << 10);

/// What part of a rank's staging it has in a group of two.
const PAIR_SHARE: usize = 4;

/// Counts changes in how a segment is used that its layout does not show.
pub(super) const VERSION: u64 = 1;

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
    /// The group of two ranks of another: of all ranks (0), or of those in a split area (its index and 1).
    Pair { group: usize, lower: usize, higher: usize },
}

/// The places in a segment of one shape. All sums stay below `size`, which was computed with checks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    ranks: usize,
    staging_bytes: usize,
    rings: usize,
    splits: usize,
    pairs: usize,
    staging: usize,
    pub(super) size: usize,
}

impl Shape {
    /// The staging that a rank has in each group if nobody asks for another: 1 MiB.
    pub const STAGING_BYTES: usize = 1 << 20;

    /// A segment for `ranks` ranks, each with `staging_bytes` bytes of staging in each group.
    ///
    /// # Errors
    /// If there are not 1 to 1024 ranks, the staging is no multiple of 256 KiB above 0, or all of it has no addresses.
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

    /// The staging of one rank in one group, in bytes.
    pub fn staging_bytes(&self) -> usize {
        self.staging_bytes
    }
}

impl Layout {
    pub(super) fn new(shape: Shape) -> Layout {
        Layout::checked(shape).expect("a shape that was checked")
    }

    fn checked(Shape { ranks, staging_bytes }: Shape) -> Option<Layout> {
        let pairs_count = ranks * (ranks - 1) / 2;
        let rings = header::PAGES * PAGE + area_bytes(ranks);
        let splits = rings + (ranks * size_of::<Ring>()).next_multiple_of(PAGE);
        let pairs = splits + SPLITS * area_bytes(ranks);
        let staging = pairs + (1 + SPLITS) * pairs_count * area_bytes(2);
        let groups = (1 + SPLITS) * ranks;
        let pair_groups = 2 * (1 + SPLITS) * pairs_count;
        let pair_staging = pair_groups.checked_mul(staging_bytes / PAIR_SHARE)?;
        let size = groups.checked_mul(staging_bytes)?.checked_add(pair_staging)?;
        let size = size.checked_add(staging).filter(|&size| isize::try_from(size).is_ok())?;
        Some(Layout { ranks, staging_bytes, rings, splits, pairs, staging, size })
    }

    /// What is reserved when the segment is made: the header, the root area and the rings.
    pub(super) fn reserved(&self) -> Range<usize> {
        0..self.splits
    }

    /// The pages of the rings.
    pub(super) fn rings(&self) -> Range<usize> {
        self.rings..self.splits
    }

    /// Where the ring of a rank begins.
    ///
    /// # Panics
    /// If there is no such rank.
    pub(super) fn ring(&self, rank: usize) -> usize {
        assert!(rank < self.ranks, "rank {rank} of {}", self.ranks);
        self.rings + rank * size_of::<Ring>()
    }

    /// The pages of an area; its head lies at the start, [`LINES`] bytes after it the lines.
    ///
    /// # Panics
    /// If there is no such area.
    pub(super) fn area(&self, area: Area) -> Range<usize> {
        let (start, ranks) = match area {
            Area::Root => (header::PAGES * PAGE, self.ranks),
            Area::Split(index) => (self.splits + split(index) * area_bytes(self.ranks), self.ranks),
            Area::Pair { .. } => (self.pairs + self.pair(area) * area_bytes(2), 2),
        };
        start..start + area_bytes(ranks)
    }

    /// The staging of a rank, in the numbering of the area's lines.
    ///
    /// # Panics
    /// If there is no such area, or it has no such rank.
    pub(super) fn staging(&self, area: Area, rank: usize) -> Range<usize> {
        let (before, ranks) = match area {
            Area::Root => (0, self.ranks),
            Area::Split(index) => ((1 + split(index)) * self.ranks * self.staging_bytes, self.ranks),
            Area::Pair { .. } => {
                let groups = (1 + SPLITS) * self.ranks * self.staging_bytes;
                (groups + 2 * self.pair(area) * self.staging_bytes(area), 2)
            }
        };
        assert!(rank < ranks, "rank {rank} of {ranks}");
        let bytes = self.staging_bytes(area);
        let start = self.staging + before + rank * bytes;
        start..start + bytes
    }

    /// Bytes of one rank's staging in this area.
    pub(super) fn staging_bytes(&self, area: Area) -> usize {
        match area {
            Area::Root | Area::Split(_) => self.staging_bytes,
            Area::Pair { .. } => self.staging_bytes / PAIR_SHARE,
        }
    }

    /// The index of a pair among all.
    fn pair(&self, area: Area) -> usize {
        let Area::Pair { group, lower, higher } = area else { unreachable!("the area of a pair") };
        assert!(lower < higher && higher < self.ranks, "ranks {lower} and {higher} of {}", self.ranks);
        assert!(group <= SPLITS, "pair of group {group} of {SPLITS}");
        let pairs = self.ranks * (self.ranks - 1) / 2;
        group * pairs + higher * (higher - 1) / 2 + lower
    }
}

fn split(index: usize) -> usize {
    assert!(index < SPLITS, "split {index} of {SPLITS}");
    index
}

/// From the start of an area to its lines.
pub(super) const LINES: usize = size_of::<Head>();

const fn area_bytes(ranks: usize) -> usize {
    (LINES + ranks * size_of::<Line>()).next_multiple_of(PAGE)
}

/// A digest of all that must be the same in the programs that share a segment.
pub(super) const HASH: u64 = {
    let words = [
        VERSION,
        size_of::<usize>() as u64,
        PAGE as u64,
        header::PAGES as u64,
        SPLITS as u64,
        PAYLOAD_BYTES as u64,
        size_of::<Head>() as u64,
        offset_of!(Head, abort) as u64,
        offset_of!(Head, owner) as u64,
        offset_of!(Head, round) as u64,
        size_of::<Line>() as u64,
        align_of::<Line>() as u64,
        offset_of!(Line, progress) as u64,
        offset_of!(Line, rest) as u64,
        size_of::<Card>() as u64,
        size_of::<Progress>() as u64,
        size_of::<Rest>() as u64,
        size_of::<Ring>() as u64,
        Ring::LAYOUT,
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
};

const _: () = assert!(LINES.is_multiple_of(align_of::<Line>()) && PAGE.is_multiple_of(align_of::<Line>()));
const _: () = assert!(PAGE.is_multiple_of(align_of::<Ring>()) && STAGING_UNIT.is_multiple_of(PAGE));

#[cfg(test)]
mod tests {
    use super::*;

    fn areas(ranks: usize) -> Vec<(Area, usize)> {
        let splits = (0..SPLITS).map(|index| (Area::Split(index), ranks));
        let pairs_of = move |group| {
            (0..ranks).flat_map(move |higher| (0..higher).map(move |lower| (Area::Pair { group, lower, higher }, 2)))
        };
        let pairs = (0..=SPLITS).flat_map(pairs_of);
        [(Area::Root, ranks)].into_iter().chain(splits).chain(pairs).collect()
    }

    #[test]
    fn every_part_has_its_place_and_none_is_left() {
        for ranks in [1, 2, 3, 5, 8, 70] {
            let layout = Layout::new(Shape::new(ranks, STAGING_UNIT).unwrap());
            let areas = areas(ranks);
            let mut parts = vec![0..header::PAGES * PAGE, layout.rings()];
            parts.extend(areas.iter().map(|&(area, _)| layout.area(area)));
            parts
                .extend(areas.iter().flat_map(|&(area, count)| (0..count).map(move |rank| layout.staging(area, rank))));
            parts.sort_by_key(|part| part.start);
            for pair in parts.windows(2) {
                assert_eq!(pair[0].end, pair[1].start, "{ranks} ranks");
            }
            assert!(parts.iter().all(|part| part.start % PAGE == 0));
            assert_eq!((parts[0].start, parts.last().unwrap().end), (0, layout.size));
            assert!(layout.area(Area::Root).len() >= LINES + ranks * size_of::<Line>());
            assert!(layout.ring(ranks - 1) + size_of::<Ring>() <= layout.rings().end);
        }
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
        for area in [(0, 1, 1), (0, 2, 1), (0, 0, 3), (0, 3, 4), (SPLITS + 1, 0, 1)] {
            let area = Area::Pair { group: area.0, lower: area.1, higher: area.2 };
            no_place(&|| _ = layout.area(area));
            no_place(&|| _ = layout.staging(area, 0));
        }
        no_place(&|| _ = layout.area(Area::Split(SPLITS)));
        no_place(&|| _ = layout.staging(Area::Root, 3));
        no_place(&|| _ = layout.staging(Area::Pair { group: 0, lower: 0, higher: 1 }, 2));
        no_place(&|| _ = layout.ring(3));
    }
}
