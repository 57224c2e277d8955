//! The contract of static shapes: checks of values by the rules in `spec`. A strategy without the
//! option makes none of them.

use super::nest::{Leaf, NestSignature, Value};
use crate::{Error, ReduceOp, Result};
use consonance_kernels::digest::mix;
use consonance_spec::static_shapes::{
    ARGUMENTS, DATA_LEAF, FIXED_ARGUMENTS, FULL_BATCHES, GATHERED_LEAF, REDUCED_OP, Rule,
};
use std::{iter, sync::Arc};

/// The settings of static shapes that a strategy's calls obey.
#[derive(Clone, Debug)]
pub(crate) struct Contract {
    /// Whether batches of replicas may differ in their numbers of rows.
    pub(crate) dynamic_batch: bool,
    /// The shapes of the arguments of the run that calls are made in, if they are noted. Sizes that
    /// may differ are left open.
    arguments: Option<Arc<Arguments>>,
}

#[derive(Debug)]
struct Arguments {
    shapes: NestSignature,
    digest: u64,
}

/// The end of the names of arguments, in the errors of workers that differ in them.
const OF_ARGUMENTS: &str = " of the arguments";

impl Contract {
    pub(crate) fn new(dynamic_batch: bool) -> Contract {
        Contract { dynamic_batch, arguments: None }
    }

    /// Returns the contract of the calls in a run whose arguments have these signatures, which this
    /// process has [compared](Contract::check_arguments). Workers compare them in the calls.
    pub(crate) fn within_run(self, shapes: Option<&[NestSignature]>) -> Contract {
        let arguments = shapes.and_then(<[_]>::first).map(|first| {
            let shapes = if self.dynamic_batch { first.beyond_rows() } else { first.clone() };
            Arc::new(Arguments { digest: shapes.digest(), shapes })
        });
        Contract { arguments, ..self }
    }

    /// Mixes the contract into the digest of a call, so that workers with another one, or none,
    /// disagree.
    pub(crate) fn sign(&self, digest: u64) -> u64 {
        let digest = mix(digest, 1 + u64::from(self.dynamic_batch));
        self.arguments.as_ref().map_or(digest, |arguments| mix(digest, arguments.digest))
    }

    /// Describes the contract, for errors of workers that differ in it.
    pub(crate) fn lines(&self) -> Vec<(String, String)> {
        let own = ("static_shapes".to_owned(), format!("dynamic_batch({})", self.dynamic_batch));
        let arguments = self.arguments.iter().flat_map(|arguments| arguments.shapes.lines());
        iter::once(own).chain(arguments.map(|(path, spec)| (path + OF_ARGUMENTS, spec))).collect()
    }

    /// Compares the arguments of a run: their signatures, the first of replica `first`.
    pub(crate) fn check_arguments(&self, call: &'static str, first: usize, shapes: &[NestSignature]) -> Result<()> {
        let difference = match self.dynamic_batch {
            true => NestSignature::difference_beyond_rows,
            false => NestSignature::difference,
        };
        let Some(expected) = shapes.first() else { return Ok(()) };
        let compared = compare(call, first, shapes.iter().map(|found| difference(expected, found)));
        compared.map_err(|error| advised(error, self.rule_of_arguments()))
    }

    fn rule_of_arguments(&self) -> Rule {
        if self.dynamic_batch { ARGUMENTS } else { FIXED_ARGUMENTS }
    }

    /// Adds the rule to the error of replicas whose values differ in shape: that of arguments if it
    /// is these that differ.
    pub(crate) fn by_rule(&self, rule: Rule, error: Error) -> Error {
        match &error {
            Error::Mismatch { argument, .. } if argument.ends_with(OF_ARGUMENTS) => {
                advised(error, self.rule_of_arguments())
            }
            Error::Mismatch { argument, .. } if argument.starts_with("value") => advised(error, rule),
            _ => error,
        }
    }

    /// Checks a step of a data set: its values, the first of replica `first`. Without dynamic
    /// batches all have the signature `full`, that of the first value that the data set gave.
    pub(crate) fn check_step(
        &self,
        call: &'static str,
        first: usize,
        values: &[Vec<Leaf>],
        full: &mut Option<NestSignature>,
    ) -> Result<()> {
        for (place, leaves) in values.iter().enumerate() {
            let sparse = leaves.iter().find(|leaf| matches!(leaf.value, Value::Sparse(_)));
            if let Some(leaf) = sparse {
                let error = Error::invalid(call, leaf.path.to_string(), expected(DATA_LEAF), text(leaf));
                return Err(error.of_replica(first + place));
            }
        }
        if self.dynamic_batch {
            return Ok(());
        }
        let signatures = || values.iter().map(|leaves| NestSignature::of_static_shapes(leaves));
        let Some(full) = full.take().or_else(|| signatures().next()).map(|of| full.insert(of)) else { return Ok(()) };
        let compared = compare(call, first, signatures().map(|found| full.difference(&found)));
        compared.map_err(|error| advised(error, FULL_BATCHES))
    }
}

/// Checks the operation of a reduction.
pub(crate) fn check_op(call: &'static str, op: ReduceOp) -> Result<ReduceOp> {
    match op {
        ReduceOp::Sum | ReduceOp::Mean => Ok(op),
        ReduceOp::Product | ReduceOp::Min | ReduceOp::Max | ReduceOp::And | ReduceOp::Or | ReduceOp::Xor => {
            Err(Error::invalid(call, "op", expected(REDUCED_OP), op.name()))
        }
    }
}

/// Checks the leaves that a replica gives to a gather.
pub(crate) fn check_gathered(call: &'static str, leaves: &[Leaf]) -> Result<()> {
    let refused = |leaf: &&Leaf| match &leaf.value {
        Value::Dense(tensor) => tensor.rank() == 0,
        Value::Sparse(_) => true,
    };
    match leaves.iter().find(refused) {
        None => Ok(()),
        Some(leaf) => Err(Error::invalid(call, leaf.path.to_string(), expected(GATHERED_LEAF), text(leaf))),
    }
}

/// Compares the values of replicas, the first of replica `first`, whose shapes are all equal.
pub(crate) fn check_equal(call: &'static str, rule: Rule, first: usize, values: &[Vec<Leaf>]) -> Result<()> {
    let Some((own, others)) = values.split_first() else { return Ok(()) };
    let expected = NestSignature::of_static_shapes(own);
    let differences = others.iter().map(|leaves| expected.difference(&NestSignature::of_static_shapes(leaves)));
    compare(call, first + 1, differences).map_err(|error| advised(error, rule))
}

/// Adds a rule, as advice, to a mismatch.
fn advised(mut error: Error, rule: Rule) -> Error {
    if let Error::Mismatch { found, .. } = &mut error {
        *found += &format!("; rule \"{}\" of static shapes: {}", rule.name, rule.sentence);
    }
    error
}

/// Returns the error of a data set with batches that are not full, or do not divide evenly.
pub(crate) fn not_full(call: &'static str, path: String, found: String) -> Error {
    Error::invalid(call, path, expected(FULL_BATCHES), found)
}

/// Returns the error of the first replica, counted from `first`, that differs.
fn compare(
    call: &'static str,
    first: usize,
    differences: impl Iterator<Item = Option<(String, String, String)>>,
) -> Result<()> {
    let found = differences.enumerate().find_map(|(place, difference)| Some((first + place, difference?)));
    match found {
        None => Ok(()),
        Some((replica, (argument, expected, found))) => {
            Err(Error::Mismatch { call: call.to_owned(), replica, argument, expected, found })
        }
    }
}

fn expected(rule: Rule) -> String {
    format!("{} (rule \"{}\" of static shapes)", rule.sentence, rule.name)
}

/// Returns the dtype and shape of a leaf.
fn text(leaf: &Leaf) -> String {
    match &leaf.value {
        Value::Dense(tensor) => tensor.spec(),
        Value::Sparse(slices) => format!("IndexedSlices of {}", slices.values.spec()),
    }
}
