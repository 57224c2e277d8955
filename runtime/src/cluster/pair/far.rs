//! Pairs of processes on two hosts, each with a network of its own.
//!
//! The process whose name is less has a gate, an address at which it meets all of its peers. The
//! other one calls it.

use super::{CALL, Means, Names, Pair};
use crate::{
    CommunicationOptions, Communicator, Error, Result,
    cluster::role::host_name,
    comm::engine::hosts::{Hosts, Process, connect},
};
use consonance_kernels::{
    hosts::{Gate, Greeting, Host, NotMet, meet_at_gate, place},
    wire::Wire,
};
use std::{
    collections::BTreeMap,
    env, process,
    sync::{Arc, Mutex, PoisonError, Weak},
    thread,
    time::{Duration, Instant},
};

/// The number of the group of the two, on their network.
const GROUP: u64 = 0;

/// The gates of this process, by address. Two strategies may have the same one.
static GATES: Mutex<BTreeMap<String, Weak<Gate>>> = Mutex::new(BTreeMap::new());

/// The limit on the time in which a gate of this process closes, after its last use.
const CLOSES: Duration = Duration::from_secs(1);

/// The time between two attempts to open a gate.
const AGAIN: Duration = Duration::from_millis(10);

/// Returns the gate of this process at an address.
///
/// # Errors
/// [`Error::Meeting`] of `task` if this process cannot listen there.
pub(crate) fn gate_at(address: &str, task: &str, deadline: Instant) -> Result<Arc<Gate>> {
    let until = deadline.min(Instant::now() + CLOSES);
    loop {
        let mut gates = GATES.lock().unwrap_or_else(PoisonError::into_inner);
        let earlier = gates.get(address);
        if let Some(gate) = earlier.and_then(Weak::upgrade) {
            return Ok(gate);
        }
        let was_open = earlier.is_some();
        match Gate::open(address, deadline) {
            Ok(gate) => {
                let gate = Arc::new(gate);
                gates.insert(address.to_owned(), Arc::downgrade(&gate));
                return Ok(gate);
            }
            // An earlier gate here may be closing.
            Err(_) if was_open && Instant::now() < until => {}
            Err(NotMet { problem, missing }) => {
                return Err(Error::Meeting { call: CALL, task: task.to_owned(), problem, missing });
            }
        }
        drop(gates);
        thread::park_timeout(AGAIN);
    }
}

/// The least time to meet a peer, once the wire is open.
const LEAST: Duration = Duration::from_millis(500);

/// The means of a process to meet a peer on another host.
pub(crate) struct Far<'a> {
    /// The addresses of this process and of its peer, `host:port`.
    pub(crate) addresses: [&'a str; 2],
    /// The gate of this process. Whoever calls needs none.
    pub(crate) gate: Option<&'a Gate>,
}

impl Pair {
    /// Returns whether the process of this name calls the other one.
    pub(crate) fn calls(own: &str, peer: &str) -> bool {
        own > peer
    }

    /// Meets a peer on another host, as the process of this rank.
    pub(super) fn meet_far(
        far: &Far<'_>,
        digest: u128,
        own: usize,
        tasks: [String; 2],
        deadline: Instant,
    ) -> Result<Pair> {
        let not_met = |NotMet { problem, missing }| {
            let task = tasks[own].clone();
            Error::Meeting { call: CALL, task, problem, missing }
        };
        let interface = env::var("CONSONANCE_INTERFACE").ok().filter(|interface| !interface.is_empty());
        let wire = Wire::open(interface.as_deref());
        let wire = wire.map_err(|absent| not_met(NotMet { problem: absent.to_string(), missing: Vec::new() }))?;
        let deadline = deadline.max(Instant::now() + LEAST);
        let host = host_name().unwrap_or_else(|| "a host without a name".to_owned());
        let greeting = Greeting {
            digest,
            task: own,
            tasks: tasks.len(),
            replicas: 1,
            pid: process::id(),
            place: place(&host),
            near: 0,
            generation: 0,
            host,
            wire: wire.name(),
            address: wire.address().to_vec(),
        };
        let mut addresses = far.addresses.map(str::to_owned);
        // By rank.
        addresses.rotate_left(own);
        let (names, addresses) = (tasks.to_vec(), addresses.to_vec());
        let met = meet_at_gate(&Host { greeting, names, addresses }, far.gate, deadline, |_| {}).map_err(not_met)?;
        let all = met.greetings.iter().zip(&tasks).enumerate().map(|(rank, (greeting, task))| {
            let name = format!("{task}, process {} on {}", greeting.pid, greeting.host);
            Process { name, ranks: rank..rank + 1, worker: None }
        });
        let all: Vec<Process> = all.collect();
        let hosts = connect(wire, met, None, all).map_err(|error| Error::system("connect two processes", error))?;
        let engine = hosts.engines(GROUP, &[0, 1]).remove(0);
        let mut communicator = Communicator::on(engine, CommunicationOptions::new().configuration());
        let mailbox = communicator.mailbox()?;
        let names = Arc::new(Names { tasks, processes: vec![None; 2] });
        let means = Means::Network(Network(hosts));
        Ok(Pair { mailbox, _communicator: Mutex::new(communicator), means, given: None, own, names })
    }
}

/// The network of two processes, which this one leaves when it is dropped.
pub(super) struct Network(Arc<Hosts>);

impl Network {
    /// Returns whether the process of this rank answers.
    pub(super) fn answers(&self, rank: usize) -> bool {
        self.0.answers(rank)
    }

    /// Returns whether the process of this rank is known to have ended, and not only left.
    pub(super) fn has_lost(&self, rank: usize) -> bool {
        self.0.was_lost(rank, GROUP)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // Mailboxes of the pair may be left, which hold the network, too.
        self.0.end();
    }
}
