//! The network between processes that have met.

use super::{
    carrying::Carrying,
    meeting::Met,
    states::States,
    turns::Turns,
    word::{ASK, LEAVE_BEHIND, WORD},
};
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
    fmt,
    io::{self, Write},
    mem,
    net::{Shutdown, TcpStream},
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
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
    receive: Arc<dyn Receive>,
    thread: Option<JoinHandle<()>>,
    origin: Origin,
    /// Whether several ranks of this process may wait.
    is_shared: bool,
}

/// The values that the threads of this process share.
pub(super) struct Shared {
    pub(super) wire: Wire,
    pub(super) own: usize,
    pub(super) links: Vec<Option<TcpStream>>,
    /// The number of messages that were sent to each process.
    pub(super) sent: Vec<Mutex<u64>>,
    orders: Mutex<Orders>,
    /// Readable when there are orders.
    wake: OwnedFd,
    /// Whether the thread naps, since the wire has no descriptor.
    has_naps: bool,
    turns: Turns,
    pub(super) states: States,
}

/// Delivers what has arrived, on the thread that asks.
trait Receive: Send + Sync {
    /// Does so, unless another thread does now.
    fn receive(&self);
}

/// The orders for the thread.
#[derive(Default)]
pub(super) struct Orders {
    /// Whether the thread naps, or is about to, and a message of this process should end that.
    naps: bool,
    /// Whether this process leaves.
    pub(super) leave: bool,
    /// The processes to which a message could not be sent, and why.
    pub(super) failed: Vec<(usize, String)>,
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
        let is_shared = greetings[own].replicas > 1;
        for (process, link) in links.iter().enumerate() {
            if link.is_none() {
                continue;
            }
            wire.connect(process, &greetings[process].address).map_err(io::Error::other)?;
        }
        let sent = greetings.iter().map(|_| Mutex::new(0)).collect();
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let states = States::new(own, &greetings);
        let (orders, turns, has_naps) = (Mutex::default(), Turns::default(), wire.descriptor().is_none());
        let shared = Arc::new(Shared { wire, own, links, sent, orders, wake, has_naps, turns, states });
        let carrying = Arc::new(Mutex::new(Carrying::new(shared.clone(), deliver)));
        let (receive, of_thread) = (carrying.clone(), shared.clone());
        let run = move || run(&of_thread, &carrying);
        let thread = thread::Builder::new().name("consonance-wire".to_owned()).spawn(run)?;
        Ok(Network { shared, receive, thread: Some(thread), origin: Origin::here(), is_shared })
    }

    /// Delivers what arrives, on this thread, which waits for it: until `is_done` returns true, or
    /// `end`. The news comes sooner than from the network's own thread, which leaves the wire to
    /// this one meanwhile.
    pub fn receive_until(&self, end: Instant, is_done: &dyn Fn() -> bool) {
        if self.origin.forked() {
            return;
        }
        let shared = &self.shared;
        loop {
            if shared.turns.take() {
                shared.rouse();
            }
            self.receive.receive();
            let is_done = is_done();
            if is_done || Instant::now() >= end {
                // The thread may have armed the wire before this rank moved the last message, or
                // have a limit from before.
                let is_asleep = shared.turns.take();
                // Another rank of this process may sleep. Nobody else looks for its messages.
                let gives_back = (!is_done || self.is_shared) && shared.turns.give_back();
                if is_asleep || gives_back {
                    shared.rouse();
                }
                return;
            }
            thread::yield_now();
        }
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
        self.wire.send(process, whole, body)?;
        if self.turns.is_left_to_others() && self.wire.pending() > 0 {
            // The rank that sends may not wait for anything.
            self.rouse();
        }
        // A wire without a descriptor moves nothing during a nap.
        if self.has_naps && mem::take(&mut self.orders().naps) {
            self.rouse();
        }
        Ok(())
    }

    /// Ends the sleep of the network's thread. Returns whether it could be.
    fn rouse(&self) -> bool {
        rustix::io::write(&self.wake, &1u64.to_ne_bytes()).is_ok()
    }

    pub(super) fn sent(&self, process: usize) -> MutexGuard<'_, u64> {
        self.sent[process].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives an order to the thread. Returns whether the thread could be woken.
    fn order(&self, give: impl FnOnce(&mut Orders)) -> bool {
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

/// The work of the network's thread.
fn run<F: FnMut(News)>(shared: &Shared, carrying: &Mutex<Carrying<F>>) {
    let locked = || carrying.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        // A rank that takes the wire from here on is seen before the next sleep.
        shared.turns.begin();
        let (limit, open) = {
            let mut carrying = locked();
            let waits = carrying.receive();
            let limit = match carrying.leave(Instant::now()) {
                Some(limit) if limit.is_zero() => break,
                limit => limit,
            };
            (waits.into_iter().chain(limit).min(), carrying.open())
        };
        let readable = shared.sleep(limit, &open);
        if !readable.is_empty() {
            let mut carrying = locked();
            readable.into_iter().for_each(|process| carrying.read(process));
        }
    }
    // A forked child may have the links, too.
    (0..shared.links.len()).for_each(|process| shared.close(process));
}

impl Shared {
    /// Sleeps until something happens, at most this time. Returns those of the processes `open`
    /// whose links have something.
    fn sleep(&self, limit: Option<Duration>, open: &[usize]) -> Vec<usize> {
        // Before the wire is asked, so that no message comes between.
        self.orders().naps = self.has_naps;
        let is_left = self.turns.leave() && self.wire.pending() == 0;
        let limit = match is_left {
            true => limit.into_iter().chain([Turns::LATELY]).min(),
            false => match self.wire.arm() {
                Ok(true) if self.turns.sleep() => limit.into_iter().chain(self.wire.nap()).min(),
                // There is something now. The links are looked at all the same.
                Ok(_) => Some(Duration::ZERO),
                Err(_) => Some(Duration::from_millis(1)),
            },
        };
        let mut polled = vec![PollFd::from_borrowed_fd(self.wake.as_fd(), PollFlags::IN)];
        let links = open.iter().filter_map(|&process| self.links[process].as_ref());
        polled.extend(links.map(|link| PollFd::from_borrowed_fd(link.as_fd(), PollFlags::IN)));
        if !is_left {
            polled.extend(self.wire.descriptor().map(|wire| PollFd::from_borrowed_fd(wire, PollFlags::IN)));
        }
        let limit = limit.map(|limit| Timespec::try_from(limit).expect("a few seconds"));
        let slept = poll(&mut polled, limit.as_ref());
        self.turns.wake();
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

impl<F: FnMut(News) + Send> Receive for Mutex<Carrying<F>> {
    fn receive(&self) {
        match self.try_lock() {
            Ok(mut carrying) => _ = carrying.receive(),
            Err(TryLockError::Poisoned(poisoned)) => _ = poisoned.into_inner().receive(),
            Err(TryLockError::WouldBlock) => {}
        }
    }
}
