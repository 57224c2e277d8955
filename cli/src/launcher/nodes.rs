//! The meeting of the launches of one program on several hosts: each tells the others at which
//! addresses its workers listen, or the launch itself. So a process in the place of a lost one
//! finds the others, and they find it; and launches find that of host 0, for one timeline of all.
//!
//! The first launch serves a table of addresses at that of the chief. It ends once all have it.

use super::cluster::Node;
use consonance_kernels::{
    bootstrap::Waiting,
    digest::digest,
    hosts::{Claim, NotMet, listen_anywhere, listen_at, look_up, serve},
};
use std::{
    io,
    net::{Ipv6Addr, SocketAddr, TcpListener},
    process, slice, thread,
    time::{Duration, Instant},
};

/// The time for the others to come, unless the launch has less.
const MEETS: Duration = Duration::from_secs(300);

/// Returns the addresses of the workers of all launches, by rank, once all have come.
///
/// # Errors
/// The reason in words: ranks that are missing at the end of `limit`, a launch with another number
/// of workers, an address that this host does not have.
pub(super) fn meet(node: &Node, workers: usize, limit: Option<Duration>) -> Result<Vec<String>, String> {
    let (host, port) = node.host_and_port().map_err(|error| error.to_string())?;
    let listeners = listeners(port, workers).map_err(|error| format!("no free port: {error}"))?;
    let table = table(node, "launches", "workers", &listeners, limit)?;
    // Others may see another address of the chief's host, and all must have the same list.
    let at_host = |(rank, address): (usize, String)| match address.rsplit_once(':') {
        Some((_, port)) if rank < workers => format!("{host}:{port}"),
        _ => address,
    };
    Ok(table.into_iter().enumerate().map(at_host).collect())
}

/// Meets the launches of all hosts, each of which listens once. Returns the address of that of
/// host 0, as this host reaches it.
///
/// # Errors
/// As [`meet`].
pub(super) fn meet_for_profile(
    node: &Node,
    listener: &TcpListener,
    limit: Option<Duration>,
) -> Result<SocketAddr, String> {
    let table = table(node, "profile of launches", "hosts", slice::from_ref(listener), limit)?;
    let first = table.first().and_then(|address| address.parse().ok());
    first.ok_or_else(|| format!("no address of host 0 among {table:?}"))
}

/// Returns the addresses of the listeners of all launches, once all have come for this purpose.
/// `whose` says in a word what the listeners are of.
fn table(
    node: &Node,
    purpose: &str,
    whose: &str,
    listeners: &[TcpListener],
    limit: Option<Duration>,
) -> Result<Vec<String>, String> {
    let words = |NotMet { problem, .. }: NotMet| problem;
    let deadline = Instant::now() + limit.unwrap_or(MEETS).min(MEETS);
    let digest = u128::from(digest(&format!("{purpose} {}", node.job.as_deref().unwrap_or_default())));
    // The service ends after the last answer, and at the latest with this.
    let serving = match node.node {
        0 => {
            let listener = listen_at(&node.chief, deadline).map_err(words)?;
            Some(serve(listener, digest, deadline).map_err(|error| format!("cannot serve addresses: {error}"))?)
        }
        _ => None,
    };
    let of_node = listeners.len();
    let tables: Result<Vec<Vec<String>>, String> = thread::scope(|scope| {
        let look_up = |(place, listener): (usize, &TcpListener)| {
            let claim = Claim {
                digest,
                rank: node.node.saturating_mul(of_node).saturating_add(place),
                size: of_node.saturating_mul(node.nodes.get()),
                pid: process::id(),
                host: format!("host {}", node.node),
                port: listener.local_addr().map_err(|error| error.to_string())?.port(),
            };
            Ok(scope.spawn(move || {
                let tell = |waiting: &Waiting| {
                    let missing: Vec<String> = waiting.missing.iter().map(usize::to_string).collect();
                    if place == 0 {
                        let (waited, missing) = (waiting.waited.as_secs(), missing.join(", "));
                        eprintln!("consonance: has waited {waited} s for the launches of {whose} {missing}");
                    }
                };
                look_up(slice::from_ref(&node.chief), &claim, deadline, tell).map_err(words)
            }))
        };
        let threads: Result<Vec<_>, String> = listeners.iter().enumerate().map(look_up).collect();
        threads?.into_iter().map(|thread| thread.join().expect("a look-up does not panic")).collect()
    });
    let table = tables?.pop().unwrap_or_default();
    // Then the address is free for a next meeting, and for worker 0.
    if let Some(serving) = serving {
        serving.join();
    }
    Ok(table)
}

/// Listens at so many free ports: those after the chief's and the one for torch's store, if they
/// are free. The system gives connections the ports that it would choose here. One of these may
/// then not be free for the replacement of a worker.
fn listeners(chief: u16, count: usize) -> io::Result<Vec<TcpListener>> {
    let at = |port: Option<u16>| match port.map(|port| TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))) {
        Some(Ok(listener)) => Ok(listener),
        Some(Err(_)) | None => listen_anywhere(),
    };
    let port = |place: usize| u16::try_from(place).ok().and_then(|place| chief.checked_add(2)?.checked_add(place));
    (0..count).map(|place| at(port(place))).collect()
}
