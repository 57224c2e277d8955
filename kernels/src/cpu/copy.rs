//! Copies between buffers that ranks share. Only these copies and the reducer access such buffers.

use super::{
    cache_hints::{CacheHints, CopySize, Locality},
    isa::Isa,
    prefetch::fetch_to_write,
    reduce::Kernel,
};
use crate::sync::watch;
use consonance_spec::{DType, ReduceOp};
use std::ptr;

/// Block size of a copy that prefetches: while one block is copied, the lines of the next are
/// prefetched.
const ASKED_BYTES: usize = 1 << 10;

/// Largest block that the C library's `memcpy` copies without microcode.
const PLAIN_BYTES: usize = 8 << 10;
/// A copy of fewer bytes is cut into blocks of [`PLAIN_BYTES`], because microcode starts slowly.
const MICROCODE_BYTES: usize = 32 << 10;

/// Copies `bytes` bytes.
///
/// A [near](CopySize::Near) copy uses the C library's `memcpy`, which is faster where the caches
/// hold the data: it does not read the lines that it overwrites. A larger copy is a reduction of
/// one source, which prefetches lines.
///
/// # Safety
/// `source` is valid for reads and `target` for writes of `bytes` bytes; they do not overlap.
#[inline]
pub(crate) unsafe fn copy(source: *const u8, target: *mut u8, bytes: usize, volume: CopySize) {
    watch::read(source, bytes);
    // SAFETY: the caller's promises are the same.
    unsafe {
        match volume {
            CopySize::Near => ptr::copy_nonoverlapping(source, target, bytes),
            _ => fold(source, target, bytes, CacheHints { from: Locality::Far, past: volume.past(0) }),
        }
    }
}

/// Copies into memory that another core has read and will read again soon. Prefetches the target
/// for writing, unless this core owns its lines (`has_lines`). Writes past the caches only if this
/// copy alone reads and writes [`STREAM_BYTES`](super::cache_hints::STREAM_BYTES) or more.
///
/// # Safety
/// As for [`copy`].
#[inline]
pub(crate) unsafe fn copy_in(source: *const u8, target: *mut u8, bytes: usize, volume: CopySize, has_lines: bool) {
    let asked = (!has_lines).then_some(target.cast_const());
    // SAFETY: the caller's promises are the same.
    unsafe {
        match volume {
            CopySize::Near => copy_blocks(source, target, bytes, asked),
            _ => fold(source, target, bytes, CacheHints::from(Locality::Far)),
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
        match volume {
            CopySize::Near => copy_blocks(source, target, bytes, Some(source)),
            _ => fold(source, target, bytes, CacheHints { from: Locality::Taken(0), past: volume.past(0) }),
        }
    }
}

/// Copies block by block. If `asked` is the start of the source or the target, prefetches the lines
/// of its next block for writing.
///
/// # Safety
/// As for [`copy`].
unsafe fn copy_blocks(source: *const u8, target: *mut u8, bytes: usize, asked: Option<*const u8>) {
    let block_bytes = match asked {
        Some(_) => ASKED_BYTES,
        None if bytes < MICROCODE_BYTES => PLAIN_BYTES,
        None => bytes,
    };
    let ask = |start: usize| {
        if let Some(asked) = asked.filter(|_| start < bytes) {
            fetch_to_write(asked.wrapping_add(start), block_bytes.min(bytes - start));
        }
    };
    ask(0);
    for start in (0..bytes).step_by(block_bytes) {
        ask(start + block_bytes);
        // SAFETY: the block lies within the bytes that the caller vouches for.
        unsafe { ptr::copy_nonoverlapping(source.add(start), target.add(start), block_bytes.min(bytes - start)) }
    }
}

/// # Safety
/// As for [`copy`].
unsafe fn fold(source: *const u8, target: *mut u8, bytes: usize, flow: CacheHints) {
    let kernel = Kernel::new(ReduceOp::Or, DType::U8, Isa::best()).expect("defined, and available");
    // SAFETY: the caller's promises are the same.
    unsafe { kernel.reduce(&[source], &[target], bytes, 1, flow) }
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
        for bytes in [0, 1, 63, ASKED_BYTES, 4096, PLAIN_BYTES + 1, MICROCODE_BYTES, 70_001, 131_072] {
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
