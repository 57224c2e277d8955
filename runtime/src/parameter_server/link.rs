//! Links: messages of any length between two processes, or two threads that play them.

use super::message;
use crate::{
    Communicator, Error, Mailbox, Result,
    cluster::pair::Pair,
    comm::{options::DEFAULT_TIMEOUT, report::words},
    nest::NestReader,
    value::nest::sent,
};
use consonance_kernels::group::Reason;
use std::{
    cell::Cell,
    fmt, io,
    sync::Mutex,
    time::{Duration, Instant},
};

/// The bytes of the first part of a message, which has its length and its number, and all of it if
/// it fits.
const FRAME: usize = 1024;
const HEADER: usize = 2 * size_of::<u64>();
const INLINE: usize = FRAME - HEADER;

/// The wait for a message that nobody is late with.
pub(super) const IDLE: Duration = Duration::from_secs(60 * 60);

const REQUEST: u64 = 0;
const REPLY: u64 = 1;
/// No message has this tag: a receive of it ends with the link.
const END: u64 = 2;

/// A link, for other threads than the one that sends and receives: one that waits for its end, and
/// one that ends it.
pub(super) struct Handle {
    mailbox: Mailbox,
    peer: Peer,
}

/// One end of a link. A link ends with either of its processes. Each end has one thread that sends
/// and receives.
pub(super) struct Link {
    mailbox: Mailbox,
    peer: Peer,
    group: Group,
    /// The number of the last call, which its reply has, too: that of a call that was given up may
    /// come later.
    calls: Cell<u64>,
}

/// The other end of a link.
#[derive(Clone)]
struct Peer {
    rank: usize,
    /// Its task, with its address if it has one.
    name: String,
    /// Its number in its job.
    index: usize,
}

/// The group of the two, which this end leaves when it is dropped.
enum Group {
    Threads(#[expect(dead_code, reason = "it is kept")] Mutex<Communicator>),
    Processes(Box<Pair>),
}

impl Link {
    /// Makes both ends of a link between threads. Each gets the name and the number of the other.
    pub(super) fn between([first, second]: [(&str, usize); 2]) -> Result<[Link; 2]> {
        let mut ends = Communicator::threads(2).into_iter();
        let mut end = |rank, (name, index): (&str, usize)| {
            let mut communicator = ends.next().expect("two ends");
            let mailbox = communicator.mailbox()?;
            let peer = Peer { rank, name: name.to_owned(), index };
            let group = Group::Threads(Mutex::new(communicator));
            Ok::<_, Error>(Link { mailbox, peer, group, calls: Cell::new(0) })
        };
        Ok([end(1, second)?, end(0, first)?])
    }

    /// Makes this end of a link between processes.
    pub(super) fn over(pair: Pair, name: &str, index: usize) -> Link {
        let (mailbox, rank) = (pair.mailbox(), pair.peer_rank());
        let peer = Peer { rank, name: name.to_owned(), index };
        Link { mailbox, peer, group: Group::Processes(Box::new(pair)), calls: Cell::new(0) }
    }

    /// Returns a handle of the link.
    pub(super) fn handle(&self) -> Handle {
        Handle { mailbox: self.mailbox.of_type(&[], None), peer: self.peer.clone() }
    }

    /// Returns whether the peer's process is stopped.
    pub(super) fn is_stopped(&self) -> bool {
        match &self.group {
            Group::Threads(_) => false,
            Group::Processes(pair) => pair.peer_is_stopped(),
        }
    }

    /// Returns whether the peer's process is there, as far as the system says, and not stopped.
    pub(super) fn is_alive(&self) -> bool {
        match &self.group {
            Group::Threads(_) => true,
            Group::Processes(pair) => !pair.peer_has_ended() && !pair.peer_is_stopped(),
        }
    }

    /// Returns whether the peer's process has ended, and not only left the link, whose error this
    /// is.
    pub(super) fn has_ended(&self, error: &Error) -> bool {
        let is_dead = matches!(error, Error::Aborted { reason, .. } if reason.contains(words(Reason::Death)));
        match &self.group {
            Group::Threads(_) => false,
            // The system says of a process of this host that it has ended a moment after it has.
            Group::Processes(pair) => is_dead || pair.peer_has_ended(),
        }
    }

    /// Sends a request.
    ///
    /// # Errors
    /// [`Error::Aborted`] if the peer is lost or has left, [`Error::Timeout`] if it takes nothing.
    pub(super) fn ask(&self, bytes: &[u8]) -> Result<()> {
        self.send(bytes, REQUEST, 0)
    }

    /// Sends the reply to the request of this number.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    pub(super) fn reply(&self, number: u64, bytes: &[u8]) -> Result<()> {
        self.send(bytes, REPLY, number)
    }

    /// Receives the next request, however long it takes. Returns its number, too.
    ///
    /// # Errors
    /// [`Error::Aborted`] if the peer is lost or has left.
    pub(super) fn request(&self) -> Result<(u64, Vec<u8>)> {
        loop {
            match self.recv(REQUEST, IDLE) {
                Err(Error::Timeout { .. }) => {}
                request => return request,
            }
        }
    }

    /// Receives the next request, before the deadline. Returns its number, too.
    ///
    /// # Errors
    /// As [`answer`](Self::answer).
    pub(super) fn request_until(&self, deadline: Instant) -> Result<(u64, Vec<u8>)> {
        self.recv(REQUEST, left(deadline))
    }

    /// Receives the next reply. `None` if this end was [interrupted](Handle::interrupt).
    ///
    /// # Errors
    /// As [`ask`](Self::ask); [`Error::Timeout`] at the deadline.
    pub(super) fn answer(&self, deadline: Instant) -> Result<Option<Vec<u8>>> {
        let mut frame = [0; FRAME];
        let from = self.mailbox.recv(&mut frame[..], None, REPLY, Some(left(deadline)));
        if from.map_err(|error| self.peer.error(error))? != self.peer.rank {
            return Ok(None);
        }
        self.rest_of(&frame, REPLY).map(|(_, reply)| Some(reply))
    }

    /// Sends a request and returns its reply.
    ///
    /// # Errors
    /// As [`answer`](Self::answer), and the error that the peer replies.
    pub(super) fn call(&self, bytes: &[u8], timeout: Duration) -> Result<Vec<u8>> {
        let deadline = Instant::now() + timeout;
        self.begin(bytes)?;
        self.finish(deadline)
    }

    /// Sends the request of a call.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    pub(super) fn begin(&self, bytes: &[u8]) -> Result<()> {
        self.calls.set(self.calls.get() + 1);
        self.send(bytes, REQUEST, self.calls.get())
    }

    /// Receives the reply of the call that was begun last.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub(super) fn finish(&self, deadline: Instant) -> Result<Vec<u8>> {
        let reply = loop {
            let (number, reply) = self.recv(REPLY, left(deadline))?;
            if number == self.calls.get() {
                break reply;
            }
        };
        let mut reader = NestReader::new(&reply);
        match reader.flag()? {
            true => Ok(reply[size_of::<u64>()..].to_vec()),
            false => Err(Error::other(format!("{}: {}", self.peer.name, reader.text()?))),
        }
    }

    fn send(&self, bytes: &[u8], tag: u64, number: u64) -> Result<()> {
        send(&self.mailbox, &self.peer, bytes, (tag, number))
    }

    /// Receives a message, and returns its number, too.
    fn recv(&self, tag: u64, timeout: Duration) -> Result<(u64, Vec<u8>)> {
        let mut frame = [0; FRAME];
        self.take(&mut frame, tag, timeout)?;
        self.rest_of(&frame, tag)
    }

    /// Receives what follows the first part of a message, and returns its number, too.
    fn rest_of(&self, frame: &[u8; FRAME], tag: u64) -> Result<(u64, Vec<u8>)> {
        let (header, inline) = frame.split_at(HEADER);
        let mut header = NestReader::new(header);
        let (length, number) = (header.number()?, header.number()?);
        let length = usize::try_from(length).map_err(|_| sent::malformed("a message is too long"))?;
        let mut bytes = Vec::new();
        let too_long =
            |_| Error::system(format!("allocate {length} bytes"), io::Error::from(io::ErrorKind::OutOfMemory));
        bytes.try_reserve_exact(length).map_err(too_long)?;
        bytes.extend_from_slice(&inline[..length.min(INLINE)]);
        if length > INLINE {
            bytes.resize(length, 0);
            self.take(&mut bytes[INLINE..], tag, DEFAULT_TIMEOUT)?;
        }
        Ok((number, bytes))
    }

    fn take(&self, bytes: &mut [u8], tag: u64, timeout: Duration) -> Result<()> {
        let taken = self.mailbox.recv(bytes, Some(self.peer.rank), tag, Some(timeout));
        taken.map(drop).map_err(|error| self.peer.error(error))
    }
}

impl Handle {
    /// Tells the peer that this process ends. The peer may have ended, or get so only after what it
    /// does.
    pub(super) fn end(&self) {
        let _ = self.tell(&message::request(message::END).into_bytes());
    }

    /// Sends a short request, which ends when it is copied, so this does not wait.
    ///
    /// # Errors
    /// As [`Link::ask`].
    pub(super) fn tell(&self, bytes: &[u8]) -> Result<()> {
        send(&self.mailbox, &self.peer, bytes, (REQUEST, 0))
    }

    /// Returns whether a message goes in one part.
    pub(super) fn is_short(bytes: &[u8]) -> bool {
        bytes.len() <= INLINE
    }

    /// Interrupts the thread of this end that waits for an [answer](Link::answer), or will do so
    /// next: it gets a message from itself.
    pub(super) fn interrupt(&self) {
        // A link that has ended interrupts by itself.
        let _ = self.mailbox.send(&[0u8; FRAME][..], self.mailbox.world().rank(), REPLY, Some(DEFAULT_TIMEOUT));
    }

    /// Waits for the end of the link, and returns its error.
    pub(super) fn lost(&self) -> Error {
        loop {
            match self.mailbox.recv(&mut [0u8; 0][..], Some(self.peer.rank), END, Some(IDLE)) {
                Err(Error::Timeout { .. }) | Ok(_) => {}
                Err(error) => return self.peer.error(error),
            }
        }
    }
}

impl Peer {
    /// Names the peer in an error of its mailbox.
    fn error(&self, error: Error) -> Error {
        let aborted = |call, reason: String, lost| Error::Aborted {
            call,
            replica: self.index,
            reason: format!("is {}: {reason}", self.name),
            lost,
            calls: Vec::new(),
        };
        match error {
            Error::Aborted { call, reason, lost, .. } => aborted(call, reason, lost),
            Error::Left { call, last, .. } => aborted(call, format!("it has left; {last}"), true),
            Error::Timeout { call, waited, missing } => {
                let missing = missing.into_iter().map(|(_, last)| (self.index, format!("{}: {last}", self.name)));
                Error::Timeout { call, waited, missing: missing.collect() }
            }
            error => error,
        }
    }
}

/// Sends a message of this tag and number.
fn send(mailbox: &Mailbox, peer: &Peer, bytes: &[u8], (tag, number): (u64, u64)) -> Result<()> {
    let mut frame = [0; FRAME];
    let (header, inline) = frame.split_at_mut(HEADER);
    let (length, number_bytes) = header.split_at_mut(size_of::<u64>());
    length.copy_from_slice(&(bytes.len() as u64).to_le_bytes());
    number_bytes.copy_from_slice(&number.to_le_bytes());
    let first = bytes.len().min(INLINE);
    inline[..first].copy_from_slice(&bytes[..first]);
    let put =
        |bytes: &[u8]| mailbox.send(bytes, peer.rank, tag, Some(DEFAULT_TIMEOUT)).map_err(|error| peer.error(error));
    put(&frame)?;
    if bytes.len() > INLINE { put(&bytes[INLINE..]) } else { Ok(()) }
}

/// Returns the time until the deadline, as a mailbox takes it.
fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now()).clamp(Duration::from_micros(1), IDLE)
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("peer", &self.peer.name).finish_non_exhaustive()
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("peer", &self.peer.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nest::NestWriter;
    use std::thread;

    fn reply(number: u64) -> Vec<u8> {
        let mut reply = NestWriter::default();
        reply.number(1);
        reply.number(number);
        reply.into_bytes()
    }

    #[test]
    fn a_late_reply_is_not_taken_for_the_next_one() {
        let [asks, serves] = Link::between([("first", 0), ("second", 1)]).unwrap();
        let server = thread::spawn(move || {
            let (first, second) = (serves.request().unwrap(), serves.request().unwrap());
            assert_eq!((first.1, second.1), (vec![1], vec![2; 5000]));
            serves.reply(first.0, &reply(1)).unwrap();
            serves.reply(second.0, &reply(2)).unwrap();
            serves
        });
        let late = asks.call(&[1], Duration::from_millis(5)).unwrap_err();
        assert!(matches!(&late, Error::Timeout { missing, .. } if missing[0].0 == 1), "{late}");
        assert_eq!(asks.call(&[2; 5000], Duration::from_secs(60)).unwrap(), reply(2)[8..]);
        drop(server.join().unwrap());
        let left = asks.call(&[3], Duration::from_secs(60)).unwrap_err();
        assert!(matches!(&left, Error::Aborted { replica: 1, lost: true, .. }), "{left}");
    }

    #[test]
    fn an_interrupt_ends_one_wait_for_an_answer_and_loses_none() {
        let limit = Duration::from_secs(60);
        let [asks, serves] = Link::between([("first", 0), ("second", 1)]).unwrap();
        let handle = asks.handle();
        // Before the wait, and during it.
        handle.interrupt();
        assert_eq!(asks.answer(Instant::now() + limit).unwrap(), None);
        let waits = thread::spawn(move || (asks.answer(Instant::now() + limit).unwrap(), asks));
        handle.interrupt();
        let (interrupted, asks) = waits.join().unwrap();
        assert_eq!(interrupted, None);
        // Interrupts between the parts of an answer, and before its first one.
        let server = thread::spawn(move || serves.reply(0, &[3; 5000]).map(|()| serves));
        handle.interrupt();
        let answers: Vec<_> = (0..2).map(|_| asks.answer(Instant::now() + limit).unwrap()).collect();
        assert!(answers.contains(&None) && answers.contains(&Some(vec![3; 5000])), "{answers:?}");
        let late = asks.answer(Instant::now() + Duration::from_millis(5));
        assert!(matches!(late, Err(Error::Timeout { .. })), "{late:?}");
        drop(server.join().unwrap().unwrap());
        let left = asks.answer(Instant::now() + limit).unwrap_err();
        assert!(matches!(&left, Error::Aborted { replica: 1, lost: true, .. }), "{left}");
    }
}
