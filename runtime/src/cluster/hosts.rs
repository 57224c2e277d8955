//! Groups of processes that meet at addresses, as those of several hosts do.
//!
//! **Reform.** Beside the groups of ranks, the processes have a *control* group with one rank each,
//! which no user sees. After a loss those that are left form it again, by the rule of the majority,
//! and agree on the number of a new group of their ranks, on the same network. With processes in
//! the places of lost ones they meet anew, on a network of their own: see `replacements.rs`.

use super::{
    Majority,
    group_builder::ProcessGroupBuilder,
    links::Links,
    process_group::{FIRST, Generation, Means, Member, ProcessGroup},
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
        Claim, Greeting, Host, MOST, Met, Near, NotMet, listen_anywhere, listen_at, look_up, meet, meet_at,
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

/// The means of a process that is about to meet others.
pub(super) struct Coming {
    pub(super) greeting: Greeting,
    wire: Wire,
    near: Option<Near>,
}

/// The group that a process has entered.
type Entered = (Arc<Generation>, Vec<Communicator>, Links);

impl ProcessGroupBuilder {
    /// Sets the host that this process plays to be on, among others of this one. For tests.
    #[doc(hidden)]
    pub fn plays_host(mut self, host: usize) -> Self {
        self.locality = Locality::Played(host);
        self
    }

    /// Sets the function that opens wires, in the place of those of this host's libraries. For
    /// tests.
    #[doc(hidden)]
    pub fn wires(mut self, open: impl Fn() -> Wire + Send + Sync + 'static) -> Self {
        self.wires = Some(Arc::new(open));
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
        let deadline = Instant::now() + self.timeout;
        loop {
            let (coming, met) = self.meet_hosts(call, place, deadline)?;
            let earlier: Vec<usize> = (0..size).filter(|&process| met.greetings[process].generation > 0).collect();
            let mut links = self.connect_hosts(place, coming, met, deadline)?;
            if earlier.is_empty() {
                let (generation, communicators) = self.group_of(place, &mut links, FIRST, &Vec::from_iter(0..size));
                return Ok((generation, communicators, links));
            }
            // This process replaces another one: the others know the number.
            match self.form_hosts(call, place, &mut links, None, deadline, Majority::Needed) {
                // Their group ended with them. All who are here are new, and meet as at first.
                Err(Error::Meeting { .. }) if links.hosts.have_ended(&earlier) && Instant::now() < deadline => {}
                formed => return formed.map(|(generation, communicators)| (generation, communicators, links)),
            }
        }
    }

    /// Meets the other processes, at addresses that all know or that are in a table.
    fn meet_hosts(&self, call: &'static str, place: &Roster, deadline: Instant) -> Result<(Coming, Met)> {
        let coming = self.coming(call, place, 0)?;
        let greeting = coming.greeting.clone();
        let tell = |waiting: &Waiting| (self.on_wait)(&place.waits(waiting, self.timeout));
        let (names, refused) = (place.tasks.clone(), |error| not_met(call, place, error));
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
                    size: place.tasks.len(),
                    pid: greeting.pid,
                    host: greeting.host.clone(),
                    port: listener.local_addr().map_err(failed)?.port(),
                };
                let addresses = look_up(at, &claim, deadline, tell).map_err(refused)?;
                meet_at(&Host { greeting, names, addresses }, listener, deadline, tell).map_err(refused)?
            }
        };
        Ok((coming, met))
    }

    /// Opens the wire and the memory of a process that is about to meet others. `generation` is the
    /// number of the one that it forms with them, 0 for a process that has been in none.
    pub(super) fn coming(&self, call: &'static str, place: &Roster, generation: u64) -> Result<Coming> {
        let wire = match &self.wires {
            Some(open) => open(),
            None => self.open_wire(call, place)?,
        };
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
            generation,
            host,
            wire: wire.name(),
            address: wire.address().to_vec(),
        };
        let near = Near::open(&greeting);
        if near.is_none() {
            greeting.near = 0;
        }
        Ok(Coming { greeting, wire, near })
    }

    /// Opens a wire of the first library that this host has.
    fn open_wire(&self, call: &'static str, place: &Roster) -> Result<Wire> {
        let interface = env::var("CONSONANCE_INTERFACE").ok().filter(|interface| !interface.is_empty());
        let (kinds, limit) = match chosen_wire()? {
            Some(kind) => (vec![kind], self.timeout),
            // A child of a launcher's process has the same variables, but another place.
            None if world_of_mpi() == Some((place.own, place.tasks.len())) => {
                (Kind::ALL.to_vec(), START_OF_MPI.min(self.timeout / 2))
            }
            None => (vec![Kind::Ucx], self.timeout),
        };
        let wire = Wire::open_first(&kinds, interface.as_deref(), limit);
        let refused = |problem: String| not_met(call, place, NotMet { problem, missing: Vec::new() });
        wire.map_err(|absent| refused(absent.to_string()))
    }

    /// Connects this process with those that it has met.
    pub(super) fn connect_hosts(&self, place: &Roster, coming: Coming, met: Met, deadline: Instant) -> Result<Links> {
        let Coming { wire, near, .. } = coming;
        // A group on one host has a wire where it is asked for, to be used.
        let is_on_one_host = met.greetings.iter().all(|one| one.near == met.greetings[place.own].near);
        let uses_memory = chosen_wire()?.is_none() || !is_on_one_host;
        let near = near.filter(|_| uses_memory).and_then(|near| near.join(&met, deadline));
        let takes_replacements = matches!(place.way, Way::Addresses(_)) && wire.kind() == Kind::Ucx;
        let all = 0..met.greetings.len();
        let mut formed: Vec<usize> = all.clone().filter(|&one| met.greetings[one].generation > 0).collect();
        if formed.is_empty() {
            formed = all.collect();
        }
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
        let control = Communicator::on(hosts.control(&formed), self.options.configuration());
        Ok(Links { hosts, control, next: 0, takes_replacements, has_moved_on: false })
    }

    /// Makes the group of the ranks of these processes.
    pub(super) fn group_of(
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
        let ProcessGroup { options, place, means, generation, communicators } = self;
        let Means::Hosts(links) = means else { unreachable!("a group on a network") };
        if !wait.is_zero() && !links.takes_replacements {
            let expected = "zero: processes of several hosts take replacements over UCX, at addresses that all know";
            return Err(Error::invalid(call, "wait_for_replacements", expected, format!("{wait:?}")));
        }
        let now = Instant::now();
        let until = now.checked_add(wait).unwrap_or(now + options.timeout);
        (*generation, *communicators) =
            options.form_hosts(call, place, links, Some(generation.clone()), until, majority)?;
        Ok(())
    }
}

pub(super) fn not_met(call: &'static str, place: &Roster, NotMet { problem, missing }: NotMet) -> Error {
    Error::Meeting { call, task: place.own_task().to_owned(), problem, missing }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ClusterSpec, ReduceOp, SimpleClusterResolver};
    use std::{net::TcpListener, sync::Barrier, thread};

    /// Found by a soak of two hosts: the replacement failed, as if its side of a network had lost
    /// the majority.
    #[test]
    fn a_replacement_meets_new_processes_after_the_end_of_all_others() {
        if let Err(absent) = Wire::open(None) {
            return println!("skipped: {absent}");
        }
        let listeners: Vec<_> = (0..3).map(|_| TcpListener::bind("127.0.0.1:0").expect("a free port")).collect();
        let addresses = listeners.iter().map(|listener| listener.local_addr().expect("an address").to_string());
        let cluster = ClusterSpec::new().job("worker", addresses.collect::<Vec<_>>()).expect("three addresses");
        drop(listeners);
        let builder = |task: usize| {
            let task = SimpleClusterResolver::new(cluster.clone()).with_task("worker", task).expect("one of three");
            let builder = ProcessGroup::builder(task).over_wire(true).on_wait(|_| {});
            builder.timeout(Duration::from_secs(60)).expect("a time that ends")
        };
        // Processes of an earlier generation, which end when the replacement sends its numbers.
        let both = Barrier::new(2);
        let survivor = |task: usize| {
            let (builder, deadline) = (builder(task), Instant::now() + Duration::from_secs(60));
            let place = builder.job.place(builder.locality).expect("a task of the cluster");
            let Way::Addresses(addresses) = &place.way else { unreachable!("a group over a wire") };
            let coming = builder.coming("test", &place, 5).expect("a wire");
            let (greeting, names, addresses) = (coming.greeting.clone(), place.tasks.clone(), addresses.clone());
            let _met = meet(&Host { greeting, names, addresses }, deadline, |_| {}).expect("all meet");
            both.wait();
            while coming.wire.progress().is_empty() {
                assert!(Instant::now() < deadline, "the replacement sends nothing");
                thread::yield_now();
            }
            both.wait();
        };
        let member = |task: usize| {
            let mut group = builder(task).join().expect("three new processes");
            let mut sum = [1.0f32];
            group.communicators()[0].all_reduce(ReduceOp::Sum, &mut sum).expect("a sum");
            (group.generation(), sum[0])
        };
        thread::scope(|scope| {
            let replacement = scope.spawn(|| member(2));
            let survivor = &survivor;
            let survivors = [0, 1].map(|task| scope.spawn(move || survivor(task)));
            survivors.into_iter().for_each(|survivor| survivor.join().expect("it meets the others"));
            let others = [0, 1].map(|task| scope.spawn(move || member(task)));
            let all = others.into_iter().chain([replacement]);
            all.for_each(|member| assert_eq!(member.join().expect("no panic"), (FIRST, 3.0)));
        });
    }
}
