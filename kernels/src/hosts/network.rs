//! The network between processes that have met.

use super::{meeting::Met, states::States};
use crate::{
    os::process_state::ProcessState,
    sync::fork::Origin,
    wire::{self, Wire, WireError},
};
use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll},
    io::Errno,
};
use std::{
    collections::BTreeMap,
    fmt,
    io::{self, ErrorKind, Read, Write},
    mem,
    net::{Shutdown, TcpStream},
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// The size of a message's head in bytes.
pub const HEAD: usize = wire::HEAD - NUMBERS;

/// The head of a message: the caller's bytes.
pub type Head = [u8; HEAD];

/// The numbers before a head on the wire: the sender, and the messages that it has sent before.
const NUMBERS: usize = 16;

/// The time without a message after which a process whose link has closed is gone: what it sent
/// before may still arrive.
const QUIET: Duration = Duration::from_millis(5);

/// The time that a process with which the wire has failed has to end its link, as one that ends
/// does. The link of any other is closed.
const FAULT: Duration = Duration::from_secs(1);

/// The limit on the time without progress for the last messages of a process that leaves.
const LAST_MESSAGES: Duration = Duration::from_secs(5);

/// The limit on the time for the answers to a farewell, and for the messages that it counts.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// The first byte of a farewell, of the answer to it, and of the word of a process that takes the
/// other one for cut off. A number follows each.
const FAREWELL: u8 = b'B';
const ANSWER: u8 = b'S';
const CUT: u8 = b'C';

/// The first byte of the word of a process that goes on without the other one.
const LEAVE_BEHIND: u8 = b'L';

/// The first byte of a question for the state of a process of the other one's host, whose number
/// follows, and of the answer.
const ASK: u8 = b'Q';
const STATE: u8 = b'A';

/// The size of each in bytes.
const WORD: usize = 9;

/// The news of another process.
pub enum News {
    /// A message. Those of one process arrive in the order in which they were sent.
    Arrived {
        /// The sender.
        process: usize,
        /// The head.
        head: Head,
        /// The body.
        body: Vec<u8>,
    },
    /// The process goes on without this one. Comes before its end.
    LeftBehind {
        /// The process.
        process: usize,
    },
    /// The process sends no more.
    Gone {
        /// The process.
        process: usize,
        /// The reason, in words: "it has left".
        why: String,
        /// Whether the process has ended, or ends. It may go on, cut off by the network, if not.
        has_ended: bool,
    },
}

/// The network of a process with others. One thread sleeps until something arrives.
pub struct Network {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    origin: Origin,
}

struct Shared {
    wire: Wire,
    own: usize,
    links: Vec<Option<TcpStream>>,
    /// The number of messages that were sent to each process.
    sent: Vec<Mutex<u64>>,
    orders: Mutex<Orders>,
    /// Readable when there are orders.
    wake: OwnedFd,
    states: States,
}

/// The orders for the thread.
#[derive(Default)]
struct Orders {
    /// Whether this process leaves.
    leave: bool,
    /// The processes to which a message could not be sent, and why.
    failed: Vec<(usize, String)>,
}

impl Network {
    /// Begins to carry messages between the processes that have met, over `wire`, whose address is
    /// in the greeting of this process. `deliver` takes the news, on a thread of the network; it
    /// must not wait.
    ///
    /// # Errors
    /// The system's, and the wire's if it cannot reach a process.
    pub fn start(wire: Wire, met: Met, deliver: impl FnMut(News) + Send + 'static) -> io::Result<Network> {
        let Met { own, greetings, links } = met;
        for (process, link) in links.iter().enumerate() {
            if link.is_none() {
                continue;
            }
            wire.connect(process, &greetings[process].address).map_err(io::Error::other)?;
        }
        let sent = greetings.iter().map(|_| Mutex::new(0)).collect();
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let states = States::new(own, &greetings);
        let shared = Arc::new(Shared { wire, own, links, sent, orders: Mutex::default(), wake, states });
        let mut carrying = Carrying::new(shared.clone(), deliver);
        let thread = thread::Builder::new().name("consonance-wire".to_owned()).spawn(move || carrying.run())?;
        Ok(Network { shared, thread: Some(thread), origin: Origin::here() })
    }

    /// Sends a message to another process. Returns at once. A process that cannot be reached is
    /// reported as gone.
    pub fn send(&self, process: usize, head: &Head, body: Vec<u8>) {
        if self.origin.forked() {
            return;
        }
        if let Err(error) = self.shared.send(process, head, body) {
            self.shared.order(|orders| orders.failed.push((process, error.to_string())));
        }
    }

    /// Tells a process that this one goes on without it. The process hears of that before it hears
    /// of the end of this one.
    pub fn leave_behind(&self, process: usize) {
        if !self.origin.forked() {
            self.shared.write(process, LEAVE_BEHIND, 0);
        }
    }

    /// Returns the states of other processes. Asks those of their hosts, and waits for the answers
    /// for at most 300 ms; `None` where there is none. Not for the thread that delivers.
    pub fn states(&self, processes: &[usize]) -> Vec<Option<ProcessState>> {
        match self.origin.forked() {
            true => vec![None; processes.len()],
            false => self.shared.states.of(processes, |asked, of| self.shared.write(asked, ASK, of as u64)),
        }
    }
}

impl Shared {
    fn send(&self, process: usize, head: &Head, body: Vec<u8>) -> Result<(), WireError> {
        let mut sent = self.sent(process);
        let mut whole = [0; wire::HEAD];
        whole[..8].copy_from_slice(&(self.own as u64).to_le_bytes());
        whole[8..NUMBERS].copy_from_slice(&sent.to_le_bytes());
        whole[NUMBERS..].copy_from_slice(head);
        *sent += 1;
        self.wire.send(process, whole, body)
    }

    fn sent(&self, process: usize) -> MutexGuard<'_, u64> {
        self.sent[process].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives an order to the thread. Returns whether the thread could be woken.
    fn order(&self, give: impl FnOnce(&mut Orders)) -> bool {
        give(&mut self.orders());
        rustix::io::write(&self.wake, &1u64.to_ne_bytes()).is_ok()
    }

    fn orders(&self) -> MutexGuard<'_, Orders> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a word on a link. A link that takes no few bytes is broken, which shows when it is
    /// read.
    fn write(&self, process: usize, kind: u8, number: u64) {
        if let Some(mut link) = self.links[process].as_ref() {
            let mut word = [kind; WORD];
            word[1..].copy_from_slice(&number.to_le_bytes());
            // The next word would be read as the rest of a part of one.
            if link.write(&word).is_ok_and(|written| written < WORD) {
                self.close(process);
            }
        }
    }

    /// Closes the link with a process. Both threads take the other process for gone.
    fn close(&self, process: usize) {
        if let Some(link) = &self.links[process] {
            let _ = link.shutdown(Shutdown::Both);
        }
    }
}

#[cfg(test)]
impl Network {
    /// The links with the other processes.
    pub(super) fn links_for_test(&self) -> &[Option<TcpStream>] {
        &self.shared.links
    }
}

impl Drop for Network {
    /// Says farewell to the other processes, and waits until they have what this one has sent. If
    /// none of it moves, it waits for at most 7 s.
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if self.origin.forked() {
            // The fork has no thread to end, and the wire is its parent's.
            std::mem::forget(thread);
            std::mem::forget(self.shared.clone());
            return;
        }
        let told = self.shared.order(|orders| orders.leave = true);
        if told && thread.thread().id() != thread::current().id() {
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Network").field("own", &self.shared.own).finish_non_exhaustive()
    }
}

/// The state of another process, as the thread of the network knows it.
#[derive(Default)]
struct Peer {
    /// The number of messages that were delivered.
    delivered: u64,
    /// The messages that overtook others.
    early: BTreeMap<u64, (Head, Vec<u8>)>,
    /// The bytes of a word on the link that has not arrived whole.
    word: Vec<u8>,
    /// The number of messages that it has sent in all, since it has left.
    farewell: Option<u64>,
    /// Whether it has all messages of this process, which leaves.
    has_answered: bool,
    /// The failure of the wire, if it has failed, and when.
    fault: Option<(String, Instant)>,
    /// The end of the link, why, and whether it means the end of the process.
    closed: Option<(String, bool)>,
    /// The time of the last change.
    changed: Option<Instant>,
    is_gone: bool,
}

/// The work of the thread.
struct Carrying<F> {
    shared: Arc<Shared>,
    peers: Vec<Peer>,
    deliver: F,
    /// The state of this process that leaves.
    leaving: Option<Leaving>,
}

struct Leaving {
    /// The number of messages on their way, and the time since which it is the same.
    pending: usize,
    since: Instant,
    /// The time of the farewell.
    said: Option<Instant>,
}

impl<F: FnMut(News)> Carrying<F> {
    fn new(shared: Arc<Shared>, deliver: F) -> Carrying<F> {
        let peers = shared.sent.iter().map(|_| Peer::default()).collect();
        Carrying { shared, peers, deliver, leaving: None }
    }

    fn run(&mut self) {
        loop {
            self.progress();
            let now = Instant::now();
            let waits = (0..self.peers.len()).filter_map(|process| self.settle(process, now)).min();
            let limit = match self.leave(now) {
                Some(limit) if limit.is_zero() => break,
                limit => limit,
            };
            self.sleep(waits.into_iter().chain(limit).min());
        }
        // A forked child may have the links, too.
        (0..self.peers.len()).for_each(|process| self.shared.close(process));
    }

    /// Leaves, once there is the order. Returns the time until something may change; zero when this
    /// process has left.
    fn leave(&mut self, now: Instant) -> Option<Duration> {
        let pending = self.shared.wire.pending();
        if self.leaving.is_none() && self.shared.orders().leave {
            self.leaving = Some(Leaving { pending, since: now, said: None });
        }
        let leaving = self.leaving.as_mut()?;
        if leaving.pending != pending {
            (leaving.pending, leaving.since) = (pending, now);
        }
        let Some(said) = leaving.said else {
            let waited = now.duration_since(leaving.since);
            if pending > 0 && waited < LAST_MESSAGES {
                return Some(LAST_MESSAGES - waited);
            }
            leaving.said = Some(now);
            for process in 0..self.peers.len() {
                let sent = *self.shared.sent(process);
                self.shared.write(process, FAREWELL, sent);
            }
            return Some(LAST_WORDS);
        };
        let is_done =
            |(peer, link): (&Peer, &Option<TcpStream>)| link.is_none() || peer.has_answered || peer.closed.is_some();
        match self.peers.iter().zip(&self.shared.links).all(is_done) {
            true => Some(Duration::ZERO),
            false => Some((said + LAST_WORDS).saturating_duration_since(now)),
        }
    }

    /// Delivers what has arrived.
    fn progress(&mut self) {
        for wire::Arrived { head, body } in self.shared.wire.progress() {
            let number = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("eight bytes"));
            let (process, place) = (number(0) as usize, number(8));
            let Some(peer) = self.peers.get_mut(process).filter(|_| process != self.shared.own) else { continue };
            let rest = head[NUMBERS..].try_into().expect("the rest of a head");
            peer.changed = Some(Instant::now());
            if peer.is_gone || place < peer.delivered {
                continue;
            }
            peer.early.insert(place, (rest, body));
            while let Some((head, body)) = peer.early.remove(&peer.delivered) {
                peer.delivered += 1;
                (self.deliver)(News::Arrived { process, head, body });
            }
        }
        let failed = mem::take(&mut self.shared.orders().failed);
        for (process, why) in failed.into_iter().chain(std::iter::from_fn(|| self.shared.wire.fault())) {
            // A message of an unknown process is lost: this one cannot go on with any.
            let known = self.peers.get_mut(process).is_some();
            let peers = if known { process..process + 1 } else { 0..self.peers.len() };
            for peer in &mut self.peers[peers] {
                peer.fault.get_or_insert((why.clone(), Instant::now()));
            }
        }
    }

    /// Reports a process that sends no more, once what it has sent has arrived. Returns how long
    /// that may take.
    fn settle(&mut self, process: usize, now: Instant) -> Option<Duration> {
        let peer = &mut self.peers[process];
        if peer.is_gone {
            return None;
        }
        if peer.farewell.is_none() && peer.closed.is_none() {
            let (why, since) = peer.fault.as_ref()?;
            let waited = now.duration_since(*since);
            if waited < FAULT {
                return Some(FAULT - waited);
            }
            (peer.closed, peer.changed) = (Some((format!("the wire has failed: {why}"), false)), Some(now));
            self.shared.write(process, CUT, 0);
            self.shared.close(process);
        }
        let peer = &mut self.peers[process];
        let waited = now.duration_since(peer.changed.unwrap_or(now));
        let is_whole = peer.farewell.is_some_and(|count| peer.delivered >= count);
        let limit = match (peer.farewell, &peer.closed) {
            (Some(_), None) => LAST_WORDS,
            _ => QUIET,
        };
        if !is_whole && waited < limit {
            return Some(limit - waited);
        }
        peer.is_gone = true;
        let (why, has_ended) = match (&peer.farewell, &peer.closed) {
            (None, Some(closed)) => closed.clone(),
            _ => ("it has left".to_owned(), true),
        };
        if peer.farewell.is_some() {
            self.shared.write(process, ANSWER, 0);
        }
        // The endpoint stays until the wire is dropped: UCX 1.13 ends the process if one is closed
        // while its connection is made.
        (self.deliver)(News::Gone { process, why, has_ended });
        None
    }

    /// Sleeps until something happens, at most this time.
    fn sleep(&mut self, limit: Option<Duration>) {
        let shared = self.shared.clone();
        let limit = match shared.wire.arm() {
            Ok(true) => limit,
            // There is something now. The links are looked at all the same.
            Ok(false) => Some(Duration::ZERO),
            Err(_) => Some(Duration::from_millis(1)),
        };
        let mut processes = Vec::with_capacity(self.peers.len());
        let mut polled = vec![
            PollFd::from_borrowed_fd(shared.wire.descriptor(), PollFlags::IN),
            PollFd::from_borrowed_fd(shared.wake.as_fd(), PollFlags::IN),
        ];
        for (process, link) in shared.links.iter().enumerate() {
            if let Some(link) = link.as_ref().filter(|_| self.peers[process].closed.is_none()) {
                processes.push(process);
                polled.push(PollFd::from_borrowed_fd(link.as_fd(), PollFlags::IN));
            }
        }
        let limit = limit.map(|limit| Timespec::try_from(limit).expect("a few seconds"));
        match poll(&mut polled, limit.as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => return,
            // The system has no memory for the call now. Try again, so that nothing is missed.
            Err(_) => return thread::sleep(Duration::from_millis(1)),
        }
        if !polled[1].revents().is_empty() {
            let _ = rustix::io::read(&shared.wake, &mut [0; 8]);
        }
        for (&process, fd) in processes.iter().zip(&polled[2..]) {
            if !fd.revents().is_empty() {
                self.read(process);
            }
        }
    }

    /// Reads a link.
    fn read(&mut self, process: usize) {
        let Some(mut link) = self.shared.links[process].as_ref() else { return };
        let peer = &mut self.peers[process];
        let mut bytes = [0; WORD];
        let closed = match link.read(&mut bytes[peer.word.len()..]) {
            Ok(0) => Some(("its process has ended".to_owned(), true)),
            Ok(count) => {
                peer.word.extend_from_slice(&bytes[peer.word.len()..][..count]);
                None
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => return,
            Err(error) => Some(match error.kind() {
                ErrorKind::TimedOut | ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => {
                    ("its host does not answer".to_owned(), false)
                }
                // By the other host, or by something between.
                ErrorKind::ConnectionReset => ("its link was reset".to_owned(), false),
                _ => (format!("its link is broken: {error}"), false),
            }),
        };
        if closed.is_some() {
            (peer.closed, peer.changed) = (closed, Some(Instant::now()));
            return;
        }
        if let Ok(word) = <[u8; WORD]>::try_from(&peer.word[..]) {
            peer.word.clear();
            let [kind, number @ ..] = word;
            match kind {
                FAREWELL => {
                    (peer.farewell, peer.changed) = (Some(u64::from_le_bytes(number)), Some(Instant::now()));
                }
                ANSWER => peer.has_answered = true,
                ASK => {
                    let answer = self.shared.states.answer(u64::from_le_bytes(number));
                    answer.into_iter().for_each(|answer| self.shared.write(process, STATE, answer));
                }
                LEAVE_BEHIND => (self.deliver)(News::LeftBehind { process }),
                STATE => self.shared.states.note(process, u64::from_le_bytes(number)),
                CUT => {
                    let closed = ("its wire does not reach this process".to_owned(), false);
                    (peer.closed, peer.changed) = (Some(closed), Some(Instant::now()));
                }
                _ => {
                    let closed = ("its link carries nonsense".to_owned(), false);
                    (peer.closed, peer.changed) = (Some(closed), Some(Instant::now()));
                    self.shared.write(process, CUT, 0);
                    self.shared.close(process);
                }
            }
        }
    }
}
