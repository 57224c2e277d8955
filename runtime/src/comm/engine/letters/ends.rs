//! The ends of a group's generations, as far as a rank knows of them.

use super::letter::{End, Generation};
use std::collections::{HashMap, HashSet};

/// The ends of generations.
#[derive(Default)]
pub(super) struct Ends {
    /// The last generation that has ended, and how: by the first generation of the same members.
    ended: HashMap<Generation, Ended>,
    /// The number of ends so far.
    count: u64,
    /// The generations of whose end a call of this rank was told.
    told: HashSet<Generation>,
    /// The generations of which this rank needs no news of an abort, only of a loss.
    heard: HashSet<Generation>,
}

/// The end of a generation and of all before.
#[derive(Clone, Copy)]
struct Ended {
    number: u64,
    end: End,
    /// The place of the first of these two among all ends.
    order: u64,
    /// The abort that a loss, which ends all generations, has replaced. The lost rank may have
    /// ended because of it, so a rank is told of the abort first.
    replaced: Option<(u64, End)>,
}

impl Ends {
    /// Notes the end of a generation. The first one wins, but for a loss, which ends all.
    pub(super) fn note(&mut self, of: Generation, end: End) {
        let last = self.ended.get(&of.first()).copied();
        if last.is_some_and(|last| last.number >= of.number) {
            return;
        }
        let (mut order, mut replaced) = (self.count, None);
        if let Some(last) = last.filter(|_| of.number == u64::MAX) {
            (order, replaced) = (last.order, Some((last.number, last.end)));
        }
        self.count += 1;
        self.ended.insert(of.first(), Ended { number: of.number, end, order, replaced });
    }

    /// Notes that a call is told how this generation has ended.
    pub(super) fn tell(&mut self, of: Generation) {
        self.told.insert(of);
    }

    /// Notes that a call begins. If an earlier one was told of an end, this one is told of a loss.
    pub(super) fn begin_call(&mut self, of: Generation) {
        if self.told.contains(&of) {
            self.heard.insert(of);
        }
    }

    /// Notes that only a loss of this generation is news.
    pub(super) fn hear(&mut self, of: Generation) {
        self.heard.insert(of);
    }

    /// Forgets what calls were told of these generations.
    pub(super) fn forget(&mut self, is_past: impl Fn(&Generation) -> bool) {
        self.told.retain(|of| !is_past(of));
        self.heard.retain(|of| !is_past(of));
    }

    /// Returns the first generation from this one on, of the same members, that was not aborted.
    pub(super) fn next_of(&self, of: Generation) -> Generation {
        let next = self.ended.get(&of.first()).and_then(|ended| ended.number.checked_add(1));
        Generation { number: next.map_or(of.number, |next| next.max(of.number)), ..of }
    }

    /// Returns how this generation has ended, with the last generation of the same members that
    /// has: an abort, a loss, or both in this order.
    pub(super) fn of(&self, of: Generation) -> Vec<(u64, End)> {
        let ended = self.ended.get(&of.first()).copied();
        let ends = ended.into_iter().flat_map(|ended| ended.replaced.into_iter().chain([(ended.number, ended.end)]));
        ends.filter(|(last, _)| *last >= of.number).collect()
    }

    /// Returns the abort of a group, or of one that it was split from. `line` has their
    /// generations.
    pub(super) fn of_line(&self, line: &[Generation]) -> Option<End> {
        let (own, whole) = line.split_last()?;
        // A rank that leaves the whole group stays in the groups that were split off.
        let inherited = whole.iter().filter_map(|of| self.told_of(of)).find(|(_, end)| !end.is_of_left());
        match (self.told_of(own), inherited) {
            // The part ended first: not because of the whole group.
            (Some((order, end)), Some((later, _))) if order < later && !self.heard.contains(own) => Some(end),
            (_, Some((_, end))) | (Some((_, end)), None) => Some(end),
            (None, None) => None,
        }
    }

    /// Returns the end of a generation of which this rank is told, and its place among all ends.
    fn told_of(&self, of: &Generation) -> Option<(u64, End)> {
        let ended = self.ended.get(&of.first()).filter(|ended| ended.number >= of.number)?;
        let first = ended.replaced.filter(|(last, _)| *last >= of.number && !self.heard.contains(of));
        Some((ended.order, first.map_or(ended.end, |(_, end)| end)))
    }
}
