//! Elements of every type from a seed.

use consonance_kernels::digest::mix;
pub use consonance_spec::sample::{Sample, keys};

/// Returns `count` elements, the same for the same seed. A third of the seeds give plain values, a
/// third give any values, and a third mix these with edges.
pub fn sample<T: Sample>(seed: u64, count: usize) -> Vec<T> {
    let element = |i: usize| {
        let word = mix(seed, i as u64);
        match (seed % 3, word >> 62) {
            (0, _) => T::plain(word),
            (1, _) => T::any(word),
            (_, 0) => T::edge(word),
            (_, 1) => T::any(word),
            _ => T::plain(word),
        }
    };
    (0..count).map(element).collect()
}
