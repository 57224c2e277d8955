//! Groups of processes that meet at addresses, as those of several hosts do.
//!
//! **Reform.** Beside the groups of ranks, the processes have a *control* group with one rank each,
//! which no user sees. After a loss those that are left form it again, by the rule of the majority,
//! and agree on the number of a new group of their ranks, on the same network.

use super::{
    Majority,
    group_builder::ProcessGroupBuilder,
    links::{Links, in_replicas},
    process_group::{Generation, Means, Member, ProcessGroup},
    role::host_name,
    roster::{Locality, Roster, Way, chosen_wire},
};
use crate::{
    Communicator, Error, Result,
    comm::{
        engine::hosts::{Process, connect},
        options,
    },
};
use consonance_kernels::{
    bootstrap::Waiting,
    hosts::{
        Claim, Greeting, Host, MOST, Met, Near, Neighbours, NotMet, listen_anywhere, listen_at, look_up, meet, meet_at,
        near as near_memory, place as place_of_ids, serve,
    },
    os::launcher::has_workers,
    wire::{Kind, Wire, world_of_mpi},
};
use std::{
    env, process,
    sync::Arc,
    time::{Duration, Instant},
};

/// The limit on the start of an MPI that nobody has asked for, which also gets no more than half of
/// the time: where UCX is missing on one host alone, the others do not start it.
const START_OF_MPI: Duration = Duration::from_secs(60);

/// The group that a process has entered.
type Entered = (Arc<Generation>, Vec<Communicator>, Links);

impl ProcessGroupBuilder {
    /// Sets the host that this process plays to be on, among others of this one. For tests.
    #[doc(hidden)]
    pub fn plays_host(mut self, host: usize) -> Self {
        self.locality = Locality::Played(host);
        self
    }

    /// Forms the group of processes that meet at addresses.
    pub(super) fn join_hosts(&self, call: &'static str, place: &Roster) -> Result<Entered> {
        options::settle(call)?;
        let size = place.tasks.len();
        if size > MOST {
            let expected = format!("at most {MOST} processes on several hosts");
            return Err(Error::invalid(call, "cluster", expected, size.to_string()));
        }
        let not_met =
            |problem: String, missing| Error::Meeting { call, task: place.own_task().to_owned(), problem, missing };
        let interface = env::var("CONSONANCE_INTERFACE").ok().filter(|interface| !interface.is_empty());
        let deadline = Instant::now() + self.timeout;
        let chosen = chosen_wire()?;
        let (kinds, limit) = match chosen {
            Some(kind) => (vec![kind], self.timeout),
            // A child of a launcher's process has the same variables, but another place.
            None if world_of_mpi() == Some((place.own, size)) => {
                (Kind::ALL.to_vec(), START_OF_MPI.min(self.timeout / 2))
            }
            None => (vec![Kind::Ucx], self.timeout),
        };
        let wire = Wire::open_first(&kinds, interface.as_deref(), limit);
        let wire = wire.map_err(|absent| not_met(absent.to_string(), Vec::new()))?;
        let host = host_name().unwrap_or_else(|| "a host without a name".to_owned());
        let near = match self.locality {
            Locality::Played(played) => 1 + played as u64,
            Locality::Memory => near_memory(&host),
            Locality::Wire => 0,
        };
        let mut greeting = Greeting {
            digest: place.digest,
            task: place.own,
            tasks: place.tasks.len(),
            replicas: self.replicas,
            pid: process::id(),
            place: place_of_ids(&host),
            near,
            host,
            wire: wire.name(),
            address: wire.address().to_vec(),
        };
        let near = Near::open(&greeting);
        if near.is_none() {
            greeting.near = 0;
        }
        let tell = |waiting: &Waiting| (self.on_wait)(&place.waits(waiting, self.timeout));
        let (names, refused) = (place.tasks.clone(), |error: NotMet| not_met(error.problem, error.missing));
        let met = match &place.way {
            Way::Host => unreachable!("processes of one host share memory"),
            Way::Addresses(addresses) => {
                meet(&Host { greeting, names, addresses: addresses.clone() }, deadline, tell).map_err(refused)?
            }
            Way::Table { at, serves } => {
                let failed = |source| Error::system("listen at a port", source);
                // Ends with this call: after an error another one may follow.
                let _serving = match serves {
                    true => {
                        let listener = listen_at(&at[0], deadline).map_err(refused)?;
                        Some(serve(listener, place.digest, deadline).map_err(failed)?)
                    }
                    false => None,
                };
                let listener = listen_anywhere().map_err(failed)?;
                let claim = Claim {
                    digest: place.digest,
                    rank: place.own,
                    size,
                    pid: greeting.pid,
                    host: greeting.host.clone(),
                    port: listener.local_addr().map_err(failed)?.port(),
                };
                let addresses = look_up(at, &claim, deadline, tell).map_err(refused)?;
                meet_at(&Host { greeting, names, addresses }, listener, deadline, tell).map_err(refused)?
            }
        };
        // A group on one host has a wire where it is asked for, to be used.
        let is_on_one_host = met.greetings.iter().all(|one| one.near == met.greetings[place.own].near);
        let near = near.filter(|_| chosen.is_none() || !is_on_one_host).and_then(|near| near.join(&met, deadline));
        self.enter_hosts(place, wire, met, near)
    }

    /// Enters the group of processes that have met.
    fn enter_hosts(&self, place: &Roster, wire: Wire, met: Met, near: Option<Neighbours>) -> Result<Entered> {
        let mut next = 0;
        let are_workers = !self.job.is_private() && has_workers(place.own, place.tasks.len());
        let processes = met.greetings.iter().zip(&place.tasks).enumerate().map(|(index, (greeting, task))| {
            let ranks = next..next + greeting.replicas;
            next = ranks.end;
            let name = format!("{task}, process {} on {}", greeting.pid, greeting.host);
            Process { name, ranks, worker: are_workers.then_some(index) }
        });
        let processes: Vec<Process> = processes.collect();
        let hosts =
            connect(wire, met, near, processes).map_err(|error| Error::system("connect the processes", error))?;
        let all: Vec<usize> = (0..place.tasks.len()).collect();
        let configuration = self.options.configuration();
        let control = Communicator::on(hosts.control(), configuration);
        let mut links = Links { hosts, control, next: 0 };
        let (generation, communicators) = self.group_of(place, &mut links, 1, &all);
        Ok((generation, communicators, links))
    }

    /// Makes the group of the ranks of these processes.
    fn group_of(
        &self,
        place: &Roster,
        links: &mut Links,
        number: u64,
        processes: &[usize],
    ) -> (Arc<Generation>, Vec<Communicator>) {
        let mut next = 0;
        let members = processes.iter().map(|&one| {
            let ranks = next..next + links.hosts.processes()[one].ranks.len();
            next = ranks.end;
            Member { task: place.tasks[one].clone(), process: None, ranks }
        });
        let own = processes.iter().position(|&one| one == links.hosts.own()).expect("a process of its own group");
        let generation = Arc::new(Generation { number, members: members.collect(), own, _kept: None });
        let engines = links.hosts.engines(links.next, processes);
        links.next += 1;
        let configuration = self.options.configuration();
        (generation, engines.into_iter().map(|engine| Communicator::on(engine, configuration)).collect())
    }
}

impl ProcessGroup {
    /// Forms the next generation of a group whose processes meet at addresses.
    pub(super) fn reform_hosts(&mut self, call: &'static str, wait: Duration, majority: Majority) -> Result<()> {
        if !wait.is_zero() {
            let expected = "zero: processes of several hosts take no replacements";
            return Err(Error::invalid(call, "wait_for_replacements", expected, format!("{wait:?}")));
        }
        // Each process can be lost once. More losses mean that a peer says what is false.
        let mut losses = self.place.tasks.len();
        loop {
            match self.form_hosts(call, majority) {
                Err(error) if error.is_loss() && losses > 0 => losses -= 1,
                formed => return formed,
            }
        }
    }

    fn form_hosts(&mut self, call: &'static str, majority: Majority) -> Result<()> {
        let ProcessGroup { options, place, means, generation, communicators } = self;
        let Means::Hosts(links) = means else { unreachable!("a group on a network") };
        let configuration = options::Configuration { timeout: options.timeout, ..options.options.configuration() };
        let number = links.agree(generation.number, majority, configuration).map_err(|error| {
            let left = links.left();
            let ranks = |rank: usize| {
                let task = left.get(rank).map(|&process| &place.tasks[process]);
                let member = generation.members.iter().find(|member| Some(&member.task) == task);
                member.map_or(rank..rank + 1, |member| member.ranks.clone())
            };
            in_replicas(error, call, ranks)
        })?;
        let left = links.left();
        communicators.clear();
        (*generation, *communicators) = options.group_of(place, links, number, &left);
        Ok(())
    }
}
