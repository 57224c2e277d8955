//! Shared memory that is used again: the system takes longer to give it than a call takes to use
//! it.

use consonance::SharedMemory;
use pyo3::PyResult;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Blocks that no array uses. Blocks in use and kept ones together never have more bytes than were
/// in use at one time.
#[derive(Default)]
pub(crate) struct Pool(Mutex<Blocks>);

#[derive(Default)]
struct Blocks {
    kept: Vec<SharedMemory<u64>>,
    used_words: usize,
    most_words: usize,
}

impl Pool {
    /// Returns a block of at least `words` words of any values. `alloc` makes one.
    pub(crate) fn take(
        &self,
        words: usize,
        alloc: impl FnOnce(usize) -> PyResult<SharedMemory<u64>>,
    ) -> PyResult<SharedMemory<u64>> {
        let words = rounded(words);
        let mut blocks = self.lock();
        blocks.used_words += words;
        blocks.most_words = blocks.most_words.max(blocks.used_words);
        let kept = blocks.kept.iter().position(|block| block.len() == words);
        if let Some(index) = kept {
            return Ok(blocks.kept.swap_remove(index));
        }
        drop(blocks);
        let made = alloc(words);
        if made.is_err() {
            self.lock().used_words -= words;
        }
        made
    }

    /// Takes a block back.
    pub(crate) fn give(&self, block: SharedMemory<u64>) {
        let mut blocks = self.lock();
        blocks.used_words -= block.len();
        blocks.kept.push(block);
        // The oldest go first.
        while blocks.used_words + blocks.kept.iter().map(|block| block.len()).sum::<usize>() > blocks.most_words {
            blocks.kept.remove(0);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Blocks> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns a number of words that blocks of about this size have: an eighth of it is wasted at
/// most, or less than a page.
fn rounded(words: usize) -> usize {
    let step = (words.next_power_of_two() / 8).max(512);
    words.div_ceil(step).max(1) * step
}
