//! Addresses for groups of processes that threads simulate. On one host no process listens at them:
//! they only distinguish one group from another. Over a network each process does.

use std::{
    net::TcpListener,
    process,
    sync::atomic::{AtomicUsize, Ordering},
};

/// A program of any user may listen at this port and those after it.
const FIRST: usize = 1024;

/// Far more than are in use at a time.
const PORTS: usize = 60_000;

static TAKEN: AtomicUsize = AtomicUsize::new(0);

/// Returns `count` addresses `host:port` that no other group of this host uses at the same time,
/// and at which no program listens now.
pub(crate) fn addresses(count: usize) -> Vec<String> {
    let next = || Some(address(TAKEN.fetch_add(1, Ordering::Relaxed)));
    // A program may listen at a port of all addresses.
    std::iter::from_fn(next).filter(|address| TcpListener::bind(address).is_ok()).take(count).collect()
}

fn address(place: usize) -> String {
    let [_, high, middle, low] = process::id().to_be_bytes();
    format!("127.{high}.{middle}.{low}:{}", FIRST + place % PORTS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_of_another_program_is_left_out() {
        // The next free port is one that a program has at all addresses.
        let taken = loop {
            let next = address(TAKEN.load(Ordering::Relaxed));
            let port = next.rsplit(':').next().expect("a port").to_owned();
            match TcpListener::bind(format!("0.0.0.0:{port}")) {
                Ok(listener) => break (next, listener),
                Err(_) => _ = TAKEN.fetch_add(1, Ordering::Relaxed),
            }
        };
        assert!(!addresses(3).contains(&taken.0), "{}", taken.0);
    }
}
