//! Plain reads, the baseline that reductions are measured against.

use super::isa::Isa;

/// Reads all bytes in the widest registers of the machine, and only combines them by exclusive or.
///
/// ```
/// use consonance_kernels::cpu::read::read;
/// assert_eq!(read(&[0b100; 1001]) ^ read(&[0b010; 513]), 0b110);
/// ```
pub fn read(bytes: &[u8]) -> u8 {
    match Isa::best() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the machine has this instruction set.
        Isa::Avx512 => unsafe { read_avx512(bytes) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the machine has this instruction set.
        Isa::Avx2 => unsafe { read_avx2(bytes) },
        _ => body(bytes),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn read_avx512(bytes: &[u8]) -> u8 {
    body(bytes)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn read_avx2(bytes: &[u8]) -> u8 {
    body(bytes)
}

/// Reads eight cache lines at a time. They make enough independent chains to hide the latency of an
/// instruction.
#[inline(always)]
fn body(bytes: &[u8]) -> u8 {
    let (blocks, rest) = bytes.as_chunks::<512>();
    let mut all = [0u64; 64];
    for block in blocks {
        let words = block.as_chunks::<8>().0;
        for lane in 0..all.len() {
            all[lane] ^= u64::from_ne_bytes(words[lane]);
        }
    }
    let all = all.iter().fold(0, |a, b| a ^ b).to_ne_bytes();
    all.iter().chain(rest).fold(0, |a, b| a ^ b)
}
