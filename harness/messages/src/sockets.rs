//! Letters over sockets, with one connection for each pair of processes.

use crate::{
    Messages, Post,
    inbox::Inbox,
    letter::{End, Generation, Letter, Tagged},
};
use consonance::{
    DType, World,
    raw::{Engine, Envelope, Reason},
};
use std::{
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex, mpsc},
    thread,
    time::{Duration, Instant},
};

/// The connections of a process, without one to itself.
struct Sockets {
    inbox: Arc<Inbox>,
    /// The queue of the thread that writes to each process, so that no sender waits for a process
    /// that does not read.
    writers: Vec<Option<mpsc::Sender<Letter>>>,
    /// Disconnected when all these threads have ended.
    written: Mutex<mpsc::Receiver<()>>,
}

/// The process may end after this: its last letters must have left, or the others would hear of its
/// end alone.
impl Drop for Sockets {
    fn drop(&mut self) {
        self.writers.clear();
        let written = self.written.get_mut().expect("nobody panics holding it");
        let _ = written.recv_timeout(LAST_LETTERS);
    }
}

/// The limit on the time for the last letters. A process that does not read keeps nobody longer.
const LAST_LETTERS: Duration = Duration::from_secs(1);

impl Post for Sockets {
    fn bring(&self, from: usize, to: usize, letter: Letter) {
        match &self.writers[to] {
            None => self.inbox.put(from, letter),
            // A writer that ended has shut its connection down, which both readers notice.
            Some(writer) => _ = writer.send(letter),
        }
    }
}

/// Makes the engine of process `rank`, whose listener is `listener`. `addresses` has the address of
/// each process, in rank order. It connects to the processes of lower rank and accepts those of
/// higher rank. When this returns, all are connected.
///
/// # Errors
/// The system's, and [`io::ErrorKind::TimedOut`] if a process does not come before the timeout.
pub fn processes(
    rank: usize,
    listener: TcpListener,
    addresses: &[SocketAddr],
    timeout: Duration,
) -> io::Result<Box<dyn Engine>> {
    let (size, deadline) = (addresses.len(), Instant::now() + timeout);
    let world = World::new(rank, size).ok_or(io::ErrorKind::InvalidInput)?;
    let mut streams: Vec<Option<Arc<TcpStream>>> = (0..size).map(|_| None).collect();
    listener.set_nonblocking(true)?;
    for (peer, address) in addresses.iter().enumerate().take(rank) {
        let mut stream = until(deadline, || TcpStream::connect_timeout(address, rest(deadline)))?;
        stream.write_all(&(rank as u64).to_le_bytes())?;
        streams[peer] = Some(Arc::new(stream));
    }
    while streams[rank + 1..].iter().any(Option::is_none) {
        let (mut stream, _) = until(deadline, || listener.accept())?;
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(rest(deadline).min(GREETING)))?;
        let mut peer = [0; 8];
        // A stranger sends nothing, or the rank of a process that is connected already.
        if stream.read_exact(&mut peer).is_err() {
            continue;
        }
        stream.set_read_timeout(None)?;
        let peer = usize::try_from(u64::from_le_bytes(peer)).unwrap_or(usize::MAX);
        if peer > rank
            && let Some(place @ None) = streams.get_mut(peer)
        {
            *place = Some(Arc::new(stream));
        }
    }
    let inbox = Arc::new(Inbox::new(rank, size));
    let mut writers = Vec::with_capacity(size);
    let (writes, written) = mpsc::channel::<()>();
    for (peer, stream) in streams.into_iter().enumerate() {
        let Some(stream) = stream else {
            writers.push(None);
            continue;
        };
        stream.set_nodelay(true)?;
        let (reader, inbox) = (stream.clone(), inbox.clone());
        thread::Builder::new().name("letters in".to_owned()).spawn(move || {
            while let Ok(letter) = read(&reader) {
                inbox.put(peer, letter);
            }
            inbox.put(peer, Letter::Gone);
        })?;
        let ((writer, letters), writes) = (mpsc::channel(), writes.clone());
        thread::Builder::new().name("letters out".to_owned()).spawn(move || {
            // Ends when all senders are gone or the connection is closed.
            let _ = letters.into_iter().try_for_each(|letter| write(&stream, &letter));
            // This ends the reader of the peer.
            let _ = stream.shutdown(Shutdown::Write);
            drop(writes);
        })?;
        writers.push(Some(writer));
    }
    let post = Arc::new(Sockets { inbox: inbox.clone(), writers, written: Mutex::new(written) });
    Ok(Box::new(Messages::whole(world, inbox, post)))
}

/// The limit on the time until a new connection sends its rank, which a process does at once. A
/// stranger does not keep the others waiting.
const GREETING: Duration = Duration::from_secs(1);

/// Returns the time until the deadline. It is not zero, which a socket takes for no timeout.
fn rest(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
}

/// Repeats `attempt` until the other end is there, at most until the deadline.
fn until<T>(deadline: Instant, attempt: impl Fn() -> io::Result<T>) -> io::Result<T> {
    let nobody = [io::ErrorKind::ConnectionRefused, io::ErrorKind::WouldBlock, io::ErrorKind::TimedOut];
    loop {
        match attempt() {
            Ok(value) => return Ok(value),
            Err(error) if !nobody.contains(&error.kind()) => return Err(error),
            Err(_) if Instant::now() < deadline => thread::sleep(Duration::from_millis(2)),
            Err(_) => return Err(io::ErrorKind::TimedOut.into()),
        }
    }
}

/// A letter on the wire: its kind, the four numbers of its generation, two numbers more, and the
/// number of bytes that follow. The two numbers are the ranks and the turn of an end, or the tag
/// and the type of a message. A turn counts from 1; 0 is none. The kind of an end counts from its
/// reason's place among all.
fn write(mut stream: &TcpStream, letter: &Letter) -> io::Result<()> {
    let numbers_of: Vec<u8>;
    let none: &[u8] = &[];
    let (kind, of, numbers, bytes) = match letter {
        Letter::Message { of, bytes } => (0u64, *of, [0, 0], &bytes[..]),
        Letter::End { of, end } => {
            let reason = Reason::ALL.iter().position(|reason| *reason == end.reason).expect("all are listed");
            let ranks = end.rank as u64 | (end.member as u64) << 32;
            (1 + reason as u64, *of, [ranks, end.turn.map_or(0, |turn| turn + 1)], none)
        }
        Letter::Leave { group } => (LEAVE, Generation::of_all(*group), [0, 0], none),
        Letter::Tagged { of, message } => {
            (LEAVE + 1, *of, [message.envelope.tag, type_of(&message.envelope)], &message.bytes[..])
        }
        Letter::Unlike { of, sent, expected } => {
            numbers_of = [sent.bytes, expected.bytes].map(|bytes| (bytes as u64).to_le_bytes()).concat();
            (LEAVE + 2, *of, [sent.tag, type_of(sent) << 16 | type_of(expected)], &numbers_of[..])
        }
        Letter::Lost { group, ranks } => {
            numbers_of = ranks.iter().flat_map(|&rank| (rank as u64).to_le_bytes()).collect();
            (LEAVE + 3, Generation::of_all(*group), [0, 0], &numbers_of[..])
        }
        Letter::Gone => return Ok(()),
    };
    let [first, second] = numbers;
    let Generation { group, lost, members, number } = of;
    let head = [kind, group, lost, members, number, first, second, bytes.len() as u64].map(u64::to_le_bytes).concat();
    stream.write_all(&head)?;
    stream.write_all(bytes)
}

/// The kind of [`Letter::Leave`]. Those of messages with tags follow.
const LEAVE: u64 = 1 + Reason::ALL.len() as u64;

/// Returns the number of a message's type: the element type's place among all, and the label.
fn type_of(envelope: &Envelope) -> u64 {
    let dtype = DType::ALL.iter().position(|dtype| *dtype == envelope.dtype).expect("all are listed");
    (dtype as u64) << 8 | u64::from(envelope.label)
}

/// Reverses [`type_of`].
fn envelope(tag: u64, number: u64, bytes: usize) -> io::Result<Envelope> {
    let dtype = DType::ALL.get((number >> 8 & 0xff) as usize).ok_or(io::ErrorKind::InvalidData)?;
    Ok(Envelope { dtype: *dtype, label: number as u8, bytes, tag })
}

fn read(mut stream: &TcpStream) -> io::Result<Letter> {
    let mut head = [[0u8; 8]; 8];
    stream.read_exact(head.as_flattened_mut())?;
    let [kind, group, lost, members, number, first, second, count] = head.map(u64::from_le_bytes);
    let of = Generation { group, lost, members, number };
    let mut bytes = Vec::new();
    // The length that another process claims does not decide how much is allocated: the buffer
    // grows with the bytes that arrive.
    if stream.take(count).read_to_end(&mut bytes)? as u64 != count {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(match kind {
        0 => Letter::Message { of, bytes },
        1..LEAVE => {
            let reason = Reason::ALL[kind as usize - 1];
            let (rank, member) = ((first & u64::from(u32::MAX)) as usize, (first >> 32) as usize);
            Letter::End { of, end: End { rank, member, reason, turn: second.checked_sub(1) } }
        }
        LEAVE => Letter::Leave { group },
        kind if kind == LEAVE + 1 => {
            Letter::Tagged { of, message: Tagged { envelope: envelope(first, second, bytes.len())?, bytes } }
        }
        kind if kind == LEAVE + 3 => {
            let (ranks, _) = bytes.as_chunks::<8>();
            Letter::Lost { group, ranks: ranks.iter().map(|&rank| u64::from_le_bytes(rank) as usize).collect() }
        }
        _ => {
            let sizes: [u8; 16] = bytes.try_into().map_err(|_| io::ErrorKind::InvalidData)?;
            let size = |half: &[u8]| u64::from_le_bytes(half.try_into().expect("eight bytes")) as usize;
            let (sent, expected) = (size(&sizes[..8]), size(&sizes[8..]));
            Letter::Unlike {
                of,
                sent: envelope(first, second >> 16, sent)?,
                expected: envelope(first, second, expected)?,
            }
        }
    })
}
