//! The exchange of call descriptors, along a tree.
//!
//! The tree is binomial: the parent of a rank is the rank without its lowest bit, and rank 0 is the
//! root. In a call of `n` ranks there are `n - 1` greetings, at most `n log2(n) / 2` descriptors,
//! and `n - 1` verdicts:
//!
//! 1. **Greeting.** A rank that comes to the call greets its children.
//! 2. **Up.** A rank sends descriptors to its parent from the greeting on: its own, and each one of
//!    its subtree as soon as that has arrived.
//! 3. **Down.** The root compares the descriptors of all ranks. It sends the verdict to its
//!    children, and every rank does so in turn. The parts of a concatenation have sizes of their
//!    own; the table of these follows the verdict.
//!
//! **The name of a late rank.** Ranks come at different times, so they have different deadlines,
//! and the rank whose deadline passes first may not see which rank is late. Therefore each
//! descriptor says how long its rank still waits. This is right when it arrives, since its receiver
//! is there. A rank waits until the first deadline of its subtree. It then names its parent if that
//! has not greeted, and the ranks of its subtree that are late and whose parents have come. If
//! there are none, a rank nearer to the root has the same deadline and names the late rank. Until
//! then this rank waits for a few [levels](level) more.
//!
//! Two ranks need no greeting: each waits for the other.

use super::Lowered;
use crate::comm::engine::Failure;
use consonance_kernels::memory::HostBuf;
use consonance_spec::Kind;
use std::time::{Duration, Instant};

/// A descriptor of a call: the fingerprint of the signature, the bytes of the input or [`OF_TWO`],
/// the rank, and the time in µs for which the rank still waits. A greeting and a verdict have the
/// same form.
pub(super) type Descriptor = [u64; 4];

/// Marks a send or receive. No input has this many bytes.
pub(super) const OF_TWO: u64 = u64::MAX;

/// A parent's greeting, and the verdicts.
const GREETING: Descriptor = [0; 4];
const EQUAL: Descriptor = [1, 0, 0, 0];
const DIFFERENT: Descriptor = [2, 0, 0, 0];

/// Returns the ranks to which `rank` passes verdicts, in a group of this size.
fn children(rank: usize, size: usize) -> impl Iterator<Item = usize> + Clone {
    let bits = if rank == 0 { usize::BITS } else { rank.trailing_zeros() };
    (0..bits).map_while(move |bit| rank.checked_add(1 << bit)).take_while(move |&child| child < size)
}

/// Returns the parent of a rank other than the root.
fn parent(rank: usize) -> usize {
    rank & (rank - 1)
}

/// Returns whether `rank` is `top` or below it.
fn is_below(rank: usize, top: usize) -> bool {
    top == 0 || rank >= top && rank - top < 1 << top.trailing_zeros()
}

/// Returns how much later a rank gives up than its parent where both wait for the same verdict, in
/// calls of this timeout: time for the parent to end the group, on a busy host, too.
fn level(timeout: Duration) -> Duration {
    (timeout / 32).clamp(Duration::from_millis(100), Duration::from_millis(250))
}

/// The exchange of one call, as one rank sees it.
pub(super) struct Exchange<'l> {
    lowered: &'l mut Lowered,
    rank: usize,
    size: usize,
    name: Kind,
    /// The descriptors of this rank and of those below it, by rank from this one on, with their
    /// deadlines.
    found: Vec<Option<(Descriptor, Instant)>>,
    /// The first of these deadlines.
    deadline: Instant,
    /// Whether the parent has come.
    is_greeted: bool,
}

impl<'l> Exchange<'l> {
    pub(super) fn new(lowered: &'l mut Lowered, name: Kind) -> Exchange<'l> {
        let (rank, size, deadline) = (lowered.rank(), lowered.size(), lowered.deadline);
        let found = (rank..size).take_while(|&other| is_below(other, rank)).map(|_| None).collect();
        Exchange { lowered, rank, size, name, found, deadline, is_greeted: rank == 0 || size == 2 }
    }

    /// Compares a call with this fingerprint on all ranks. `None` if they differ; else, if
    /// `shares_bytes`, the bytes of each rank.
    pub(super) fn compare(
        mut self,
        fingerprint: u64,
        bytes: u64,
        shares_bytes: bool,
    ) -> Result<Option<Vec<u64>>, Failure> {
        if self.size > 2 {
            self.pass_down(GREETING.as_slice().into())?;
        }
        self.note([fingerprint, bytes, self.rank as u64, 0], self.deadline)?;
        self.collect()?;
        let verdict = match self.rank {
            0 if self.descriptors().all(|other| other[0] == fingerprint) => EQUAL,
            0 => DIFFERENT,
            rank => self.receive(&[parent(rank)])?.1,
        };
        self.pass_down(verdict.as_slice().into())?;
        if verdict != EQUAL {
            return Ok(None);
        }
        if !shares_bytes {
            return Ok(Some(Vec::new()));
        }
        let mut table: Vec<u64> = self.descriptors().map(|other| other[1]).collect();
        if self.rank > 0 {
            table = vec![0; self.size];
            self.lowered.recv(table.as_mut_slice().into(), parent(self.rank), self.name)?;
            if table[self.rank] != bytes {
                return Err(self.lowered.garbled("sizes", parent(self.rank), self.name));
            }
        }
        self.pass_down(table.as_slice().into())?;
        Ok(Some(table))
    }

    fn descriptors(&self) -> impl Iterator<Item = &Descriptor> {
        self.found.iter().flatten().map(|(descriptor, _)| descriptor)
    }

    /// Returns whether the descriptor of a rank of this subtree has not arrived.
    fn is_late(&self, rank: usize) -> bool {
        self.found[rank - self.rank].is_none()
    }

    /// Sends a message to the children.
    fn pass_down(&mut self, message: HostBuf<'_>) -> Result<(), Failure> {
        children(self.rank, self.size).try_for_each(|child| self.lowered.send(message, child, self.name))
    }

    /// Sends the descriptor of a rank of this subtree to the parent.
    fn pass_up(&mut self, rank: usize) -> Result<(), Failure> {
        let Some(([fingerprint, bytes, rank, _], deadline)) = self.found[rank - self.rank] else { return Ok(()) };
        let rest = deadline.saturating_duration_since(Instant::now()).as_micros() as u64;
        self.lowered.send([fingerprint, bytes, rank, rest].as_slice().into(), parent(self.rank), self.name)
    }

    /// Notes a descriptor of this subtree, which is new.
    fn note(&mut self, descriptor: Descriptor, deadline: Instant) -> Result<(), Failure> {
        let rank = descriptor[2] as usize;
        self.found[rank - self.rank] = Some((descriptor, deadline));
        self.deadline = self.deadline.min(deadline);
        if self.rank > 0 && self.is_greeted { self.pass_up(rank) } else { Ok(()) }
    }

    /// Receives the greeting of the parent and the descriptors of all ranks below this one, in any
    /// order.
    fn collect(&mut self) -> Result<(), Failure> {
        let below = self.rank..self.rank + self.found.len();
        loop {
            let has_late = |&child: &usize| below.clone().any(|other| is_below(other, child) && self.is_late(other));
            let mut awaited: Vec<usize> = children(self.rank, self.size).filter(has_late).collect();
            if !self.is_greeted {
                awaited.push(parent(self.rank));
            }
            if awaited.is_empty() {
                return Ok(());
            }
            let (peer, descriptor) = self.receive(&awaited)?;
            if peer < self.rank {
                self.is_greeted = true;
                below.clone().try_for_each(|rank| self.pass_up(rank))?;
                continue;
            }
            let rank = usize::try_from(descriptor[2]).unwrap_or(usize::MAX);
            if !(below.contains(&rank) && is_below(rank, peer) && self.is_late(rank)) {
                return Err(self.lowered.garbled("call descriptors", peer, self.name));
            }
            let deadline = Instant::now().checked_add(Duration::from_micros(descriptor[3]));
            self.note(descriptor, deadline.unwrap_or(self.deadline))?;
        }
    }

    /// Receives the next message of one of `from`. At the deadline gives up.
    fn receive(&mut self, from: &[usize]) -> Result<(usize, Descriptor), Failure> {
        let mut peer = self.lowered.messages.probe(from, self.deadline);
        if peer.is_none() {
            let late = self.late();
            if !late.is_empty() {
                return Err(self.lowered.give_up(late, self.name));
            }
            let last = self.deadline + level(self.lowered.timeout) * self.rank.count_ones();
            peer = self.lowered.messages.probe(from, last);
        }
        let Some(peer) = peer else { return Err(self.lowered.give_up(vec![parent(self.rank)], self.name)) };
        let mut descriptor = GREETING;
        match self.lowered.has_letters {
            true => descriptor = self.lowered.receive_descriptor(peer, self.name)?.0,
            false => self.lowered.recv(descriptor.as_mut_slice().into(), peer, self.name)?,
        }
        match descriptor[1] {
            OF_TWO => Err(self.lowered.out_of_step(peer, self.name, "a call of all ranks", "a send or a receive")),
            _ => Ok((peer, descriptor)),
        }
    }

    /// Returns the ranks that this rank knows to be late: the parent, and those of the subtree
    /// whose parent has come.
    fn late(&self) -> Vec<usize> {
        let below = self.rank + 1..self.rank + self.found.len();
        let below = below.filter(|&other| self.is_late(other) && !self.is_late(parent(other)));
        // A parent of one other rank alone has nobody else to wait for.
        let above = (!self.is_greeted || self.size == 2 && self.rank == 1).then(|| parent(self.rank));
        above.into_iter().chain(below).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rank_but_the_root_is_a_child_of_its_parent_alone() {
        for size in 1..=40 {
            let mut parents = vec![Vec::new(); size];
            for rank in 0..size {
                children(rank, size).for_each(|child| parents[child].push(rank));
            }
            assert!(parents[0].is_empty());
            for (rank, parents) in parents.iter().enumerate().skip(1) {
                assert_eq!(parents, &[parent(rank)], "rank {rank} of {size}");
            }
        }
    }

    #[test]
    fn a_rank_is_below_its_ancestors_alone() {
        for rank in 0..40usize {
            let ancestors: Vec<usize> =
                std::iter::successors(Some(rank), |&rank| (rank > 0).then(|| parent(rank))).collect();
            for top in 0..40 {
                assert_eq!(is_below(rank, top), ancestors.contains(&top), "{rank} below {top}");
            }
        }
    }
}
