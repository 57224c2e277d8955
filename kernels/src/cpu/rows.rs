//! Copies of rows that lie anywhere in an array.

use super::{copy::copy_private, prefetch::fetch};
use crate::memory::{HostBuf, HostBufMut};

/// Rows are prefetched this number of bytes ahead of the copy, as much as a core has in flight.
/// Longer rows are not prefetched: the hardware prefetcher handles those.
const AHEAD_BYTES: usize = 4 << 10;

/// The limit on the number of rows that are prefetched ahead.
const AHEAD_ROWS: usize = 64;

/// Copies `rows` of `source`, of `row_count` elements each, one after the other into `target`.
///
/// # Panics
/// If the types differ, `source` has no such row, or `target` has another number of elements.
///
/// ```
/// use consonance_kernels::cpu::rows::copy_rows;
/// let (numbers, mut chosen) = ([1, 2, 3, 4, 5, 6], [0; 4]);
/// copy_rows(numbers.as_slice().into(), 2, &[2, 0], chosen.as_mut_slice().into());
/// assert_eq!(chosen, [5, 6, 1, 2]);
/// ```
pub fn copy_rows(source: HostBuf<'_>, row_count: usize, rows: &[usize], target: HostBufMut<'_>) {
    assert_eq!(source.dtype(), target.dtype(), "elements of one type");
    assert_eq!(row_count.checked_mul(rows.len()), Some(target.count()), "elements for {} rows", rows.len());
    if target.count() == 0 {
        return;
    }
    let row_bytes = row_count * source.dtype().size();
    let mut target = target;
    // SAFETY: the target has as many bytes as these rows. It is borrowed exclusively, so it does
    // not overlap the source.
    unsafe { gather(source.as_ptr(), source.bytes() / row_bytes, rows, target.as_mut_ptr(), row_bytes) }
}

/// Copies `rows` of `source`, of `row_bytes` bytes each, one after the other to `target`.
///
/// # Safety
/// `source` is valid for reads of `source_rows` rows, and `target` for writes of `rows.len()` rows;
/// they do not overlap.
pub(crate) unsafe fn gather(source: *const u8, source_rows: usize, rows: &[usize], target: *mut u8, row_bytes: usize) {
    let copy = match row_bytes {
        1 => copy_each::<1>,
        2 => copy_each::<2>,
        4 => copy_each::<4>,
        8 => copy_each::<8>,
        16 => copy_each::<16>,
        _ => copy_each::<0>,
    };
    // SAFETY: the caller's promises are the same.
    unsafe { copy(source, source_rows, rows, target, row_bytes) }
}

/// Copies rows of `ROW_BYTES` bytes, or of `row_bytes` if that is 0.
///
/// # Safety
/// `source` is valid for reads of `source_rows` rows, and `target` for writes of `rows.len()` rows;
/// they do not overlap.
unsafe fn copy_each<const ROW_BYTES: usize>(
    source: *const u8,
    source_rows: usize,
    rows: &[usize],
    target: *mut u8,
    row_bytes: usize,
) {
    let row_bytes = if ROW_BYTES == 0 { row_bytes } else { ROW_BYTES };
    let ahead = (AHEAD_BYTES / row_bytes).min(AHEAD_ROWS);
    let ask = |row: usize| fetch(source.wrapping_add(row.wrapping_mul(row_bytes)), row_bytes);
    rows.iter().take(ahead).for_each(|&row| ask(row));
    for (place, &row) in rows.iter().enumerate() {
        if ahead > 0
            && let Some(&next) = rows.get(place + ahead)
        {
            ask(next);
        }
        assert!(row < source_rows, "row {row} of {source_rows}");
        // SAFETY: the row is one of the source's, and its place one of the target's.
        unsafe {
            let (from, to) = (source.add(row * row_bytes), target.add(place * row_bytes));
            if ROW_BYTES == 0 {
                copy_private(from, to, row_bytes);
            } else {
                to.cast::<[u8; ROW_BYTES]>().write(from.cast::<[u8; ROW_BYTES]>().read());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_any_length_are_copied() {
        for row_count in [0, 1, 2, 3, 4, 8, 16, 37, 5000] {
            let source: Vec<u8> = (0..row_count * 9).map(|i| (i % 251) as u8).collect();
            let rows: Vec<usize> = (0..200).map(|place| place * 7 % 9).collect();
            let mut target = vec![0; row_count * rows.len()];
            copy_rows(source.as_slice().into(), row_count, &rows, target.as_mut_slice().into());
            let expected: Vec<u8> =
                rows.iter().flat_map(|&row| &source[row * row_count..(row + 1) * row_count]).copied().collect();
            assert_eq!(target, expected, "rows of {row_count}");
        }
    }

    #[test]
    #[should_panic(expected = "row 3 of 3")]
    fn an_absent_row_is_refused() {
        copy_rows([1, 2, 3].as_slice().into(), 1, &[0, 3], [0; 2].as_mut_slice().into());
    }
}
