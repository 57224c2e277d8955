//! The effects at a server that have not committed.

use super::message::Attempt;
use std::collections::BTreeMap;

/// Effects of attempts.
#[derive(Debug)]
pub(super) struct Staged<E> {
    /// Those of the newest attempt to run each closure. They commit when the chief says so, and are
    /// forgotten when it commits another attempt or says that the closure has failed.
    of: BTreeMap<u64, (u64, E)>,
    /// The number of the first attempt that may still commit. What one before it has left, or
    /// brings later, is forgotten: its worker was taken for lost.
    first: u64,
}

impl<E> Default for Staged<E> {
    fn default() -> Staged<E> {
        Staged { of: BTreeMap::new(), first: 0 }
    }
}

impl<E> Staged<E> {
    /// An attempt brings its effects.
    pub(super) fn stage(&mut self, attempt: Attempt, effects: E) {
        // The request of an attempt that was given up may come after that of the next one.
        let is_newest = self.of.get(&attempt.number).is_none_or(|&(id, _)| id < attempt.id);
        if is_newest && attempt.id >= self.first {
            self.of.insert(attempt.number, (attempt.id, effects));
        }
    }

    /// Takes the effects of an attempt that commits, if they are there. Those of another attempt
    /// to run the closure are dropped.
    pub(super) fn take(&mut self, attempt: Attempt) -> Option<E> {
        self.of.remove(&attempt.number).filter(|&(id, _)| id == attempt.id).map(|(_, effects)| effects)
    }

    /// Forgets all attempts before this one. None of them commits.
    pub(super) fn forget_before(&mut self, first: u64) {
        if first > self.first {
            self.first = first;
            self.of.retain(|_, &mut (id, _)| id >= first);
        }
    }

    /// Forgets an attempt.
    pub(super) fn forget(&mut self, attempt: Attempt) {
        self.of.retain(|&number, &mut (id, _)| (number, id) != (attempt.number, attempt.id));
    }

    /// Returns the attempts that have effects, in the order of their closures.
    #[cfg(test)]
    pub(super) fn attempts(&self) -> Vec<Attempt> {
        self.of.iter().map(|(&number, &(id, _))| Attempt { number, id }).collect()
    }
}
