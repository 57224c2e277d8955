//! The limit between hosts: the bytes that a call must move between them at least, over bare TCP.

use super::crossing::Crossing;
use crate::launcher::hosts::address;
use consonance::Communicator;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::{
    error::Error,
    io::{self, ErrorKind, Read, Write},
    net::{TcpListener, TcpStream},
    time::Duration,
};

/// The bytes that are written or read at a time.
const CHUNK: usize = 256 << 10;

/// The number of looks for bytes before the thread sleeps. Each takes about a microsecond.
const LOOKS: usize = 200;

/// The time without a byte after which the exchange has failed.
const PATIENCE: Duration = Duration::from_secs(100);

/// The connections of the first rank of a host: to the next host, and from the one before.
pub(super) struct Link {
    next: TcpStream,
    previous: TcpStream,
    /// The number of hosts, and this one's place.
    hosts: usize,
    host: usize,
    chunk: Vec<u8>,
}

impl Link {
    /// Connects the hosts in a ring. All ranks make this call; the first of each host gets a link.
    ///
    /// # Errors
    /// The system's, or the communicator's.
    pub(super) fn connect(
        communicator: &mut Communicator,
        ranks_of_host: usize,
    ) -> Result<Option<Link>, Box<dyn Error>> {
        let (rank, hosts) = (communicator.rank(), communicator.size() / ranks_of_host);
        let host = rank / ranks_of_host;
        let listener = TcpListener::bind((address(host), 0))?;
        let mut ports = vec![0u16; communicator.size()];
        ports[rank] = listener.local_addr()?.port();
        communicator.all_gather(&mut ports)?;
        if rank % ranks_of_host != 0 {
            return Ok(None);
        }
        let after = (host + 1) % hosts;
        let next = TcpStream::connect((address(after), ports[after * ranks_of_host]))?;
        let (previous, _) = listener.accept()?;
        for stream in [&next, &previous] {
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
        }
        Ok(Some(Link { next, previous, hosts, host, chunk: vec![0; CHUNK] }))
    }

    /// Returns the number of hosts.
    pub(super) fn hosts(&self) -> usize {
        self.hosts
    }

    /// Sends and receives, at the same time, what crosses the links in a call.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn exchange(&mut self, least: &[Crossing]) -> io::Result<()> {
        let bytes = |from: usize| least[from].sent.max(least[(from + 1) % self.hosts].received);
        let mut to_send = bytes(self.host);
        let mut to_receive = bytes((self.host + self.hosts - 1) % self.hosts);
        let mut looks = 0;
        while to_send + to_receive > 0 {
            // A system call for no bytes takes time, too.
            let mut sent = 0;
            if to_send > 0 {
                sent = or_none(self.next.write(&self.chunk[..to_send.min(CHUNK)]))?;
            }
            let mut received = 0;
            if to_receive > 0 {
                received = or_none(self.previous.read(&mut self.chunk[..to_receive.min(CHUNK)]))?;
            }
            (to_send, to_receive) = (to_send - sent, to_receive - received);
            match sent + received {
                0 if looks < LOOKS => looks += 1,
                0 => {
                    let flag = |left: usize, flag| if left > 0 { flag } else { PollFlags::empty() };
                    let mut polled = [
                        PollFd::new(&self.next, flag(to_send, PollFlags::OUT)),
                        PollFd::new(&self.previous, flag(to_receive, PollFlags::IN)),
                    ];
                    let limit = Timespec::try_from(PATIENCE).expect("some minutes");
                    if poll(&mut polled, Some(&limit))? == 0 {
                        return Err(ErrorKind::TimedOut.into());
                    }
                }
                _ => looks = 0,
            }
        }
        Ok(())
    }
}

/// Returns the number of bytes that were moved, 0 if none could be.
fn or_none(moved: io::Result<usize>) -> io::Result<usize> {
    match moved {
        Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(0),
        moved => moved,
    }
}
