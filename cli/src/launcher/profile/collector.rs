//! The launch of host 0: tells the others its time, and collects what their workers have written.

use super::link::{COUNT, FILE, FILES, Link, Request, TRANSFER, now};
use crate::timeline::Clock;
use consonance_kernels::os::clock_comparison::{Comparison, Nanoseconds};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
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

/// The pause after a connection that the system could not give.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// Returns the number of files that a collector of so many hosts has open: each connection, and a
/// file that comes over it.
pub(in crate::launcher) fn files(hosts: usize) -> usize {
    hosts.saturating_add(STRANGERS).saturating_mul(2)
}

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
    /// Called after each hand-over, also after one that broke.
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
            let mut polled = [PollFd::new(&ends, PollFlags::IN), PollFd::new(&listener, PollFlags::IN)];
            loop {
                // Interrupted, or without memory: the next pass looks again.
                if poll(&mut polled, None).is_err() {
                    thread::yield_now();
                } else if !polled[0].revents().is_empty() {
                    return;
                } else {
                    match listener.accept() {
                        Ok((stream, _)) => Shared::take(&served, Link::over(stream)),
                        Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                        // Without files or memory the connection waits, and so does this thread.
                        Err(_) => _ = poll(&mut polled[..1], Some(&PAUSE)),
                    }
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
            let was_busy = visit.is_busy;
            drop(visit);
            // The launcher waits no longer for a host whose hand-over broke.
            if has_handed || was_busy {
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
            // The launch keeps a file of its own if it does not hear this. Behind the lock, because
            // this process may end once it has the hand-overs of all.
            let _ = link.acknowledge();
        }
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

#[cfg(test)]
mod tests {
    use super::{
        super::{link::ANSWER, sender::Sender},
        *,
    };
    use std::{
        env,
        io::Write,
        net::{Ipv4Addr, SocketAddr, TcpStream},
        process,
        sync::mpsc::{self, Receiver},
    };

    const DIGEST: u128 = 77;

    /// Far longer than anything here takes.
    const LIMIT: Duration = Duration::from_secs(60);

    /// Host 0 of three hosts of two workers each.
    struct Host0 {
        collector: Collector,
        address: SocketAddr,
        folder: PathBuf,
        told: Receiver<()>,
    }

    impl Host0 {
        fn new(name: &str) -> Host0 {
            let folder = env::temp_dir().join(format!("consonance-collector-{}-{name}", process::id()));
            fs::create_dir_all(&folder).expect("a folder");
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
            let address = listener.local_addr().expect("an address");
            let (tell, told) = mpsc::channel();
            let tell = move || _ = tell.send(());
            let collector = Collector::begin(listener, DIGEST, (3, 2), &folder, tell).expect("a thread");
            Host0 { collector, address, folder, told }
        }

        /// Returns a connection that does not wait for ever.
        fn link(&self) -> Link {
            let stream = TcpStream::connect(self.address).expect("it listens");
            let mut link = Link::over(stream).expect("a connection");
            link.set_until(Instant::now() + LIMIT);
            link
        }

        /// Returns a connection that has greeted as host 1.
        fn greeted(&self) -> Link {
            let mut link = self.link();
            assert_eq!(link.greet(DIGEST, 1).expect("a time"), self.collector.zero());
            link
        }

        fn names(&self) -> Vec<PathBuf> {
            fs::read_dir(&self.folder).expect("a folder").map(|entry| entry.expect("an entry").path()).collect()
        }
    }

    impl Drop for Host0 {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.folder);
        }
    }

    /// Whether host 0 closes a connection, and not for want of words.
    fn is_closed(mut link: Link) -> bool {
        link.set_until(Instant::now() + TRANSFER / 2);
        match link.read(&mut [0; 64]) {
            Ok(bytes) => bytes == 0,
            // The system resets a connection of which not all was read.
            Err(error) => error.kind() != ErrorKind::TimedOut,
        }
    }

    #[test]
    fn a_host_hands_over_its_files_and_its_clock() {
        let host_0 = Host0::new("whole");
        let sources = [(2, "a", vec![1; 100]), (3, "b", vec![]), (2, "c", vec![7; 200_000])];
        let paths: Vec<(usize, PathBuf)> = sources
            .iter()
            .map(|(worker, name, bytes)| {
                let path = host_0.folder.join(name);
                fs::write(&path, bytes).expect("a file");
                (*worker, path)
            })
            .collect();
        let sender = Sender::begin(host_0.address, DIGEST, 1);
        let begun = Instant::now();
        let (tell, told) = mpsc::channel();
        sender.hand_over(paths, move || _ = tell.send(()));
        told.recv_timeout(LIMIT).expect("an end");
        host_0.told.recv_timeout(LIMIT).expect("a hand-over");
        assert_eq!((sender.known().taken, sender.waits_until(begun)), (Some(Ok(())), None));
        assert!(host_0.collector.waits_until(Instant::now()).is_some(), "host 2 is missing");
        assert_eq!(host_0.collector.waits_until(Instant::now() - OTHERS), None, "not for ever");
        let (mut handed, missing) = host_0.collector.end();
        assert_eq!(missing, [2]);
        let Handed { clock, files } = handed.remove(&1).expect("host 1");
        assert_eq!(clock, sender.known().clock());
        // The two clocks are one.
        let [offset, error, _] = clock.offset_error_and_drift().expect("compared");
        assert!(offset.abs() <= error && error > 0, "{clock:?}");
        let taken: Vec<(usize, Vec<u8>)> =
            files.iter().map(|(worker, path)| (*worker, fs::read(path).expect("a file"))).collect();
        assert_eq!(taken, sources.map(|(worker, _, bytes)| (worker, bytes)));
    }

    #[test]
    fn other_words_are_refused_and_leave_nothing() {
        let host_0 = Host0::new("words");
        // Strangers, and hosts that there are not.
        let mut garbage = host_0.link();
        garbage.write_all(&[b'G'; 64]).expect("room");
        assert!(is_closed(garbage));
        drop(host_0.link());
        for (digest, host) in [(DIGEST + 1, 1), (DIGEST, 0), (DIGEST, 3), (DIGEST, usize::MAX)] {
            assert!(host_0.link().greet(digest, host).is_err(), "{digest} {host}");
        }
        let file = |worker: u64, length: u64| [&b"F"[..], &worker.to_le_bytes(), &length.to_le_bytes()].concat();
        let end = |files: u64, count: u64, numbers: &[Nanoseconds]| {
            let numbers: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
            [&b"E"[..], &files.to_le_bytes(), &count.to_le_bytes(), &numbers].concat()
        };
        let (most, beyond) = (Nanoseconds::from(i64::MAX), Nanoseconds::from(i64::MAX) + 1);
        for words in [
            b"X".to_vec(),
            file(0, 4),
            file(4, 4),
            file(u64::MAX, 4),
            file(2, FILE + 1),
            file(2, u64::MAX),
            end(2, 0, &[]),
            end(u64::MAX, 0, &[]),
            end(1, 3, &[]),
            end(1, u64::MAX, &[]),
            end(1, 1, &[beyond, 0, 0]),
            end(1, 1, &[-1, 0, 0]),
            end(1, 1, &[0, beyond, 0]),
            end(1, 1, &[0, Nanoseconds::MIN, 0]),
            end(1, 1, &[0, 0, -1]),
            end(1, 1, &[0, 0, Nanoseconds::MAX]),
        ] {
            let mut link = host_0.greeted();
            link.hand(3, &[1; 10]).expect("room");
            link.write_all(&words).expect("room");
            assert!(is_closed(link), "{words:?}");
            host_0.told.recv_timeout(LIMIT).expect("the launcher waits no longer for it");
        }
        // A file that is not whole, of a launch that is killed.
        let mut link = host_0.greeted();
        link.write_all(&[file(2, 100), vec![1; 10]].concat()).expect("room");
        drop(link);
        host_0.told.recv_timeout(LIMIT).expect("the launcher waits no longer for it");
        // Absurd times are data. A second hand-over is none.
        let (first, last) =
            (Comparison { at: 0, offset: -most, error: most }, Comparison { at: most, offset: most, error: most });
        let mut link = host_0.greeted();
        link.end(0, &[first, last]).expect("an acknowledgement");
        host_0.told.recv_timeout(LIMIT).expect("a hand-over");
        assert!(host_0.greeted().end(0, &[]).is_err());
        let (handed, missing) = host_0.collector.end();
        assert_eq!((handed.len(), missing), (1, vec![2]));
        assert!(handed[&1].files.is_empty());
        assert!(host_0.link().greet(DIGEST, 2).and_then(|_| host_0.greeted().end(0, &[])).is_err(), "it has ended");
        let begin = Instant::now();
        while !host_0.names().is_empty() {
            assert!(begin.elapsed() < LIMIT, "{:?}", host_0.names());
            thread::yield_now();
        }
    }

    /// Hands over to a host 0 that behaves like this. Returns the result.
    fn handed_to(host_0: impl Fn(TcpStream) + Send + 'static) -> Option<Result<(), String>> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let address = listener.local_addr().expect("an address");
        // Ends after both connections.
        thread::spawn(move || listener.incoming().take(2).flatten().for_each(host_0));
        let sender = Sender::begin(address, DIGEST, 1);
        assert_eq!(sender.known().clock().offset_error_and_drift(), None);
        let (tell, told) = mpsc::channel();
        sender.hand_over(Vec::new(), move || _ = tell.send(()));
        told.recv_timeout(LIMIT).expect("an end");
        sender.known().taken
    }

    #[test]
    fn a_host_0_of_other_words_takes_nothing() {
        assert!(matches!(handed_to(drop), Some(Err(_))));
        let says = |bytes: &'static [u8]| {
            move |mut stream: TcpStream| {
                _ = stream.write_all(bytes);
                _ = stream.read(&mut [0; 4096]);
            }
        };
        for bytes in [&b"short"[..], &[255; 9], &[0; 100]] {
            assert!(matches!(handed_to(says(bytes)), Some(Err(_))), "{bytes:?}");
        }
        // Nobody answers for longer than the limit on the first words.
        let silent = |stream: TcpStream| {
            stream.set_read_timeout(Some(3 * ANSWER)).expect("a socket");
            while matches!((&stream).read(&mut [0; 4096]), Ok(1..)) {}
        };
        assert!(matches!(handed_to(silent), Some(Err(_))));
    }
}
