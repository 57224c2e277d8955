//! The rules of static shapes in the collectives of a replica. Without the option of its strategy
//! nothing is checked.

use crate::{
    ReduceOp, ReplicaContext, Result,
    error::{IntoReduceOp, op_of},
    value::{contract, nest::Leaf},
};
use consonance_spec::static_shapes::Rule;

impl ReplicaContext<'_> {
    /// Returns the operation of a reduction of all replicas.
    pub(super) fn reduced_op(&self, call: &'static str, op: impl IntoReduceOp) -> Result<ReduceOp> {
        let op = op_of(call, op)?;
        match self.contract() {
            None => Ok(op),
            Some(_) => contract::check_op(call, op),
        }
    }

    /// Checks the leaves of a gather.
    pub(super) fn check_gathered(&self, call: &'static str, leaves: &[Leaf]) -> Result<()> {
        self.contract().map_or(Ok(()), |_| contract::check_gathered(call, leaves))
    }

    /// Adds the rule to the error of replicas whose values differ in shape.
    pub(super) fn by_rule<T>(&self, rule: Rule, result: Result<T>) -> Result<T> {
        match self.contract() {
            None => result,
            Some(contract) => result.map_err(|error| contract.by_rule(rule, error)),
        }
    }
}
