//! A network without a library, for processes that threads play: messages are late, overtake each
//! other and are lost as a seed says.
//!
//! **Time** is a number of the network, and follows no clock. A message has a time at which it is
//! due, by the seed, its sender, its receiver and its number between the two. A wire that has
//! nothing due when it makes progress moves the time to the next message on its way to it. So no
//! message waits for anything but calls, and one that is late is passed by those that come soon.
//!
//! **Sends.** Some messages stay with their sender until it makes progress, as long ones do in a
//! library. They are [pending](Medium::pending) so long.
//!
//! **Loss.** A message that cannot be delivered is a fault of its endpoint. It may be
//! [cut](FakeWire::cut_at) at a message. A wire that [dies](FakeWire::dies_at), or is dropped,
//! loses all on its way to it and from it. Its peers have a fault some time later, or with their
//! next message to it.

use consonance_kernels::{
    digest::mix,
    sync::fork::Origin,
    wire::{Arrived, Head, Kind, Medium, Wire, WireError},
};
use rustix::event::{EventfdFlags, eventfd};
use std::{
    collections::{BTreeMap, VecDeque},
    fmt, mem,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// The time for which most messages are on their way, at most.
const SOON: u64 = 8;

/// The time for which a late message is on its way, at most. One in [`LATE_IN`] is late.
const LATE: u64 = 200;
const LATE_IN: u64 = 8;

/// One in this number of messages stays with its sender until that makes progress.
const STAYS_IN: u64 = 4;

/// The time after the end of a wire at which its peers have a fault.
const SILENCE: u64 = 400;

/// A network of fake wires. Clones are the same network.
#[derive(Clone)]
pub struct FakeNetwork(Arc<Mutex<State>>);

struct State {
    seed: u64,
    now: u64,
    /// The number of events that there were. Those that are due at one time are in this order.
    events: u64,
    /// By number, which is the address.
    wires: Vec<WireState>,
}

struct WireState {
    /// Readable when a thread that sleeps should wake up.
    wake: Arc<OwnedFd>,
    is_armed: bool,
    is_readable: bool,
    endpoints: BTreeMap<usize, Endpoint>,
    /// The events on their way to this wire, by the time at which they are due.
    coming: BTreeMap<(u64, u64), Event>,
    /// The messages that stay here until this wire makes progress.
    staying: Vec<Staying>,
    faults: VecDeque<(usize, String)>,
    /// The number of messages sent, to all peers.
    sent: u64,
    /// The message that is not sent, since the wire dies.
    dies_at: Option<u64>,
    /// The peers to which no message is sent from one of this number on.
    cut_at: BTreeMap<usize, u64>,
    is_dead: bool,
}

struct Staying {
    peer: usize,
    /// The number of the peer's wire.
    to: usize,
    number: u64,
    message: Arrived,
}

struct Endpoint {
    /// The number of the peer's wire.
    wire: usize,
    sent: u64,
    /// The reason, if it is lost.
    lost: Option<String>,
}

enum Event {
    Message {
        from: usize,
        message: Arrived,
    },
    /// The endpoint of this peer is lost.
    Fault {
        peer: usize,
        why: &'static str,
    },
}

/// A wire of a [`FakeNetwork`].
pub struct FakeWire {
    network: FakeNetwork,
    number: usize,
    address: [u8; 8],
    wake: Arc<OwnedFd>,
    origin: Origin,
}

impl FakeNetwork {
    /// Makes a network whose delays are those of a seed.
    pub fn new(seed: u64) -> FakeNetwork {
        FakeNetwork(Arc::new(Mutex::new(State { seed, now: 0, events: 0, wires: Vec::new() })))
    }

    /// Opens a wire. It reaches all others of this network.
    ///
    /// # Panics
    /// If the system has no descriptor for it.
    pub fn open(&self) -> FakeWire {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("a descriptor");
        let wake = Arc::new(wake);
        let mut state = self.lock();
        let number = state.wires.len();
        state.wires.push(WireState {
            wake: wake.clone(),
            is_armed: false,
            is_readable: false,
            endpoints: BTreeMap::new(),
            coming: BTreeMap::new(),
            staying: Vec::new(),
            faults: VecDeque::new(),
            sent: 0,
            dies_at: None,
            cut_at: BTreeMap::new(),
            is_dead: false,
        });
        drop(state);
        let address = (number as u64).to_le_bytes();
        FakeWire { network: self.clone(), number, address, wake, origin: Origin::here() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FakeWire {
    /// Lets the wire die in the place of sending this message, counted from 0 among those to all
    /// peers. That message is lost, too.
    #[must_use]
    pub fn dies_at(self, message: u64) -> FakeWire {
        self.network.lock().wires[self.number].dies_at = Some(message);
        self
    }

    /// Cuts the endpoint of this peer at its message of this number, counted from 0, which is lost.
    /// The peer's endpoint of this wire still works.
    #[must_use]
    pub fn cut_at(self, peer: usize, message: u64) -> FakeWire {
        self.network.lock().wires[self.number].cut_at.insert(peer, message);
        self
    }

    /// Kills the wire.
    pub fn kill(&self) {
        self.network.lock().end(self.number);
    }

    /// Takes the lock, but not in a forked child, where another thread may have held it.
    fn lock(&self) -> Result<MutexGuard<'_, State>, WireError> {
        if self.origin.forked() { Err(WireError::Forked) } else { Ok(self.network.lock()) }
    }
}

impl From<FakeWire> for Wire {
    fn from(wire: FakeWire) -> Wire {
        Wire::of(Box::new(wire))
    }
}

impl State {
    /// Lets an event come to a wire after this time.
    fn schedule(&mut self, wire: usize, after: u64, event: Event) {
        let due = (self.now + after, self.events);
        self.events += 1;
        let wire = &mut self.wires[wire];
        wire.coming.insert(due, event);
        wire.wake();
    }

    fn send(&mut self, own: usize, peer: usize, message: Arrived) -> Result<(), WireError> {
        let wire = &mut self.wires[own];
        let Some(endpoint) = wire.endpoints.get_mut(&peer) else { return Err(WireError::NotConnected { peer }) };
        if let Some(why) = &endpoint.lost {
            return Err(WireError::Lost { peer, why: why.clone() });
        }
        let (number, to) = (endpoint.sent, endpoint.wire);
        endpoint.sent += 1;
        let is_cut = wire.cut_at.get(&peer).is_some_and(|&at| number >= at);
        wire.sent += 1;
        if wire.dies_at.is_some_and(|at| wire.sent > at) {
            self.end(own);
        }
        if self.wires[own].is_dead || self.wires[to].is_dead {
            self.schedule(own, 0, Event::Fault { peer, why: "one of the wires is dead" });
        } else if is_cut {
            self.schedule(own, 0, Event::Fault { peer, why: "the endpoint is cut" });
        } else if self.drawn(own, to, number, 1).is_multiple_of(STAYS_IN) {
            self.wires[own].staying.push(Staying { peer, to, number, message });
            self.wires[own].wake();
        } else {
            self.pass(own, to, number, message);
        }
        Ok(())
    }

    /// Passes a message to the wire of its receiver, unless that has died since.
    fn pass(&mut self, from: usize, to: usize, number: u64, message: Arrived) {
        if self.wires[to].is_dead {
            return;
        }
        let drawn = self.drawn(from, to, number, 2);
        let most = if (drawn >> 32).is_multiple_of(LATE_IN) { LATE } else { SOON };
        self.schedule(to, 1 + drawn % most, Event::Message { from, message });
    }

    fn drawn(&self, from: usize, to: usize, number: u64, purpose: u64) -> u64 {
        mix(mix(self.seed, purpose), mix((from as u64) << 32 | to as u64, number))
    }

    fn progress(&mut self, own: usize) -> Vec<Arrived> {
        for Staying { to, number, message, .. } in mem::take(&mut self.wires[own].staying) {
            self.pass(own, to, number, message);
        }
        let now = self.now;
        let wire = &mut self.wires[own];
        if let Some((&(due, _), _)) = wire.coming.first_key_value()
            && due > now
        {
            self.now = due;
            return Vec::new();
        }
        let mut arrived = Vec::new();
        while let Some(first) = wire.coming.first_entry().filter(|first| first.key().0 <= now) {
            match first.remove() {
                Event::Message { message, .. } => arrived.push(message),
                Event::Fault { peer, why } => {
                    let endpoint = wire.endpoints.get_mut(&peer).expect("endpoints stay");
                    if endpoint.lost.is_none() {
                        endpoint.lost = Some(why.to_owned());
                        wire.faults.push_back((peer, why.to_owned()));
                        wire.staying.retain(|staying| staying.peer != peer);
                    }
                }
            }
        }
        arrived
    }

    /// Ends a wire, with all that is on its way.
    fn end(&mut self, own: usize) {
        if mem::replace(&mut self.wires[own].is_dead, true) {
            return;
        }
        self.wires[own].coming.retain(|_, event| matches!(event, Event::Fault { .. }));
        self.wires[own].staying.clear();
        let mut lost: Vec<(usize, usize)> = self.wires[own].endpoints.keys().map(|&peer| (own, peer)).collect();
        for (number, wire) in self.wires.iter_mut().enumerate().filter(|(number, _)| *number != own) {
            wire.coming.retain(|_, event| !matches!(event, Event::Message { from, .. } if *from == own));
            let endpoints = wire.endpoints.iter().filter(|(_, endpoint)| endpoint.wire == own);
            lost.extend(endpoints.map(|(&peer, _)| (number, peer)));
        }
        for (wire, peer) in lost {
            let after = 1 + self.drawn(wire, own, peer as u64, 3) % SILENCE;
            self.schedule(wire, after, Event::Fault { peer, why: "the peer is silent" });
        }
    }
}

impl WireState {
    /// Wakes a thread that sleeps on the descriptor.
    fn wake(&mut self) {
        if mem::take(&mut self.is_armed) {
            // A counter that is full is readable, too.
            let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
            self.is_readable = true;
        }
    }

    fn arm(&mut self) -> bool {
        if mem::take(&mut self.is_readable) {
            let _ = rustix::io::read(&*self.wake, &mut [0; 8]);
        }
        self.is_armed = self.coming.is_empty() && self.staying.is_empty() && self.faults.is_empty();
        self.is_armed
    }
}

impl Medium for FakeWire {
    /// Plays UCX, with which processes that are lost can be replaced.
    fn kind(&self) -> Kind {
        Kind::Ucx
    }

    fn name(&self) -> String {
        "a fake network".to_owned()
    }

    fn version(&self) -> [u32; 3] {
        [0; 3]
    }

    fn library(&self) -> &str {
        "none"
    }

    fn transports(&self) -> Result<Vec<String>, WireError> {
        self.lock().map(|_| Vec::new())
    }

    fn address(&self) -> &[u8] {
        &self.address
    }

    fn connect(&self, peer: usize, address: &[u8]) -> Result<(), WireError> {
        let mut state = self.lock()?;
        if state.wires[self.number].endpoints.contains_key(&peer) {
            return Err(WireError::Connected { peer });
        }
        let number = <[u8; 8]>::try_from(address).map_err(|_| WireError::Address)?;
        let number = usize::try_from(u64::from_le_bytes(number)).map_err(|_| WireError::Address)?;
        let is_dead = state.wires.get(number).ok_or(WireError::Address)?.is_dead || state.wires[self.number].is_dead;
        let endpoint = Endpoint { wire: number, sent: 0, lost: None };
        state.wires[self.number].endpoints.insert(peer, endpoint);
        if is_dead {
            state.schedule(self.number, SILENCE, Event::Fault { peer, why: "the peer is silent" });
        }
        Ok(())
    }

    fn send(&self, peer: usize, head: Head, body: Vec<u8>) -> Result<(), WireError> {
        self.lock()?.send(self.number, peer, Arrived { head, body })
    }

    fn progress(&self) -> Vec<Arrived> {
        self.lock().map_or_else(|_| Vec::new(), |mut state| state.progress(self.number))
    }

    fn arm(&self) -> Result<bool, WireError> {
        self.lock().map(|mut state| state.wires[self.number].arm())
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.wake.as_fd())
    }

    fn nap(&self) -> Option<Duration> {
        None
    }

    fn fault(&self) -> Option<(usize, String)> {
        self.lock().ok()?.wires[self.number].faults.pop_front()
    }

    fn pending(&self) -> usize {
        self.lock().map_or(0, |state| state.wires[self.number].staying.len())
    }

    /// Forgets the messages that stay here for the peer.
    fn part(&self, peer: usize, _has_failed: bool) {
        if let Ok(mut state) = self.lock() {
            state.wires[self.number].staying.retain(|staying| staying.peer != peer);
        }
    }
}

impl Drop for FakeWire {
    fn drop(&mut self) {
        if let Ok(mut state) = self.lock() {
            state.end(self.number);
        }
    }
}

impl fmt::Debug for FakeWire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FakeWire({})", self.number)
    }
}
