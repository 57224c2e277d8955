//! Letters over sockets, with one connection for each pair of processes.

use consonance::{
    World,
    raw::{Carrier, Engine, Inbox, Letter},
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

impl Carrier for Sockets {
    fn carry(&self, from: usize, to: usize, letter: Letter) {
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
            inbox.put(peer, Letter::gone());
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
    let carrier = Sockets { inbox: inbox.clone(), writers, written: Mutex::new(written) };
    Ok(inbox.engine(world, Arc::new(carrier)))
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

/// A letter on the wire: its head, the number of bytes of its body, its body.
fn write(mut stream: &TcpStream, letter: &Letter) -> io::Result<()> {
    let body = letter.body();
    stream.write_all(&letter.head())?;
    stream.write_all(&(body.len() as u64).to_le_bytes())?;
    stream.write_all(&body)
}

fn read(mut stream: &TcpStream) -> io::Result<Letter> {
    let (mut head, mut count, mut body) = ([0; Letter::HEAD], [0; 8], Vec::new());
    stream.read_exact(&mut head)?;
    stream.read_exact(&mut count)?;
    let count = u64::from_le_bytes(count);
    // The length that another process claims does not decide how much is allocated: the buffer
    // grows with the bytes that arrive.
    if stream.take(count).read_to_end(&mut body)? as u64 != count {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Letter::read(&head, body).ok_or_else(|| io::ErrorKind::InvalidData.into())
}
