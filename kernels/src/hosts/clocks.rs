//! The comparison of this process's clock with that of process 0, time and again. The threads of
//! the networks ask and answer, whatever the ranks do.

use super::{greeting::Greeting, states::places};
use crate::os::{
    clock,
    clock_comparison::{Comparison, Nanoseconds, Trip},
};
use std::{
    mem,
    time::{Duration, Instant},
};

/// The process whose clock the others compare theirs with.
pub(super) const REFERENCE: usize = 0;

/// The state of the comparison.
pub(super) struct Clocks {
    /// The time from one comparison to the next.
    period: Duration,
    next: Instant,
    /// The own time of the question that is open.
    sent: Option<Nanoseconds>,
    /// The trips of the comparison so far.
    trips: Vec<Trip>,
}

impl Clocks {
    /// Begins to compare the clock of this process's place. `None` if another process does.
    pub(super) fn new(own: usize, greetings: &[Greeting], period: Duration) -> Option<Clocks> {
        let places = places(greetings);
        let is_first = places.iter().position(|&place| place == places[own]) == Some(own);
        let clocks = Clocks { period, next: Instant::now(), sent: None, trips: Vec::new() };
        (is_first && places[own] != places[REFERENCE]).then_some(clocks)
    }

    /// Returns the time until the next question, or `None` while one is open. `ask` sends it if it
    /// is due.
    pub(super) fn go_on(&mut self, now: Instant, ask: impl FnOnce()) -> Option<Duration> {
        if self.sent.is_some() {
            return None;
        }
        let rest = self.next.saturating_duration_since(now);
        if !rest.is_zero() {
            return Some(rest);
        }
        self.sent = Some(own_time());
        ask();
        None
    }

    /// Takes an answer. Returns the comparison that it ends.
    pub(super) fn answer(&mut self, told: u64) -> Option<Comparison> {
        // An answer to no question is one of a process of no use.
        let sent = self.sent.take()?;
        self.trips.push(Trip { sent, told: told.into(), received: own_time() });
        if self.trips.len() < Comparison::TRIPS {
            return None;
        }
        self.next = Instant::now() + self.period;
        self.end()
    }

    /// Ends a comparison. Returns it, if it has a trip.
    pub(super) fn end(&mut self) -> Option<Comparison> {
        Comparison::of(&mem::take(&mut self.trips))
    }
}

/// Returns the time of this host's clock, as an answer tells it.
pub(super) fn time() -> u64 {
    clock::now().as_nanos() as u64
}

fn own_time() -> Nanoseconds {
    time().into()
}
