//! Reports of deaths of processes in the words of `life.rs`, and the waits for them.

use super::{life::change, mapping::Beside, segment::Segment};
#[cfg(test)]
use crate::os::robust_list::OWNER_DIED;
use crate::{
    os::robust_list,
    sync::{
        atomics::{AtomicU32, Ordering},
        futex::{MOST_WORDS, Words},
    },
};
use std::{io, mem::ManuallyDrop, sync::Arc, thread, time::Duration};

/// A pause after a wake without a death. So a peer that changes words in a loop does not keep this
/// process busy.
const PAUSE: Duration = Duration::from_millis(1);

/// Limit on the processes that one process waits for: one word less than the system waits for,
/// which is the caller's.
pub(crate) const MOST_WATCHED: usize = MOST_WORDS - 1;

/// This process's hold on its word, until it is dropped.
pub(crate) struct Hold {
    segment: Arc<Segment>,
    rank: usize,
    /// [`Hold::drop`] unmaps them, unless this process is a fork.
    pages: ManuallyDrop<Beside>,
}

impl Hold {
    /// Takes the word of the process whose first rank is `rank`: this process.
    ///
    /// # Errors
    /// The system's, if it has no addresses, no thread, or no lists of robust futexes.
    ///
    /// # Panics
    /// If there is no such rank.
    pub(crate) fn new(segment: &Arc<Segment>, rank: usize) -> io::Result<Hold> {
        let pages = Beside::new(segment.own_file()?, segment.layout.life(rank))?;
        // SAFETY: the entry lies in a private page of `pages`, aligned, because a word is aligned
        // to an entry and lies at the same place in its page. The pages are mapped until the entry
        // is removed, which `drop` does.
        unsafe {
            robust_list::add(pages.entry(), |thread| {
                // Through the second mapping, so that the page is present when the process ends.
                change(pages.word(), thread);
            })?;
        }
        Ok(Hold { segment: segment.clone(), rank, pages: ManuallyDrop::new(pages) })
    }
}

impl Drop for Hold {
    /// Gives the word back: the process lives on without the group.
    fn drop(&mut self) {
        // A fork has neither the thread nor the pages.
        if self.segment.forked() {
            return;
        }
        robust_list::remove(self.pages.entry());
        change(&self.segment.life(self.rank).word, 0);
        // SAFETY: dropped only here, and not used afterwards.
        unsafe { ManuallyDrop::drop(&mut self.pages) }
    }
}

/// Waits until processes of a group have died, or until `end` is not 0, whose writer wakes this
/// thread. `ranks` has the first rank of each, [`MOST_WATCHED`] at most. Returns the positions in
/// `ranks` of those that are said to have died, none if `end` is not 0.
///
/// The wait has no other end: it is for a thread that has nothing else to do.
///
/// # Errors
/// The system's, if it cannot wait for several words.
///
/// # Panics
/// If there is no such rank, or there are too many.
pub(crate) fn await_deaths(segment: &Segment, ranks: &[usize], end: &AtomicU32) -> io::Result<Vec<usize>> {
    // Nothing is allocated while the members live.
    let mut words = Words::with_room(1 + ranks.len());
    loop {
        let mut died = Vec::new();
        words.clear();
        words.push(end, 0, false);
        for (position, &rank) in ranks.iter().enumerate() {
            let life = segment.life(rank);
            match life.alive() {
                Some(value) => words.push(&life.word, value, true),
                None => {
                    life.wake();
                    died.push(position);
                }
            }
        }
        if !died.is_empty() || end.load(Ordering::Relaxed) != 0 {
            return Ok(died);
        }
        words.wait()?;
        if end.load(Ordering::Relaxed) == 0 && !ranks.iter().any(|&rank| segment.life(rank).has_died()) {
            thread::sleep(PAUSE);
        }
    }
}

/// Marks a word as the system does, for tests of peers that write false values.
#[cfg(test)]
pub(crate) fn lie(segment: &Segment, rank: usize) {
    let life = segment.life(rank);
    life.word.fetch_or(OWNER_DIED, Ordering::Relaxed);
    life.wake();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::{GroupId, Shape};
    use crate::{os::robust_list::WAITERS, sync::futex::Sleepers};
    use std::{
        io::{Read, Write},
        sync::mpsc,
    };

    const LIMIT: Duration = Duration::from_secs(60);

    fn segment() -> Arc<Segment> {
        let shape = Shape::new(2, Shape::STAGING_BYTES).unwrap();
        Arc::new(Segment::create(shape, GroupId::from_bytes([4; 16])).unwrap())
    }

    /// Runs `body` in a fork, which then waits until it is killed. Returns the fork when it waits.
    fn fork(body: impl FnOnce()) -> libc::pid_t {
        let (mut from, mut to) = io::pipe().unwrap();
        // SAFETY: the child uses locks of its own and those of the allocator, which `fork` has put
        // in order. The alarm ends it if it waits for another.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: the calls take numbers.
            unsafe { libc::alarm(60) };
            body();
            let _ = to.write_all(b"x");
            loop {
                // SAFETY: as above.
                unsafe { libc::pause() };
            }
        }
        drop(to);
        assert!(child > 0, "{}", io::Error::last_os_error());
        from.read_exact(&mut [0]).expect("the child has come so far");
        child
    }

    fn kill(child: libc::pid_t) {
        // SAFETY: the calls take numbers; the child was made above.
        unsafe { libc::kill(child, libc::SIGKILL) };
        // SAFETY: as above; no status is asked for.
        assert_eq!(unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) }, child);
    }

    /// Holds the word of rank 1 as another process does.
    fn hold(segment: &Segment) -> Hold {
        let file = segment.file().try_clone_to_owned().unwrap();
        Hold::new(&Arc::new(Segment::open(file, segment.id(), segment.shape()).unwrap()), 1).unwrap()
    }

    #[test]
    fn a_death_wakes_every_sleeping_process() {
        let segment = segment();
        let child = fork(|| std::mem::forget(hold(&segment)));
        let (tell, told) = mpsc::channel();
        for _ in 0..4 {
            let (segment, tell) = (segment.clone(), tell.clone());
            thread::spawn(move || tell.send(await_deaths(&segment, &[0, 1], &AtomicU32::new(0)).unwrap()));
        }
        while segment.life(1).word.load(Ordering::Relaxed) & WAITERS == 0 {
            thread::sleep(PAUSE);
        }
        assert!(told.try_recv().is_err(), "it lives");
        kill(child);
        for _ in 0..4 {
            assert_eq!(told.recv_timeout(LIMIT), Ok(vec![1]));
        }
    }

    #[test]
    fn a_returned_word_is_not_marked() {
        let segment = segment();
        kill(fork(|| drop(hold(&segment))));
        assert_eq!(segment.life(1).word.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_fork_has_no_hold_on_the_word_of_its_parent() {
        let segment = segment();
        let held = Hold::new(&segment, 0).unwrap();
        let word = || segment.life(0).word.load(Ordering::Relaxed);
        let before = word();
        assert_ne!(before & !WAITERS, 0);
        let held = std::cell::Cell::new(Some(held));
        kill(fork(|| drop(held.take())));
        assert_eq!(word(), before);
        drop(held);
        assert_eq!(word(), 0);
    }

    #[test]
    fn a_wait_ends_when_its_own_process_says_so() {
        let (segment, end) = (segment(), Arc::new(AtomicU32::new(0)));
        let (until, other) = (end.clone(), segment.clone());
        let thread = thread::spawn(move || await_deaths(&other, &[0, 1], &until).unwrap());
        while segment.life(0).word.load(Ordering::Relaxed) & WAITERS == 0 {
            thread::sleep(PAUSE);
        }
        end.store(1, Ordering::Relaxed);
        Sleepers::default().wake(&end, false);
        assert_eq!(thread.join().unwrap(), Vec::new() as Vec<usize>);
    }
}
