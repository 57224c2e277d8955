//! Reductions of ranks that have different numbers of contributions, in one step.

use consonance_kernels::{
    cpu::reduce::Reducer,
    group::{Holdings, OwnHoldings, plan::Targets},
};
use std::{fmt, ops::Range};

/// A rank's part in such a reduction.
pub struct LeavesStep<'a> {
    pub(crate) reducer: &'a Reducer,
    /// Elements of a contribution.
    pub(crate) count: usize,
    pub(crate) targets: Targets,
    /// The contributions of this rank, and the number of those of all.
    pub(crate) run: Range<usize>,
    pub(crate) of: usize,
    /// The parts of them that this rank shows, if it can.
    pub(crate) own: Option<OwnHoldings<'a>>,
    /// Room for the runs of all ranks.
    pub(crate) runs: &'a mut Vec<Range<usize>>,
    /// The holdings at the last call.
    pub(crate) known: &'a mut Option<Known>,
}

impl fmt::Debug for LeavesStep<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LeavesStep({:?} of leaves {:?} of {})", self.reducer, self.run, self.of)
    }
}

/// The holdings of ranks that have these runs.
pub(crate) struct Known {
    runs: Vec<Range<usize>>,
    holdings: Holdings,
}

impl Known {
    /// Returns what ranks with these runs of `0..of` hold, as `known` says or made anew; `None` if
    /// the runs do not follow each other.
    pub(crate) fn of<'k>(
        known: &'k mut Option<Known>,
        reducer: &Reducer,
        of: usize,
        runs: &[Range<usize>],
    ) -> Option<&'k Holdings> {
        if known.as_ref().is_none_or(|known| known.runs != runs) {
            *known = None;
            if gap(runs, of).is_none() {
                let holdings = Holdings::new(reducer, of, runs.iter().cloned())?;
                *known = Some(Known { runs: runs.to_vec(), holdings });
            }
        }
        known.as_ref().map(|known| &known.holdings)
    }
}

impl fmt::Debug for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Known({:?})", self.runs)
    }
}

/// A run that does not begin where the one before ends, or the end of all.
pub(crate) struct Gap {
    pub(crate) rank: usize,
    pub(crate) expected: String,
    pub(crate) found: String,
}

/// Returns the first gap or overlap of runs of `0..of`.
pub(crate) fn gap(runs: &[Range<usize>], of: usize) -> Option<Gap> {
    let mut at = 0;
    for (rank, run) in runs.iter().enumerate().filter(|(_, run)| run.start < run.end) {
        if run.start != at {
            return Some(Gap { rank, expected: format!("a run from {at} on"), found: format!("{run:?}") });
        }
        at = run.end;
    }
    let all = Gap { rank: runs.len() - 1, expected: format!("runs up to {of}"), found: format!("runs up to {at}") };
    (at != of).then_some(all)
}
