//! The words between the launch of a host and that of host 0, for a profile.
//!
//! A launch connects and greets; host 0 answers with the time at which the timeline begins. Then
//! the launch makes requests. It asks for the time of host 0, hands a file of records over, or ends
//! the hand-over, which host 0 acknowledges. Numbers are little-endian. A connection that says
//! anything else is closed, and nothing of it counts.

use consonance_kernels::os::{
    clock,
    clock_comparison::{Comparison, Nanoseconds},
};
use std::{
    io::{self, ErrorKind, Read, Write},
    net::TcpStream,
    time::{Duration, Instant},
};

/// The time for a connection, and for the first words on it.
pub(super) const ANSWER: Duration = Duration::from_secs(3);

/// The time for all words on a connection.
pub(super) const TRANSFER: Duration = Duration::from_secs(60);

/// The limit on the bytes of a file. That of a thread with as many records as it has room for has
/// half of them.
pub(super) const FILE: u64 = 32 << 20;

/// The limit on the bytes of all files of a host.
pub(super) const FILES: u64 = 1 << 30;

/// The limit on the number of files of a host.
pub(super) const COUNT: usize = 1 << 16;

/// The first bytes of a greeting.
const MAGIC: [u8; 16] = *b"consonance times";

/// A greeting: the magic bytes, the digest of the launches, and the host.
const GREETING: usize = MAGIC.len() + 16 + 8;

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Request {
    /// Asks for the time.
    Time = b'T',
    /// Hands a file over: its worker, its bytes.
    File = b'F',
    /// Ends the hand-over, with the comparisons of the clocks.
    End = b'E',
}

/// The acknowledgement of a hand-over.
const TAKEN: u8 = b'A';

/// A connection. Every word on it has to come, or to go, until a time.
pub(super) struct Link {
    stream: TcpStream,
    until: Instant,
}

impl Link {
    /// Takes a connection, with the time for the first words.
    pub(super) fn over(stream: TcpStream) -> io::Result<Link> {
        stream.set_nonblocking(false)?;
        // Small words go at once.
        stream.set_nodelay(true)?;
        Ok(Link { stream, until: Instant::now() + ANSWER })
    }

    /// Gives the words that follow until then.
    pub(super) fn set_until(&mut self, until: Instant) {
        self.until = until;
    }

    fn rest(&self) -> io::Result<Option<Duration>> {
        let rest = self.until.saturating_duration_since(Instant::now());
        if rest.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(Some(rest)) }
    }

    /// Greets host 0, as the launch of this host. Returns the time at which the timeline begins.
    pub(super) fn greet(&mut self, digest: u128, host: usize) -> io::Result<Nanoseconds> {
        let mut greeting = MAGIC.to_vec();
        greeting.extend(digest.to_le_bytes());
        greeting.extend((host as u64).to_le_bytes());
        self.write_all(&greeting)?;
        Ok(self.number()?.into())
    }

    /// Reads a greeting. Returns the host.
    pub(super) fn greeted(&mut self, digest: u128) -> io::Result<usize> {
        let greeting: [u8; GREETING] = self.bytes()?;
        let (known, host) = greeting.split_at(GREETING - 8);
        if known[..MAGIC.len()] != MAGIC || known[MAGIC.len()..] != digest.to_le_bytes() {
            return Err(ErrorKind::InvalidData.into());
        }
        Ok(usize::try_from(u64::from_le_bytes(host.try_into().expect("8 bytes"))).unwrap_or(usize::MAX))
    }

    /// Sends the own time.
    pub(super) fn tell(&mut self, time: u64) -> io::Result<()> {
        self.write_all(&time.to_le_bytes())
    }

    /// Asks host 0 for its time.
    pub(super) fn time(&mut self) -> io::Result<Nanoseconds> {
        self.write_all(&[Request::Time as u8])?;
        Ok(self.number()?.into())
    }

    /// Reads the beginning of a request.
    pub(super) fn request(&mut self) -> io::Result<Request> {
        let [code] = self.bytes()?;
        let all = [Request::Time, Request::File, Request::End];
        all.into_iter().find(|request| *request as u8 == code).ok_or_else(|| ErrorKind::InvalidData.into())
    }

    /// Hands a file of a worker over.
    pub(super) fn hand(&mut self, worker: usize, bytes: &[u8]) -> io::Result<()> {
        let mut head = vec![Request::File as u8];
        head.extend((worker as u64).to_le_bytes());
        head.extend((bytes.len() as u64).to_le_bytes());
        self.write_all(&head)?;
        self.write_all(bytes)
    }

    /// Ends the hand-over of so many files, and waits for the acknowledgement.
    pub(super) fn end(&mut self, files: usize, compared: &[Comparison]) -> io::Result<()> {
        let mut words = vec![Request::End as u8];
        words.extend((files as u64).to_le_bytes());
        words.extend((compared.len() as u64).to_le_bytes());
        for Comparison { at, offset, error } in compared {
            [at, offset, error].iter().for_each(|&&number| words.extend(number.to_le_bytes()));
        }
        self.write_all(&words)?;
        match self.bytes()? {
            [TAKEN] => Ok(()),
            _ => Err(ErrorKind::InvalidData.into()),
        }
    }

    /// Acknowledges a hand-over.
    pub(super) fn acknowledge(&mut self) -> io::Result<()> {
        self.write_all(&[TAKEN])
    }

    /// Reads a number.
    pub(super) fn number(&mut self) -> io::Result<u64> {
        self.bytes().map(u64::from_le_bytes)
    }

    /// Reads a comparison. Its numbers fit in 64 bits.
    pub(super) fn comparison(&mut self) -> io::Result<Comparison> {
        let mut number = |least: Nanoseconds, most: Nanoseconds| {
            let number = Nanoseconds::from_le_bytes(self.bytes()?);
            if (least..=most).contains(&number) { Ok(number) } else { Err(io::Error::from(ErrorKind::InvalidData)) }
        };
        let (least, most) = (i64::MIN.into(), i64::MAX.into());
        Ok(Comparison { at: number(0, most)?, offset: number(least, most)?, error: number(0, most)? })
    }

    fn bytes<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}

impl Read for Link {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.rest()?)?;
        self.stream.read(bytes).map_err(in_time)
    }
}

impl Write for Link {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.rest()?)?;
        self.stream.write(bytes).map_err(in_time)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Names the end of a time as such.
fn in_time(error: io::Error) -> io::Error {
    if error.kind() == ErrorKind::WouldBlock { ErrorKind::TimedOut.into() } else { error }
}

/// Returns the time of this host's clock, in nanoseconds.
pub(super) fn now() -> u64 {
    u64::try_from(clock::now().as_nanos()).unwrap_or(u64::MAX)
}
