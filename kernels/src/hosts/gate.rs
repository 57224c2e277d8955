//! The gate of a process: one address at which it takes part in several meetings.
//!
//! The first words of a connection name its meeting. A connection for a meeting that this process
//! does not hold now is closed, and whoever made it comes again.

use super::{
    connection::{self, ANSWER, STRANGERS, Timed},
    greeting::{JOB_BYTES, job_of},
    not_met::NotMet,
    table::listen_at,
};
use crate::sync::fork::Origin;
use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll},
    net::{Shutdown, shutdown},
};
use std::{
    collections::{HashMap, hash_map::Entry},
    fmt,
    io::{self, ErrorKind, Read},
    net::{TcpListener, TcpStream},
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        mpsc::{self, Receiver, SyncSender},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// The time without a look for connections, after the system had no memory or no file for one.
const REST: Duration = Duration::from_millis(100);

/// An address of this process at which it takes part in several meetings. It ends when this is
/// dropped.
pub struct Gate {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    origin: Origin,
}

struct Shared {
    /// Readable when the gate closes.
    end: OwnedFd,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The meetings that are held, by the digests of their jobs.
    meetings: HashMap<u128, SyncSender<Visitor>>,
    /// The number of connections that have named no meeting yet.
    strangers: usize,
}

/// A connection, and the bytes that were read of it.
pub(super) struct Visitor {
    pub(super) stream: TcpStream,
    pub(super) said: Vec<u8>,
}

/// The connections for one meeting at a gate.
pub(super) struct Visits {
    digest: u128,
    shared: Arc<Shared>,
    visitors: Receiver<Visitor>,
}

/// The connections of a meeting: those of its own listener, or those at a gate.
pub(super) enum Arrivals {
    Listener(TcpListener),
    Gate(Visits),
}

impl Gate {
    /// Listens at `address`, `host:port`, which other hosts know.
    ///
    /// # Errors
    /// The reason why this process cannot.
    pub fn open(address: &str, deadline: Instant) -> Result<Gate, NotMet> {
        Gate::at(listen_at(address, deadline)?)
            .map_err(|error| NotMet::because(format!("this process listens at {address}: {error}")))
    }

    fn at(listener: TcpListener) -> io::Result<Gate> {
        listener.set_nonblocking(true)?;
        let end = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let shared = Arc::new(Shared { end, state: Mutex::default() });
        let of_thread = shared.clone();
        let run = move || of_thread.run(&listener);
        let thread = thread::Builder::new().name("consonance-gate".to_owned()).spawn(run)?;
        Ok(Gate { shared, thread: Some(thread), origin: Origin::here() })
    }

    /// Begins to take connections for the meeting with this digest. `None` if this process holds it
    /// already.
    pub(super) fn expect(&self, digest: u128) -> Option<Visits> {
        let (sender, visitors) = mpsc::sync_channel(STRANGERS);
        match self.shared.lock().meetings.entry(digest) {
            Entry::Occupied(_) => return None,
            Entry::Vacant(entry) => _ = entry.insert(sender),
        }
        Some(Visits { digest, shared: self.shared.clone(), visitors })
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes connections until the gate closes.
    fn run(self: Arc<Self>, listener: &TcpListener) {
        let mut rests = false;
        loop {
            let takes = !rests && self.lock().strangers < STRANGERS;
            let all = [Some(self.end.as_fd()), Some(listener.as_fd()).filter(|_| takes)];
            let mut polled: Vec<PollFd<'_>> =
                all.into_iter().flatten().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
            let limit = Timespec::try_from(REST).ok().filter(|_| !takes);
            // Interrupted, or without memory: the next pass looks again.
            if poll(&mut polled, limit.as_ref()).is_err() {
                thread::yield_now();
                continue;
            }
            if !polled[0].revents().is_empty() {
                // A forked child may have the listener, too.
                _ = shutdown(listener, Shutdown::Both);
                return;
            }
            rests = takes && self.accept(listener).is_err();
        }
    }

    /// Takes the connections that have come.
    fn accept(self: &Arc<Self>, listener: &TcpListener) -> io::Result<()> {
        while self.lock().strangers < STRANGERS {
            let stream = match listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            };
            let shared = self.clone();
            self.lock().strangers += 1;
            let hear = move || {
                let heard = first_words(&stream);
                let mut state = shared.lock();
                state.strangers -= 1;
                if let Ok((Some(job), said)) = heard
                    && let Some(meeting) = state.meetings.get(&job)
                {
                    // A meeting with so many visitors hears this one when it comes again.
                    _ = meeting.try_send(Visitor { stream, said });
                }
            };
            if connection::spawn(hear).is_err() {
                self.lock().strangers -= 1;
                return Err(ErrorKind::OutOfMemory.into());
            }
        }
        Ok(())
    }
}

/// Returns the job that a connection names, and what was read for that.
fn first_words(stream: &TcpStream) -> io::Result<(Option<u128>, Vec<u8>)> {
    stream.set_nonblocking(false)?;
    let mut said = [0; JOB_BYTES];
    Timed { stream, until: Instant::now() + ANSWER }.read_exact(&mut said)?;
    Ok((job_of(&said), said.to_vec()))
}

impl Arrivals {
    /// Returns a connection that has come.
    pub(super) fn next(&self) -> Option<Visitor> {
        match self {
            // Errors of one connection, or of a moment.
            Arrivals::Listener(listener) => {
                listener.accept().ok().map(|(stream, _)| Visitor { stream, said: Vec::new() })
            }
            Arrivals::Gate(visits) => visits.visitors.try_recv().ok(),
        }
    }
}

impl Drop for Visits {
    fn drop(&mut self) {
        self.shared.lock().meetings.remove(&self.digest);
    }
}

impl Drop for Gate {
    /// Waits for the thread, so that the address is free.
    fn drop(&mut self) {
        if self.origin.forked() {
            // The fork has no thread to end, and the descriptor is its parent's, too.
            std::mem::forget(self.thread.take());
            return;
        }
        let told = rustix::io::write(&self.shared.end, &1u64.to_ne_bytes()).is_ok();
        if let Some(thread) = self.thread.take().filter(|_| told) {
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").finish_non_exhaustive()
    }
}
