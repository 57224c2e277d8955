//! A wire: a tag of the MPI of this process, and the endpoints of its peers.

use super::{
    calls::Flight,
    message::{Address, SHORT, Trailer, tags},
    process::{Locked, Mpi},
    stage::open,
};
use crate::{
    os::available,
    wire::{Absent, Arrived, Head, Kind, Medium, UNKNOWN_PEER, WireError},
};
use std::{
    collections::{HashMap, VecDeque},
    ffi::c_int,
    fmt, mem,
    mem::ManuallyDrop,
    os::fd::BorrowedFd,
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// The maximum number of bytes of a body in one message of MPI, which counts to 2 GiB.
const PART: usize = 1 << 30;

/// The maximum number of messages in one [`Medium::progress`], so that a peer that sends without an
/// end does not keep the lock.
const ROUNDS: usize = 256;

/// The time after an event in which the wire tests without a nap.
const TESTS: Duration = Duration::from_micros(50);

/// The first nap, and the longest. Each is twice the one before.
const NAP: Duration = Duration::from_micros(50);
const LONG_NAP: Duration = Duration::from_millis(1);

/// The time after an event in which naps stay short while messages are on their way, which move
/// only when the wire tests.
const MOVING: Duration = Duration::from_secs(1);

/// The time that dropping a wire lets MPI end what was sent.
const CLOSING: Duration = Duration::from_millis(200);

/// A wire of MPI.
pub(in crate::wire) struct Wire {
    mpi: &'static Mpi,
    own: Address,
    address: Vec<u8>,
    /// Dropped by hand: not in a forked child.
    state: ManuallyDrop<Mutex<WireState>>,
}

#[derive(Clone, Copy, Debug)]
struct Settings {
    /// The maximum number of bytes of a body in one message of MPI.
    part: usize,
    /// The time after an event in which the wire tests without a nap.
    tests: Duration,
}

/// All that is used under the lock, which is taken before that of the process.
struct WireState {
    own: Address,
    settings: Settings,
    endpoints: HashMap<usize, Endpoint>,
    sends: Vec<Flight>,
    /// Messages with a trailer that arrive, in order.
    receives: Vec<Flight>,
    /// Long bodies that follow their trailers, and whether they are for this wire.
    bodies: Vec<(Head, bool, Flight)>,
    arrived: Vec<Arrived>,
    faults: VecDeque<(usize, String)>,
    /// Whether MPI refuses to receive.
    is_broken: bool,
    /// The time of the last event, the nap that follows, and the one after it.
    event: Instant,
    nap: Duration,
    next_nap: Duration,
}

struct Endpoint {
    address: Address,
    /// The reason if it is lost.
    lost: Option<String>,
}

impl Wire {
    /// Opens a wire, and starts the MPI of this process if none runs, within the limit.
    ///
    /// # Errors
    /// Where MPI was looked for, and what was found there.
    pub(in crate::wire) fn open(limit: Duration) -> Result<Wire, Absent> {
        let (mpi, number) = open(limit)?;
        let own = Address { library: mpi.digest(), launch: mpi.launch, process: mpi.process, rank: mpi.rank, number };
        let settings = Settings { part: PART, tests: TESTS };
        let state = WireState {
            own,
            settings,
            endpoints: HashMap::new(),
            sends: Vec::new(),
            receives: Vec::new(),
            bodies: Vec::new(),
            arrived: Vec::new(),
            faults: VecDeque::new(),
            is_broken: false,
            event: Instant::now(),
            nap: NAP,
            next_nap: NAP,
        };
        Ok(Wire { mpi, own, address: own.bytes(), state: ManuallyDrop::new(Mutex::new(state)) })
    }

    /// Sends longer bodies in parts of as many bytes, and tests for this time after an event.
    #[cfg(test)]
    pub(super) fn with(self, part: usize, tests: Duration) -> Wire {
        self.lock().unwrap().0.settings = Settings { part, tests };
        self
    }

    fn lock(&self) -> Result<(MutexGuard<'_, WireState>, Locked<'_>), WireError> {
        if self.mpi.forked() {
            return Err(WireError::Forked);
        }
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        Ok((state, self.mpi.lock()?))
    }
}

impl Medium for Wire {
    fn kind(&self) -> Kind {
        Kind::Mpi
    }

    fn name(&self) -> String {
        format!("MPI of {}", self.mpi.library.version)
    }

    fn version(&self) -> [u32; 3] {
        self.mpi.library.numbers()
    }

    fn library(&self) -> &str {
        &self.mpi.library.name
    }

    fn transports(&self) -> Result<Vec<String>, WireError> {
        Ok(Vec::new())
    }

    fn address(&self) -> &[u8] {
        &self.address
    }

    fn connect(&self, peer: usize, address: &[u8]) -> Result<(), WireError> {
        let (mut state, _locked) = self.lock()?;
        if state.endpoints.contains_key(&peer) {
            return Err(WireError::Connected { peer });
        }
        let address = Address::read(address).ok_or(WireError::Address)?;
        let foreign = |why: String| Err(WireError::Foreign { peer, why });
        if address.library != self.own.library {
            return foreign(format!("it has another MPI than {}; install one version on all hosts", self.name()));
        }
        if address.launch != self.own.launch || address.rank >= self.mpi.size {
            return foreign("it belongs to another launch of MPI; start all processes by one launcher".to_owned());
        }
        let known = state.endpoints.values().map(|endpoint| endpoint.address).chain([self.own]);
        if known.into_iter().any(|known| known.rank == address.rank && known.process != address.process) {
            let why = format!(
                "another process has its rank {} of MPI's world, too; start all processes by one launcher",
                address.rank
            );
            return foreign(why);
        }
        state.endpoints.insert(peer, Endpoint { address, lost: None });
        Ok(())
    }

    fn send(&self, peer: usize, head: Head, body: Vec<u8>) -> Result<(), WireError> {
        let (mut state, mut locked) = self.lock()?;
        let to = match state.endpoints.get(&peer) {
            None => return Err(WireError::NotConnected { peer }),
            Some(Endpoint { lost: Some(why), .. }) => return Err(WireError::Lost { peer, why: why.clone() }),
            Some(Endpoint { address, lost: None }) => *address,
        };
        let trailer = Trailer { to: to.wire(), bytes: body.len(), head }.bytes();
        let (message, long) = match body.len() > SHORT {
            true => (trailer.to_vec(), Some(body)),
            false => {
                let mut message = body;
                message.extend_from_slice(&trailer);
                (message, None)
            }
        };
        let ([tag, tag_of_bodies], rank, part) = (tags(to.number), to.rank as c_int, state.settings.part);
        state.event = Instant::now();
        // No message of another thread comes between the two.
        for (bytes, tag) in [(message, tag)].into_iter().chain(long.map(|body| (body, tag_of_bodies))) {
            match locked.calls.send(peer, rank, tag, bytes, part) {
                Ok(flight) => state.sends.push(flight),
                Err(error) => {
                    locked.state.has_failed = true;
                    let endpoint = state.endpoints.get_mut(&peer).expect("the endpoint of the peer");
                    endpoint.lost = Some(error.to_string());
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    fn progress(&self) -> Vec<Arrived> {
        let Ok((mut state, mut locked)) = self.lock() else { return Vec::new() };
        state.progress(&mut locked);
        mem::take(&mut state.arrived)
    }

    fn arm(&self) -> Result<bool, WireError> {
        let (mut state, _locked) = self.lock()?;
        let waited = state.event.elapsed();
        if !state.arrived.is_empty() || !state.faults.is_empty() || waited < state.settings.tests {
            state.next_nap = NAP;
            return Ok(false);
        }
        let is_still = state.sends.is_empty() && state.receives.is_empty() && state.bodies.is_empty();
        if !is_still && waited < MOVING {
            state.next_nap = NAP;
        }
        state.nap = state.next_nap;
        state.next_nap = (2 * state.nap).min(LONG_NAP);
        Ok(true)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn nap(&self) -> Option<Duration> {
        // In a fork there is nothing to wait for.
        Some(self.lock().map_or(LONG_NAP, |(state, _)| state.nap))
    }

    fn fault(&self) -> Option<(usize, String)> {
        self.lock().ok()?.0.faults.pop_front()
    }

    fn pending(&self) -> usize {
        self.lock().map_or(0, |(state, _)| state.sends.len())
    }

    fn part(&self, peer: usize, has_failed: bool) {
        let Ok((mut state, mut locked)) = self.lock() else { return };
        if let Some(endpoint) = state.endpoints.get_mut(&peer) {
            endpoint.lost.get_or_insert_with(|| "it has left".to_owned());
        }
        locked.state.has_failed |= has_failed;
        let WireState { sends, receives, bodies, .. } = &mut *state;
        let of_peer = |flight: &mut Flight| flight.peer == peer;
        let bodies = bodies.extract_if(.., |(.., flight)| flight.peer == peer).map(|(.., flight)| flight);
        locked.leave(sends.extract_if(.., of_peer).chain(receives.extract_if(.., of_peer)).chain(bodies));
    }
}

impl WireState {
    /// Lets MPI work.
    fn progress(&mut self, locked: &mut Locked<'_>) {
        let found = (0..ROUNDS).take_while(|_| !self.is_broken && self.begin_receive(locked)).count();
        let is_event = [self.finish_sends(locked), self.finish_receives(locked), self.finish_bodies(locked)];
        if found > 0 || is_event.contains(&true) {
            self.event = Instant::now();
        }
    }

    /// Takes note that a message with a peer has failed.
    fn fail(&mut self, peer: usize, why: &str, locked: &mut Locked<'_>) {
        locked.state.has_failed = true;
        if let Some(endpoint) = self.endpoints.get_mut(&peer) {
            if endpoint.lost.is_some() {
                return;
            }
            endpoint.lost = Some(why.to_owned());
        }
        self.faults.push_back((peer, why.to_owned()));
    }

    /// Frees the messages that were sent. Returns whether there are such.
    fn finish_sends(&mut self, locked: &mut Locked<'_>) -> bool {
        let mut failed = Vec::new();
        let calls = locked.calls;
        let count = self.sends.len();
        self.sends.retain_mut(|flight| match calls.test(flight) {
            Ok(is_done) => !is_done,
            Err(error) => {
                failed.push((flight.peer, error));
                false
            }
        });
        failed.iter().for_each(|(peer, error)| self.fail(*peer, &error.to_string(), locked));
        self.sends.len() < count
    }

    /// Begins to receive a message. Returns whether there is one.
    fn begin_receive(&mut self, locked: &mut Locked<'_>) -> bool {
        let incoming = match locked.calls.probe(tags(self.own.number)[0]) {
            Ok(Some(incoming)) => incoming,
            Ok(None) => return false,
            Err(error) => {
                self.is_broken = true;
                self.fail(UNKNOWN_PEER, &error.to_string(), locked);
                return true;
            }
        };
        let rank = u32::try_from(incoming.rank).ok();
        let of_rank = |(peer, endpoint): (&usize, &Endpoint)| (Some(endpoint.address.rank) == rank).then_some(*peer);
        let peer = self.endpoints.iter().find_map(of_rank).unwrap_or(UNKNOWN_PEER);
        let room = room(incoming.bytes);
        match room.and_then(|room| locked.calls.receive(peer, incoming, room).map_err(|error| error.to_string())) {
            Ok(flight) => self.receives.push(flight),
            Err(why) => self.fail(peer, &format!("a message was not received: {why}"), locked),
        }
        true
    }

    /// Takes the messages with trailers that have arrived. Returns whether there are such.
    fn finish_receives(&mut self, locked: &mut Locked<'_>) -> bool {
        let (all, mut waited) = (mem::take(&mut self.receives), Vec::new());
        let count = all.len();
        for mut flight in all {
            // Long bodies of a rank come in the order of their trailers.
            if waited.contains(&flight.rank) {
                self.receives.push(flight);
                continue;
            }
            match locked.calls.test(&mut flight) {
                Ok(false) => {
                    waited.push(flight.rank);
                    self.receives.push(flight);
                }
                Ok(true) => self.take(flight, locked),
                Err(error) => self.fail(flight.peer, &error.to_string(), locked),
            }
        }
        self.receives.len() < count
    }

    /// Takes a message, and begins to receive its body if it is long.
    fn take(&mut self, flight: Flight, locked: &mut Locked<'_>) {
        let (peer, rank, mut body) = (flight.peer, flight.rank, flight.into_bytes());
        let Some(Trailer { to, bytes, head }) = Trailer::take(&mut body) else {
            return self.fail(peer, &format!("a message of {} bytes without a head arrived", body.len()), locked);
        };
        // Those of a wire that had the tag before are late.
        let is_own = to == self.own.wire();
        if bytes <= SHORT {
            return self.arrived.extend(is_own.then_some(Arrived { head, body }));
        }
        if self.endpoints.get(&peer).is_some_and(|endpoint| endpoint.lost.is_some()) {
            return;
        }
        let (part, tag) = (self.settings.part, tags(self.own.number)[1]);
        let begun = room(bytes).and_then(|room| {
            locked.calls.receive_from(peer, rank, tag, bytes, part, room).map_err(|error| error.to_string())
        });
        match begun {
            Ok(flight) => self.bodies.push((head, is_own, flight)),
            Err(why) => self.fail(peer, &format!("a message was not received: {why}"), locked),
        }
    }

    /// Takes the long bodies that have arrived. Returns whether there are such.
    fn finish_bodies(&mut self, locked: &mut Locked<'_>) -> bool {
        let all = mem::take(&mut self.bodies);
        let count = all.len();
        for (head, is_own, mut flight) in all {
            match locked.calls.test(&mut flight) {
                Ok(false) => self.bodies.push((head, is_own, flight)),
                Ok(true) => {
                    let body = flight.into_bytes();
                    self.arrived.extend(is_own.then_some(Arrived { head, body }));
                }
                Err(error) => self.fail(flight.peer, &error.to_string(), locked),
            }
        }
        self.bodies.len() < count
    }
}

/// Returns room for a message.
///
/// # Errors
/// In words, if there is no memory for it.
fn room(bytes: usize) -> Result<Vec<u8>, String> {
    available::room(bytes).ok_or_else(|| format!("there is no memory for {bytes} bytes"))
}

impl Drop for Wire {
    fn drop(&mut self) {
        if self.mpi.forked() {
            return;
        }
        let until = Instant::now() + CLOSING;
        while self.pending() > 0 && Instant::now() < until {
            self.progress();
            thread::yield_now();
        }
        // SAFETY: once, and nobody uses it afterwards.
        let state = unsafe { ManuallyDrop::take(&mut self.state) }.into_inner().unwrap_or_else(PoisonError::into_inner);
        // MPI that the program has ended uses nothing any more. The messages stay all the same.
        if let Ok(mut locked) = self.mpi.lock() {
            let bodies = state.bodies.into_iter().map(|(.., flight)| flight);
            locked.leave(state.sends.into_iter().chain(state.receives).chain(bodies));
            locked.drop_wire();
        }
        // The program ends its MPI without last words.
        let until = Instant::now() + CLOSING;
        while !self.mpi.is_ours && self.mpi.lock().and_then(|mut locked| locked.drain(self.own.number)) == Ok(false) {
            if Instant::now() >= until {
                break;
            }
            thread::yield_now();
        }
    }
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Wire({}, {})", self.mpi.library.name, self.mpi.library.version)
    }
}
