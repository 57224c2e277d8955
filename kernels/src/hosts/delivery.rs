//! The work at the wire and the links: messages are delivered in order, and ends are reported.

use super::{
    clocks::{self, Clocks, REFERENCE},
    senders::sender,
    shared_network::{Head, NUMBERS, News, SharedNetwork},
    word::{ANSWER, ASK, ASK_TIME, CUT, FAREWELL, LEAVE_BEHIND, STATE, TIME, WORD},
};
use crate::wire;
use std::{
    collections::BTreeMap,
    io::{ErrorKind, Read},
    mem,
    net::TcpStream,
    sync::Arc,
    time::{Duration, Instant},
};

/// The time without a message after which a process whose link has closed is gone: what it sent
/// before may still arrive.
const QUIET: Duration = Duration::from_millis(5);

/// The time that a process with which messages have failed has to end its link, as one that ends
/// does. The link of any other is closed.
pub(super) const FAULT: Duration = Duration::from_secs(1);

/// The limit on the time without progress for the last messages of a process that leaves.
const LAST_MESSAGES: Duration = Duration::from_secs(5);

/// The limit on the time for the answers to a farewell, and for the messages that it counts.
const LAST_WORDS: Duration = Duration::from_secs(2);

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

/// The work, of one thread at a time: the network's, or that of a rank that waits.
pub(super) struct Carrying<F> {
    shared: Arc<SharedNetwork>,
    peers: Vec<Peer>,
    deliver: F,
    /// The comparison of clocks, if this process makes it.
    clocks: Option<Clocks>,
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
    pub(super) fn new(shared: Arc<SharedNetwork>, clocks: Option<Clocks>, deliver: F) -> Carrying<F> {
        let peers = shared.sent.iter().map(|_| Peer::default()).collect();
        Carrying { shared, peers, deliver, clocks, leaving: None }
    }

    /// Goes on with the comparison of clocks. Returns the time until it goes on again.
    pub(super) fn compare(&mut self, now: Instant) -> Option<Duration> {
        // No question comes after the farewell. One before it is answered first.
        let clocks = self.clocks.as_mut().filter(|_| self.leaving.is_none())?;
        clocks.go_on(now, || self.shared.write(REFERENCE, ASK_TIME, 0))
    }

    /// Delivers the comparison so far. The answer to a question has come before that to the
    /// farewell.
    pub(super) fn end_comparison(&mut self) {
        let compared = self.clocks.as_mut().and_then(Clocks::end);
        compared.into_iter().for_each(|compared| (self.deliver)(News::Compared(compared)));
    }

    /// Delivers what has arrived, and reports the processes that send no more. Returns the time
    /// until another one may have to be.
    pub(super) fn receive(&mut self) -> Option<Duration> {
        self.progress();
        let now = Instant::now();
        (0..self.peers.len()).filter_map(|process| self.settle(process, now)).min()
    }

    /// Returns the processes whose links are open.
    pub(super) fn open(&self) -> Vec<usize> {
        let links = self.shared.links.iter().zip(&self.peers).enumerate();
        links.filter(|(_, (link, peer))| link.is_some() && peer.closed.is_none()).map(|(process, _)| process).collect()
    }

    /// Leaves, once there is the order. Returns the time until something may change; zero when this
    /// process has left.
    pub(super) fn leave(&mut self, now: Instant) -> Option<Duration> {
        let pending = self.shared.pending();
        if self.leaving.is_none() && self.shared.orders().leave {
            self.leaving = Some(Leaving { pending, since: now, said: None });
        }
        let leaving = self.leaving.as_mut()?;
        if leaving.pending != pending {
            (leaving.pending, leaving.since) = (pending, now);
        }
        let said = match leaving.said {
            Some(said) => said,
            None => {
                let waited = now.duration_since(leaving.since);
                if pending > 0 && waited < LAST_MESSAGES {
                    return Some(LAST_MESSAGES - waited);
                }
                leaving.said = Some(now);
                for process in 0..self.peers.len() {
                    let sent = *self.shared.sent(process);
                    self.shared.write(process, FAREWELL, sent);
                }
                now
            }
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
        let mut arrived = self.shared.wire.progress();
        if let Some(near) = &self.shared.near {
            near.progress(&mut arrived, |process, why| self.shared.orders().failed.push((process, why.to_owned())));
        }
        for wire::Arrived { head, body } in arrived {
            let number = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("eight bytes"));
            let (process, place) = (sender(number(0)), number(8));
            let is_of_network = self.shared.senders.get(process).is_some_and(|[_, from]| *from == number(0));
            let is_other = is_of_network && process != self.shared.own;
            let Some(peer) = self.peers.get_mut(process).filter(|_| is_other) else { continue };
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
            (peer.closed, peer.changed) = (Some((format!("messages with it have failed: {why}"), false)), Some(now));
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
        self.shared.near.as_ref().inspect(|near| near.part(process));
        let (why, has_ended) = match (&peer.farewell, &peer.closed) {
            (None, Some(closed)) => closed.clone(),
            _ => ("it has left".to_owned(), true),
        };
        let has_left = peer.farewell.is_some();
        if has_left {
            self.shared.write(process, ANSWER, 0);
        }
        self.shared.wire.part(process, !has_left);
        (self.deliver)(News::Gone { process, why, has_ended });
        None
    }

    /// Reads a link.
    pub(super) fn read(&mut self, process: usize) {
        let Some(mut link) = self.shared.links[process].as_ref() else { return };
        let peer = &mut self.peers[process];
        if peer.closed.is_some() {
            // By this process, for a reason: the end of the link is no end of the other process.
            return;
        }
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
                ASK_TIME => self.shared.write(process, TIME, clocks::time()),
                TIME => {
                    let clocks = self.clocks.as_mut().filter(|_| process == REFERENCE);
                    let compared = clocks.and_then(|clocks| clocks.answer(u64::from_le_bytes(number)));
                    compared.into_iter().for_each(|compared| (self.deliver)(News::Compared(compared)));
                }
                LEAVE_BEHIND => (self.deliver)(News::LeftBehind { process }),
                STATE => self.shared.states.note(process, u64::from_le_bytes(number)),
                CUT => {
                    let closed = ("its messages do not reach this process".to_owned(), false);
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
