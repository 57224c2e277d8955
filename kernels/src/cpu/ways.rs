//! The ways to copy bytes, whatever the knobs say.

use super::{
    cache_hints::{CacheHints, Locality},
    isa::Isa,
    reduce::Kernel,
};
use crate::{
    memory::{HostBuf, HostBufMut},
    tuning::{self, TURNS, Trial, Value, Way, fastest, median},
};
use consonance_spec::{DType, ReduceOp};
#[cfg(target_arch = "x86_64")]
use std::arch::{asm, x86_64::*};
use std::{
    hint::black_box,
    ptr,
    time::{Duration, Instant},
};

/// Copies of at most this many bytes are the C library's, whose fastest code is for such.
pub(super) const PLAIN_BYTES: usize = 256;

/// Bytes of a cache line.
#[cfg(target_arch = "x86_64")]
const LINE: usize = 64;

/// The bytes of the copies by which the way of a rank's own data is chosen: more than a core's
/// caches hold.
const MEASURED_BYTES: usize = 4 << 20;

/// The ways of a rank's own data, of which the first is the default.
const OWN_WAYS: [Way; 2] = [Way::Vector, Way::Movsb];

/// [Copies](super::copy::copy_own) in this way, whatever the knobs say. A way that the machine does
/// not have is replaced by another.
///
/// # Panics
/// If dtype or count differ.
///
/// ```
/// use consonance_kernels::{cpu::ways::copy_by, tuning::Way};
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
/// use consonance_kernels::{cpu::ways::rewrite_by, tuning::Way};
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

/// Measures the ways to copy a rank's own data, and returns the fastest, if it is not the default.
/// It takes some milliseconds.
pub(super) fn fastest_own() -> Option<Way> {
    let mut memory = Vec::new();
    memory.try_reserve_exact(2 * MEASURED_BYTES).ok()?;
    memory.resize(2 * MEASURED_BYTES, 1u8);
    let (source, target) = memory.split_at_mut(MEASURED_BYTES);
    let mut times = [const { Vec::new() }; 2];
    for _ in 0..TURNS {
        for (way, times) in OWN_WAYS.into_iter().zip(&mut times) {
            let begin = Instant::now();
            copy_by(way, HostBuf::from(&*source), &mut HostBufMut::from(&mut *target));
            times.push(begin.elapsed().as_secs_f64());
        }
    }
    let trial = |(way, times): (Way, &Vec<f64>)| {
        let (value, time) = (Value::Way(way), Duration::from_secs_f64(median(times)?));
        Some(Trial { knob: "own", value, bytes: MEASURED_BYTES, time })
    };
    tuning::note(OWN_WAYS.into_iter().zip(&times).filter_map(trial));
    fastest(&times, 0).map(|index| OWN_WAYS[index])
}

/// Copies more than [`PLAIN_BYTES`] bytes. `flow` has the hints for [`Way::Ahead`].
///
/// # Safety
/// As for [`copy`](super::copy::copy), but source and target may be the same.
#[cfg(target_arch = "x86_64")]
pub(super) unsafe fn by_way(way: Way, source: *const u8, target: *mut u8, bytes: usize, flow: CacheHints) {
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
/// As for [`copy`](super::copy::copy), but source and target may be the same.
#[cfg(not(target_arch = "x86_64"))]
pub(super) unsafe fn by_way(way: Way, source: *const u8, target: *mut u8, bytes: usize, flow: CacheHints) {
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
        /// As for [`copy`](super::copy::copy); the machine has the instruction set; there are more
        /// than [`PLAIN_BYTES`] bytes.
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
/// As for [`copy`](super::copy::copy).
unsafe fn fold(source: *const u8, target: *mut u8, bytes: usize, flow: CacheHints) {
    let kernel = Kernel::new(ReduceOp::Or, DType::U8, Isa::best()).expect("defined, and available");
    // SAFETY: the caller's promises are the same.
    unsafe { kernel.reduce(&[source], &[target], bytes, 1, flow) }
}

#[cfg(test)]
mod tests {
    use super::*;

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
