//! The table of a group's addresses, for processes that know one address and their ranks.
//!
//! One process [serves](serve) the table. Each process, that one too, [asks](look_up) for it over a
//! connection: its *claim* says its rank, and the port at which it listens. When all ranks have
//! asked, each gets the addresses of all, and the service ends. Until then it tells the others each
//! second of the ranks that are missing. A connection that closes before takes its claim back.

use super::{
    dial::{self, ANSWER, Timed, dial, spawn},
    greeting::BUILD,
    meeting::NotMet,
};
use crate::bootstrap::Waiting;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::{
    io::{self, ErrorKind, Read, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs},
    os::fd::AsFd,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

/// The limit on the processes of a group on several hosts: each two have a connection.
pub const MOST: usize = 256;

/// The limit on the connections that have not asked yet.
const STRANGERS: usize = 64;

/// The time between two words about the missing ranks.
const NEWS: Duration = Duration::from_secs(1);

/// The time between two attempts to reach the table.
const AGAIN: Duration = Duration::from_millis(50);

/// The first bytes of a claim, in every version.
const MAGIC: [u8; 16] = *b"consonance table";

/// The bytes of a claim.
const BYTES: usize = MAGIC.len() + 16 + 5 * 8 + NAME;

/// The limit on the name of a host, in bytes.
const NAME: usize = 64;

/// The limit on an answer, in bytes.
const ANSWERS: u64 = 64 << 10;

/// The claim of a process to a rank of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The digest of the group. Only processes with the same digest get the same table.
    pub digest: u128,
    /// The rank that the process claims.
    pub rank: usize,
    /// The number of the group's processes.
    pub size: usize,
    /// The process's id, on its host.
    pub pid: u32,
    /// The name of its host.
    pub host: String,
    /// The port at which it listens, at all addresses of its host.
    pub port: u16,
}

impl Claim {
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(self.digest.to_le_bytes());
        for word in [BUILD, self.rank as u64, self.size as u64, self.pid.into(), self.port.into()] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(self.host.bytes().take(NAME));
        bytes.resize(BYTES, 0);
        bytes
    }

    /// Reads the claim of a process of the same build to a rank of the group with this digest.
    ///
    /// # Errors
    /// The answer to others, in words; `None` for those that are no processes of the group.
    fn read(bytes: &[u8; BYTES], digest: u128) -> Result<Claim, Option<String>> {
        let word = |at: usize| u64::from_le_bytes(bytes[32 + 8 * at..][..8].try_into().expect("8 bytes"));
        if bytes[..16] != MAGIC || bytes[16..32] != digest.to_le_bytes() {
            return Err(None);
        }
        if word(0) != BUILD {
            let why = "the process that has the table runs another build of the program";
            return Err(Some(why.to_owned()));
        }
        let host = String::from_utf8_lossy(&bytes[BYTES - NAME..]).trim_end_matches('\0').to_owned();
        let [rank, size] = [word(1), word(2)].map(|word| usize::try_from(word).unwrap_or(usize::MAX));
        if rank >= size || size > MOST {
            return Err(Some(format!("rank {rank} of {size}: a table has at most {MOST} ranks")));
        }
        Ok(Claim { digest, rank, size, pid: word(3) as u32, host, port: word(4) as u16 })
    }

    fn process(&self) -> String {
        format!("process {} on {}", self.pid, self.host)
    }
}

/// The words of the service.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Word {
    /// The ranks that are missing.
    Missing = b'M',
    /// The addresses, by rank.
    Table = b'T',
    /// The reason why the process gets none.
    Refusal = b'R',
}

fn say(mut to: &TcpStream, word: Word, text: &str) -> io::Result<()> {
    let mut bytes = vec![word as u8];
    bytes.extend((text.len() as u64).to_le_bytes());
    bytes.extend(text.bytes());
    // Little enough for the buffer of a socket.
    to.write_all(&bytes)
}

/// Serves the table of the group with this digest, on a thread of its own: until all ranks have it,
/// at most until the given time.
///
/// # Errors
/// The system's.
pub fn serve(listener: TcpListener, digest: u128, until: Instant) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let service = Service { listener, digest, callers: Vec::new(), told: Instant::now() };
    thread::Builder::new().name("consonance-table".to_owned()).spawn(move || service.run(until))?;
    Ok(())
}

/// Listens at an address that other hosts know, `host:port`.
///
/// # Errors
/// The reason why this process cannot.
pub fn listen_at(address: &str, deadline: Instant) -> Result<TcpListener, NotMet> {
    // The others are on other hosts, unless the address is one of the loopback.
    let listener = dial::listen(address, [address].into_iter(), deadline);
    listener.map_err(|problem| NotMet::because(format!("this process {problem}")))
}

/// Listens at a free port of all addresses of this host.
///
/// # Errors
/// The system's.
pub fn listen_anywhere() -> io::Result<TcpListener> {
    TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)).or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)))
}

struct Service {
    listener: TcpListener,
    digest: u128,
    callers: Vec<Caller>,
    /// The time of the last word about missing ranks.
    told: Instant,
}

/// A connection to the service.
struct Caller {
    stream: TcpStream,
    since: Instant,
    /// The bytes of a claim that is not whole.
    bytes: Vec<u8>,
    claim: Option<Claim>,
}

impl Service {
    fn run(mut self, until: Instant) {
        while Instant::now() < until {
            self.wait(until);
            self.accept();
            self.read();
            if self.has_all() {
                return self.answer();
            }
            if self.told.elapsed() >= NEWS {
                self.tell();
            }
        }
    }

    /// Waits for a connection or for words on one.
    fn wait(&self, until: Instant) {
        let rest = until.saturating_duration_since(Instant::now()).min(NEWS);
        // A connection that cannot be taken now would end the wait at once.
        let listener = Some(self.listener.as_fd()).filter(|_| self.takes_more());
        let callers = self.callers.iter().map(|caller| caller.stream.as_fd());
        let mut polled: Vec<PollFd<'_>> =
            listener.into_iter().chain(callers).map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        // Interrupted, or without memory: the next pass looks again.
        if poll(&mut polled, Timespec::try_from(rest).ok().as_ref()).is_err() {
            thread::yield_now();
        }
    }

    fn takes_more(&self) -> bool {
        self.callers.iter().filter(|caller| caller.claim.is_none()).count() < STRANGERS
    }

    fn accept(&mut self) {
        while self.takes_more() {
            let Ok((stream, _)) = self.listener.accept() else { return };
            if stream.set_nonblocking(true).is_ok() {
                self.callers.push(Caller { stream, since: Instant::now(), bytes: Vec::new(), claim: None });
            }
        }
    }

    /// Reads claims, and forgets the connections that have closed.
    fn read(&mut self) {
        let mut index = 0;
        while index < self.callers.len() {
            let is_here = match self.callers[index].read() {
                Ok(None) => true,
                Ok(Some(bytes)) => self.hear(index, &bytes),
                Err(_) => false,
            };
            match is_here {
                true => index += 1,
                false => _ = self.callers.swap_remove(index),
            }
        }
    }

    /// Hears a claim. Returns whether the connection stays.
    fn hear(&mut self, index: usize, bytes: &[u8; BYTES]) -> bool {
        let heard = Claim::read(bytes, self.digest).and_then(|claim| match self.contradicted(&claim) {
            Some(why) => Err(Some(why)),
            None => Ok(claim),
        });
        match heard {
            Ok(claim) => {
                self.callers[index].claim = Some(claim);
                true
            }
            Err(why) => {
                why.map(|why| say(&self.callers[index].stream, Word::Refusal, &why));
                false
            }
        }
    }

    fn claims(&self) -> impl Iterator<Item = &Claim> {
        self.callers.iter().filter_map(|caller| caller.claim.as_ref())
    }

    /// Returns the reason why a claim cannot stand beside the others.
    fn contradicted(&self, claim: &Claim) -> Option<String> {
        self.claims().find_map(|other| {
            if other.size != claim.size {
                let (rank, size, process) = (other.rank, other.size, other.process());
                return Some(format!(
                    "rank {} counts {} processes: rank {rank}, {process}, counts {size}",
                    claim.rank, claim.size
                ));
            }
            (other.rank == claim.rank).then(|| format!("rank {} is {}", claim.rank, other.process()))
        })
    }

    fn missing(&self) -> Vec<usize> {
        let size = self.claims().next().map_or(0, |claim| claim.size);
        (0..size).filter(|&rank| self.claims().all(|claim| claim.rank != rank)).collect()
    }

    fn has_all(&self) -> bool {
        self.claims().next().is_some() && self.missing().is_empty()
    }

    fn tell(&mut self) {
        self.told = Instant::now();
        let missing = self.missing().iter().map(usize::to_string).collect::<Vec<_>>().join(" ");
        self.callers.retain(|caller| caller.claim.is_none() || say(&caller.stream, Word::Missing, &missing).is_ok());
    }

    /// Sends the table to all.
    fn answer(mut self) {
        self.callers.retain(|caller| caller.claim.is_some());
        self.callers.sort_by_key(|caller| caller.claim.as_ref().map(|claim| claim.rank));
        for caller in &self.callers {
            let addresses: Vec<String> = self.callers.iter().map(|one| one.seen_by(caller)).collect();
            _ = say(&caller.stream, Word::Table, &addresses.join("\n"));
        }
    }
}

impl Caller {
    /// Reads the claim when it has come as a whole.
    ///
    /// # Errors
    /// A connection that has closed, says more than a claim, or says none for long.
    fn read(&mut self) -> io::Result<Option<[u8; BYTES]>> {
        let mut bytes = [0; BYTES + 1];
        let room = BYTES - self.bytes.len();
        loop {
            match self.stream.read(&mut bytes[..room + 1]) {
                Ok(count) if (1..=room).contains(&count) => self.bytes.extend(&bytes[..count]),
                Ok(_) => return Err(ErrorKind::InvalidData.into()),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            break;
        }
        let claimed: Option<[u8; BYTES]> = self.bytes[..].try_into().ok().filter(|_| self.claim.is_none());
        if claimed.is_none() && self.claim.is_none() && self.since.elapsed() > ANSWER {
            return Err(ErrorKind::TimedOut.into());
        }
        Ok(claimed)
    }

    /// Returns the address of this process for another one. A process of the service's host may
    /// have come over the loopback: others reach it where they reached the service.
    fn seen_by(&self, other: &Caller) -> String {
        let ip =
            |address: io::Result<SocketAddr>| address.map_or(IpAddr::from([0, 0, 0, 0]), |at| at.ip().to_canonical());
        let seen = match ip(self.stream.peer_addr()) {
            own if own.is_loopback() && !ip(other.stream.peer_addr()).is_loopback() => ip(other.stream.local_addr()),
            own => own,
        };
        SocketAddr::new(seen, self.claim.as_ref().map_or(0, |claim| claim.port)).to_string()
    }
}

/// Asks for the table at the first of these addresses, `host:port`, that has it. Returns the
/// addresses of all ranks. `tell` reports the missing ranks, after 2 seconds and then every 10
/// seconds.
///
/// # Errors
/// The ranks that had not asked at the deadline, or the last that was seen of the table; a claim
/// that contradicts another one.
pub fn look_up(
    addresses: &[String],
    claim: &Claim,
    deadline: Instant,
    mut tell: impl FnMut(&Waiting),
) -> Result<Vec<String>, NotMet> {
    let begin = Instant::now();
    let mut report = Duration::from_secs(2);
    let (mut missing, mut seen) = (None::<Vec<usize>>, "no answer yet".to_owned());
    let (news, heard) = mpsc::channel();
    let begin_attempt = |after: Duration| {
        let (addresses, claim, news) = (addresses.to_vec(), claim.clone(), news.clone());
        spawn(move || {
            thread::park_timeout(after);
            ask(&addresses, &claim, deadline, &news);
        })
        .map_err(NotMet::because)
    };
    begin_attempt(Duration::ZERO)?;
    loop {
        let now = Instant::now();
        if now >= deadline {
            let waited = begin.elapsed().as_secs();
            let problem = match &missing {
                None => format!("waited {waited} s for the table of addresses: {seen}"),
                Some(ranks) => {
                    let ranks = ranks.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
                    format!("waited {waited} s; these ranks have not asked for the table of addresses: {ranks}")
                }
            };
            // The service is at rank 0, or at the maker of an id.
            return Err(NotMet { problem, missing: missing.unwrap_or_default() });
        }
        if begin.elapsed() >= report {
            report += Duration::from_secs(10);
            let missing = missing.clone().unwrap_or_else(|| vec![0]);
            tell(&Waiting { waited: begin.elapsed(), missing, elsewhere: Vec::new() });
        }
        let next = deadline.min(begin + report);
        match heard.recv_timeout(next.saturating_duration_since(now)) {
            Ok(Heard::Missing(ranks)) => missing = Some(ranks),
            Ok(Heard::Table(table)) if table.len() == claim.size => return Ok(table),
            Ok(Heard::Table(table)) => seen = format!("a table of {} addresses", table.len()),
            Ok(Heard::Refusal(why)) => return Err(NotMet::because(why)),
            Ok(Heard::Failed(why)) => {
                (missing, seen) = (None, why);
                begin_attempt(AGAIN)?;
            }
            Err(_) => {}
        }
    }
}

/// The news of a thread that asks.
enum Heard {
    Missing(Vec<usize>),
    Table(Vec<String>),
    Refusal(String),
    /// The attempt has ended, and how.
    Failed(String),
}

/// Asks at each address in turn, until one has answered as a service does.
fn ask(addresses: &[String], claim: &Claim, deadline: Instant, news: &mpsc::Sender<Heard>) {
    let mut last = String::new();
    for name in addresses {
        let all = match name.to_socket_addrs() {
            Ok(all) => all,
            Err(error) => {
                last = format!("the address {name} is unknown: {error}");
                continue;
            }
        };
        for address in all {
            let asked = dial(address).and_then(|stream| {
                listen(&stream, claim, deadline, news).map_err(|error| match error.kind() {
                    ErrorKind::UnexpectedEof => {
                        format!("a process that has no table of this group answers at {address}")
                    }
                    _ => format!("{address}: {error}"),
                })
            });
            match asked {
                Ok(()) => return,
                Err(why) => last = why,
            }
        }
    }
    _ = news.send(Heard::Failed(last));
}

/// Claims the rank on a connection, and passes on the answers until the last one.
fn listen(stream: &TcpStream, claim: &Claim, deadline: Instant, news: &mpsc::Sender<Heard>) -> io::Result<()> {
    stream.set_write_timeout(Some(ANSWER))?;
    let mut to = stream;
    to.write_all(&claim.bytes())?;
    loop {
        // The service speaks each second; its host may have gone without a word.
        let until = deadline.min(Instant::now() + ANSWER);
        let mut from = Timed { stream, until };
        let (mut word, mut length) = ([0], [0; 8]);
        from.read_exact(&mut word)?;
        from.read_exact(&mut length)?;
        let length = u64::from_le_bytes(length);
        if length > ANSWERS {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let mut text = vec![0; length as usize];
        from.read_exact(&mut text)?;
        let text = String::from_utf8_lossy(&text).into_owned();
        let (answer, is_last) = match word {
            [word] if word == Word::Missing as u8 => {
                (Heard::Missing(text.split(' ').filter_map(|rank| rank.parse().ok()).collect()), false)
            }
            [word] if word == Word::Table as u8 => (Heard::Table(text.split('\n').map(str::to_owned).collect()), true),
            [word] if word == Word::Refusal as u8 => (Heard::Refusal(text), true),
            _ => return Err(ErrorKind::UnexpectedEof.into()),
        };
        // The one that asked may have given up.
        if news.send(answer).is_err() || is_last {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests;
