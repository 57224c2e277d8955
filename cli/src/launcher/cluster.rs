//! The cluster of a launch: for each worker an address that no other launch on this machine has,
//! and a job id.
//!
//! A port on which nobody listens yet can be chosen twice. A launch therefore claims each of its
//! ports by a socket whose abstract name contains the port. Only one socket can have the name, and
//! the system removes it when the launcher ends, in whatever way.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr as UnixAddr, UnixDatagram},
    },
    process,
    time::{SystemTime, UNIX_EPOCH},
};

/// The addresses of the workers.
pub(crate) struct Cluster {
    addresses: Vec<SocketAddr>,
    /// The address for the store of programs that are written for torch's launcher.
    master: SocketAddr,
    /// The job id, which no other launch has: workers that outlive their launch never join those of
    /// the next launch on the same ports.
    job: String,
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
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let job = format!("launch-{}-{}", process::id(), now.as_nanos());
        let master = addresses.pop().expect("one more than there are workers");
        Ok(Cluster { addresses, master, job, _claims: claims })
    }

    /// Returns the variables by which torch's launcher tells a worker who it is.
    pub(crate) fn ranks(&self, index: usize) -> [(&'static str, String); 6] {
        let (rank, size) = (index.to_string(), self.addresses.len().to_string());
        [
            ("RANK", rank.clone()),
            ("WORLD_SIZE", size.clone()),
            ("LOCAL_RANK", rank),
            ("LOCAL_WORLD_SIZE", size),
            ("MASTER_ADDR", self.master.ip().to_string()),
            ("MASTER_PORT", self.master.port().to_string()),
        ]
    }

    /// Returns the value of `CONSONANCE_JOB` for every worker.
    pub(crate) fn job(&self) -> &str {
        &self.job
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
        let port = cluster.addresses[0].port();
        assert_ne!(port, cluster.addresses[1].port());
        assert_eq!(claim(port).expect_err("a port that is claimed").kind(), io::ErrorKind::AddrInUse);
        drop(cluster);
        claim(port).expect("a port that nobody claims");
    }
}
