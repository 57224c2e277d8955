//! One rank's part of a reduction to which each rank brings any number of contributions.

use super::part::{Buffers, Part, given, results};
use crate::{
    calls::Call,
    cases::{Collective, Runs},
    sample::{Sample, sample},
};
use consonance::{Accumulator, Communicator, Error, Pending, ReduceOp, Scope};
use consonance_kernels::digest::mix;
use std::ops::Range;

/// A part whose input is the rank's last leaf, or room without leaves.
struct Leaves<T> {
    buffers: Buffers<T>,
    op: ReduceOp,
    run: Range<usize>,
    of: usize,
    /// The number of elements of a leaf.
    count: usize,
    /// The leaves before the last.
    before: Vec<Vec<T>>,
    /// The accumulator, or the error of making it.
    sum: Result<Accumulator<T>, Error>,
}

/// Returns every rank's part of a reduction of leaves. Its result is that of as many ranks with one
/// contribution each.
pub(super) fn parts<T: Sample>(call: &Collective, runs: &Runs) -> Vec<Box<dyn Part>> {
    let size = runs.by_rank.len();
    // All leaves of a case have values of one kind. Otherwise a large value would hide the rounding
    // of the others.
    let kind = call.seed % 3;
    let count = given(call, size, 0);
    let leaf = |seed: u64| sample::<T>(seed / 3 * 3 + kind, count);
    let leaves: Vec<Vec<T>> = (0..runs.of).map(|number| leaf(mix(call.seed, number as u64))).collect();
    let results = results(call, &leaves, size);
    let part = |(rank, run): (usize, &Range<usize>)| {
        let mut before = leaves[run.clone()].to_vec();
        let last = before.pop().unwrap_or_else(|| leaf(mix(!call.seed, rank as u64)));
        let result = results.as_ref().map(|results| results[rank].as_deref());
        let buffers = Buffers::new(call, size, rank, last, result);
        let sum = Err(Error::other("an accumulator that was not made"));
        let (op, run, of) = (call.op, run.clone(), runs.of);
        Box::new(Leaves { buffers, op, run, of, count, before, sum }) as Box<dyn Part>
    };
    runs.by_rank.iter().enumerate().map(part).collect()
}

impl<T: Sample> Leaves<T> {
    /// Returns the call, and the accumulator with all leaves but the last.
    fn begin(&mut self) -> Result<(Call<'_, T>, &mut Accumulator<T>), Error> {
        let sum = self.sum.as_mut().map_err(|error| error.clone())?;
        self.before[sum.added()..].iter().try_for_each(|leaf| sum.add(leaf))?;
        Ok((self.buffers.as_call(), sum))
    }

    /// Checks the number of leaves that the accumulator has.
    fn holds(&self, expected: usize) -> Result<(), String> {
        match &self.sum {
            Ok(sum) if sum.added() != expected => Err(format!("{} leaves after the call, not {expected}", sum.added())),
            Ok(_) | Err(_) => Ok(()),
        }
    }
}

impl<T: Sample> Part for Leaves<T> {
    fn place(&mut self, communicator: &mut Communicator) -> Result<(), Error> {
        self.buffers.place(communicator)?;
        self.sum = communicator.accumulator(self.op, self.count, self.run.clone(), self.of);
        Ok(())
    }

    fn make(&mut self, communicator: &mut Communicator) -> Result<(), Error> {
        let (call, sum) = self.begin()?;
        call.make_on(communicator, sum)
    }

    fn start<'env>(&'env mut self, scope: &Scope<'env>) -> Result<Option<Pending>, Error> {
        let (call, sum) = self.begin()?;
        Ok(Some(call.start_on(scope, sum)))
    }

    fn judge(&self, result: Result<(), Error>) -> Result<(), String> {
        let expected = if result.is_ok() { 0 } else { self.before.len() };
        self.buffers.judge(result)?;
        self.holds(expected)
    }

    fn untouched(&self) -> Result<(), String> {
        self.buffers.untouched()?;
        self.holds(self.before.len())
    }
}
