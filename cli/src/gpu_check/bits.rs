//! The bits of every kernel, compared with the processor's.

use super::{PATIENCE, Plan};
use consonance_harness::cuda::{Gpu, cases};
use consonance_kernels::cuda::{Compiled, Context};
use std::{collections::BTreeSet, fmt};

/// The number of wrong cases that are listed. More say nothing new.
const LISTED: usize = 20;

/// The result of the comparison of bits.
#[derive(Clone, Debug)]
pub struct Bits {
    /// The number of cases that ran.
    pub cases: usize,
    /// The number of pairs of an operation, or other work, and an element type among them.
    pub pairs: usize,
    /// The cases with wrong bits, each with the first that is wrong. The last one may say how many
    /// more there are.
    pub wrong: Vec<String>,
}

/// Runs the cases of the plan.
///
/// # Errors
/// The device's, with the case that did not run.
pub(super) fn compare(
    context: &Context,
    plan: &Plan,
    progress: impl Fn(usize, usize),
) -> Result<(Bits, Vec<Compiled>), String> {
    let cases: Vec<_> = cases(plan.elements, plan.seed).into_iter().step_by(plan.every.get()).collect();
    if cases.is_empty() {
        return Err(format!("no case has at most {} elements", plan.elements));
    }
    let mut gpu = Gpu::new(context, PATIENCE).map_err(|failure| failure.to_string())?;
    let (mut wrong, mut others) = (Vec::new(), 0);
    for (index, case) in cases.iter().enumerate() {
        progress(index, cases.len());
        let verdict = gpu.judge(case).map_err(|why| format!("{why}, in {case:?}"))?;
        match verdict {
            Err(why) if wrong.len() < LISTED => wrong.push(format!("{why}, in {case:?}")),
            verdict => others += usize::from(verdict.is_err()),
        }
    }
    if others > 0 {
        wrong.push(format!("{others} more cases"));
    }
    let pairs: BTreeSet<_> = cases.iter().map(|case| (case.dtype(), case.name())).collect();
    Ok((Bits { cases: cases.len(), pairs: pairs.len(), wrong }, gpu.kernels().compiled()))
}

impl fmt::Display for Bits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Bits { cases, pairs, wrong } = self;
        write!(f, "bits      {cases} cases of {pairs} pairs of work and element type: ")?;
        match wrong[..] {
            [] => writeln!(f, "all as the processor's"),
            _ => {
                writeln!(f, "WRONG")?;
                wrong.iter().try_for_each(|why| writeln!(f, "          {why}"))
            }
        }
    }
}
