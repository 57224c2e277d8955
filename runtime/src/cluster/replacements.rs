//! Forms the next generation of processes of several hosts, with others in the places of lost ones.
//!
//! 1. Those that are left form their control group again and agree on numbers: see `links.rs`.
//! 2. If some are lost, each prepares a meeting of all tasks, and looks for them. Again and again
//!    they gather the processes seen. Once all have seen the same processes in all places, they
//!    *enter*: they leave their network, and meet with the new ones on another one. If the time of
//!    one is over before, they go on alone.
//! 3. On the new network all do the first step: so the new ones learn the numbers. Until then only
//!    those that were left count for a majority.
//!
//! A process that has seen all may lose another one instead of hearing that all have seen the same.
//! It enters if another one has. A process says that before it leaves the network, and does not
//! come back. If none has, it begins with the first step again.

use super::{
    Majority,
    group_builder::ProcessGroupBuilder,
    hosts::{Coming, not_met},
    links::{Links, in_replicas},
    process_group::{FIRST, Generation},
    roster::{Roster, Way},
};
use crate::{Communicator, Error, Result, comm::options::Configuration};
use consonance_kernels::hosts::{Host, NotMet, Preparing};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// The time between two votes.
const LOOK: Duration = Duration::from_millis(50);

/// The forming of the next generation.
struct Forming<'f> {
    builder: &'f ProcessGroupBuilder,
    call: &'static str,
    place: &'f Roster,
    /// The number of the last generation of this process, 0 if there was none.
    last: u64,
    /// The time until which processes may come.
    until: Instant,
    majority: Majority,
    prepared: Option<Prepared>,
}

/// A meeting with processes in the places of lost ones.
struct Prepared {
    coming: Coming,
    meeting: Preparing,
    /// Whether this process has seen all in the last vote.
    has_voted: bool,
}

impl ProcessGroupBuilder {
    /// Forms the next generation of processes that are connected, `last` of which was the last one
    /// of this process. Others may come in the places of lost ones until a time.
    pub(super) fn form_hosts(
        &self,
        call: &'static str,
        place: &Roster,
        links: &mut Links,
        last: Option<Arc<Generation>>,
        until: Instant,
        majority: Majority,
    ) -> Result<(Arc<Generation>, Vec<Communicator>)> {
        if links.has_moved_on {
            let problem = "an earlier call left the network of its group for one that was not formed; join anew";
            return Err(Error::WrongContext { call, problem: problem.to_owned() });
        }
        let number = last.as_ref().map_or(0, |last| last.number);
        let mut forming = Forming { builder: self, call, place, last: number, until, majority, prepared: None };
        let number = forming.run(links).map_err(|error| {
            let left = links.left();
            let ranks = |rank: usize| {
                let task = left.get(rank).map(|&process| &place.tasks[process]);
                let members = last.iter().flat_map(|last| &last.members);
                let member = members.into_iter().find(|member| Some(&member.task) == task);
                member.map_or(rank..rank + 1, |member| member.ranks.clone())
            };
            in_replicas(error, call, ranks)
        })?;
        let left = links.left();
        Ok(self.group_of(place, links, number, &left))
    }
}

impl Forming<'_> {
    /// Returns the number of the generation, whose processes are those left in the control group.
    fn run(&mut self, links: &mut Links) -> Result<u64> {
        let size = self.place.tasks.len();
        // Each process can be lost once on a network. More losses mean that a peer says what is
        // false.
        let mut losses = size;
        loop {
            match self.agree(links) {
                Ok(Some(number)) => return Ok(number),
                Ok(None) => {}
                Err(error) => {
                    let voted = self.prepared.as_mut().filter(|prepared| prepared.has_voted);
                    if !voted.is_some_and(|prepared| prepared.meeting.others_enter()) {
                        if !error.is_loss() || losses == 0 {
                            return Err(error);
                        }
                        losses -= 1;
                        continue;
                    }
                }
            }
            self.enter(links)?;
            losses = size;
        }
    }

    /// Agrees with the processes that are left. Returns the number of the next generation; `None`
    /// if all enter a network with new ones first.
    fn agree(&mut self, links: &mut Links) -> Result<Option<u64>> {
        let configuration = Configuration { timeout: self.builder.timeout, ..self.builder.options.configuration() };
        let number = links.agree(self.last, self.majority, configuration)?;
        if links.left().len() == self.place.tasks.len() || !links.takes_replacements {
            return Ok(Some(number));
        }
        loop {
            let is_over = Instant::now() >= self.until;
            let seen = match is_over {
                true => None,
                false => self.prepare(number)?.meeting.look(LOOK),
            };
            if let Some(prepared) = &mut self.prepared {
                prepared.has_voted = seen.is_some();
            }
            let all = links.gather([seen.unwrap_or(0), u64::from(is_over)])?;
            if seen.is_some_and(|seen| all.iter().all(|&[other, _]| other == seen)) {
                return Ok(None);
            }
            if all.iter().any(|&[_, is_over]| is_over != 0) {
                self.prepared = None;
                return if number > FIRST { Ok(Some(number)) } else { Err(self.all_new(links)) };
            }
        }
    }

    /// Makes the error of processes that took the places of others, of whom none is left.
    fn all_new(&self, links: &Links) -> Error {
        let left = links.left();
        let missing: Vec<usize> = (0..self.place.tasks.len()).filter(|task| !left.contains(task)).collect();
        let names: Vec<&str> = missing.iter().map(|&task| &*self.place.tasks[task]).collect();
        let problem = format!("all processes of the last generation have ended, and {} did not come", names.join(", "));
        not_met(self.call, self.place, NotMet { problem, missing })
    }

    /// Returns the meeting that this process prepares.
    fn prepare(&mut self, number: u64) -> Result<&mut Prepared> {
        let prepared = match self.prepared.take() {
            Some(prepared) => prepared,
            None => {
                let coming = self.builder.coming(self.call, self.place, number)?;
                let Way::Addresses(addresses) = &self.place.way else { unreachable!("it takes replacements") };
                let (names, addresses) = (self.place.tasks.clone(), addresses.clone());
                let meeting = Preparing::new(Host { greeting: coming.greeting.clone(), names, addresses });
                Prepared { coming, meeting, has_voted: false }
            }
        };
        Ok(self.prepared.insert(prepared))
    }

    /// Leaves the network for one with all processes of the prepared meeting.
    fn enter(&mut self, links: &mut Links) -> Result<()> {
        let Prepared { coming, mut meeting, .. } = self.prepared.take().expect("all have come to it");
        meeting.enter();
        links.has_moved_on = true;
        links.hosts.move_on(&links.left());
        let deadline = Instant::now() + self.builder.timeout;
        let met = meeting.meet(deadline).map_err(|error| not_met(self.call, self.place, error))?;
        *links = self.builder.connect_hosts(self.place, coming, met, deadline)?;
        Ok(())
    }
}
