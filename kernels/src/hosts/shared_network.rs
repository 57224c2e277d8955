//! The wire and the links of a process, for all of its threads that use them.

use super::{neighbours::Neighbours, states::States, turns::Turns, word::WORD};
use crate::{
    os::clock_comparison::Comparison,
    sync::plain::{Ordering, fence},
    wire::{self, Wire, WireError},
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};
use std::{
    io::Write,
    mem,
    net::{Shutdown, TcpStream},
    os::fd::{AsFd, OwnedFd},
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

/// The size of a message's head in bytes.
pub const HEAD: usize = wire::HEAD - NUMBERS;

/// The head of a message: the caller's bytes.
pub type Head = [u8; HEAD];

/// The numbers before a head on the wire: the sender, and the messages that it has sent before.
pub(super) const NUMBERS: usize = 16;

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
    /// The clock of this host was compared with that of process 0, which is of another host.
    Compared(Comparison),
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

/// The values that the threads of this process share.
pub(super) struct SharedNetwork {
    pub(super) wire: Wire,
    pub(super) near: Option<Neighbours>,
    pub(super) own: usize,
    pub(super) links: Vec<Option<TcpStream>>,
    /// The numbers that messages with each process begin with: see `senders.rs`.
    pub(super) senders: Vec<[u64; 2]>,
    /// The number of messages that were sent to each process.
    pub(super) sent: Vec<Mutex<u64>>,
    pub(super) orders: Mutex<Orders>,
    /// Readable when there are orders.
    pub(super) wake: OwnedFd,
    /// Whether the thread naps, since the wire has no descriptor.
    pub(super) has_naps: bool,
    pub(super) turns: Turns,
    pub(super) states: States,
}

/// The orders for the thread.
#[derive(Default)]
pub(super) struct Orders {
    /// Whether the thread naps, or is about to, and a message of this process should end that.
    pub(super) naps: bool,
    /// Whether this process leaves.
    pub(super) leave: bool,
    /// The processes to which a message could not be sent, and why.
    pub(super) failed: Vec<(usize, String)>,
}

impl SharedNetwork {
    pub(super) fn send(&self, process: usize, head: &Head, body: Vec<u8>) -> Result<(), WireError> {
        let mut sent = self.sent(process);
        let mut whole = [0; wire::HEAD];
        whole[..8].copy_from_slice(&self.senders[process][0].to_le_bytes());
        whole[8..NUMBERS].copy_from_slice(&sent.to_le_bytes());
        whole[NUMBERS..].copy_from_slice(head);
        *sent += 1;
        let through_memory = match &self.near {
            Some(near) => near.send(process, &whole, body),
            None => Err(body),
        };
        if let Err(body) = through_memory {
            self.wire.send(process, whole, body)?;
            // A wire without a descriptor moves nothing during a nap.
            if self.has_naps && mem::take(&mut self.orders().naps) {
                self.rouse();
            }
        }
        // Of this thread and the network's, one sees what the other did: what is pending, or the
        // sleep without the wire.
        fence(Ordering::SeqCst);
        if self.turns.is_left_to_others() && self.pending() > 0 {
            // The rank that sends may not wait for anything.
            self.rouse();
        }
        Ok(())
    }

    /// Returns the number of messages that this process has not sent as a whole.
    pub(super) fn pending(&self) -> usize {
        self.wire.pending() + self.near.as_ref().map_or(0, Neighbours::pending)
    }

    /// Ends the sleep of the network's thread. Returns whether it could be.
    pub(super) fn rouse(&self) -> bool {
        rustix::io::write(&self.wake, &1u64.to_ne_bytes()).is_ok()
    }

    pub(super) fn sent(&self, process: usize) -> MutexGuard<'_, u64> {
        self.sent[process].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives an order to the thread. Returns whether the thread could be woken.
    pub(super) fn order(&self, give: impl FnOnce(&mut Orders)) -> bool {
        give(&mut self.orders());
        self.rouse()
    }

    pub(super) fn orders(&self) -> MutexGuard<'_, Orders> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a word on a link. A link that takes no few bytes is broken, which shows when it is
    /// read.
    pub(super) fn write(&self, process: usize, kind: u8, number: u64) {
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
    pub(super) fn close(&self, process: usize) {
        if let Some(link) = &self.links[process] {
            let _ = link.shutdown(Shutdown::Both);
        }
    }

    /// Sleeps until something happens, at most this time. Returns those of the processes `open`
    /// whose links have something.
    pub(super) fn sleep(&self, limit: Option<Duration>, open: &[usize]) -> Vec<usize> {
        // Before the wire is asked, so that no message comes between.
        self.orders().naps = self.has_naps;
        let is_left = self.turns.leave();
        // As in `send`.
        fence(Ordering::SeqCst);
        let is_left = is_left && self.pending() == 0;
        let limit = match is_left {
            true => limit.into_iter().chain([Turns::LATELY]).min(),
            false => match self.wire.arm() {
                Ok(true) if self.turns.sleep() => limit.into_iter().chain(self.wire.nap()).min(),
                // There is something now. The links are looked at all the same.
                Ok(_) => Some(Duration::ZERO),
                Err(_) => Some(Duration::from_millis(1)),
            },
        };
        let near = self.near.as_ref().filter(|_| !is_left);
        let limit = if near.is_none_or(Neighbours::may_sleep) { limit } else { Some(Duration::ZERO) };
        let mut polled = vec![PollFd::from_borrowed_fd(self.wake.as_fd(), PollFlags::IN)];
        let links = open.iter().filter_map(|&process| self.links[process].as_ref());
        polled.extend(links.map(|link| PollFd::from_borrowed_fd(link.as_fd(), PollFlags::IN)));
        if !is_left {
            polled.extend(self.wire.descriptor().map(|wire| PollFd::from_borrowed_fd(wire, PollFlags::IN)));
        }
        polled.extend(near.map(|near| PollFd::from_borrowed_fd(near.descriptor(), PollFlags::IN)));
        let limit = limit.map(|limit| Timespec::try_from(limit).expect("a few seconds"));
        let slept = poll(&mut polled, limit.as_ref());
        self.turns.wake();
        let is_woken = polled.last().is_some_and(|last| !last.revents().is_empty());
        near.inspect(|near| near.awake(is_woken));
        match slept {
            Ok(_) => {}
            Err(Errno::INTR) => return Vec::new(),
            // The system has no memory for the call now. Try again, so that nothing is missed.
            Err(_) => {
                thread::sleep(Duration::from_millis(1));
                return Vec::new();
            }
        }
        if !polled[0].revents().is_empty() {
            let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        }
        let readable = open.iter().zip(&polled[1..]).filter(|(_, fd)| !fd.revents().is_empty());
        readable.map(|(&process, _)| process).collect()
    }
}
