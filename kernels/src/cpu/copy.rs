//! Copies between buffers that ranks share, and of a rank's own data. Only these copies and the
//! reducer access buffers that ranks share.
//!
//! No data path calls the C library's `memcpy` for more than `PLAIN_BYTES` bytes on `x86_64`: it
//! chooses between ways by thresholds of its own, and on some processors its choice is up to ten
//! times as slow as another. Here the [knobs](crate::tuning) choose.

use super::{
    cache_hints::{CacheHints, CopySize, Locality},
    prefetch::fetch_to_write,
    ways::{PLAIN_BYTES, by_way, fastest_own},
};
use crate::{
    memory::{HostBuf, HostBufMut},
    sync::watch,
    tuning::{self, MOVSB_BYTES, Way},
};
use std::ptr;

/// Block size of a copy that prefetches: while one block is copied, the lines of the next are
/// prefetched.
const ASKED_BYTES: usize = 1 << 10;

/// Before the first copy of so many bytes of a rank's own data, the ways of such copies are
/// measured.
const LARGE_BYTES: usize = 64 << 10;

/// Copies `bytes` bytes that another rank has staged, or published in place.
///
/// # Safety
/// `source` is valid for reads and `target` for writes of `bytes` bytes; they do not overlap.
#[inline]
pub(crate) unsafe fn copy(source: *const u8, target: *mut u8, bytes: usize, volume: CopySize) {
    watch::read(source, bytes);
    // SAFETY: the caller's promises are the same.
    unsafe {
        match bytes {
            ..=PLAIN_BYTES => ptr::copy_nonoverlapping(source, target, bytes),
            _ => read(source, target, bytes, volume, Locality::Far),
        }
    }
}

/// Copies into memory that another core has read and will read again soon. Prefetches the target
/// for writing, unless this core owns its lines (`has_lines`). Writes past the caches only if this
/// copy alone reads and writes [`stream_bytes`](crate::tuning::Tuning::stream_bytes) or more.
///
/// # Safety
/// As for [`copy`].
#[inline]
pub(crate) unsafe fn copy_in(source: *const u8, target: *mut u8, bytes: usize, volume: CopySize, has_lines: bool) {
    let copies = volume.pipeline(tuning::current()).copies();
    // SAFETY: the caller's promises are the same.
    unsafe {
        if !has_lines && copies.prefetches {
            return in_blocks(source, target, bytes, target.cast_const());
        }
        match bytes {
            ..=PLAIN_BYTES => ptr::copy_nonoverlapping(source, target, bytes),
            _ => by_way(copies.way(copies.copy_in, bytes), source, target, bytes, CacheHints::from(Locality::Far)),
        }
    }
}

/// Copies out of lines that another core has written and this core writes next. Prefetches these
/// lines for writing.
///
/// # Safety
/// As for [`copy`].
#[inline]
pub(crate) unsafe fn take(source: *const u8, target: *mut u8, bytes: usize, volume: CopySize) {
    watch::read(source, bytes);
    // SAFETY: the caller's promises are the same.
    unsafe {
        if volume != CopySize::Past && volume.pipeline(tuning::current()).copies().prefetches {
            return in_blocks(source, target, bytes, source);
        }
        match bytes {
            ..=PLAIN_BYTES => ptr::copy_nonoverlapping(source, target, bytes),
            _ => read(source, target, bytes, volume, Locality::Taken(0)),
        }
    }
}

/// Copies all elements of `source`, which nobody else writes now, to `target`: a rank's own data.
///
/// # Panics
/// If dtype or count differ.
///
/// ```
/// use consonance_kernels::cpu::copy::copy_own;
/// let (own, mut result) = ([1.5f32; 1000], [0f32; 1000]);
/// copy_own(own.as_slice().into(), &mut result.as_mut_slice().into());
/// assert_eq!(result, own);
/// ```
#[inline]
pub fn copy_own(source: HostBuf<'_>, target: &mut HostBufMut<'_>) {
    let (dtype, count, bytes) = (target.dtype(), target.count(), source.bytes());
    assert_eq!((dtype, count), (source.dtype(), source.count()), "copy between unlike buffers");
    // SAFETY: both are valid for `bytes` bytes; `target` is exclusive, so they do not overlap; the
    // type is the same, so every copied element is a valid one.
    unsafe { copy_private(source.as_ptr(), target.as_mut_ptr(), bytes) }
}

/// Copies `bytes` bytes that no other rank accesses now.
///
/// # Safety
/// As for [`copy`].
#[inline]
pub(crate) unsafe fn copy_private(source: *const u8, target: *mut u8, bytes: usize) {
    // SAFETY: the caller's promises are the same.
    unsafe {
        match bytes {
            ..=PLAIN_BYTES => ptr::copy_nonoverlapping(source, target, bytes),
            _ => write_own(source, target, bytes),
        }
    }
}

/// Copies more than [`PLAIN_BYTES`] bytes of a rank's own data.
///
/// # Safety
/// As for [`copy`].
unsafe fn write_own(source: *const u8, target: *mut u8, bytes: usize) {
    if bytes >= LARGE_BYTES && tuning::is_own_due() {
        tuning::choose_own(fastest_own);
    }
    let tuning = tuning::current();
    let way = match bytes {
        ..MOVSB_BYTES => Way::Vector,
        _ if 2 * bytes >= tuning.stream_bytes => Way::Ahead,
        _ => tuning.own,
    };
    // SAFETY: the caller's promises are the same.
    unsafe { by_way(way, source, target, bytes, CacheHints::from(Locality::Far)) }
}

/// Reads more than [`PLAIN_BYTES`] bytes out of staging.
///
/// # Safety
/// As for [`copy`].
unsafe fn read(source: *const u8, target: *mut u8, bytes: usize, volume: CopySize, from: Locality) {
    let copies = volume.pipeline(tuning::current()).copies();
    let way = match volume {
        CopySize::Near | CopySize::Far => copies.way(copies.copy_out, bytes),
        CopySize::Past => Way::Ahead,
    };
    // SAFETY: the caller's promises are the same.
    unsafe { by_way(way, source, target, bytes, CacheHints { from, past: volume.past(0) }) }
}

/// Copies block by block. Prefetches the lines of the next block of `asked`, which is the start of
/// the source or the target, for writing.
///
/// # Safety
/// As for [`copy`].
unsafe fn in_blocks(source: *const u8, target: *mut u8, bytes: usize, asked: *const u8) {
    let ask = |start: usize| {
        if start < bytes {
            fetch_to_write(asked.wrapping_add(start), ASKED_BYTES.min(bytes - start));
        }
    };
    ask(0);
    for start in (0..bytes).step_by(ASKED_BYTES) {
        ask(start + ASKED_BYTES);
        let block = ASKED_BYTES.min(bytes - start);
        // SAFETY: the block lies within the bytes that the caller vouches for.
        unsafe {
            let (source, target) = (source.add(start), target.add(start));
            match block {
                ..=PLAIN_BYTES => ptr::copy_nonoverlapping(source, target, block),
                _ => by_way(Way::Vector, source, target, block, CacheHints::from(Locality::Near)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Copy = unsafe fn(*const u8, *mut u8, usize, CopySize);

    unsafe fn put_up_where_lines_are(source: *const u8, target: *mut u8, bytes: usize, volume: CopySize) {
        // SAFETY: the caller's promises are the same.
        unsafe { copy_in(source, target, bytes, volume, true) }
    }

    unsafe fn put_up_where_none_is(source: *const u8, target: *mut u8, bytes: usize, volume: CopySize) {
        // SAFETY: the caller's promises are the same.
        unsafe { copy_in(source, target, bytes, volume, false) }
    }

    #[test]
    fn parts_of_every_size_are_copied_whole_and_nothing_beside_them() {
        let all: Vec<u8> = (0..200_000u32).map(|at| (at / 3 * 7) as u8).collect();
        for bytes in [0, 1, 63, PLAIN_BYTES, PLAIN_BYTES + 1, ASKED_BYTES, 4096, 8193, 70_001, 131_072] {
            for (copy, volume, shift) in [
                (copy as Copy, CopySize::Far, 0),
                (copy, CopySize::Far, 61),
                (copy, CopySize::Past, 3),
                (copy, CopySize::Near, 3),
                (put_up_where_none_is, CopySize::Far, 3),
                (put_up_where_none_is, CopySize::Near, 5),
                (put_up_where_lines_are, CopySize::Near, 3),
                (take, CopySize::Far, 3),
                (take, CopySize::Past, 61),
                (take, CopySize::Near, 5),
            ] {
                let mut copied = vec![0xa5; bytes + 128];
                // SAFETY: both have `bytes` bytes from these offsets on.
                unsafe { copy(all[shift..].as_ptr(), copied[64 - shift..].as_mut_ptr(), bytes, volume) }
                let (before, rest) = copied.split_at(64 - shift);
                let (inside, after) = rest.split_at(bytes);
                assert!(inside == &all[shift..][..bytes], "{bytes}, {volume:?}, {shift} after a line");
                assert!([before, after].concat().iter().all(|&byte| byte == 0xa5), "beside {bytes}, {volume:?}");
            }
        }
    }
}
