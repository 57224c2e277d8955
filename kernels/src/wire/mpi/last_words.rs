//! The last words of processes that end.

use super::{calls::Flight, message::LAST_TAG, process::Mpi};
use crate::wire::{UNKNOWN_PEER, WireError};
use std::{
    ffi::c_int,
    thread,
    time::{Duration, Instant},
};

/// The time between two looks for the last words of others.
const TICK: Duration = Duration::from_millis(1);

/// The time without a new word after which a process waits no longer. Another one may still write
/// a file before its end, and be ended by the launcher if this one ends without `MPI_Finalize`.
pub(super) const PATIENCE: Duration = Duration::from_secs(300);

/// The time that a process without `MPI_Finalize` lets MPI carry its words.
const PARTING: Duration = Duration::from_millis(200);

/// The time that a process with success, which ends without `MPI_Finalize` since another one does,
/// leaves to that one to end first. Seen of MPICH 5.0.2: its launcher has the status of the first.
const PRECEDENCE: Duration = Duration::from_secs(2);

/// The end that a process has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// It calls `MPI_Finalize` if all others do.
    Whole,
    /// It ends without.
    Unclean,
}

impl Ending {
    /// The number of bytes of the word for it.
    fn bytes(self) -> usize {
        match self {
            Ending::Whole => 1,
            Ending::Unclean => 2,
        }
    }
}

/// The last words of this process to the others of the world, and theirs.
///
/// MPICH's `MPI_Finalize` fails if a message was not received, and its launcher then ends the other
/// processes. A message may be on its way to a wire that was dropped. So each process sends one
/// more message to each other one, and ends when it has those of all: messages of one process in a
/// communicator arrive in order, so all others have arrived by then, too.
///
/// `MPI_Finalize` waits for all processes. One that ends without it says so, and the others do
/// without it, too.
pub(super) struct LastWords<'m> {
    mpi: &'m Mpi,
    /// The number of processes that have not said theirs.
    pub(super) silent: u32,
    words: Vec<Flight>,
    /// The time of the last word.
    heard: Instant,
}

impl<'m> LastWords<'m> {
    /// Says the words of this process.
    pub(super) fn say(mpi: &'m Mpi, ending: Ending) -> Result<LastWords<'m>, WireError> {
        let locked = mpi.lock()?;
        let mut words = Vec::new();
        for rank in (0..mpi.size).filter(|rank| *rank != mpi.rank) {
            let bytes = vec![0; ending.bytes()];
            match locked.calls.send(UNKNOWN_PEER, rank as c_int, LAST_TAG, bytes, usize::MAX) {
                Ok(word) => words.push(word),
                Err(error) if ending == Ending::Whole => return Err(error),
                // A peer that is lost hears nothing.
                Err(_) => {}
            }
        }
        Ok(LastWords { mpi, silent: mpi.size - 1, words, heard: Instant::now() })
    }

    /// Goes on. Returns how this process ends, once that is known.
    ///
    /// # Errors
    /// MPI's, after which it cannot end.
    fn go_on(&mut self) -> Result<Option<Ending>, WireError> {
        let mut locked = self.mpi.lock()?;
        let mut is_unclean = locked.state.has_failed;
        while let Some(incoming) = locked.calls.probe(LAST_TAG)? {
            is_unclean |= incoming.bytes != Ending::Whole.bytes();
            let room = Vec::with_capacity(incoming.bytes);
            self.words.push(locked.calls.receive(UNKNOWN_PEER, incoming, room)?);
            self.silent = self.silent.saturating_sub(1);
            self.heard = Instant::now();
        }
        // After the words, since the messages of a process have arrived with its word.
        let is_drained = locked.drain_all()?;
        let mut failed = None;
        self.words.retain_mut(|word| match locked.calls.test(word) {
            Ok(is_done) => !is_done,
            Err(error) => {
                failed = Some(error);
                false
            }
        });
        is_unclean |= locked.state.has_failed;
        let is_whole = self.silent == 0 && is_drained && self.words.is_empty();
        match failed {
            Some(error) => Err(error),
            None if is_unclean => Ok(Some(Ending::Unclean)),
            None => Ok(is_whole.then_some(Ending::Whole)),
        }
    }

    /// Waits for the words of all others, as long as there are new ones within the limit.
    pub(super) fn hear(&mut self, limit: Duration) -> Ending {
        loop {
            match self.go_on() {
                Ok(Some(ending)) => return ending,
                Err(_) => return Ending::Unclean,
                Ok(None) if self.heard.elapsed() >= limit => return Ending::Unclean,
                Ok(None) => thread::park_timeout(TICK),
            }
        }
    }

    /// Lets MPI carry the words of a process that waits for none.
    fn part(mut self) {
        while self.heard.elapsed() < PARTING {
            let Ok(locked) = self.mpi.lock() else { return };
            self.words.retain_mut(|word| locked.calls.test(word) == Ok(false));
            drop(locked);
            if self.words.is_empty() {
                return;
            }
            thread::yield_now();
        }
    }
}

/// Exchanges last words with all others, as long as there are new ones within the limit. Returns
/// how this process ends.
pub(super) fn exchange(mpi: &Mpi, limit: Duration) -> Ending {
    let ending = LastWords::say(mpi, Ending::Whole).map_or(Ending::Unclean, |mut words| words.hear(limit));
    if ending == Ending::Unclean {
        say_unclean(mpi);
        let until = Instant::now() + PRECEDENCE;
        while Instant::now() < until {
            thread::park_timeout(TICK);
        }
    }
    ending
}

/// Tells all others that this process ends without `MPI_Finalize`.
pub(super) fn say_unclean(mpi: &Mpi) {
    if let Ok(words) = LastWords::say(mpi, Ending::Unclean) {
        words.part();
    }
}
