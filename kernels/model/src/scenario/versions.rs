//! Scenarios of memory that one rank writes while another one copies it.

use crate::{
    shm::{rank_gpu::RankGpu, version::Version},
    sync::atomics::{AtomicU64, Ordering},
};
use std::sync::Arc;

/// Two words under a version. The words are atomics, because a reader may copy them while they are
/// written, and throws the copy away then.
#[derive(Default)]
struct Memory {
    version: Version,
    words: [AtomicU64; 2],
}

/// The number of writes. The first has the words 1, the second the words 2.
const WRITES: u64 = 2;

/// A copy that is kept is of the version that the reader noted: neither of two versions nor of an
/// older one.
pub(super) fn versions() {
    let memory = Arc::<Memory>::default();
    let written = memory.clone();
    let writer = loom::thread::spawn(move || {
        for value in 1..=WRITES {
            written.version.begin_write();
            written.words.iter().for_each(|word| word.store(value, Ordering::Relaxed));
            written.version.end_write();
        }
    });
    let read = || {
        let version = memory.version.settled()?;
        let words = [0, 1].map(|word: usize| memory.words[word].load(Ordering::Relaxed));
        memory.version.is_still(version).then_some((version, words))
    };
    for _ in 0..2 {
        if let Some((version, words)) = read() {
            assert_eq!(words, [version / 2; 2], "of version {version}");
        }
    }
    writer.join().expect("the writer ends");
    assert_eq!(read(), Some((2 * WRITES, [WRITES; 2])), "nobody writes any more");
}

/// Two threads of a rank are on different GPUs. A reader sees one of them, whole, and always the
/// same; afterwards one is said.
pub(super) fn gpu_of_a_rank() {
    let gpu = Arc::<RankGpu>::default();
    let sayers = [1u8, 2].map(|number| {
        let gpu = gpu.clone();
        loom::thread::spawn(move || gpu.say(number.into(), [number; 16]))
    });
    let read = || gpu.read().inspect(|&(ordinal, identity)| assert_eq!(identity, [ordinal as u8; 16]));
    let (first, second) = (read(), read());
    sayers.into_iter().for_each(|sayer| sayer.join().expect("a rank says its GPU"));
    let last = read();
    assert!(last.is_some(), "one of them was first");
    for seen in [first, second] {
        assert!(seen.is_none() || seen == last, "{seen:?}, then {last:?}");
    }
}
