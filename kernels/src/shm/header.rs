//! The first bytes of a segment: its format, group and shape. The creator writes them once, before
//! any other process has the segment.

use super::{
    error::SegmentError,
    group_id::GroupId,
    layout::{self, HEADER_BYTES, Header, Layout, Shape},
};
use crate::tuning::Tuning;
use std::{mem::offset_of, ops::Range};

/// The bytes of the group's name.
const GROUP: Range<usize> = offset_of!(Header, id)..offset_of!(Header, id) + size_of::<GroupId>();

/// The bytes of the knobs.
const TUNING: Range<usize> = offset_of!(Header, tuning)..offset_of!(Header, tuning) + 8 * Tuning::WORDS;

const MAGIC: u64 = u64::from_ne_bytes(*b"CONSONAN");

impl Header {
    /// Returns the header of the segment of this group and shape, with these knobs.
    pub(super) fn new(id: GroupId, shape: Shape, tuning: &Tuning) -> Header {
        Header {
            magic: MAGIC,
            version: layout::VERSION,
            layout: layout::HASH,
            id: id.to_bytes(),
            ranks: shape.ranks() as u64,
            staging_bytes: shape.staging_bytes() as u64,
            size: Layout::new(shape).size as u64,
            tuning: tuning.words(),
        }
    }

    pub(super) fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let Header { magic, version, layout, id, ranks, staging_bytes, size, tuning } = self;
        let mut bytes = [0; HEADER_BYTES];
        bytes[GROUP].copy_from_slice(&id);
        for (place, word) in bytes[TUNING].chunks_exact_mut(8).zip(tuning) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        for (at, word) in [
            (offset_of!(Header, magic), magic),
            (offset_of!(Header, version), version),
            (offset_of!(Header, layout), layout),
            (offset_of!(Header, ranks), ranks),
            (offset_of!(Header, staging_bytes), staging_bytes),
            (offset_of!(Header, size), size),
        ] {
            bytes[at..at + 8].copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    fn from_bytes(bytes: &[u8; HEADER_BYTES]) -> Header {
        let word = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        Header {
            magic: word(offset_of!(Header, magic)),
            version: word(offset_of!(Header, version)),
            layout: word(offset_of!(Header, layout)),
            id: bytes[GROUP].try_into().expect("sixteen bytes"),
            ranks: word(offset_of!(Header, ranks)),
            staging_bytes: word(offset_of!(Header, staging_bytes)),
            size: word(offset_of!(Header, size)),
            tuning: std::array::from_fn(|index| word(TUNING.start + 8 * index)),
        }
    }

    /// Checks that these bytes are this header.
    ///
    /// # Errors
    /// The first field that differs.
    pub(super) fn check(&self, bytes: &[u8; HEADER_BYTES]) -> Result<(), SegmentError> {
        let found = Header::from_bytes(bytes);
        found.check_build()?;
        same("group", self.id, found.id, |id| GroupId::from_bytes(id).to_string())?;
        same("number of ranks", self.ranks, found.ranks, |ranks| ranks.to_string())?;
        same("bytes of staging", self.staging_bytes, found.staging_bytes, |bytes| bytes.to_string())?;
        same("size", self.size, found.size, |bytes| bytes.to_string())?;
        self.tuning
            .iter()
            .zip(found.tuning)
            .try_for_each(|(&own, found)| same("knobs", own, found, |word| word.to_string()))
    }

    /// Returns the knobs in a header.
    ///
    /// # Errors
    /// If a knob does not allow its value.
    pub(super) fn tuning(bytes: &[u8; HEADER_BYTES]) -> Result<Tuning, SegmentError> {
        let found = Header::from_bytes(bytes);
        found.check_build()?;
        Tuning::of_words(&found.tuning).map_err(|(knob, word)| SegmentError::Foreign {
            what: knob.name,
            expected: knob.expected(),
            found: word.to_string(),
        })
    }

    /// Returns the group and the shape in the header of a segment of which nothing else is known.
    ///
    /// # Errors
    /// If the bytes are not a header, are a header of another build, or have an invalid shape.
    pub(super) fn read(bytes: &[u8; HEADER_BYTES]) -> Result<(GroupId, Shape), SegmentError> {
        let found = Header::from_bytes(bytes);
        found.check_build()?;
        // A number that does not fit in `usize` is too large for a segment, too.
        let number = |word: u64| usize::try_from(word).unwrap_or(usize::MAX);
        let shape = Shape::new(number(found.ranks), number(found.staging_bytes))?;
        let id = GroupId::from_bytes(found.id);
        Header::new(id, shape, &Header::tuning(bytes)?).check(bytes)?;
        Ok((id, shape))
    }

    /// Checks that the program that wrote this header has the same layout of segments.
    fn check_build(&self) -> Result<(), SegmentError> {
        let hex = |word: u64| format!("{word:#018x}");
        same("magic number", MAGIC, self.magic, hex)?;
        same(SegmentError::VERSION, layout::VERSION, self.version, |version| version.to_string())?;
        same(SegmentError::LAYOUT, layout::HASH, self.layout, hex)
    }
}

fn same<T: PartialEq>(
    what: &'static str,
    expected: T,
    found: T,
    text: impl Fn(T) -> String,
) -> Result<(), SegmentError> {
    if expected == found {
        return Ok(());
    }
    Err(SegmentError::Foreign { what, expected: text(expected), found: text(found) })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: GroupId = GroupId::from_bytes([7; 16]);

    fn header() -> Header {
        Header::new(ID, Shape::new(2, Shape::STAGING_BYTES).unwrap(), &Tuning::DEFAULT)
    }

    #[test]
    fn each_byte_counts() {
        let (bytes, own) = (header().to_bytes(), Shape::new(2, Shape::STAGING_BYTES).unwrap());
        header().check(&bytes).unwrap();
        for at in 0..HEADER_BYTES {
            for bit in 0..8 {
                let mut other = bytes;
                other[at] ^= 1 << bit;
                header().check(&other).unwrap_err();
                if !GROUP.contains(&at) && !TUNING.contains(&at) {
                    // A little more staging may fit in a segment of the same size.
                    let read = Header::read(&other);
                    assert!(read.is_err() || read.is_ok_and(|(_, shape)| shape != own), "byte {at}");
                }
            }
        }
    }

    #[test]
    fn knobs_are_those_of_the_header_within_their_limits() {
        let other = Tuning { window_bytes: 4 << 10, ..Tuning::DEFAULT };
        let found = Header { tuning: other.words(), ..header() };
        assert_eq!(Header::tuning(&found.to_bytes()).unwrap().window_bytes, 4 << 10);
        let mut words = other.words();
        words[1] = 8193;
        let error = Header::tuning(&Header { tuning: words, ..header() }.to_bytes()).unwrap_err();
        let SegmentError::Foreign { what: "some_payload_bytes", found, .. } = &error else { panic!("{error}") };
        assert_eq!(found, "8193");
        let segment = Header::read(&Header { tuning: [u64::MAX; Tuning::WORDS], ..header() }.to_bytes());
        segment.unwrap_err();
    }

    #[test]
    fn an_error_names_the_field() {
        let refused = |other: Header| match header().check(&other.to_bytes()).unwrap_err() {
            SegmentError::Foreign { what, expected, found } => (what, expected, found),
            error => panic!("{error}"),
        };
        let values = |expected: &str, found: &str| (expected.to_owned(), found.to_owned());
        let (what, expected, found) = refused(Header { layout: 0xbad, ..header() });
        let hash = format!("{:#018x}", layout::HASH);
        assert_eq!((what, (expected, found)), ("layout hash", values(&hash, "0x0000000000000bad")));
        let (what, expected, found) = refused(Header { version: 99, ..header() });
        assert_eq!((what, (expected, found)), ("version", values(&layout::VERSION.to_string(), "99")));
        let (what, expected, found) = refused(Header { id: [8; 16], ..header() });
        assert_eq!((what, (expected, found)), ("group", values(&"07".repeat(16), &"08".repeat(16))));
        let (what, expected, found) = refused(Header { ranks: 3, ..header() });
        assert_eq!((what, (expected, found)), ("number of ranks", values("2", "3")));
        let (what, _, found) = refused(Header { size: 4096, ..header() });
        assert_eq!((what, &found[..]), ("size", "4096"));
    }

    #[test]
    fn a_header_holds_the_group_and_the_shape() {
        let shape = Shape::new(2, Shape::STAGING_BYTES).unwrap();
        assert_eq!(Header::read(&header().to_bytes()).unwrap(), (ID, shape));
        for ranks in [0, 1025, u64::MAX] {
            Header::read(&Header { ranks, ..header() }.to_bytes()).unwrap_err();
        }
        for staging_bytes in [0, 1, u64::MAX, 1 << 62] {
            Header::read(&Header { staging_bytes, ..header() }.to_bytes()).unwrap_err();
        }
    }
}
