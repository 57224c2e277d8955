//! Updates of some rows of a variable, by replicas and from outside of them.

use super::{Update, Variable, copies::change_component};
use crate::{
    Error, IndexedSlices, ReduceOp, ReplicaContext, Result, VariableSynchronization, comm::agreement::Agreement, kind,
};
use consonance_kernels::{digest::mix, shm::codes::code_of};
use consonance_spec::Kind;

impl Variable {
    /// Adds `rows` to rows of the value, from outside of replicas. Rows of equal index are added
    /// first, in canonical order, and rounded once. Rows without an index keep their bits. The rows
    /// lie in host memory, and a value that lies in that of a GPU alone is copied there and back.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] if the rows are not of a tensor of this dtype and shape, for a
    /// variable of `bool`, and for one that is synchronised on reading; otherwise as
    /// [`assign`](Variable::assign).
    ///
    /// ```
    /// use consonance::{IndexedSlices, Tensor, Variable};
    /// let table = Variable::new(Tensor::from([[1.0f32, 1.0], [2.0, 2.0], [3.0, 3.0]]))?;
    /// let rows = Tensor::from([[0.5f32, 0.5], [0.25, 0.25]]);
    /// table.scatter_add(&IndexedSlices::new(rows, Tensor::from([2i64, 2]), None)?)?;
    /// assert_eq!(table.read_rows(1..3)?, Tensor::from([[2.0f32, 2.0], [3.75, 3.75]]));
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn scatter_add(&self, rows: &IndexedSlices) -> Result<()> {
        self.scatter("Variable::scatter_add", kind::SCATTER_ADD, Update::AssignAdd, rows)
    }

    /// Subtracts `rows` from rows of the value: see [`scatter_add`](Variable::scatter_add).
    ///
    /// # Errors
    /// As [`scatter_add`](Variable::scatter_add).
    pub fn scatter_sub(&self, rows: &IndexedSlices) -> Result<()> {
        self.scatter("Variable::scatter_sub", kind::SCATTER_SUB, Update::AssignSub, rows)
    }

    fn scatter(&self, call: &'static str, kind: Kind, update: Update, rows: &IndexedSlices) -> Result<()> {
        let allowed = self.require_across(call, "ReplicaContext has calls of the same name for replicas");
        let rows = self.verified(kind, allowed.and_then(|()| self.check_rows(call, update, rows)))?;
        if self.synchronization() == VariableSynchronization::OnRead {
            let expected = "one that is synchronised on writing, outside of replicas";
            return Err(Error::invalid(call, "variable", expected, "one that is synchronised on reading"));
        }
        self.change(call, |value| update.scatter(value, &rows))
    }

    /// Checks that `rows` are of a tensor of the variable's dtype and shape, and returns them with
    /// that shape.
    fn check_rows(&self, call: &'static str, update: Update, rows: &IndexedSlices) -> Result<IndexedSlices> {
        let rows_of = |values: &crate::Tensor| format!("rows of {}{:?}", values.dtype(), &values.shape()[1..]);
        let expected = format!("rows of {}{:?}", self.dtype(), self.shape().get(1..).unwrap_or_default());
        if self.shape().is_empty() {
            return Err(Error::invalid(call, "variable", "one with rows", "a scalar"));
        }
        if expected != rows_of(rows.values()) {
            return Err(Error::invalid(call, "rows", expected, rows_of(rows.values())));
        }
        if let Some(shape) = rows.dense_shape().filter(|&shape| shape != self.shape()) {
            let expected = format!("rows of a tensor of shape {:?}", self.shape());
            return Err(Error::invalid(call, "rows", expected, format!("shape {shape:?}")));
        }
        update.check(call, rows.values())?;
        // This checks the indices.
        IndexedSlices::new(rows.values().clone(), rows.indices().clone(), Some(self.shape().to_vec()))
            .map_err(|error| error.of_call_named(call))
    }
}

impl ReplicaContext<'_> {
    /// Adds rows to a variable from its replicas. The rows of all replicas are aggregated as
    /// [`all_reduce`](ReplicaContext::all_reduce) does it, by the variable's aggregation, and then
    /// added as [`Variable::scatter_add`] does it. For a variable that is synchronised on reading,
    /// this adds to the component of this replica, without waiting.
    ///
    /// # Errors
    /// As [`assign_add`](ReplicaContext::assign_add), and [`Error::InvalidCall`] if the rows are
    /// not of a tensor of the variable's dtype and shape.
    ///
    /// ```
    /// use consonance::{IndexedSlices, MirroredStrategy, Tensor, Variable, VariableAggregation};
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let table = strategy.scope(|| {
    ///     Variable::builder(|| Tensor::from([[0.0f32], [0.0], [0.0]])).aggregation(VariableAggregation::Sum).build()
    /// })?;
    /// strategy.run(|replica| {
    ///     let id = replica.replica_id_in_sync_group() as i64;
    ///     let rows = IndexedSlices::new(Tensor::from([[1.0f32], [2.0]]), Tensor::from([1, 1 + id]), None)?;
    ///     replica.scatter_add(&table, &rows)
    /// })?;
    /// assert_eq!(table.read()?, Tensor::from([[0.0f32], [4.0], [2.0]]));
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn scatter_add(&self, variable: &Variable, rows: &IndexedSlices) -> Result<()> {
        self.scatter("ReplicaContext::scatter_add", kind::SCATTER_ADD, Update::AssignAdd, variable, rows)
    }

    /// Subtracts rows from a variable from its replicas: see
    /// [`scatter_add`](ReplicaContext::scatter_add).
    ///
    /// # Errors
    /// As [`scatter_add`](ReplicaContext::scatter_add).
    pub fn scatter_sub(&self, variable: &Variable, rows: &IndexedSlices) -> Result<()> {
        self.scatter("ReplicaContext::scatter_sub", kind::SCATTER_SUB, Update::AssignSub, variable, rows)
    }

    fn scatter(
        &self,
        call: &'static str,
        kind: Kind,
        update: Update,
        variable: &Variable,
        rows: &IndexedSlices,
    ) -> Result<()> {
        self.require(call)?;
        let checked = self.check_variable(call, variable).and_then(|()| variable.check_rows(call, update, rows));
        let is_component = variable.synchronization() == VariableSynchronization::OnRead;
        if is_component || self.num_replicas_in_sync() == 1 {
            let rows = checked.map_err(|error| error.of_replica(self.replica_id_in_sync_group()))?;
            if !is_component {
                return variable.change(call, |value| update.scatter(value, &rows));
            }
            let mut component = variable.0.places[self.place()].write(call, variable.strategy())?;
            return change_component(call, &mut component, |value| update.scatter(value, &rows));
        }
        let checked = checked.and_then(|rows| {
            let op = variable.aggregation_op(call, "that replicas assign")?;
            // Without an op the first replica's rows count: the others have none.
            let is_counted = op.is_some() || self.replica_id_in_sync_group() == 0;
            Ok((op.unwrap_or(ReduceOp::Sum), if is_counted { rows } else { rows.none()? }))
        });
        let (op, rows) = self.or_refuse(kind, checked)?;
        let describe = || vec![("variable".to_owned(), format!("number {}, {}", variable.0.number, variable.spec()))];
        let digest = mix(variable.0.number, code_of(kind).into());
        self.meet(kind, &Agreement { call: Some(kind), digest, describe: &describe })?;
        let rows = self.all_reduce(op, rows)?;
        if self.place() == 0 {
            let applied = variable.change(call, |value| update.scatter(value, &rows));
            self.or_refuse(kind::ASSIGN_RETURN, applied)?;
        }
        self.meet(kind::ASSIGN_RETURN, &Agreement { call: Some(kind), ..Agreement::NONE })
    }
}
