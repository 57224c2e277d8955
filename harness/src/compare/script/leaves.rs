//! One rank's part of a reduction to which each rank brings any number of contributions.

use super::part::{Buffers, Part, given, results};
use crate::{
    cases::{Collective, Runs},
    sample::{Sample, sample},
};
use consonance::{Accumulator, Communicator, Error, Pending, ReduceOp, Scope};
use consonance_kernels::digest::mix;
use std::ops::Range;

/// The leaves of a rank before the last, and their accumulator.
pub(super) struct Held<T> {
    op: ReduceOp,
    run: Range<usize>,
    of: usize,
    /// The number of elements of a leaf.
    count: usize,
    before: Vec<Vec<T>>,
    /// The accumulator, or the error of making it.
    sum: Result<Accumulator<T>, Error>,
}

/// The last leaf of a rank, with those before.
pub(super) type Last<T> = (Vec<T>, Held<T>);

/// Returns all leaves, and the last leaf of each rank with those before. A rank without leaves has
/// room in its place.
pub(super) fn leaves<T: Sample>(call: &Collective, runs: &Runs) -> (Vec<Vec<T>>, Vec<Last<T>>) {
    // All leaves of a case have values of one kind. Otherwise a large value would hide the rounding
    // of the others.
    let kind = call.seed % 3;
    let count = given(call, runs.by_rank.len(), 0);
    let leaf = |seed: u64| sample::<T>(seed / 3 * 3 + kind, count);
    let leaves: Vec<Vec<T>> = (0..runs.of).map(|number| leaf(mix(call.seed, number as u64))).collect();
    let held = |(rank, run): (usize, &Range<usize>)| {
        let mut before = leaves[run.clone()].to_vec();
        let last = before.pop().unwrap_or_else(|| leaf(mix(!call.seed, rank as u64)));
        let sum = Err(Error::other("an accumulator that was not made"));
        (last, Held { op: call.op, run: run.clone(), of: runs.of, count, before, sum })
    };
    let held = runs.by_rank.iter().enumerate().map(held).collect();
    (leaves, held)
}

/// Returns every rank's part of a reduction of [leaves]. Its result is that of as many ranks with
/// one contribution each.
pub(super) fn parts<T: Sample>(call: &Collective, leaves: &[Vec<T>], held: Vec<Last<T>>) -> Vec<Box<dyn Part>> {
    let size = held.len();
    let results = results(call, leaves, size);
    let part = |(rank, (last, held)): (usize, Last<T>)| {
        let result = results.as_ref().map(|results| results[rank].as_deref());
        let buffers = Buffers::new(call, size, rank, last, result);
        Box::new(Leaves { buffers, held }) as Box<dyn Part>
    };
    held.into_iter().enumerate().map(part).collect()
}

impl<T: Sample> Held<T> {
    pub(super) fn place(&mut self, communicator: &mut Communicator) -> Result<(), Error> {
        self.sum = communicator.accumulator(self.op, self.count, self.run.clone(), self.of);
        Ok(())
    }

    /// Returns the accumulator with all leaves but the last.
    pub(super) fn begin(&mut self) -> Result<&mut Accumulator<T>, Error> {
        let sum = self.sum.as_mut().map_err(|error| error.clone())?;
        self.before[sum.added()..].iter().try_for_each(|leaf| sum.add(leaf))?;
        Ok(sum)
    }

    /// Checks the number of leaves that the accumulator has after a call, if it was made.
    pub(super) fn judge(&self, is_made: bool) -> Result<(), String> {
        let expected = if is_made { 0 } else { self.before.len() };
        match &self.sum {
            Ok(sum) if sum.added() != expected => Err(format!("{} leaves after the call, not {expected}", sum.added())),
            Ok(_) | Err(_) => Ok(()),
        }
    }
}

/// A part whose input is the rank's last leaf, or room without leaves.
struct Leaves<T> {
    buffers: Buffers<T>,
    held: Held<T>,
}

impl<T: Sample> Part for Leaves<T> {
    fn place(&mut self, communicator: &mut Communicator) -> Result<(), Error> {
        self.buffers.place(communicator)?;
        self.held.place(communicator)
    }

    fn make(&mut self, communicator: &mut Communicator) -> Result<(), Error> {
        let sum = self.held.begin()?;
        self.buffers.as_call().make_on(communicator, sum)
    }

    fn start<'env>(&'env mut self, scope: &Scope<'env>) -> Result<Option<Pending>, Error> {
        let sum = self.held.begin()?;
        Ok(Some(self.buffers.as_call().start_on(scope, sum)))
    }

    fn judge(&self, result: Result<(), Error>) -> Result<(), String> {
        let is_made = result.is_ok();
        self.buffers.judge(result)?;
        self.held.judge(is_made)
    }

    fn untouched(&self) -> Result<(), String> {
        self.buffers.untouched()?;
        self.held.judge(false)
    }
}
