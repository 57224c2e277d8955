//! The meeting of the processes that are left after a loss with those in the places of the lost
//! ones.
//!
//! A new process meets the others as at first: nobody listens until those that are left prepare for
//! it, so it calls again. It does not know that it replaces another one. Those that are left do not
//! say that they are ready before all of them have seen the same processes, by a vote over the
//! network that they have. So a new process enters no group that they do not.
//!
//! A process that is left and has voted may lose another one before it hears the result. It then
//! hears on the links whether another one [enters](Preparing::enter), and enters, too.
//! One that gives up says so, since the end of a link would mean the end of its process.

use super::{
    connection::{ANSWER, is_closed},
    gate::Arrivals,
    meeting::{Host, Link, Meeting, Met, READY, TICK, listen},
    not_met::NotMet,
    word::{CUT, WORD},
};
use crate::digest::digest;
use std::{
    io::{Read, Write},
    thread,
    time::{Duration, Instant},
};

/// The time between two attempts to listen, and the limit on the news of whether others enter. It
/// was on its way before the news that they have left.
const NEWS: Duration = Duration::from_secs(1);

/// The meeting that a process of the last generation prepares.
pub struct Preparing {
    meeting: Meeting,
    /// The time of the next attempt to listen.
    listens: Instant,
}

impl Preparing {
    /// Prepares a meeting of the process at this place, whose greeting has a generation.
    pub fn new(host: Host) -> Preparing {
        Preparing { meeting: Meeting::new(host, None), listens: Instant::now() }
    }

    /// Looks for the others, for at most `time`. Once all processes are here, returns the digest of
    /// their greetings, never zero: processes that see the same ones have the same. A process of
    /// another job or build, or with another wire, does not count.
    pub fn look(&mut self, time: Duration) -> Option<u64> {
        let until = Instant::now() + time;
        loop {
            if self.meeting.arrivals.is_none() && self.listens <= Instant::now() {
                self.listens = Instant::now() + NEWS;
                let listener = listen(&self.meeting.host, Instant::now() + ANSWER).ok();
                let listener = listener.filter(|listener| listener.set_nonblocking(true).is_ok());
                self.meeting.arrivals = listener.map(Arrivals::Listener);
            }
            // A process that cannot be linked comes again, or another one in its place.
            let _ = self.meeting.step();
            if self.is_complete() {
                return Some(self.seen());
            }
            if Instant::now() >= until {
                return None;
            }
            let _ = self.meeting.wait();
        }
    }

    fn links(&self) -> impl Iterator<Item = Option<&Link>> {
        self.meeting.others().map(|task| self.meeting.tasks[task].link.as_ref())
    }

    /// The links with processes of the last generation.
    fn left(&self) -> impl Iterator<Item = &Link> {
        self.links().flatten().filter(|link| link.greeting.generation > 0)
    }

    /// Whether all processes are here, and the new ones ready.
    fn is_complete(&self) -> bool {
        let is_here = |link: &Link| (link.heard || link.greeting.generation > 0) && !is_closed(&link.stream);
        self.links().all(|link| link.is_some_and(is_here))
    }

    fn seen(&self) -> u64 {
        let greeting = |task: usize| match &self.meeting.tasks[task].link {
            Some(link) => &link.greeting,
            None => &self.meeting.host.greeting,
        };
        let all: Vec<_> = (0..self.meeting.tasks.len()).map(greeting).collect();
        digest(&format!("{all:?}")).max(1)
    }

    /// Returns whether another process of the last generation enters the group, after all have
    /// voted for it. Waits for at most a second.
    pub fn others_enter(&mut self) -> bool {
        let until = Instant::now() + NEWS;
        loop {
            if self.left().any(|link| link.heard || word(link) == Some(READY)) {
                return true;
            }
            let may_say = |link: &Link| word(link).is_none() && !is_closed(&link.stream);
            if !self.left().any(may_say) || Instant::now() >= until {
                return false;
            }
            // Nobody takes the place of a process that was voted for.
            thread::park_timeout(TICK);
        }
    }

    /// Tells all others that this process enters the group. It does so from here on, whatever
    /// happens.
    pub fn enter(&mut self) {
        self.meeting.say_ready();
    }

    /// Waits for the word of all others, of whom some may have ended.
    ///
    /// # Errors
    /// Those that have said nothing at the deadline.
    pub fn meet(mut self, deadline: Instant) -> Result<Met, NotMet> {
        let begin = Instant::now();
        loop {
            let mut waits = false;
            for link in self.meeting.tasks.iter_mut().filter_map(|task| task.link.as_mut()).filter(|link| !link.heard) {
                // The network reads all other words.
                match word(link) {
                    Some(READY) => link.heard = (&link.stream).read(&mut [0]).is_ok(),
                    Some(_) => {}
                    None => waits |= !is_closed(&link.stream),
                }
            }
            if !waits {
                let own = Meeting::new(self.meeting.host.clone(), None);
                return Ok(std::mem::replace(&mut self.meeting, own).met());
            }
            if Instant::now() >= deadline {
                return Err(self.meeting.late(begin.elapsed()));
            }
            thread::park_timeout(TICK);
        }
    }
}

/// Returns the next byte on a link, if there is one.
fn word(link: &Link) -> Option<u8> {
    let mut word = [0];
    matches!(link.stream.peek(&mut word), Ok(1)).then_some(word[0])
}

impl Drop for Preparing {
    /// Gives up: this process has not ended.
    fn drop(&mut self) {
        for link in self.meeting.tasks.iter().filter_map(|task| task.link.as_ref()) {
            let _ = (&link.stream).write(&[CUT; WORD]);
        }
    }
}
