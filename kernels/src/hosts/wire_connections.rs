//! The connections of a wire to the processes that have met.

use super::{delivery::FAULT, meeting::Met};
use crate::wire::Wire;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};
use std::{io, net::TcpStream, time::Instant};

/// Connects the wire to all others. Returns those that end meanwhile, and what the wire says of
/// each.
///
/// # Errors
/// The wire's if it cannot reach a process that runs.
pub(super) fn reach(wire: &Wire, met: &Met) -> io::Result<Vec<(usize, String)>> {
    let mut ended = Vec::new();
    for (process, (greeting, link)) in met.greetings.iter().zip(&met.links).enumerate() {
        let Some(link) = link else { continue };
        match wire.connect(process, &greeting.address) {
            Err(error) if ends(link) => ended.push((process, error.to_string())),
            connected => connected.map_err(io::Error::other)?,
        }
    }
    Ok(ended)
}

/// Whether a link closes about now.
fn ends(link: &TcpStream) -> bool {
    let deadline = Instant::now() + FAULT;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let limit = Timespec::try_from(left).expect("a second");
        match poll(&mut [PollFd::new(link, PollFlags::RDHUP)], Some(&limit)) {
            Err(Errno::INTR) => {}
            polled => return polled.is_ok_and(|count| count > 0),
        }
    }
}
