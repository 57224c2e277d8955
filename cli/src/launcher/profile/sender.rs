//! The launch of another host than host 0: compares its clock, and hands over what its workers have
//! written.

use super::link::{ANSWER, COUNT, FILE, FILES, Link, TRANSFER, now};
use crate::timeline::Clock;
use consonance_kernels::os::clock_comparison::{Comparison, Nanoseconds, Trip};
use std::{
    fs,
    io::{self, ErrorKind},
    net::{SocketAddr, TcpStream},
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::Instant,
};

/// Hands files over to host 0.
pub(super) struct Sender {
    host_0: SocketAddr,
    digest: u128,
    host: usize,
    known: Arc<Mutex<Known>>,
}

/// The launch's knowledge of host 0.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    /// The time at which the timeline begins, by the clock of host 0.
    pub(super) zero: Option<Nanoseconds>,
    /// The comparisons before and after the calls.
    compared: [Option<Comparison>; 2],
    /// Whether host 0 has taken all; an error in words. `None`: the hand-over has not ended.
    pub(super) taken: Option<Result<(), String>>,
}

impl Known {
    /// Returns the clock of this host.
    pub(super) fn clock(&self) -> Clock {
        Clock::of(self.compared[0], self.compared[1])
    }
}

impl Sender {
    /// Compares the clocks, if host 0 answers.
    pub(super) fn begin(host_0: SocketAddr, digest: u128, host: usize) -> Sender {
        let sender = Sender { host_0, digest, host, known: Arc::default() };
        // After an error the comparison at the end counts alone.
        let _ = sender.visit().compare(0);
        sender
    }

    /// Compares the clocks again and hands the files over, each with its worker, on a thread that
    /// calls `tell` at its end.
    pub(super) fn hand_over(&self, files: Vec<(usize, PathBuf)>, tell: impl FnOnce() + Send + 'static) {
        let visit = self.visit();
        let thread = thread::Builder::new().name("profile".to_owned()).spawn(move || {
            let taken = visit.hand_over(&files);
            visit.known().taken = Some(taken);
            tell();
        });
        if let Err(error) = thread {
            self.visit().known().taken = Some(Err(error.to_string()));
        }
    }

    /// Returns until when to wait for the end of a hand-over that has begun at this time; `None` if
    /// it has ended, or should have.
    pub(super) fn waits_until(&self, begun: Instant) -> Option<Instant> {
        let is_done = self.visit().known().taken.is_some();
        Some(begun + ANSWER + ANSWER + TRANSFER).filter(|until| !is_done && Instant::now() < *until)
    }

    /// Returns what is known now.
    pub(super) fn known(&self) -> Known {
        self.visit().known().clone()
    }

    fn visit(&self) -> Visit {
        Visit { host_0: self.host_0, digest: self.digest, host: self.host, known: self.known.clone() }
    }
}

/// A connection to host 0.
struct Visit {
    host_0: SocketAddr,
    digest: u128,
    host: usize,
    known: Arc<Mutex<Known>>,
}

impl Visit {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Connects, and compares the clocks, before or after the calls.
    fn compare(&self, place: usize) -> Result<Link, String> {
        let words = |error: io::Error| match error.kind() {
            ErrorKind::ConnectionRefused => format!("nobody listens at {}", self.host_0),
            ErrorKind::TimedOut => format!("no answer from {}", self.host_0),
            _ => format!("{}: {error}", self.host_0),
        };
        let compare = || {
            let mut link = Link::over(TcpStream::connect_timeout(&self.host_0, ANSWER)?)?;
            let zero = link.greet(self.digest, self.host)?;
            let mut trips = Vec::with_capacity(Comparison::TRIPS);
            for _ in 0..Comparison::TRIPS {
                let sent = now();
                let told = link.time()?;
                trips.push(Trip { sent: sent.into(), told, received: now().into() });
            }
            let mut known = self.known();
            known.zero = Some(zero);
            known.compared[place] = Comparison::of(&trips);
            Ok(link)
        };
        compare().map_err(words)
    }

    fn hand_over(&self, files: &[(usize, PathBuf)]) -> Result<(), String> {
        let mut link = self.compare(1)?;
        link.set_until(Instant::now() + TRANSFER);
        let mut total = 0;
        for (worker, path) in files {
            let bytes = fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
            total += bytes.len() as u64;
            if bytes.len() as u64 > FILE || total > FILES || files.len() > COUNT {
                return Err(format!("this host has more records than the {} MiB that it takes", FILES >> 20));
            }
            link.hand(*worker, &bytes).map_err(|error| self.broke(&error))?;
        }
        let compared: Vec<Comparison> = self.known().compared.into_iter().flatten().collect();
        link.end(files.len(), &compared).map_err(|error| self.broke(&error))
    }

    fn broke(&self, error: &io::Error) -> String {
        format!("the connection to {} ended: {error}", self.host_0)
    }
}
