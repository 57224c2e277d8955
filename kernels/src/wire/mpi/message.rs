//! The tags of messages, their bytes beside the body, and those of an address of a wire.

use crate::{
    digest::mix,
    wire::{HEAD, Head},
};
use std::ffi::c_int;

/// The number of bytes of the trailer.
pub(super) const TRAILER: usize = 24 + HEAD;

/// The maximum number of bytes of a body that travels before its trailer. A longer one follows its
/// trailer, in messages of its own: it is never copied.
pub(super) const SHORT: usize = 8192;

/// The first tag of a wire, and the number of wires of a process before a tag comes again. All MPIs
/// have tags to 32767.
const FIRST_TAG: u32 = 16_384;
const WIRES: u32 = 8191;

/// The tag of the last words.
pub(super) const LAST_TAG: c_int = (FIRST_TAG + 2 * WIRES) as c_int;

/// Returns the tags at which a wire receives, by its number among those of its process: that of
/// trailers, and that of long bodies.
pub(super) fn tags(number: u32) -> [c_int; 2] {
    let first = (FIRST_TAG + 2 * (number % WIRES)) as c_int;
    [first, first + 1]
}

/// Returns all tags at which the wires of a process receive, if it has had so many.
pub(super) fn tags_of(wires: u32) -> impl Iterator<Item = c_int> {
    (0..wires.min(WIRES)).flat_map(tags)
}

/// The end of a message of MPI, behind a short body, or before a long one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Trailer {
    /// The wire that is meant.
    pub(super) to: u64,
    /// The number of bytes of the body.
    pub(super) bytes: usize,
    pub(super) head: Head,
}

impl Trailer {
    pub(super) fn bytes(&self) -> [u8; TRAILER] {
        let mut bytes = [0; TRAILER];
        let words = [self.to, self.bytes as u64];
        for (place, word) in words.into_iter().chain([digest(words)]).enumerate() {
            bytes[8 * place..][..8].copy_from_slice(&word.to_le_bytes());
        }
        bytes[24..].copy_from_slice(&self.head);
        bytes
    }

    /// Takes the trailer from the end of a message, and leaves the body if it is short. Returns
    /// none, and leaves the message as it is, if there is none.
    pub(super) fn take(message: &mut Vec<u8>) -> Option<Trailer> {
        let (body, bytes) = message.split_last_chunk::<TRAILER>()?;
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let words = [word(0), word(8)];
        let trailer =
            Trailer { to: words[0], bytes: usize::try_from(words[1]).ok()?, head: bytes[24..].try_into().ok()? };
        let before = if trailer.bytes > SHORT { 0 } else { trailer.bytes };
        let is_whole = digest(words) == word(16) && body.len() == before;
        is_whole.then(|| {
            message.truncate(before);
            trailer
        })
    }
}

/// The beginning of an address of a wire.
const MAGIC: [u8; 8] = *b"consMPI1";

/// The address of a wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Address {
    /// A digest of the name and version of the MPI.
    pub(super) library: u64,
    /// A digest of what distinguishes a launch from others, as far as it is known.
    pub(super) launch: u64,
    /// A number of the process, by chance.
    pub(super) process: u64,
    /// The rank in `MPI_COMM_WORLD`.
    pub(super) rank: u32,
    /// The number of the wire among those of its process.
    pub(super) number: u32,
}

impl Address {
    /// The number of the wire among all.
    pub(super) fn wire(&self) -> u64 {
        mix(self.process, u64::from(self.number))
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        let place = u64::from(self.number) << 32 | u64::from(self.rank);
        let words = [self.library, self.launch, self.process, place];
        let words = words.into_iter().chain([digest(words)]).flat_map(u64::to_le_bytes);
        MAGIC.into_iter().chain(words).collect()
    }

    /// Reads an address; none if the bytes are not one.
    pub(super) fn read(bytes: &[u8]) -> Option<Address> {
        let (words, rest) = bytes.strip_prefix(&MAGIC)?.as_chunks::<8>();
        let &[library, launch, process, place, seal] = words else { return None };
        let [library, launch, process, place, seal] = [library, launch, process, place, seal].map(u64::from_le_bytes);
        let is_whole = rest.is_empty() && digest([library, launch, process, place]) == seal;
        let (rank, number) = (place as u32, (place >> 32) as u32);
        is_whole.then_some(Address { library, launch, process, rank, number })
    }
}

/// Returns a digest, which tells damage, not malice.
fn digest<const COUNT: usize>(words: [u64; COUNT]) -> u64 {
    words.into_iter().fold(0, mix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wires_in_sequence_have_other_tags_and_none_is_above_those_of_all_mpis() {
        assert_eq!((tags(0), tags(1), tags(WIRES)), ([16_384, 16_385], [16_386, 16_387], tags(0)));
        assert_eq!((tags(WIRES - 1)[1], LAST_TAG), (32_765, 32_766));
        assert_eq!((tags_of(2).count(), tags_of(u32::MAX).last()), (4, Some(LAST_TAG - 1)));
    }

    #[test]
    fn trailers_and_addresses_are_read_back_and_all_else_is_none() {
        let trailer = Trailer { to: u64::MAX, bytes: 11, head: [7; HEAD] };
        let whole = [&[9; 11][..], &trailer.bytes()].concat();
        let mut message = whole.clone();
        assert_eq!(Trailer::take(&mut message), Some(trailer));
        assert_eq!(message, [9; 11]);
        assert_eq!(Trailer::take(&mut vec![0; TRAILER - 1]), None);
        assert_eq!(Trailer::take(&mut whole[1..].to_vec()), None, "a body that is too short");
        for place in 11..11 + 24 {
            let mut damaged = whole.clone();
            damaged[place] ^= 1;
            assert_eq!(Trailer::take(&mut damaged), None);
        }
        let long = Trailer { to: 1, bytes: SHORT + 1, head: [7; HEAD] };
        let mut message = long.bytes().to_vec();
        assert_eq!((Trailer::take(&mut message), message), (Some(long), Vec::new()));

        let address = Address { library: 1, launch: 2, process: u64::MAX, rank: 4, number: 70_000 };
        let bytes = address.bytes();
        assert_eq!(Address::read(&bytes), Some(address));
        for cut in 0..bytes.len() {
            assert_eq!(Address::read(&bytes[..cut]), None);
            let mut damaged = bytes.clone();
            damaged[cut] ^= 1;
            assert_eq!(Address::read(&damaged), None);
        }
        assert_eq!(Address::read(&[bytes, vec![0]].concat()), None);
    }
}
