//! The cluster of a launch: for each worker an address that no other launch on this machine has,
//! and a job id. Of several launches on several hosts, each knows the address of one worker alone,
//! the chief.
//!
//! A port on which nobody listens yet can be chosen twice. A launch therefore claims each of its
//! ports by a socket whose abstract name contains the port. Only one socket can have the name, and
//! the system removes it when the launcher ends, in whatever way.

use super::{
    hosts::address,
    task::{Role, Task},
};
use std::{
    collections::BTreeMap,
    io,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    num::NonZeroUsize,
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr as UnixAddr, UnixDatagram},
    },
    process,
    time::{SystemTime, UNIX_EPOCH},
};

/// The first port of a host of a launch. The workers' ports follow it.
const FIRST_PORT: u16 = 2222;

/// The place of a launch among those of the same program on several hosts, one on each, with the
/// same number of workers.
#[derive(Clone, Debug)]
pub struct Node {
    /// The number of launches.
    pub nodes: NonZeroUsize,
    /// The position of this launch, below their number.
    pub node: usize,
    /// The address at which the worker of rank 0 listens, `host:port`, with a next port for the
    /// store of programs that are written for torch's launcher.
    pub chief: String,
    /// The job id, if the launches were given one: workers of launches with different ids form no
    /// group.
    pub job: Option<String>,
}

impl Node {
    /// Returns the host of the chief, and its port, which has a next one.
    pub(super) fn host_and_port(&self) -> io::Result<(&str, u16)> {
        let parts = self.chief.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?)));
        let wrong = || io::Error::other(format!("{:?} is not host:port with a next port", self.chief));
        parts.filter(|(_, port)| *port < u16::MAX).ok_or_else(wrong)
    }
}

/// The addresses of the workers.
pub(crate) struct Cluster {
    /// Those of all workers, unless there is a chief.
    addresses: Vec<String>,
    /// The address of the worker of rank 0, if the launch has others beside it and does not know
    /// those of their workers.
    chief: Option<String>,
    /// The number of all workers.
    size: usize,
    /// The number of workers of each host.
    workers_of_host: usize,
    /// The host and the port for the store of programs that are written for torch's launcher.
    master: (String, u16),
    /// The job id, which no other launch has, or if it has others beside it what they were given:
    /// workers that outlive their launch never join those of the next launch on the same ports.
    job: Option<String>,
    /// The sockets that claim these ports.
    _claims: Vec<UnixDatagram>,
}

impl Cluster {
    /// Chooses `workers` free addresses of this machine.
    pub(crate) fn local(workers: usize) -> io::Result<Cluster> {
        let (mut addresses, mut claims) = (Vec::new(), Vec::new());
        // The listeners stay open until all addresses are chosen, so that no address is chosen
        // twice.
        let mut listeners = Vec::new();
        while addresses.len() < workers + 1 {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
            let address = listener.local_addr()?;
            listeners.push(listener);
            match claim(address.port()) {
                Ok(socket) => {
                    addresses.push(address);
                    claims.push(socket);
                }
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                Err(error) => return Err(error),
            }
        }
        let master = addresses.pop().expect("one more than there are workers");
        Ok(Cluster::at(addresses, workers, master, claims))
    }

    /// Returns the addresses of processes on these hosts of this launch alone, on which all ports
    /// are free, with `workers` workers each.
    pub(crate) fn of_hosts(hosts: &[usize], workers: usize) -> io::Result<Cluster> {
        let mut ports: BTreeMap<usize, u16> = BTreeMap::new();
        let of_host = |&host: &usize| {
            let port = ports.entry(host).or_insert(FIRST_PORT);
            *port = port.checked_add(1)?;
            Some(SocketAddr::from((address(host), *port)))
        };
        let addresses: Option<Vec<SocketAddr>> = hosts.iter().map(of_host).collect();
        let addresses = addresses.ok_or_else(|| io::Error::other("a host has fewer ports than processes"))?;
        Ok(Cluster::at(addresses, workers, (address(0), FIRST_PORT).into(), Vec::new()))
    }

    fn at(
        addresses: impl IntoIterator<Item = SocketAddr>,
        workers: usize,
        master: SocketAddr,
        claims: Vec<UnixDatagram>,
    ) -> Cluster {
        let addresses: Vec<String> = addresses.into_iter().map(|address| address.to_string()).collect();
        let (size, master) = (addresses.len(), (master.ip().to_string(), master.port()));
        Cluster { addresses, chief: None, size, workers_of_host: workers, master, job: Some(job()), _claims: claims }
    }

    /// Returns the cluster of a launch of `workers` workers beside those of other hosts. It may
    /// know the addresses of all.
    pub(crate) fn of_node(node: &Node, workers: usize, addresses: Option<Vec<String>>) -> io::Result<Cluster> {
        let (host, port) = node.host_and_port()?;
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        Ok(Cluster {
            chief: addresses.is_none().then(|| node.chief.clone()),
            addresses: addresses.unwrap_or_default(),
            size: workers.saturating_mul(node.nodes.get()),
            workers_of_host: workers,
            master: (host.to_owned(), port + 1),
            job: node.job.clone(),
            _claims: Vec::new(),
        })
    }

    /// Returns the variables by which a worker finds the others: they have all addresses and the
    /// job's id, or the chief's address. What launches of other hosts cannot know is not among
    /// them.
    pub(crate) fn variables(&self, index: usize) -> Vec<(&'static str, String)> {
        let mut variables = match &self.chief {
            None => vec![("TF_CONFIG", self.tf_config(index))],
            Some(chief) => vec![("CONSONANCE_CHIEF", chief.clone())],
        };
        variables.extend(self.job.clone().map(|job| ("CONSONANCE_JOB", job)));
        variables.extend(self.ranks(index));
        variables
    }

    /// Returns the variables by which a process of a launch with a chief, so many workers and
    /// servers finds the others. Those of torch's launcher are not among them: it has no such
    /// roles.
    pub(crate) fn variables_of_role(&self, task: Task, workers: usize) -> Vec<(&'static str, String)> {
        let job = self.job.clone().map(|job| ("CONSONANCE_JOB", job));
        [("TF_CONFIG", self.tf_config_of_role(task, workers))].into_iter().chain(job).collect()
    }

    /// Returns the `TF_CONFIG` of such a process. The chief has the first address, then come the
    /// workers.
    pub(crate) fn tf_config_of_role(&self, task: Task, workers: usize) -> String {
        let list = |addresses: &[String]| {
            addresses.iter().map(|address| format!("\"{address}\"")).collect::<Vec<_>>().join(", ")
        };
        let (chief, others) = self.addresses.split_at(1);
        let (workers, servers) = others.split_at(workers);
        let (job, index) = match task.role {
            Role::Chief => ("chief", 0),
            Role::Worker(worker) => ("worker", worker),
            Role::Server(server) => ("ps", server),
        };
        let [chief, workers, servers] = [chief, workers, servers].map(list);
        let cluster = format!(r#"{{"chief": [{chief}], "worker": [{workers}], "ps": [{servers}]}}"#);
        format!(r#"{{"cluster": {cluster}, "task": {{"type": "{job}", "index": {index}}}}}"#)
    }

    /// Returns the variables by which torch's launcher tells a worker who it is.
    fn ranks(&self, index: usize) -> [(&'static str, String); 6] {
        [
            ("RANK", index.to_string()),
            ("WORLD_SIZE", self.size.to_string()),
            ("LOCAL_RANK", (index % self.workers_of_host).to_string()),
            ("LOCAL_WORLD_SIZE", self.workers_of_host.to_string()),
            ("MASTER_ADDR", self.master.0.clone()),
            ("MASTER_PORT", self.master.1.to_string()),
        ]
    }

    /// Returns the value of `CONSONANCE_JOB` for every worker, if it has one.
    pub(crate) fn job(&self) -> Option<&str> {
        self.job.as_deref()
    }

    /// Returns how many files a process must be able to open to choose as many addresses: its
    /// sockets while it chooses.
    pub(crate) fn files(workers: usize) -> usize {
        2 * (workers + 1)
    }

    /// Returns the value of `TF_CONFIG` for a worker.
    pub(crate) fn tf_config(&self, index: usize) -> String {
        let addresses: Vec<String> = self.addresses.iter().map(|address| format!("\"{address}\"")).collect();
        let workers = addresses.join(", ");
        format!(r#"{{"cluster": {{"worker": [{workers}]}}, "task": {{"type": "worker", "index": {index}}}}}"#)
    }
}

/// Returns a new job id.
fn job() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("launch-{}-{}", process::id(), now.as_nanos())
}

fn claim(port: u16) -> io::Result<UnixDatagram> {
    let name = UnixAddr::from_abstract_name(format!("consonance-launch-{port}"))?;
    UnixDatagram::bind_addr(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_claimed_until_the_cluster_is_gone() {
        let cluster = Cluster::local(2).expect("free ports");
        let [port, next] =
            [0, 1].map(|worker| cluster.addresses[worker].parse::<SocketAddr>().expect("an address").port());
        assert_ne!(port, next);
        assert_eq!(claim(port).expect_err("a port that is claimed").kind(), io::ErrorKind::AddrInUse);
        drop(cluster);
        claim(port).expect("a port that nobody claims");
    }
}
