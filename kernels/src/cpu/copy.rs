//! Copies between buffers that ranks share, and of a rank's own data. Only these copies and the
//! reducer access buffers that ranks share.
//!
//! No data path calls the C library's `memcpy` for more than `PLAIN_BYTES` bytes on `x86_64`: it
//! chooses between ways by thresholds of its own, and on some processors its choice is up to ten
//! times as slow as another. Here the [knobs](crate::tuning) choose.

use super::{
    cache_hints::{CacheHints, CopySize, Locality},
    isa::Isa,
    prefetch::fetch_to_write,
    reduce::Kernel,
};
use crate::{
    memory::{HostBuf, HostBufMut},
    sync::watch,
    tuning::{self, Tuning, Way},
};
use consonance_spec::{DType, ReduceOp};
#[cfg(target_arch = "x86_64")]
use std::arch::{asm, x86_64::*};
use std::{hint::black_box, ptr};

/// Block size of a copy that prefetches: while one block is copied, the lines of the next are
/// prefetched.
const ASKED_BYTES: usize = 1 << 10;

/// Copies of at most this many bytes are the C library's, whose fastest code is for such.
const PLAIN_BYTES: usize = 256;

/// Bytes of a cache line.
#[cfg(target_arch = "x86_64")]
const LINE: usize = 64;

/// The ways of one direction, by size class.
struct Ways {
    small: Way,
    medium: Way,
    large: Way,
    past: Way,
}

impl Ways {
    fn of(&self, bytes: usize, volume: CopySize, tuning: &Tuning) -> Way {
        match volume {
            CopySize::Near if bytes < tuning.medium_bytes => self.small,
            CopySize::Near => self.medium,
            CopySize::Far => self.large,
            CopySize::Past => self.past,
        }
    }
}

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
    let tuning = tuning::current();
    // SAFETY: the caller's promises are the same.
    unsafe {
        if volume == CopySize::Near && !has_lines && tuning.fetch_in {
            return in_blocks(source, target, bytes, target.cast_const(), tuning.in_small);
        }
        if bytes <= PLAIN_BYTES {
            return ptr::copy_nonoverlapping(source, target, bytes);
        }
        let Tuning { in_small: small, in_medium: medium, in_large: large, .. } = *tuning;
        let way = Ways { small, medium, large, past: large }.of(bytes, volume, tuning);
        by_way(way, source, target, bytes, CacheHints::from(Locality::Far));
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
    let tuning = tuning::current();
    // SAFETY: the caller's promises are the same.
    unsafe {
        if volume == CopySize::Near && tuning.fetch_out {
            return in_blocks(source, target, bytes, source, tuning.out_small);
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
    let tuning = tuning::current();
    let volume = CopySize::new(bytes, || 2 * bytes >= tuning.stream_bytes);
    let Tuning { own_small: small, own_medium: medium, own_large: large, own_past: past, .. } = *tuning;
    let way = Ways { small, medium, large, past }.of(bytes, volume, tuning);
    // SAFETY: the caller's promises are the same.
    unsafe { by_way(way, source, target, bytes, CacheHints::from(Locality::Far)) }
}

/// [Copies](copy_own) in this way, whatever the knobs say. A way that the machine does not have is
/// replaced by another.
///
/// # Panics
/// If dtype or count differ.
///
/// ```
/// use consonance_kernels::{cpu::copy::copy_by, tuning::Way};
/// for way in Way::ALL {
///     let (source, mut target) = ([7u8; 1000], [0u8; 1000]);
///     copy_by(way, source.as_slice().into(), &mut target.as_mut_slice().into());
///     assert_eq!(target, source);
/// }
/// ```
pub fn copy_by(way: Way, source: HostBuf<'_>, target: &mut HostBufMut<'_>) {
    let (dtype, count, bytes) = (target.dtype(), target.count(), source.bytes());
    assert_eq!((dtype, count), (source.dtype(), source.count()), "copy between unlike buffers");
    let (source, target) = (source.as_ptr(), target.as_mut_ptr());
    // SAFETY: both are valid for `bytes` bytes; `target` is exclusive, so they do not overlap; the
    // type is the same, so every copied element is a valid one.
    unsafe {
        match bytes {
            ..=PLAIN_BYTES => ptr::copy_nonoverlapping(source, target, bytes),
            _ => by_way(way, source, target, bytes, CacheHints::from(Locality::Far)),
        }
    }
}

/// Copies a buffer onto itself in this way: each byte is read, and written in its place. It is what
/// a reduction in place does at least. A way that the machine does not have is replaced by another.
///
/// ```
/// use consonance_kernels::{cpu::copy::rewrite_by, tuning::Way};
/// let mut buffer = [7u8; 1000];
/// Way::ALL.into_iter().for_each(|way| rewrite_by(way, &mut buffer.as_mut_slice().into()));
/// assert_eq!(buffer, [7; 1000]);
/// ```
pub fn rewrite_by(way: Way, buffer: &mut HostBufMut<'_>) {
    let (bytes, target) = (buffer.bytes(), buffer.as_mut_ptr());
    // The compiler would leave out a store of what it knows to be there.
    let source = black_box(target.cast_const());
    // SAFETY: the buffer is valid for `bytes` bytes, and exclusive. Every way reads bytes before it
    // writes them, and writes what it read: the bytes that two of its stores have in common, too.
    unsafe {
        match bytes {
            ..=PLAIN_BYTES => ptr::copy(source, target, bytes),
            _ => by_way(way, source, target, bytes, CacheHints::from(Locality::Far)),
        }
    }
}

/// [Copies](copy_own) 1 KiB at a time, while the next lines of the target or of the source are
/// prefetched for writing.
///
/// # Panics
/// If dtype or count differ.
pub(crate) fn copy_asking(asks_target: bool, source: HostBuf<'_>, target: &mut HostBufMut<'_>) {
    let (dtype, count, bytes) = (target.dtype(), target.count(), source.bytes());
    assert_eq!((dtype, count), (source.dtype(), source.count()), "copy between unlike buffers");
    let (from, to) = (source.as_ptr(), target.as_mut_ptr());
    let asked = if asks_target { to.cast_const() } else { from };
    // SAFETY: both are valid for `bytes` bytes; `target` is exclusive, so they do not overlap; the
    // type is the same, so every copied element is a valid one.
    unsafe { in_blocks(from, to, bytes, asked, Way::Vector) }
}

/// Reads more than [`PLAIN_BYTES`] bytes out of staging.
///
/// # Safety
/// As for [`copy`].
unsafe fn read(source: *const u8, target: *mut u8, bytes: usize, volume: CopySize, from: Locality) {
    let tuning = tuning::current();
    let Tuning { out_small: small, out_medium: medium, out_large: large, out_past: past, .. } = *tuning;
    let way = Ways { small, medium, large, past }.of(bytes, volume, tuning);
    // SAFETY: the caller's promises are the same.
    unsafe { by_way(way, source, target, bytes, CacheHints { from, past: volume.past(0) }) }
}

/// Copies block by block. Prefetches the lines of the next block of `asked`, which is the start of
/// the source or the target, for writing.
///
/// # Safety
/// As for [`copy`].
unsafe fn in_blocks(source: *const u8, target: *mut u8, bytes: usize, asked: *const u8, way: Way) {
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
                _ => by_way(way, source, target, block, CacheHints::from(Locality::Near)),
            }
        }
    }
}

/// Copies more than [`PLAIN_BYTES`] bytes. `flow` has the hints for [`Way::Ahead`].
///
/// # Safety
/// As for [`copy`], but source and target may be the same.
#[cfg(target_arch = "x86_64")]
unsafe fn by_way(way: Way, source: *const u8, target: *mut u8, bytes: usize, flow: CacheHints) {
    debug_assert!(bytes > PLAIN_BYTES, "{bytes} bytes");
    let widest = Isa::best();
    let isa = match way {
        Way::Vector | Way::Stream => widest,
        Way::Baseline => Isa::Baseline,
        Way::Avx2 => widest.min(Isa::Avx2),
        Way::Avx512 => widest.min(Isa::Avx512),
        // SAFETY: the caller's promises are the same.
        Way::Ahead => return unsafe { fold(source, target, bytes, flow) },
        // SAFETY: as above; the direction flag is clear in Rust code.
        Way::Movsb => unsafe {
            asm!(
                "rep movsb",
                inout("rcx") bytes => _,
                inout("rsi") source => _,
                inout("rdi") target => _,
                options(nostack, preserves_flags)
            );
            return;
        },
    };
    // SAFETY: the machine has the instruction set, which is not above its widest; the rest are the
    // caller's promises.
    unsafe {
        match (isa, way == Way::Stream) {
            (Isa::Baseline, false) => vector_baseline(source, target, bytes),
            (Isa::Avx2, false) => vector_avx2(source, target, bytes),
            (Isa::Avx512, false) => vector_avx512(source, target, bytes),
            (Isa::Baseline, true) => stream_baseline(source, target, bytes),
            (Isa::Avx2, true) => stream_avx2(source, target, bytes),
            (Isa::Avx512, true) => stream_avx512(source, target, bytes),
        }
    }
}

/// Copies more than [`PLAIN_BYTES`] bytes. `flow` has the hints for [`Way::Ahead`]. All other ways
/// are the C library's: this architecture's has no way that is much slower than others.
///
/// # Safety
/// As for [`copy`], but source and target may be the same.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn by_way(way: Way, source: *const u8, target: *mut u8, bytes: usize, flow: CacheHints) {
    // SAFETY: the caller's promises are the same.
    unsafe {
        match way {
            Way::Ahead => fold(source, target, bytes, flow),
            // Of the same bytes, too.
            _ => ptr::copy(source, target, bytes),
        }
    }
}

/// Defines a copy of more than [`PLAIN_BYTES`] bytes by four registers at a time, whose stores are
/// aligned: a store across two lines takes as long as two.
#[cfg(target_arch = "x86_64")]
macro_rules! vector {
    ($name:ident, $feature:literal, $register:ty, $load:ident, $unaligned:ident, $store:ident) => {
        /// # Safety
        /// As for [`copy`]; the machine has the instruction set; there are more than
        /// [`PLAIN_BYTES`] bytes.
        #[target_feature(enable = $feature)]
        unsafe fn $name(source: *const u8, target: *mut u8, bytes: usize) {
            const REGISTER: usize = size_of::<$register>();
            const TILE: usize = 4 * REGISTER;
            const { assert!(TILE <= PLAIN_BYTES) };
            // SAFETY: the first line, and the last tile, lie within the bytes, of which there are
            // more than in a tile. Each tile between them ends within the bytes and
            // begins at a whole line of the target, as aligned stores require.
            unsafe {
                for at in (0..LINE).step_by(REGISTER) {
                    $unaligned(target.add(at).cast(), $load(source.add(at).cast()));
                }
                let mut at = LINE - target.addr() % LINE;
                while at + TILE <= bytes {
                    let from = source.add(at).cast::<$register>();
                    let to = target.add(at).cast::<$register>();
                    let tile = [$load(from), $load(from.add(1)), $load(from.add(2)), $load(from.add(3))];
                    $store(to, tile[0]);
                    $store(to.add(1), tile[1]);
                    $store(to.add(2), tile[2]);
                    $store(to.add(3), tile[3]);
                    at += TILE;
                }
                if at < bytes {
                    let from = source.add(bytes - TILE).cast::<$register>();
                    let to = target.add(bytes - TILE).cast::<$register>();
                    for index in 0..4 {
                        $unaligned(to.add(index), $load(from.add(index)));
                    }
                }
            }
        }
    };
    (past $name:ident, $feature:literal, $loop:ident) => {
        /// # Safety
        /// As for the loop.
        #[target_feature(enable = $feature)]
        unsafe fn $name(source: *const u8, target: *mut u8, bytes: usize) {
            // SAFETY: the caller's promises are the same.
            unsafe { $loop(source, target, bytes) }
            // Non-temporal stores become visible before anything that this thread writes next.
            _mm_sfence();
        }
    };
}

#[cfg(target_arch = "x86_64")]
vector!(vector_baseline, "sse2", __m128i, _mm_loadu_si128, _mm_storeu_si128, _mm_store_si128);
#[cfg(target_arch = "x86_64")]
vector!(vector_avx2, "avx2", __m256i, _mm256_loadu_si256, _mm256_storeu_si256, _mm256_store_si256);
#[cfg(target_arch = "x86_64")]
vector!(vector_avx512, "avx512f", __m512i, _mm512_loadu_si512, _mm512_storeu_si512, _mm512_store_si512);
#[cfg(target_arch = "x86_64")]
vector!(past_baseline, "sse2", __m128i, _mm_loadu_si128, _mm_storeu_si128, _mm_stream_si128);
#[cfg(target_arch = "x86_64")]
vector!(past_avx2, "avx2", __m256i, _mm256_loadu_si256, _mm256_storeu_si256, _mm256_stream_si256);
#[cfg(target_arch = "x86_64")]
vector!(past_avx512, "avx512f", __m512i, _mm512_loadu_si512, _mm512_storeu_si512, _mm512_stream_si512);
#[cfg(target_arch = "x86_64")]
vector!(past stream_baseline, "sse2", past_baseline);
#[cfg(target_arch = "x86_64")]
vector!(past stream_avx2, "avx2", past_avx2);
#[cfg(target_arch = "x86_64")]
vector!(past stream_avx512, "avx512f", past_avx512);

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

    #[test]
    fn every_way_copies_every_byte_at_every_offset_in_a_line() {
        let all: Vec<u8> = (0..40_000u32).map(|at| (at / 3 * 7 + at) as u8).collect();
        for (way, bytes) in Way::ALL.into_iter().flat_map(|way| [257, 258, 320, 511, 1000, 20_011].map(|b| (way, b))) {
            for (from, to) in [(0, 0), (1, 0), (0, 1), (63, 64), (17, 40), (64, 63), (5, 100)] {
                let mut copied = vec![0xa5; bytes + 256];
                let flow = CacheHints::from(Locality::Far);
                // SAFETY: both have `bytes` bytes from these offsets on.
                unsafe { by_way(way, all[from..].as_ptr(), copied[to..].as_mut_ptr(), bytes, flow) }
                assert!(copied[to..to + bytes] == all[from..from + bytes], "{way}: {bytes} from {from} to {to}");
                let beside = copied[..to].iter().chain(&copied[to + bytes..]);
                assert!(beside.copied().all(|byte| byte == 0xa5), "{way}: beside {bytes} from {from} to {to}");
            }
        }
    }
}
