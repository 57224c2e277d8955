//! The network between processes that have met.

use super::{
    clocks::Clocks,
    delivery::Carrying,
    meeting::Met,
    neighbours::Neighbours,
    senders::senders,
    shared_network::{Head, News, Orders, SharedNetwork},
    states::States,
    turns::Turns,
    wire_connections::reach,
    word::{ASK, LEAVE_BEHIND},
};
use crate::{os::process_state::ProcessState, sync::fork::Origin, wire::Wire};
use rustix::event::{EventfdFlags, eventfd};
use std::{
    fmt, io,
    sync::{Arc, Mutex, PoisonError, TryLockError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// The network of a process with others. One thread sleeps until something arrives.
pub struct Network {
    shared: Arc<SharedNetwork>,
    receive: Arc<dyn Receive>,
    thread: Mutex<Option<JoinHandle<()>>>,
    origin: Origin,
    /// Whether several ranks of this process may wait.
    is_shared: bool,
}

/// Delivers what has arrived, on the thread that asks.
trait Receive: Send + Sync {
    /// Does so, unless another thread does now.
    fn receive(&self);
}

impl Network {
    /// Begins to carry messages between the processes that have met: over `wire`, whose address is
    /// in the greeting of this process, and through memory with those `near`. `deliver` takes the
    /// news, on a thread of the network; it must not wait. If `compares` is a time, the first
    /// process of each host compares its clock with that of process 0, now and then each time that
    /// this has passed.
    ///
    /// # Errors
    /// The system's, and the wire's if it cannot reach a process that runs.
    pub fn start(
        wire: Wire,
        met: Met,
        near: Option<Neighbours>,
        compares: Option<Duration>,
        deliver: impl FnMut(News) + Send + 'static,
    ) -> io::Result<Network> {
        let failed = reach(&wire, &met)?;
        let Met { own, greetings, links } = met;
        let is_shared = greetings[own].replicas > 1;
        let sent = greetings.iter().map(|_| Mutex::new(0)).collect();
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let clocks = compares.and_then(|period| Clocks::new(own, &greetings, period));
        let (states, senders) = (States::new(own, &greetings), senders(own, &greetings));
        let (orders, turns, has_naps) =
            (Mutex::new(Orders { failed, ..Orders::default() }), Turns::default(), wire.descriptor().is_none());
        let shared =
            Arc::new(SharedNetwork { wire, near, own, links, senders, sent, orders, wake, has_naps, turns, states });
        let carrying = Arc::new(Mutex::new(Carrying::new(shared.clone(), clocks, deliver)));
        let (receive, of_thread) = (carrying.clone(), shared.clone());
        let run = move || run(&of_thread, &carrying);
        let thread = thread::Builder::new().name("consonance-wire".to_owned()).spawn(run)?;
        Ok(Network { shared, receive, thread: Mutex::new(Some(thread)), origin: Origin::here(), is_shared })
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

    /// Leaves the others, who hear of it as of an end. Messages that were sent still arrive.
    pub fn leave(&self) {
        if !self.origin.forked() {
            self.shared.order(|orders| orders.leave = true);
        }
    }

    /// Leaves the others, and waits until they have what this process has sent. If none of it
    /// moves, waits for at most 7 s.
    pub fn end(&self) {
        if self.origin.forked() {
            return;
        }
        let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        let told = self.shared.order(|orders| orders.leave = true);
        if told && thread.thread().id() != thread::current().id() {
            let _ = thread.join();
        }
    }

    /// Returns whether another process answers: it is not stopped, and the network reaches it.
    /// Waits for the answer for at most 300 ms. Not for the thread that delivers.
    pub fn answers(&self, process: usize) -> bool {
        !self.origin.forked() && self.shared.states.answers(process, || self.shared.write(process, ASK, process as u64))
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

#[cfg(test)]
impl Network {
    /// The links with the other processes.
    pub(super) fn links_for_test(&self) -> &[Option<std::net::TcpStream>] {
        &self.shared.links
    }

    /// The processes to which messages take no wire.
    pub(super) fn near_for_test(&self) -> Vec<usize> {
        self.shared.near.iter().flat_map(Neighbours::tasks).collect()
    }

    pub(super) fn neighbours_for_test(&self) -> &Neighbours {
        self.shared.near.as_ref().expect("it shares memory")
    }

    /// Rouses the thread.
    pub(super) fn order_for_test(&self) {
        self.shared.order(|_| {});
    }

    /// The number of messages that have not been sent as a whole.
    pub(super) fn pending_for_test(&self) -> usize {
        self.shared.pending()
    }
}

impl Drop for Network {
    /// Says farewell to the other processes, as [`end`](Network::end) does.
    fn drop(&mut self) {
        if self.origin.forked() {
            // The fork has no thread to end, and the wire is its parent's.
            std::mem::forget(self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take());
            std::mem::forget(self.shared.clone());
            return;
        }
        self.end();
    }
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Network")
            .field("own", &self.shared.own)
            .field("near", &self.shared.near)
            .finish_non_exhaustive()
    }
}

/// The work of the network's thread.
fn run<F: FnMut(News)>(shared: &SharedNetwork, carrying: &Mutex<Carrying<F>>) {
    let locked = || carrying.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        // A rank that takes the wire from here on is seen before the next sleep.
        shared.turns.begin();
        let (limit, open) = {
            let mut carrying = locked();
            let waits = carrying.receive();
            // A question that comes before the farewell is answered.
            let compares = carrying.compare(Instant::now());
            let limit = match carrying.leave(Instant::now()) {
                Some(limit) if limit.is_zero() => break,
                limit => limit,
            };
            (waits.into_iter().chain(limit).chain(compares).min(), carrying.open())
        };
        let readable = shared.sleep(limit, &open);
        if !readable.is_empty() {
            let mut carrying = locked();
            readable.into_iter().for_each(|process| carrying.read(process));
        }
    }
    locked().end_comparison();
    // A forked child may have the links, too.
    (0..shared.links.len()).for_each(|process| shared.close(process));
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
