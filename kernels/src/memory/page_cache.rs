//! Pages of freed memory, kept for the next allocation of about as many bytes: to make new pages
//! present takes longer than to fill them.
//!
//! Pages that are kept and pages in use are together never more than were in use at one time. A
//! thread gives back pages that stay unused, and ends when nothing is kept.

use memmap2::MmapMut;
use std::{
    hint, process,
    sync::{Mutex, MutexGuard, PoisonError, TryLockError},
    thread,
    time::{Duration, Instant},
};

/// Pages that were not used again for this time return to the system.
const IDLE: Duration = Duration::from_millis(500);

/// The limit on the number of kept blocks, so that a search is short.
const BLOCKS: usize = 64;

/// The limit on the bytes of all kept blocks. A program that frees more may need the memory for
/// something else at once.
const BYTES: usize = 512 << 20;

/// The number of times that a thread tries to get the lock, which another one has for a moment. It
/// never waits: in a child made by `fork` the lock may be held forever.
const TRIES: usize = 1000;

static KEPT: Mutex<Kept> = Mutex::new(Kept { blocks: Vec::new(), watcher: None });

struct Kept {
    /// The block that was freed last is the last.
    blocks: Vec<Block>,
    /// The process whose thread gives back unused pages, if there is one. A child made by `fork`
    /// does not have this thread and keeps nothing more.
    watcher: Option<u32>,
}

struct Block {
    pages: MmapMut,
    since: Instant,
}

/// Returns kept pages of at least `bytes` bytes and at most an eighth more. They contain what their
/// last user wrote. If there are none, gives back pages of `bytes` bytes, which the caller now
/// allocates.
pub(super) fn take(bytes: usize) -> Option<MmapMut> {
    let mut kept = lock()?;
    let fits = |block: &Block| (bytes..=bytes + bytes / 8).contains(&block.pages.len());
    if let Some(place) = kept.blocks.iter().rposition(fits) {
        return Some(kept.blocks.remove(place).pages);
    }
    let (mut count, mut room) = (0, 0);
    while room < bytes && count < kept.blocks.len() {
        room += kept.blocks[count].pages.len();
        count += 1;
    }
    let oldest: Vec<Block> = kept.blocks.drain(..count).collect();
    // The system takes its time: it gets the pages when the lock is free.
    drop(kept);
    drop(oldest);
    None
}

/// Keeps pages that are no longer in use.
pub(super) fn keep(pages: MmapMut) {
    let Some(mut kept) = lock() else { return };
    let own = process::id();
    if kept.watcher.is_none() && thread::Builder::new().name("kept pages".to_owned()).spawn(give_back).is_ok() {
        kept.watcher = Some(own);
    }
    if kept.watcher != Some(own) {
        return;
    }
    kept.blocks.push(Block { pages, since: Instant::now() });
    let mut bytes: usize = kept.blocks.iter().map(|block| block.pages.len()).sum();
    let mut count = 0;
    while kept.blocks.len() - count > BLOCKS || bytes > BYTES {
        bytes -= kept.blocks[count].pages.len();
        count += 1;
    }
    let oldest: Vec<Block> = kept.blocks.drain(..count).collect();
    drop(kept);
    drop(oldest);
}

/// Gives back pages that stay unused, until nothing is kept.
fn give_back() {
    loop {
        thread::sleep(IDLE / 2);
        let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
        let count = kept.blocks.iter().take_while(|block| block.since.elapsed() >= IDLE).count();
        let unused: Vec<Block> = kept.blocks.drain(..count).collect();
        let is_empty = kept.blocks.is_empty();
        if is_empty {
            kept.watcher = None;
        }
        drop(kept);
        drop(unused);
        if is_empty {
            return;
        }
    }
}

fn lock() -> Option<MutexGuard<'static, Kept>> {
    for _ in 0..TRIES {
        match KEPT.try_lock() {
            Ok(kept) => return Some(kept),
            Err(TryLockError::Poisoned(kept)) => return Some(kept.into_inner()),
            Err(TryLockError::WouldBlock) => hint::spin_loop(),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that no other test allocates.
    const OWN_BYTES: usize = 7_777 << 12;

    /// Pages that take no memory until they are touched.
    fn pages(bytes: usize) -> MmapMut {
        MmapMut::map_anon(bytes).expect("a system with memory")
    }

    /// Keeps pages and takes them again. Tests on other threads may have taken their place.
    fn kept_and_taken(last: u8) -> Option<MmapMut> {
        let mut pages = pages(OWN_BYTES);
        pages[OWN_BYTES - 1] = last;
        keep(pages);
        take(OWN_BYTES - 100)
    }

    /// One test: tests on several threads would take each other's pages.
    #[test]
    fn pages_are_used_again_while_they_are_kept_and_then_returned() {
        let again = (0..100).find_map(|_| kept_and_taken(7)).expect("pages that were just kept");
        assert_eq!(again[OWN_BYTES - 1], 7, "as their last user left them");
        keep(again);
        assert!(take(OWN_BYTES / 2).is_none(), "far fewer bytes");
        kept_and_taken(7).into_iter().for_each(keep);
        thread::sleep(3 * IDLE);
        assert!(take(OWN_BYTES).is_none(), "nobody used them in time");
        keep(pages(BYTES + OWN_BYTES));
        assert!(take(BYTES + OWN_BYTES).is_none(), "more than the limit");
        (0..3 * BLOCKS).for_each(|_| keep(pages(3 << 12)));
        let kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(kept.blocks.len() <= BLOCKS);
        assert!(kept.blocks.iter().map(|block| block.pages.len()).sum::<usize>() <= BYTES);
    }
}
