//! The service of a table.

use super::{AGAIN, Claim, Word};
use crate::hosts::{
    connection::{self, ANSWER, STRANGERS, is_closed},
    not_met::NotMet,
};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::{
    io::{self, ErrorKind, Read, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream},
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// The time between two words about the missing ranks.
const NEWS: Duration = Duration::from_secs(1);

/// A service of a table. It ends when this is dropped.
#[derive(Debug)]
pub struct Serving {
    end: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Serving {
    /// Waits for the end of a service of which this process has got the table, so that the address
    /// is free. The service only sends it to the others, and waits for none.
    pub fn join(mut self) {
        // A panic of the service is none of its caller.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.end, &1u64.to_ne_bytes());
    }
}

/// Serves the table of the group with this digest, on a thread of its own: until all ranks have it,
/// at most until the given time.
///
/// # Errors
/// The system's.
pub fn serve(listener: TcpListener, digest: u128, until: Instant) -> io::Result<Serving> {
    listener.set_nonblocking(true)?;
    let end = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    let now = Instant::now();
    let service = Service { listener, end: end.clone(), digest, callers: Vec::new(), told: now, accepts: now };
    let thread = thread::Builder::new().name("consonance-table".to_owned()).spawn(move || service.run(until))?;
    Ok(Serving { end, thread: Some(thread) })
}

/// Listens at an address that other hosts know, `host:port`.
///
/// # Errors
/// The reason why this process cannot.
pub fn listen_at(address: &str, deadline: Instant) -> Result<TcpListener, NotMet> {
    // The others are on other hosts, unless the address is one of the loopback.
    let listener = connection::listen(address, [address].into_iter(), deadline);
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
    /// Readable when the service is to end.
    end: Arc<OwnedFd>,
    digest: u128,
    callers: Vec<Caller>,
    /// The time of the last word about missing ranks.
    told: Instant,
    /// The time from which on connections are accepted: the system may have no memory for one now.
    accepts: Instant,
}

/// A connection to the service.
pub(super) struct Caller {
    pub(super) stream: TcpStream,
    pub(super) since: Instant,
    /// The bytes of a claim that is not whole.
    pub(super) bytes: Vec<u8>,
    pub(super) claim: Option<Claim>,
}

impl Service {
    fn run(mut self, until: Instant) {
        while Instant::now() < until {
            if self.wait(until) {
                return;
            }
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

    /// Waits for a connection or for words on one. Returns whether the service is to end.
    fn wait(&self, until: Instant) -> bool {
        let now = Instant::now();
        let mut rest = until.saturating_duration_since(now).min(NEWS);
        // A connection that cannot be taken now would end the wait at once.
        let accepts = self.takes_more() && self.accepts <= now;
        if self.accepts > now {
            rest = rest.min(self.accepts - now);
        }
        let listener = Some(self.listener.as_fd()).filter(|_| accepts);
        let callers = self.callers.iter().map(|caller| caller.stream.as_fd());
        let all = [self.end.as_fd()].into_iter().chain(listener).chain(callers);
        let mut polled: Vec<PollFd<'_>> = all.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        // Interrupted, or without memory: the next pass looks again.
        if poll(&mut polled, Timespec::try_from(rest).ok().as_ref()).is_err() {
            thread::yield_now();
            return false;
        }
        !polled[0].revents().is_empty()
    }

    fn takes_more(&self) -> bool {
        self.callers.iter().filter(|caller| caller.claim.is_none()).count() < STRANGERS
    }

    fn accept(&mut self) {
        while self.takes_more() && self.accepts <= Instant::now() {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // Of one connection, or for want of memory or files.
                Err(_) => return self.accepts = Instant::now() + AGAIN,
            };
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
    fn hear(&mut self, index: usize, bytes: &[u8; Claim::BYTES]) -> bool {
        let heard = Claim::read(bytes, self.digest).and_then(|claim| match self.contradicted(&claim) {
            Some(why) => Err(Some(why)),
            None => Ok(claim),
        });
        match heard {
            Ok(claim) => {
                self.callers[index].claim = Some(claim);
                // At once: the process may not wait for long.
                let missing = self.missing();
                missing.is_empty() || say(&self.callers[index].stream, Word::Missing, &listed(&missing)).is_ok()
            }
            Err(why) => {
                why.map(|why| say(&self.callers[index].stream, Word::Refusal, &why));
                false
            }
        }
    }

    /// The claims of the connections that are open. The end of one may not have been read yet.
    fn claims(&self) -> impl Iterator<Item = &Claim> {
        let open = self.callers.iter().filter(|caller| caller.claim.is_some() && !is_closed(&caller.stream));
        open.filter_map(|caller| caller.claim.as_ref())
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
            (other.rank == claim.rank).then(|| format!("rank {} is {} already", claim.rank, other.process()))
        })
    }

    fn missing(&self) -> Vec<usize> {
        let claims: Vec<&Claim> = self.claims().collect();
        let size = claims.first().map_or(0, |claim| claim.size);
        (0..size).filter(|&rank| claims.iter().all(|claim| claim.rank != rank)).collect()
    }

    fn has_all(&self) -> bool {
        self.claims().next().is_some() && self.missing().is_empty()
    }

    fn tell(&mut self) {
        self.told = Instant::now();
        let missing = listed(&self.missing());
        self.callers.retain(|caller| caller.claim.is_none() || say(&caller.stream, Word::Missing, &missing).is_ok());
    }

    /// Sends the table to all.
    fn answer(mut self) {
        self.callers.retain(|caller| caller.claim.is_some() && !is_closed(&caller.stream));
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
    fn read(&mut self) -> io::Result<Option<[u8; Claim::BYTES]>> {
        let mut bytes = [0; Claim::BYTES + 1];
        let room = Claim::BYTES - self.bytes.len();
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
        let claimed: Option<[u8; Claim::BYTES]> = self.bytes[..].try_into().ok().filter(|_| self.claim.is_none());
        if claimed.is_none() && self.claim.is_none() && self.since.elapsed() > ANSWER {
            return Err(ErrorKind::TimedOut.into());
        }
        Ok(claimed)
    }

    /// Returns the address of this process for another one. A process of the service's host came to
    /// one of its own addresses: others reach it where they reached the service.
    pub(super) fn seen_by(&self, other: &Caller) -> String {
        let seen = match self.is_here() && !other.is_here() {
            true => ip(other.stream.local_addr()),
            false => ip(self.stream.peer_addr()),
        };
        SocketAddr::new(seen, self.claim.as_ref().map_or(0, |claim| claim.port)).to_string()
    }

    /// Whether the process is on the service's host.
    fn is_here(&self) -> bool {
        ip(self.stream.peer_addr()) == ip(self.stream.local_addr())
    }
}

fn ip(address: io::Result<SocketAddr>) -> IpAddr {
    address.map_or(IpAddr::from([0, 0, 0, 0]), |at| at.ip().to_canonical())
}

/// Returns ranks as the service says them.
fn listed(ranks: &[usize]) -> String {
    ranks.iter().map(usize::to_string).collect::<Vec<_>>().join(" ")
}

fn say(mut to: &TcpStream, word: Word, text: &str) -> io::Result<()> {
    let mut bytes = vec![word as u8];
    bytes.extend((text.len() as u64).to_le_bytes());
    bytes.extend(text.bytes());
    // Little enough for the buffer of a socket.
    to.write_all(&bytes)
}
