//! Digests of what ranks must agree on.

/// Mixes `word` into `digest`. Every bit of either changes about half of the result's bits.
#[inline]
pub const fn mix(digest: u64, word: u64) -> u64 {
    let x = (digest ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    (x ^ (x >> 29)).wrapping_add(0x2545_f491_4f6c_dd1d)
}

/// Returns a digest of counts, for the `detail` of a signature.
pub fn digest_counts(counts: &[usize]) -> u64 {
    counts.iter().fold(counts.len() as u64, |digest, &count| mix(digest, count as u64))
}

/// Returns a digest of a text, for the `detail` of a signature.
pub const fn digest(text: &str) -> u64 {
    let (mut digest, mut rest) = (text.len() as u64, text.as_bytes());
    while let Some((eight, after)) = rest.split_first_chunk() {
        (digest, rest) = (mix(digest, u64::from_le_bytes(*eight)), after);
    }
    while let [byte, after @ ..] = rest {
        (digest, rest) = (mix(digest, *byte as u64), after);
    }
    digest
}
