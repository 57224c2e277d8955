//! One rank's mailbox.

use super::{
    incoming::{Incoming, Unreadable},
    outgoing::Outgoing,
    request::{Deadline, Finish, Finished, MailFault, Receive, Sending},
};
use crate::{
    group::{
        chains::Blocked,
        end::abort::{Fault, Reason},
        member::Member,
    },
    memory::{HostBuf, HostBufMut},
    sync::{
        atomics::{Mutex, MutexGuard, Ordering, fence},
        wait::WaitPolicy,
    },
};
use consonance_spec::World;
use std::{
    mem, slice,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

/// One rank's mailbox in a group. Clones are the same mailbox, for other threads.
#[derive(Clone)]
pub struct Mail(Arc<Shared>);

struct Shared {
    member: Member,
    peers: Box<[usize]>,
    open: Mutex<Open>,
}

/// The open requests of a rank.
struct Open {
    /// Whether the ends of the rings are reserved.
    has_ends: bool,
    outgoing: Box<[Outgoing]>,
    incoming: Incoming,
    /// The reason why the mailbox takes no more requests.
    closed: Option<Fault>,
    /// Threads that poll.
    polling: usize,
    /// Threads that sleep until a signal.
    sleeping: usize,
}

/// Polls between two checks of deadlines and of the end of the group.
const PASSES_PER_CHECK: u32 = 16;

/// The longest time that a rank that gave up a message is taken to be held up by the rank
/// for which it waited: not longer than it waited, since a rank that only looks for messages does
/// other work.
const PATIENCE: Duration = Duration::from_secs(3);

impl Mail {
    /// Makes a mailbox. It takes memory of the group from the first request on.
    pub(crate) fn new(member: Member) -> Mail {
        let Member { world, generation, .. } = member;
        let rank = world.rank();
        let outgoing = (0..world.size()).map(|to| Outgoing::new(rank, to, generation)).collect();
        let incoming = Incoming::new(rank, world.size(), generation);
        let open = Open { has_ends: false, outgoing, incoming, closed: None, polling: 0, sleeping: 0 };
        let peers = world.peers().collect();
        Mail(Arc::new(Shared { member, peers, open: Mutex::new(open) }))
    }

    /// Returns this rank and the number of ranks.
    pub fn world(&self) -> World {
        self.0.member.world
    }

    /// Sends `data`, of the type with this [label](super::Envelope::label), to rank `to`. Calls
    /// `finish` once, on any thread, when the request has ended: perhaps before this returns.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn send(
        &self,
        data: HostBuf<'static>,
        label: u8,
        to: usize,
        tag: u64,
        deadline: Option<Deadline>,
        finish: Finish,
    ) {
        assert!(to < self.0.member.world.size(), "rank {to} of {}", self.0.member.world.size());
        self.post(finish, |shared, open, finish, finished| {
            if let Some(fault) = open.outgoing[to].take_refusal(&shared.member.state) {
                finished.push((finish, Err(fault)));
                return Ok(());
            }
            let sending = Sending { data, label, tag, deadline, finish };
            if to == shared.member.world.rank() {
                let sent = open.incoming.deliver_own(sending.envelope(), data.as_bytes(), finished);
                finished.push((sending.finish, sent.map(|()| to)));
                return Ok(());
            }
            match open.outgoing[to].open(&shared.member.state) {
                Ok(()) => open.outgoing[to].add(sending),
                Err(error) => return Err((sending.finish, shared.no_memory(error.raw_os_error()))),
            }
            Ok(())
        });
    }

    /// Receives the next message with this tag from rank `from`, or from any rank, into `data`,
    /// which has the message's element type, label and size. Calls `finish` as [`send`](Mail::send)
    /// does.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn recv(
        &self,
        data: HostBufMut<'static>,
        label: u8,
        from: Option<usize>,
        tag: u64,
        deadline: Option<Deadline>,
        finish: Finish,
    ) {
        assert!(
            from.is_none_or(|from| from < self.0.member.world.size()),
            "rank {from:?} of {}",
            self.0.member.world.size()
        );
        self.post(finish, |shared, open, finish, finished| {
            let refused = from.and_then(|from| open.outgoing[from].take_refusal(&shared.member.state));
            match refused {
                Some(fault) => finished.push((finish, Err(fault))),
                None => {
                    let receive = Receive { data, label, from, tag, deadline, finish };
                    if let Some(sender) = open.incoming.add(&shared.member.state, receive, finished) {
                        shared.tell(sender);
                    }
                }
            }
            Ok(())
        });
    }

    /// Sends `data`, and waits until the request has ended.
    ///
    /// # Errors
    /// See [`MailFault`].
    ///
    /// # Panics
    /// As [`send`](Mail::send).
    pub fn send_and_wait(
        &self,
        data: HostBuf<'_>,
        label: u8,
        to: usize,
        tag: u64,
        deadline: Option<Deadline>,
    ) -> Result<usize, MailFault> {
        // SAFETY: `until_ended` returns when the request has ended; nothing reads the data then.
        let data = unsafe { mem::transmute::<HostBuf<'_>, HostBuf<'static>>(data) };
        self.until_ended(Some(to), |finish| self.send(data, label, to, tag, deadline, finish))
    }

    /// Receives into `data`, and waits until the request has ended. Returns the rank that sent.
    ///
    /// # Errors
    /// See [`MailFault`].
    ///
    /// # Panics
    /// As [`recv`](Mail::recv).
    pub fn recv_and_wait(
        &self,
        data: HostBufMut<'_>,
        label: u8,
        from: Option<usize>,
        tag: u64,
        deadline: Option<Deadline>,
    ) -> Result<usize, MailFault> {
        // SAFETY: as in `send_and_wait`; nothing writes the data then.
        let data = unsafe { mem::transmute::<HostBufMut<'_>, HostBufMut<'static>>(data) };
        self.until_ended(from, |finish| self.recv(data, label, from, tag, deadline, finish))
    }

    /// Starts a request with rank `peer`, or with any, and waits until it has ended. If something
    /// panics, closes the mailbox: then the request has ended, too.
    fn until_ended(&self, peer: Option<usize>, start: impl FnOnce(Finish)) -> Result<usize, MailFault> {
        struct Close<'m>(&'m Mail);
        impl Drop for Close<'_> {
            fn drop(&mut self) {
                self.0.close(&Fault::Left(self.0.world().rank()));
            }
        }
        let result = Arc::new(OnceLock::new());
        let told = result.clone();
        let close = Close(self);
        start(Box::new(move |result| _ = told.set(result)));
        // Returns false only in a fork, which has no request.
        let _ = self.wait(peer, None, || result.get().is_some());
        mem::forget(close);
        result.get().cloned().unwrap_or(Err(MailFault::Fault(Fault::Forked)))
    }

    /// Adds a request and advances all.
    fn post(
        &self,
        finish: Finish,
        add: impl FnOnce(&Shared, &mut Open, Finish, &mut Vec<Finished>) -> Result<(), (Finish, Fault)>,
    ) {
        let shared = &*self.0;
        // In a fork the lock may be held for ever.
        if shared.member.state.forked() {
            return finish(Err(MailFault::Fault(Fault::Forked)));
        }
        let mut finished = Vec::new();
        let mut open = shared.lock();
        let end = match open.closed.clone() {
            None => shared.member.check().err().or_else(|| shared.reserve(&mut open).err()),
            // A loss may have come since.
            Some(Fault::Aborted(abort)) => Some(shared.member.check().err().unwrap_or(Fault::Aborted(abort))),
            closed => closed,
        };
        match end {
            Some(fault) => finished.push((finish, Err(MailFault::Fault(fault)))),
            None => {
                if let Err((finish, fault)) = add(shared, &mut open, finish, &mut finished) {
                    finished.push((finish, Err(MailFault::Fault(fault))));
                }
                shared.advance(&mut open, &mut finished);
            }
        }
        drop(open);
        self.end(finished);
    }

    /// Waits until `done`, and advances all requests of this rank meanwhile. Returns false if
    /// `limit` has passed. `peer` is the rank that is waited for, if it is one.
    pub fn wait(&self, peer: Option<usize>, limit: Option<Instant>, done: impl Fn() -> bool) -> bool {
        let shared = &*self.0;
        let peer = peer.filter(|&peer| peer != shared.member.world.rank());
        let mut blocked = None;
        let is_done = loop {
            if done() {
                break true;
            }
            if shared.member.state.forked() {
                return false;
            }
            if self.poll(peer, &done) {
                break true;
            }
            if limit.is_some_and(|limit| limit <= Instant::now()) {
                break false;
            }
            blocked = self.sleep(peer, limit, &done);
        };
        if let Some(blocked) = blocked.filter(|_| !shared.member.state.forked()) {
            shared.member.state.say_unblocked(shared.member.world.rank(), blocked);
        }
        is_done
    }

    /// Sleeps until a signal or until `limit`, and advances all requests before: for a thread whose
    /// requests nobody waits for now.
    pub fn rest(&self, limit: Instant) {
        if !self.0.member.state.forked() {
            let _ = self.sleep(None, Some(limit), &|| false);
        }
    }

    /// Wakes the threads that wait or rest.
    pub fn wake(&self) {
        if !self.0.member.state.forked() {
            self.0.member.state.wake(self.0.member.world.rank());
        }
    }

    /// Polls until `done`, for a short while. `peer` is the rank that is waited for, if it is one.
    fn poll(&self, peer: Option<usize>, done: &impl Fn() -> bool) -> bool {
        let (shared, member) = (&*self.0, &self.0.member);
        if member.state.wait_policy == WaitPolicy::Sleep {
            return false;
        }
        shared.change(|open| open.polling += 1);
        let passes = std::cell::Cell::new(0u32);
        let look = || {
            passes.set(passes.get() + 1);
            let mut finished = Vec::new();
            let mut open = shared.lock();
            shared.advance(&mut open, &mut finished);
            if passes.get().is_multiple_of(PASSES_PER_CHECK) {
                shared.check(&mut open, &mut finished);
            }
            drop(open);
            self.end(finished);
            done()
        };
        let awaited = peer.as_ref().map_or(&shared.peers[..], slice::from_ref);
        let is_done = member.state.wait_policy.look(&look, || member.shares_core(awaited.iter().copied()));
        let mut finished = Vec::new();
        let mut open = shared.lock();
        open.polling -= 1;
        if shared.say_awaits(&open) {
            // A thread sleeps, and no peer has signalled it while this one polled.
            // SYNC POINT mail: as in `sleep`.
            fence(Ordering::SeqCst); // polled
            shared.advance(&mut open, &mut finished);
        }
        drop(open);
        self.end(finished);
        is_done
    }

    /// Sleeps until a signal, at most until `limit` or the first deadline, unless something ends
    /// before. `peer` is the rank that is waited for, if it is one; returns the statement that was
    /// published of that.
    fn sleep(&self, peer: Option<usize>, limit: Option<Instant>, done: &impl Fn() -> bool) -> Option<Blocked> {
        let shared = &*self.0;
        let event = &shared.member.state.sleeper(shared.member.world.rank()).wake;
        let mut finished = Vec::new();
        let count = event.count();
        let rank = shared.member.world.rank();
        let blocked =
            peer.map(|peer| shared.member.state.say_blocked(rank, peer, shared.member.state.progress_seen(rank)));
        let mut open = shared.lock();
        open.sleeping += 1;
        shared.say_awaits(&open);
        // SYNC POINT mail: pairs with the fence in `tell`.
        fence(Ordering::SeqCst);
        shared.advance(&mut open, &mut finished);
        shared.check(&mut open, &mut finished);
        let first = open.deadlines().chain(limit).min();
        drop(open);
        let has_ended = !finished.is_empty();
        self.end(finished);
        if !has_ended && !done() {
            let limit = first.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()));
            event.sleep(count, limit, shared.member.state.segment().is_some());
        }
        shared.change(|open| open.sleeping -= 1);
        blocked
    }

    /// Whether any request is open, or a message is to be withdrawn.
    pub fn is_busy(&self) -> bool {
        !self.0.member.state.forked() && self.0.lock().is_busy()
    }

    /// Closes the mailbox: ends all requests with `fault`, and takes no more.
    pub(crate) fn close(&self, fault: &Fault) {
        let shared = &*self.0;
        if shared.member.state.forked() {
            return;
        }
        let mut finished = Vec::new();
        let mut open = shared.lock();
        open.close(fault, &mut finished);
        drop(open);
        self.end(finished);
    }

    /// Tells the callers of requests that have ended, and wakes the threads of this rank that wait
    /// for them.
    fn end(&self, finished: Vec<Finished>) {
        if finished.is_empty() {
            return;
        }
        finished.into_iter().for_each(|(finish, result)| finish(result));
        let others_sleep = self.0.lock().sleeping > 0;
        if others_sleep {
            self.0.member.state.wake(self.0.member.world.rank());
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(|poison| poison.into_inner())
    }

    /// Changes the number of threads that poll or sleep.
    fn change(&self, change: impl FnOnce(&mut Open)) {
        let mut open = self.lock();
        change(&mut open);
        self.say_awaits(&open);
    }

    /// Publishes whether a peer must signal this rank: a thread sleeps, and no other polls.
    fn say_awaits(&self, open: &Open) -> bool {
        let awaits = open.sleeping > 0 && open.polling == 0;
        self.member.record().sleeper.awaits_mail.store(awaits.into(), Ordering::Relaxed);
        awaits
    }

    /// Reserves the ends of the rings that this rank reads.
    fn reserve(&self, open: &mut Open) -> Result<(), Fault> {
        if !open.has_ends {
            let reserved = self.member.state.backing.reserve_ring_ends(self.member.world.rank());
            reserved.map_err(|error| self.no_memory(error.raw_os_error()))?;
            open.has_ends = true;
        }
        Ok(())
    }

    fn no_memory(&self, code: Option<i32>) -> Fault {
        self.member.abort(self.member.world.rank(), Reason::Memory);
        Fault::NoMemory { bytes: 0, code }
    }

    /// Writes and takes what can be written and taken.
    fn advance(&self, open: &mut Open, finished: &mut Vec<Finished>) {
        if open.closed.is_some() || !open.has_ends {
            return;
        }
        for &peer in &self.peers {
            let wrote = open.outgoing[peer].advance(&self.member.state, finished);
            match open.incoming.advance(&self.member.state, peer, finished) {
                Ok(has_come) if has_come || wrote => self.tell(peer),
                Ok(_) => {}
                Err(unreadable) => {
                    let fault = match unreadable {
                        Unreadable::Corrupt => self.member.corrupt(peer),
                        Unreadable::Memory(error) => self.no_memory(error.raw_os_error()),
                    };
                    return open.close(&fault, finished);
                }
            }
        }
    }

    /// Wakes `peer` if it sleeps until cells are written or taken.
    fn tell(&self, peer: usize) {
        // SYNC POINT mail: pairs with the fence in `sleep`.
        fence(Ordering::SeqCst);
        if self.member.records()[peer].sleeper.awaits_mail.load(Ordering::Relaxed) != 0 {
            self.member.wake_for_progress(peer);
        }
    }

    /// Returns the fault for ranks that have not sent or received a message by its deadline, for
    /// which this rank has waited so long.
    fn late(&self, awaited: &[usize], waited: Duration) -> MailFault {
        let missing = self.member.state.ends_of_waits(self.member.world.rank(), awaited);
        let patience = waited.min(PATIENCE);
        awaited.iter().for_each(|&peer| self.member.state.say_gives_up(self.member.world.rank(), peer, patience));
        MailFault::Late { awaited: awaited.to_vec(), missing }
    }

    /// Ends the requests whose deadline has passed, whose peer has left, or all if the group has
    /// ended.
    fn check(&self, open: &mut Open, finished: &mut Vec<Finished>) {
        if open.closed.is_some() {
            return;
        }
        // Asked before the end: a peer that left because of an abort had seen it.
        let has_left = |peer| self.member.state.has_left(self.member.generation, peer);
        let left: Vec<usize> = self.peers.iter().copied().filter(|&peer| has_left(peer)).collect();
        if let Some(abort) = self.member.aborted() {
            let before = finished.len();
            open.close(&Fault::Aborted(abort), finished);
            if finished.len() > before {
                self.member.hear();
            }
            return;
        }
        if !left.is_empty() {
            // The messages of a rank from before it left are there.
            self.advance(open, finished);
            let before = finished.len();
            left.iter().for_each(|&peer| open.outgoing[peer].end_all(&Fault::Left(peer), finished));
            open.incoming.end_left(&self.peers, |peer| left.contains(&peer), finished);
            let has_ended = finished.len() > before;
            let (state, own) = (&self.member.state, self.member.world.rank());
            left.iter().for_each(|&peer| state.say_left_by(own, peer, has_ended, PATIENCE));
        }
        if open.deadlines().next().is_some() {
            let now = Instant::now();
            let late = |awaited: &[usize], waited| self.late(awaited, waited);
            self.peers.iter().for_each(|&peer| open.outgoing[peer].end_late(now, late, finished));
            open.incoming.end_late(now, &self.peers, late, finished);
        }
    }
}

impl Open {
    fn is_busy(&self) -> bool {
        self.incoming.is_busy() || self.outgoing.iter().any(Outgoing::is_busy)
    }

    fn deadlines(&self) -> impl Iterator<Item = Instant> {
        self.outgoing.iter().filter_map(Outgoing::deadline).chain(self.incoming.deadline())
    }

    /// Ends all requests with `fault`, and takes neither requests nor messages from now on.
    fn close(&mut self, fault: &Fault, finished: &mut Vec<Finished>) {
        self.closed = Some(fault.clone());
        self.outgoing.iter_mut().for_each(|outgoing| outgoing.end_all(fault, finished));
        self.incoming.end_all(fault, finished);
    }
}
