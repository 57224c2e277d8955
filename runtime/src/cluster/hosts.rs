//! Groups of processes that meet at their addresses, as those of several hosts do.

use super::{
    process_group::{Generation, Member, ProcessGroupBuilder},
    role::host_name,
    roster::Roster,
};
use crate::{
    Communicator, Error, Result,
    comm::{
        engine::hosts::{Process, engines},
        options,
    },
};
use consonance_kernels::{
    hosts::{Greeting, Host, meet},
    wire::Wire,
};
use std::{env, process, sync::Arc, time::Instant};

/// The limit on the processes of a group on several hosts: each two have a connection.
const MOST: usize = 256;

impl ProcessGroupBuilder {
    /// Forms the group of processes that meet at their addresses.
    pub(super) fn join_hosts(
        &self,
        call: &'static str,
        place: &Roster,
    ) -> Result<(Arc<Generation>, Vec<Communicator>)> {
        options::settle(call)?;
        let addresses = place.addresses.clone().unwrap_or_default();
        if addresses.len() > MOST {
            let expected = format!("at most {MOST} processes on several hosts");
            return Err(Error::invalid(call, "cluster", expected, addresses.len().to_string()));
        }
        let not_met =
            |problem: String, missing| Error::Meeting { call, task: place.own_task().to_owned(), problem, missing };
        let interface = env::var("CONSONANCE_INTERFACE").ok().filter(|interface| !interface.is_empty());
        let wire = Wire::open(interface.as_deref()).map_err(|absent| not_met(absent.to_string(), Vec::new()))?;
        // Processes with other minor versions do not understand each other.
        let [major, minor, _] = wire.version();
        let greeting = Greeting {
            digest: place.digest,
            task: place.own,
            tasks: place.tasks.len(),
            replicas: self.replicas,
            pid: process::id(),
            host: host_name().unwrap_or_else(|| "a host without a name".to_owned()),
            wire: format!("UCX {major}.{minor}"),
            address: wire.address().to_vec(),
        };
        let host = Host { greeting, names: place.tasks.clone(), addresses };
        let met = meet(&host, Instant::now() + self.timeout, |waiting| {
            (self.on_wait)(&place.waits(waiting, self.timeout));
        })
        .map_err(|error| not_met(error.problem, error.missing))?;
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
