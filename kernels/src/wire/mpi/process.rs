//! The MPI of this process, while it runs: its lock, and what is under it.

use super::{
    calls::{Calls, Flight},
    launcher::{launch, variable},
    library::Library,
    message::{tags, tags_of},
    sys::Constants,
};
use crate::{
    digest::{digest, mix},
    sync::fork::Origin,
    wire::{UNKNOWN_PEER, WireError},
};
use std::{
    hash::{BuildHasher, Hasher, RandomState},
    sync::{Mutex, MutexGuard, PoisonError},
};

/// The MPI of this process. It lives as long as the process.
#[derive(Debug)]
pub(super) struct Mpi {
    pub(super) library: Library,
    pub(super) rank: u32,
    pub(super) size: u32,
    /// A digest of what distinguishes a launch from others.
    pub(super) launch: u64,
    /// A number of this process, by chance.
    pub(super) process: u64,
    /// Whether a thread of ours initialized it, and ends it.
    pub(super) is_ours: bool,
    origin: Origin,
    state: Mutex<ProcessState>,
}

/// The state under the lock.
#[derive(Debug, Default)]
pub(super) struct ProcessState {
    /// The number of wires, and of those that there were.
    wires: usize,
    opened: u32,
    /// Messages that no wire waits for any more, and MPI still uses.
    pub(super) left: Vec<Flight>,
    /// Whether a peer was lost, or a message.
    pub(super) has_failed: bool,
}

/// The right to call MPI.
pub(super) struct Locked<'m> {
    pub(super) calls: &'m Calls,
    pub(super) state: MutexGuard<'m, ProcessState>,
}

impl Mpi {
    /// Makes the value for an MPI that runs. `launched` is the size of its world by the launcher.
    ///
    /// # Errors
    /// In words, if it is the MPI of another launcher, or fails.
    pub(super) fn of(library: Library, is_ours: bool, launched: Option<usize>) -> Result<Mpi, String> {
        let Calls { functions, constants: Constants { world, errors_return, .. }, .. } = library.calls;
        let [mut rank, mut size] = [0; 2];
        // SAFETY: MPI runs. Sets an error handler, and writes two numbers.
        let statuses = unsafe {
            [
                ("MPI_Comm_set_errhandler", (functions.set_handler)(world, errors_return)),
                ("MPI_Comm_rank", (functions.rank)(world, &mut rank)),
                ("MPI_Comm_size", (functions.size)(world, &mut size)),
            ]
        };
        for (function, status) in statuses {
            library.calls.check(function, status).map_err(|error| error.to_string())?;
        }
        let (Ok(rank), Ok(size)) = (u32::try_from(rank), u32::try_from(size)) else {
            return Err(format!("it counts rank {rank} of {size}"));
        };
        if let Some(launched) = launched
            && launched != size as usize
        {
            return Err(format!(
                "its world has {size} processes, and the launcher has started {launched}: it is the MPI of another \
                 launcher"
            ));
        }
        let launch = mix(launch(&variable), u64::from(size));
        let process = RandomState::new().build_hasher().finish();
        Ok(Mpi { library, rank, size, launch, process, is_ours, origin: Origin::here(), state: Mutex::default() })
    }

    /// Takes the lock, but not in a forked child, where another thread may have held it, and not
    /// after the end of MPI.
    pub(super) fn lock(&self) -> Result<Locked<'_>, WireError> {
        if self.origin.forked() {
            return Err(WireError::Forked);
        }
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let locked = Locked { calls: &self.library.calls, state };
        // Also a program that has not initialized it may have ended it.
        if locked.calls.is_finalized() { Err(WireError::Ended) } else { Ok(locked) }
    }

    pub(super) fn forked(&self) -> bool {
        self.origin.forked()
    }

    /// Returns the digest of the name and version, which all processes need in common.
    pub(super) fn digest(&self) -> u64 {
        digest(&self.library.version)
    }

    /// Whether MPI may end: all wires were dropped, and no peer was lost.
    pub(super) fn is_clean(&self) -> bool {
        self.lock().is_ok_and(|locked| locked.state.wires == 0 && !locked.state.has_failed)
    }
}

impl Locked<'_> {
    /// Counts a wire. Returns its number.
    pub(super) fn add_wire(&mut self) -> u32 {
        self.sweep();
        self.state.wires += 1;
        let number = self.state.opened;
        self.state.opened += 1;
        number
    }

    pub(super) fn drop_wire(&mut self) {
        self.state.wires -= 1;
    }

    /// Keeps messages until MPI is done with them.
    pub(super) fn leave(&mut self, flights: impl IntoIterator<Item = Flight>) {
        self.state.left.extend(flights);
        self.sweep();
    }

    /// Frees the messages that MPI is done with. One that has failed is a failure for good.
    pub(super) fn sweep(&mut self) {
        let (calls, ProcessState { left, has_failed, .. }) = (self.calls, &mut *self.state);
        left.retain_mut(|flight| match calls.test(flight) {
            Ok(is_done) => !is_done,
            Err(_) => {
                *has_failed = true;
                false
            }
        });
    }

    /// Receives what has come to a wire that is dropped. Returns whether it was nothing, and MPI is
    /// done with all messages.
    pub(super) fn drain(&mut self, wire: u32) -> Result<bool, WireError> {
        let found = self.receive(tags(wire))?;
        self.sweep();
        Ok(found == 0 && self.state.left.is_empty())
    }

    /// Does so for all wires that there were.
    pub(super) fn drain_all(&mut self) -> Result<bool, WireError> {
        let found = self.receive(tags_of(self.state.opened))?;
        self.sweep();
        Ok(found == 0 && self.state.left.is_empty())
    }

    /// Begins to receive the messages with these tags, which nobody waits for. Returns their
    /// number.
    fn receive(&mut self, tags: impl IntoIterator<Item = i32>) -> Result<usize, WireError> {
        let mut count = 0;
        for tag in tags {
            while let Some(incoming) = self.calls.probe(tag)? {
                let mut room = Vec::new();
                if room.try_reserve_exact(incoming.bytes).is_err() {
                    self.state.has_failed = true;
                    continue;
                }
                let stray = self.calls.receive(UNKNOWN_PEER, incoming, room)?;
                self.state.left.push(stray);
                count += 1;
            }
        }
        Ok(count)
    }
}
