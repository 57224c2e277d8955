//! Addresses of wires: UCX's address of a worker, with the version of UCX and a digest.

use crate::{digest::mix, wire::WireError};

/// The beginning of an address of a wire.
const MAGIC: [u8; 8] = *b"consUCX1";

/// The number of bytes of an address before UCX's part: the above, the version, the digest.
const SEAL_BYTES: usize = MAGIC.len() + 3 * 4 + 8;

/// Zeros after an address that came from outside, for a UCX that reads too far.
const PADDING: usize = 1 << 10;

/// Returns an address with what tells it from other bytes, and from those of other versions: UCX
/// reads all addresses as its own.
pub(super) fn seal(version: [u32; 3], address: &[u8]) -> Vec<u8> {
    let version = version.map(u32::to_le_bytes).concat();
    [&MAGIC[..], &version, &digest(address).to_le_bytes(), address].concat()
}

/// Returns UCX's part of an address, and zeros behind it.
pub(super) fn open(own: [u32; 3], sealed: &[u8]) -> Result<Vec<u8>, WireError> {
    let (seal, address) = sealed.split_at_checked(SEAL_BYTES).ok_or(WireError::Address)?;
    let version = seal.strip_prefix(&MAGIC).ok_or(WireError::Address)?;
    let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| version[4 * at + byte]));
    let theirs = [0, 1, 2].map(word);
    let seal = u64::from(word(3)) | u64::from(word(4)) << 32;
    if address.is_empty() || digest(address) != seal {
        return Err(WireError::Address);
    }
    // Seen: UCX 1.13 ends the process when a wire of 1.20 connects to it.
    if theirs[..2] != own[..2] {
        return Err(WireError::Version { own, theirs });
    }
    Ok([address, &[0; PADDING]].concat())
}

/// Returns a digest, which tells damage, not malice.
fn digest(bytes: &[u8]) -> u64 {
    bytes.iter().fold(bytes.len() as u64, |digest, &byte| mix(digest, u64::from(byte)))
}
