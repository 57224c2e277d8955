//! The parts of a segment by name, for tests in which a peer writes arbitrary values to each of
//! them.

use super::{
    call_log::CallLog,
    layout::{Area, Header, Layout, Shape, areas, groups},
    life::Life,
    records::{Head, RankRecord},
    ring::{Cell, RingEnds},
    segment::Segment,
};
use crate::sync::record::{Field, Record};
use std::ops::Range;

/// A field of a record in a segment, or bytes of data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The owner: the segment itself, the group of all ranks, a group that is split off, or a pair
    /// of ranks.
    pub area: &'static str,
    /// The index of the group that is split off, or of the group in which the two ranks are a pair.
    pub place: usize,
    /// The record and the field, or the use of the data.
    pub name: String,
    /// The byte range in the segment.
    pub bytes: Range<usize>,
}

impl Segment {
    /// Returns all parts of a segment of this shape, in the order of their addresses.
    pub fn parts(shape: Shape) -> Vec<Part> {
        let layout = Layout::new(shape);
        let mut parts = Vec::new();
        list::<Header>(&mut parts, ("segment", 0), "Header", 0);
        for (area, ranks) in areas(shape.ranks()) {
            let of = match area {
                Area::Root => ("root", 0),
                Area::Split(index) => ("split", index),
                Area::Pair { group, .. } => ("pair", group),
            };
            list::<Head>(&mut parts, of, "Head", layout.head(area));
            for rank in 0..ranks {
                list::<RankRecord>(&mut parts, of, "RankRecord", layout.records(area) + rank * size_of::<RankRecord>());
                parts.push(Part {
                    area: of.0,
                    place: of.1,
                    name: "staging".to_owned(),
                    bytes: layout.staging(area, rank),
                });
            }
        }
        for area in groups() {
            let of = if let Area::Split(index) = area { ("split", index) } else { ("root", 0) };
            for (from, to) in (0..shape.ranks()).flat_map(|from| (0..shape.ranks()).map(move |to| (from, to))) {
                let ends = layout.ring_ends(area, to).start + from * size_of::<RingEnds>();
                list::<RingEnds>(&mut parts, of, "RingEnds", ends);
                let cells = layout.ring(area, from, to).step_by(size_of::<Cell>());
                cells.for_each(|cell| list::<Cell>(&mut parts, of, "Cell", cell));
            }
        }
        for rank in 0..shape.ranks() {
            list::<CallLog>(&mut parts, ("segment", 0), "CallLog", layout.call_log(rank));
            list::<Life>(&mut parts, ("segment", 0), "Life", layout.life(rank));
            let (heaps, heap) = (layout.heaps().start, layout.heap(rank));
            let bytes = heaps + heap.start..heaps + heap.end;
            parts.push(Part { area: "segment", place: 0, name: "heap".to_owned(), bytes });
        }
        parts.sort_by_key(|part| part.bytes.start);
        parts
    }
}

fn list<R: Record>(parts: &mut Vec<Part>, of: (&'static str, usize), name: &str, start: usize) {
    list_fields(parts, of, name, start, R::FIELDS);
}

fn list_fields(parts: &mut Vec<Part>, of: (&'static str, usize), record: &str, start: usize, fields: &[Field]) {
    for field in fields {
        let name = format!("{record}.{}", field.name);
        for index in 0..field.count {
            let start = start + field.offset + index * field.bytes;
            match field.fields {
                [] if field.bytes == 0 => {}
                [] => {
                    parts.push(Part { area: of.0, place: of.1, name: name.clone(), bytes: start..start + field.bytes })
                }
                fields => list_fields(parts, of, &name, start, fields),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::records::DESCRIPTORS;

    #[test]
    fn parts_are_in_order_and_have_the_fields_of_every_record() {
        let parts = Segment::parts(Shape::new(3, Shape::STAGING_BYTES).unwrap());
        assert!(parts.windows(2).all(|pair| pair[0].bytes.end <= pair[1].bytes.start));
        let count = |area: &str, name: &str| parts.iter().filter(|part| part.area == area && part.name == name).count();
        assert_eq!(count("segment", "Header.size"), 1);
        assert_eq!(count("root", "RankRecord.descriptors.sequence"), 3 * DESCRIPTORS);
        assert_eq!(count("split", "Head.owner"), 16);
        assert_eq!(count("pair", "RankRecord.sleeper.wake.count"), 17 * 3 * 2);
        assert_eq!(count("segment", "CallLog.slots.entry_id"), 3 * 64);
        assert_eq!(count("segment", "CallLog.gpu.state"), 3);
        assert_eq!(count("segment", "Life.word"), 3);
        assert_eq!(count("root", "staging"), 3);
        assert_eq!(count("split", "RingEnds.reader.read"), 16 * 9);
        assert_eq!(count("root", "Cell.full"), 9 * 16);
    }
}
