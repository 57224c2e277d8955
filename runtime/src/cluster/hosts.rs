//! Groups of processes that meet at addresses, as those of several hosts do.

use super::{
    process_group::{Generation, Member, ProcessGroupBuilder},
    role::host_name,
    roster::{Roster, Way, chosen_wire},
};
use crate::{
    Communicator, Error, Result,
    comm::{
        engine::hosts::{Process, engines},
        options,
    },
};
use consonance_kernels::{
    bootstrap::Waiting,
    hosts::{
        Claim, Greeting, Host, MOST, NotMet, listen_anywhere, listen_at, look_up, meet, meet_at, place as place_of_ids,
        serve,
    },
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

impl ProcessGroupBuilder {
    /// Forms the group of processes that meet at addresses.
    pub(super) fn join_hosts(
        &self,
        call: &'static str,
        place: &Roster,
    ) -> Result<(Arc<Generation>, Vec<Communicator>)> {
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
        let (kinds, limit) = match chosen_wire()? {
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
        let greeting = Greeting {
            digest: place.digest,
            task: place.own,
            tasks: place.tasks.len(),
            replicas: self.replicas,
            pid: process::id(),
            place: place_of_ids(&host),
            host,
            wire: wire.name(),
            address: wire.address().to_vec(),
        };
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
        let mut next = 0;
        let processes = met.greetings.iter().zip(&place.tasks).map(|(greeting, task)| {
            let ranks = next..next + greeting.replicas;
            next = ranks.end;
            Process { name: format!("{task}, process {} on {}", greeting.pid, greeting.host), ranks }
        });
        let processes: Vec<Process> = processes.collect();
        let member = |(task, process): (&String, &Process)| Member {
            task: task.clone(),
            process: None,
            ranks: process.ranks.clone(),
        };
        let members = place.tasks.iter().zip(&processes).map(member).collect();
        let generation = Arc::new(Generation { number: 1, members, own: met.own, _kept: None });
        let engines = engines(wire, met, processes).map_err(|error| Error::system("connect the processes", error))?;
        let configuration = self.options.configuration();
        let communicators = engines.into_iter().map(|engine| Communicator::on(engine, configuration)).collect();
        Ok((generation, communicators))
    }
}
