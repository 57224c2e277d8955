//! The division of a range into parts.

use std::ops::Range;

/// Returns the `index`-th of `parts` even blocks of `count` elements. The first `count % parts`
/// blocks have one element more.
///
/// The blocks are disjoint and cover `0..count` in order.
///
/// # Panics
/// If `index >= parts`.
pub fn block(count: usize, parts: usize, index: usize) -> Range<usize> {
    assert!(index < parts, "block {index} of {parts}");
    let (base, longer) = (count / parts, count % parts);
    let start = |i: usize| i * base + i.min(longer);
    start(index)..start(index + 1)
}

/// Like [`block`], but every border except the last is a multiple of `unit` elements, so that no
/// two parts share a cache line.
///
/// # Panics
/// If `index >= parts` or `unit == 0`.
pub fn aligned_block(count: usize, unit: usize, parts: usize, index: usize) -> Range<usize> {
    let units = block(count.div_ceil(unit), parts, index);
    (units.start * unit).min(count)..(units.end * unit).min(count)
}
