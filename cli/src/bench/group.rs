//! The bench's side of a group of ranks: threads of this process, or the processes of a command.

use super::{
    case::Case,
    pace::Step,
    rank::{Subject, gate_beside, open_gate, serve, write_case},
};
use consonance::Communicator;
use consonance_kernels::os::{gate::Gate, thread_pool};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    time::ClockId,
};
use std::{
    fmt,
    fs::File,
    io::{self, BufRead, BufReader, Read, Write},
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// The time that the processes of a command have to connect. Python takes seconds to load torch.
const START: Duration = Duration::from_secs(60);

/// The time that ranks have for an answer: far more than the largest buffers take on any machine
/// that holds them.
pub(super) const ANSWER: Duration = Duration::from_secs(120);

/// The time after which a rank waits no longer for the others before a call. It is shorter than
/// [`ANSWER`], so that the rank can say who did not come.
const PATIENCE: Duration = Duration::from_secs(100);

/// The end of the first message of a rank that meets the others at the gate.
const GATE: &str = " gate";

/// The time that processes have to end after their sockets are closed.
const END: Duration = Duration::from_secs(5);

/// A group of ranks that wait for requests.
pub(super) struct Group {
    /// A socket to each rank, in rank order.
    links: Vec<BufReader<UnixStream>>,
    members: Members,
    /// Whether all ranks meet at the gate before a call, and not at their library's barrier.
    has_gate: bool,
}

/// The threads or processes of the ranks.
enum Members {
    Threads(Vec<JoinHandle<io::Result<()>>>),
    Processes(Vec<Child>),
}

/// The measurements of a run.
#[derive(Debug, Default)]
pub(super) struct Samples {
    /// The time of each call on its slowest rank, in seconds.
    pub seconds: Vec<f64>,
    /// CPU seconds of all ranks in all calls, and in the waits before the calls.
    pub cpu_seconds: f64,
    /// The number of wrong elements on all ranks.
    pub wrong: usize,
}

/// The reason why a group cannot measure a case, or anything more.
#[derive(Debug)]
pub(super) enum Failure {
    /// The library has no such call.
    Unsupported(String),
    /// The group can no longer be used.
    Broken(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Failure::Unsupported(why) | Failure::Broken(why)) = self;
        f.write_str(why)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Broken(match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                format!("a rank gave no answer within {} s", ANSWER.as_secs())
            }
            _ => error.to_string(),
        })
    }
}

impl Group {
    /// Starts `ranks` threads of this process. Rank `r` runs on core `r` modulo the number of
    /// cores if it `pins` them. No other group uses `directory`.
    ///
    /// # Errors
    /// The system's, if it gives no thread or refuses a core.
    pub(super) fn threads(ranks: usize, subject: Subject, pins: bool, directory: &Path) -> Result<Group, Failure> {
        let socket = make_gate(directory, ranks)?;
        let (mut links, mut threads) = (Vec::new(), Vec::new());
        for mut communicator in Communicator::threads(ranks) {
            communicator.set_timeout(ANSWER).map_err(|error| Failure::Broken(error.to_string()))?;
            let (ours, theirs) = UnixStream::pair()?;
            let rank = communicator.rank();
            let (gate, subject) = (open_gate(&socket, rank)?, subject.clone());
            threads.push(thread::Builder::new().name(format!("rank-{rank}")).spawn(move || {
                if pins {
                    thread_pool::pin(rank % cores())?;
                }
                serve(theirs, communicator, gate, subject, ClockId::ThreadCPUTime)
            })?);
            links.push(ours);
        }
        let mut group = Group { links: Vec::new(), members: Members::Threads(threads), has_gate: false };
        group.admit(links)?;
        Ok(group)
    }

    /// Starts the processes of `commands`, with `ranks` ranks in all. The last argument of each
    /// command is the path of a socket. The processes write their errors to a file in `directory`,
    /// which no other group uses.
    ///
    /// # Errors
    /// If a command cannot be started, or not all ranks connect in time.
    pub(super) fn processes(commands: Vec<Command>, ranks: usize, directory: &Path) -> Result<Group, Failure> {
        let (socket, log) = (make_gate(directory, ranks)?, directory.join("log"));
        let listener = UnixListener::bind(&socket)?;
        listener.set_nonblocking(true)?;
        let output = File::create(&log)?;
        let mut group = Group { links: Vec::new(), members: Members::Processes(Vec::new()), has_gate: false };
        for mut command in commands {
            let program = command.get_program().to_owned();
            command.arg(&socket).stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output.try_clone()?);
            let child = command.spawn();
            let child = child.map_err(|error| Failure::Broken(format!("{}: {error}", program.display())))?;
            let Members::Processes(children) = &mut group.members else { unreachable!("made above") };
            children.push(child);
        }
        let links = group.accept(&listener, ranks).map_err(|failure| {
            let said = std::fs::read_to_string(&log).unwrap_or_default();
            let last: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
            Failure::Broken(format!("{failure}: {}", last[last.len().saturating_sub(3)..].join(" / ")))
        })?;
        group.admit(links)?;
        Ok(group)
    }

    /// Returns the sockets of all ranks, in the order in which they connect.
    fn accept(&mut self, listener: &UnixListener, ranks: usize) -> Result<Vec<UnixStream>, Failure> {
        let begin = Instant::now();
        let mut links = Vec::new();
        while links.len() < ranks {
            match listener.accept() {
                Ok((link, _)) => links.push(link),
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error.into()),
                Err(_) => {
                    let Members::Processes(children) = &mut self.members else { unreachable!("made for a command") };
                    for child in children {
                        if let Some(status) = child.try_wait()? {
                            return Err(Failure::Broken(format!("it ended at once: {status}")));
                        }
                    }
                    if begin.elapsed() > START {
                        let came = links.len();
                        return Err(Failure::Broken(format!(
                            "{came} of {ranks} ranks came within {} s",
                            START.as_secs()
                        )));
                    }
                    thread::sleep(Duration::from_millis(2));
                }
            }
        }
        Ok(links)
    }

    /// Stores the sockets in rank order.
    fn admit(&mut self, links: Vec<UnixStream>) -> Result<(), Failure> {
        let mut ranks = Vec::new();
        self.has_gate = true;
        for link in links {
            link.set_nonblocking(false)?;
            link.set_read_timeout(Some(ANSWER))?;
            let mut link = BufReader::new(link);
            let hello = read_line(&mut link)?;
            let rank = hello.strip_prefix("rank ");
            self.has_gate &= rank.is_some_and(|rank| rank.ends_with(GATE));
            let rank = rank.and_then(|rank| rank.strip_suffix(GATE).unwrap_or(rank).parse::<usize>().ok());
            ranks.push((rank.ok_or_else(|| Failure::Broken(format!("expected a rank, found {hello:?}")))?, link));
        }
        ranks.sort_by_key(|(rank, _)| *rank);
        self.links = ranks.into_iter().map(|(_, link)| link).collect();
        Ok(())
    }

    /// Returns what the ranks wait at before each call: `"common"`, the gate, or `"own"`, their
    /// library's barrier.
    pub(super) fn barrier(&self) -> &'static str {
        if self.has_gate { "common" } else { "own" }
    }

    /// Makes every rank create `sets` sets of the case's buffers. `more` returns the end of the
    /// request to a rank.
    ///
    /// # Errors
    /// [`Failure`].
    pub(super) fn prepare(&mut self, case: &Case, sets: usize, more: impl Fn(usize) -> Vec<u8>) -> Result<(), Failure> {
        for (rank, link) in self.links.iter_mut().enumerate() {
            let mut message = format!("case {}", write_case(case, sets)).into_bytes();
            message.extend(more(rank));
            link.get_mut().write_all(&message)?;
        }
        let mut result = Ok(());
        for link in &mut self.links {
            let answer = read_line(link)?;
            match answer.split_once(' ') {
                _ if answer == "ok" => {}
                Some(("none", why)) => result = Err(Failure::Unsupported(why.to_owned())),
                _ => return Err(Failure::Broken(answer)),
            }
        }
        result
    }

    /// Makes `batches` calls with each set of buffers, or as many steps. `turn` is the number of
    /// the first call. Steps give one time, the mean on the slowest rank.
    ///
    /// # Errors
    /// [`Failure::Broken`].
    pub(super) fn run(&mut self, batches: usize, turn: usize, step: Option<Step>) -> Result<Samples, Failure> {
        for link in &mut self.links {
            match step {
                None => writeln!(link.get_mut(), "run {batches} {turn}")?,
                Some(step) => writeln!(link.get_mut(), "steps {batches} {turn} {}", step.rounds())?,
            }
        }
        let mut samples = Samples::default();
        let mut pending: Vec<&mut BufReader<UnixStream>> = self.links.iter_mut().collect();
        while !pending.is_empty() {
            let link = pending.swap_remove(first_to_answer(&pending)?);
            let answer = read_line(link)?;
            let words: Vec<&str> = answer.split(' ').collect();
            let &["done", calls, cpu_seconds, wrong] = &words[..] else {
                return Err(Failure::Broken(answer.strip_prefix("failed ").unwrap_or(&answer).to_owned()));
            };
            let nonsense = || Failure::Broken(format!("expected numbers, found {answer:?}"));
            let calls: usize = calls.parse().map_err(|_| nonsense())?;
            samples.cpu_seconds += cpu_seconds.parse::<f64>().map_err(|_| nonsense())?;
            samples.wrong += wrong.parse::<usize>().map_err(|_| nonsense())?;
            samples.seconds.resize(calls, 0.0);
            for slowest in &mut samples.seconds {
                let mut seconds = [0; 8];
                link.read_exact(&mut seconds)?;
                *slowest = slowest.max(f64::from_ne_bytes(seconds));
            }
        }
        Ok(samples)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.links.clear();
        match &mut self.members {
            Members::Threads(threads) => {
                for thread in threads.drain(..) {
                    // A failure of the rank was reported when its answer was missing.
                    let _ = thread.join();
                }
            }
            Members::Processes(children) => {
                let begin = Instant::now();
                for child in children {
                    while matches!(child.try_wait(), Ok(None)) && begin.elapsed() < END {
                        thread::sleep(Duration::from_millis(2));
                    }
                    // These fail if the process has just ended by itself.
                    let _ = child.kill();
                    let _ = child.wait();
                }
            }
        }
    }
}

/// Waits for an answer, or the end, of one of these ranks, and returns its index. If a rank ends,
/// the others may wait for it until their deadline.
fn first_to_answer(links: &[&mut BufReader<UnixStream>]) -> io::Result<usize> {
    // No rank has said anything before that was not read: a rank speaks only if it is asked.
    let mut polled: Vec<PollFd<'_>> = links.iter().map(|link| PollFd::new(link.get_ref(), PollFlags::IN)).collect();
    let limit = Timespec::try_from(ANSWER).expect("a time that is not too long");
    loop {
        match poll(&mut polled, Some(&limit)) {
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
            Ok(_) => {
                let first = polled.iter().position(|link| !link.revents().is_empty());
                return Ok(first.expect("one that made the call return"));
            }
        }
    }
}

/// Makes the gate of a group in its directory. Returns the path of its socket.
fn make_gate(directory: &Path, ranks: usize) -> io::Result<PathBuf> {
    let socket = directory.join("socket");
    Gate::create(&gate_beside(&socket), ranks, cores(), PATIENCE)?;
    Ok(socket)
}

/// Returns the number of cores that this process may use.
pub(crate) fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

fn read_line(link: &mut BufReader<UnixStream>) -> Result<String, Failure> {
    let mut line = String::new();
    match link.read_line(&mut line)? {
        0 => Err(Failure::Broken("a rank has ended".to_owned())),
        _ => Ok(line.trim_end().to_owned()),
    }
}
