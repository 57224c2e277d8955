//! The launch of host 0: tells the others its time, and collects what their workers have written.

use super::{
    clocks::{Clock, Comparison, Nanoseconds},
    link::{COUNT, FILE, FILES, Link, Request, TRANSFER, now},
};
use rustix::event::{PollFd, PollFlags, poll};
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, ErrorKind, PipeWriter, Read},
    net::TcpListener,
    ops::Range,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// The time that other hosts have to begin their hand-over after the workers of this one have
/// ended. Theirs end within 4 s of being asked, or 5 s after a silent network.
pub(super) const OTHERS: Duration = Duration::from_secs(10);

/// The limit on the connections at a time beside one of each host.
const STRANGERS: usize = 16;

/// The limit on the comparisons of a host.
const COMPARISONS: u64 = 2;

/// The hand-over of a host.
#[derive(Debug)]
pub(super) struct Handed {
    /// The clock of the host.
    pub(super) clock: Clock,
    /// The files, each with its worker.
    pub(super) files: Vec<(usize, PathBuf)>,
}

/// Collects what other hosts hand over, on threads, until this is dropped.
pub(super) struct Collector {
    shared: Arc<Shared>,
    _end: PipeWriter,
}

struct Shared {
    digest: u128,
    /// The number of hosts.
    hosts: usize,
    workers_of_host: usize,
    /// The folder for files.
    folder: PathBuf,
    /// The time at which the timeline begins.
    zero: u64,
    state: Mutex<State>,
    /// Called after each hand-over.
    tell: Box<dyn Fn() + Send + Sync>,
}

#[derive(Default)]
struct State {
    handed: BTreeMap<usize, Handed>,
    /// The connections that are open.
    open: usize,
    /// The connections of hosts that hand files over.
    busy: usize,
    /// The number of files so far, which names the next one.
    files: usize,
    /// Whether there is nobody to take files any more.
    ended: bool,
}

impl Collector {
    /// Collects from the hosts 1 to `hosts`, of so many workers each, which have this digest, into
    /// a folder.
    pub(super) fn begin(
        listener: TcpListener,
        digest: u128,
        (hosts, workers_of_host): (usize, usize),
        folder: &Path,
        tell: impl Fn() + Send + Sync + 'static,
    ) -> io::Result<Collector> {
        let (ends, end) = io::pipe()?;
        listener.set_nonblocking(true)?;
        let (folder, state) = (folder.to_owned(), Mutex::default());
        let shared = Shared { digest, hosts, workers_of_host, folder, zero: now(), state, tell: Box::new(tell) };
        let shared = Arc::new(shared);
        let served = shared.clone();
        thread::Builder::new().name("profile".to_owned()).spawn(move || {
            let mut polled =
                [PollFd::new(&ends, PollFlags::IN), PollFd::new(&listener, PollFlags::IN)];
            loop {
                // Interrupted, or without memory: the next pass looks again.
                if poll(&mut polled, None).is_err() {
                    thread::yield_now();
                } else if !polled[0].revents().is_empty() {
                    return;
                } else if let Ok((stream, _)) = listener.accept() {
                    Shared::take(&served, Link::over(stream));
                }
            }
        })?;
        Ok(Collector { shared, _end: end })
    }

    /// Returns the time at which the timeline begins.
    pub(super) fn zero(&self) -> Nanoseconds {
        self.shared.zero.into()
    }

    /// Returns until when to wait for other hosts whose workers may run since `ended`; `None` if
    /// there is nobody to wait for.
    pub(super) fn waits_until(&self, ended: Instant) -> Option<Instant> {
        let state = self.shared.state();
        let limit = if state.busy > 0 { OTHERS + TRANSFER } else { OTHERS };
        let is_done = state.handed.len() + 1 == self.shared.hosts;
        Some(ended + limit).filter(|until| !is_done && Instant::now() < *until)
    }

    /// Ends the collection. Returns what hosts have handed over, and the hosts that have not.
    pub(super) fn end(&self) -> (BTreeMap<usize, Handed>, Vec<usize>) {
        let mut state = self.shared.state();
        state.ended = true;
        let handed = std::mem::take(&mut state.handed);
        let missing = (1..self.shared.hosts).filter(|host| !handed.contains_key(host)).collect();
        (handed, missing)
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves a connection on a thread, or closes it if there are too many.
    fn take(self: &Arc<Shared>, link: io::Result<Link>) {
        let Ok(link) = link else { return };
        let mut state = self.state();
        if state.open >= self.hosts + STRANGERS {
            return;
        }
        let shared = self.clone();
        // A connection without a thread is closed.
        let thread = thread::Builder::new().name("profile of a host".to_owned()).spawn(move || {
            let mut visit = Visit { shared: &shared, host: 0, is_busy: false, files: Vec::new(), bytes: 0 };
            // The other end learns of an error by the end of the connection.
            let has_handed = visit.serve(link).is_ok();
            drop(visit);
            if has_handed {
                (shared.tell)();
            }
        });
        state.open += usize::from(thread.is_ok());
    }

    /// Returns the workers of a host.
    fn workers(&self, host: usize) -> Range<usize> {
        host * self.workers_of_host..(host + 1) * self.workers_of_host
    }
}

/// A connection of a host. Its files are removed at the drop unless the hand-over has ended.
struct Visit<'s> {
    shared: &'s Shared,
    host: usize,
    is_busy: bool,
    files: Vec<(usize, PathBuf)>,
    bytes: u64,
}

impl Visit<'_> {
    /// Serves the requests of a launch until it closes the connection, or has handed over.
    ///
    /// # Errors
    /// All but a hand-over.
    fn serve(&mut self, mut link: Link) -> io::Result<()> {
        self.host = link.greeted(self.shared.digest)?;
        if !(1..self.shared.hosts).contains(&self.host) {
            return Err(ErrorKind::InvalidData.into());
        }
        link.tell(self.shared.zero)?;
        link.set_until(Instant::now() + TRANSFER);
        loop {
            match link.request()? {
                Request::Time => link.tell(now())?,
                Request::File => self.file(&mut link)?,
                Request::End => return self.end(&mut link),
            }
        }
    }

    /// Takes a file. It has the bytes that were announced, or the visit ends.
    fn file(&mut self, link: &mut Link) -> io::Result<()> {
        let (worker, length) = (link.number()?, link.number()?);
        let worker = usize::try_from(worker).ok().filter(|worker| self.shared.workers(self.host).contains(worker));
        let worker = worker.ok_or(ErrorKind::InvalidData)?;
        self.bytes = self.bytes.saturating_add(length);
        if length > FILE || self.bytes > FILES || self.files.len() >= COUNT {
            return Err(ErrorKind::InvalidData.into());
        }
        let path = {
            let mut state = self.shared.state();
            if state.ended {
                return Err(ErrorKind::TimedOut.into());
            }
            state.busy += usize::from(!self.is_busy);
            self.is_busy = true;
            state.files += 1;
            self.shared.folder.join(format!("{}.of-host-{}", state.files, self.host))
        };
        let mut file = File::create_new(&path)?;
        self.files.push((worker, path));
        let copied = io::copy(&mut link.take(length), &mut file)?;
        if copied == length { Ok(()) } else { Err(ErrorKind::UnexpectedEof.into()) }
    }

    /// Ends the hand-over. A second one of a host is refused.
    fn end(&mut self, link: &mut Link) -> io::Result<()> {
        let (files, comparisons) = (link.number()?, link.number()?);
        if files != self.files.len() as u64 || comparisons > COMPARISONS {
            return Err(ErrorKind::InvalidData.into());
        }
        let compared: io::Result<Vec<Comparison>> = (0..comparisons).map(|_| link.comparison()).collect();
        let compared = compared?;
        {
            let mut state = self.shared.state();
            if state.ended || state.handed.contains_key(&self.host) {
                return Err(ErrorKind::InvalidData.into());
            }
            let clock = Clock::of(compared.first().copied(), compared.get(1).copied());
            state.handed.insert(self.host, Handed { clock, files: std::mem::take(&mut self.files) });
        }
        // The launch keeps a file of its own if it does not hear this.
        let _ = link.acknowledge();
        Ok(())
    }
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.open -= 1;
        state.busy -= usize::from(self.is_busy);
        drop(state);
        // The folder goes at the end, too.
        self.files.iter().for_each(|(_, path)| _ = fs::remove_file(path));
    }
}
