//! Assignments by replicas.
//!
//! An assignment to a variable that is synchronised on writing has three steps. (1) The replicas
//! compare their calls and reduce their operands to replica 0. From then on no replica reads the
//! variable, because all are in this call. (2) Replica 0 writes the copies, one in each memory that
//! replicas read. (3) A barrier, so that each replica reads the new value next. With several
//! processes the operands are reduced to all replicas, and the first replica of each process writes
//! its copies.

use super::{Update, Variable};
use crate::{
    Error, ReduceOp, ReplicaContext, Result, Tensor, VariableSynchronization,
    comm::{agreement::Agreement, call::Call},
    kind,
};
use consonance_kernels::{digest::mix, shm::codes::code_of};

impl ReplicaContext<'_> {
    /// Sets a variable from its replicas.
    ///
    /// A variable that is synchronised on writing is set to the aggregate of the replicas' values.
    /// This is a collective: all replicas make the call, and they agree on the variable and the
    /// method. For a variable that is synchronised on reading this sets the component of this
    /// replica, without waiting.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] if dtype or shape are not the variable's, if the variable belongs to
    /// another strategy, or if it has no aggregation and there are several replicas;
    /// [`Error::Mismatch`] if the replicas' calls differ. In these cases the value does not change.
    /// [`Error::Left`], [`Error::Timeout`], [`Error::Aborted`] if a replica is gone, and
    /// [`Error::System`] if a device fails: the value is then the old or the new one.
    ///
    /// ```
    /// use consonance::{MirroredStrategy, Tensor, Variable, VariableAggregation};
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let loss = strategy.scope(|| {
    ///     Variable::builder(|| Tensor::from(0.0f32)).aggregation(VariableAggregation::Mean).build()
    /// })?;
    /// strategy.run(|replica| {
    ///     replica.assign(&loss, replica.replica_id_in_sync_group() as f32)?;
    ///     assert_eq!(loss.read()?, Tensor::from(0.5f32));
    ///     Ok(())
    /// })?;
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn assign(&self, variable: &Variable, value: impl Into<Tensor>) -> Result<()> {
        self.update("ReplicaContext::assign", Update::Assign, variable, value.into())
    }

    /// Adds to a variable from its replicas: see [`assign`](ReplicaContext::assign). Integers wrap.
    ///
    /// # Errors
    /// As [`assign`](ReplicaContext::assign), and [`Error::InvalidCall`] for a variable of `bool`.
    ///
    /// ```
    /// use consonance::{MirroredStrategy, Tensor, Variable, VariableAggregation};
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let steps = strategy.scope(|| {
    ///     Variable::builder(|| Tensor::from(5i64)).aggregation(VariableAggregation::OnlyFirstReplica).build()
    /// })?;
    /// strategy.run(|replica| replica.assign_add(&steps, 1i64))?;
    /// assert_eq!(steps.read()?, Tensor::from(6i64));
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn assign_add(&self, variable: &Variable, value: impl Into<Tensor>) -> Result<()> {
        self.update("ReplicaContext::assign_add", Update::AssignAdd, variable, value.into())
    }

    /// Subtracts from a variable from its replicas: see [`assign`](ReplicaContext::assign).
    /// Integers wrap.
    ///
    /// # Errors
    /// As [`assign_add`](ReplicaContext::assign_add).
    pub fn assign_sub(&self, variable: &Variable, value: impl Into<Tensor>) -> Result<()> {
        self.update("ReplicaContext::assign_sub", Update::AssignSub, variable, value.into())
    }

    fn update(&self, call: &'static str, update: Update, variable: &Variable, operand: Tensor) -> Result<()> {
        self.require(call)?;
        let id = self.replica_id_in_sync_group();
        let checked = self.check_variable(call, variable).and_then(|()| variable.check_operand(call, update, &operand));
        let is_component = variable.synchronization() == VariableSynchronization::OnRead;
        if is_component || self.num_replicas_in_sync() == 1 {
            checked.map_err(|error| error.of_replica(id))?;
            if !is_component {
                return variable.change(call, |value| update.apply(value, operand));
            }
            let mut component = variable.0.places[self.place()].write(call, variable.strategy())?;
            return update.apply(&mut component, operand);
        }
        let kind = update.kind();
        let op = checked.and_then(|()| variable.aggregation_op(call, "that replicas assign"));
        let op = self.or_refuse(kind, op)?;
        let describe = || vec![("variable".to_owned(), format!("number {}, {}", variable.0.number, variable.spec()))];
        let agreement =
            Agreement { call: Some(kind), digest: mix(variable.0.number, code_of(kind).into()), describe: &describe };
        let everywhere = self.strategy().workers().is_some();
        let operand = match op {
            Some(op) if everywhere => self.on_all_replicas(op, operand, &agreement)?,
            Some(op) => self.on_first_replica(op, operand, &agreement)?,
            None if everywhere => self.first_replicas(operand, &agreement)?,
            // Replica 0 has its operand already.
            None => self.meet(kind, &agreement).map(|()| operand)?,
        };
        if self.place() == 0 {
            let applied = variable.change(call, |value| update.apply(value, operand));
            self.or_refuse(kind::ASSIGN_RETURN, applied)?;
        }
        self.meet(kind::ASSIGN_RETURN, &Agreement { call: Some(kind), ..Agreement::NONE })
    }

    pub(super) fn check_variable(&self, call: &'static str, variable: &Variable) -> Result<()> {
        let (own, other) = (self.strategy(), variable.strategy());
        if own == other {
            return Ok(());
        }
        Err(Error::invalid(
            call,
            "variable",
            format!("one of this strategy, {own} (made in its scope)"),
            format!("one of another, {other}"),
        ))
    }

    /// Reduces the operands to every replica, in the operand's memory unless it is shared.
    fn on_all_replicas(&self, op: ReduceOp, mut operand: Tensor, agreement: &Agreement<'_>) -> Result<Tensor> {
        if let Some(recv) = operand.own_buf_mut() {
            self.call_with(Call::AllReduce { op, send: None, recv }, agreement)?;
            return Ok(operand);
        }
        let mut result = self.held().room(operand.space(), operand.dtype(), operand.count())?;
        let (send, recv) = (Some(operand.buf()), result.as_buf_mut());
        self.call_with(Call::AllReduce { op, send, recv }, agreement)?;
        Tensor::from_memory(operand.shape().to_vec(), result)
    }

    /// Broadcasts replica 0's operand to every replica.
    fn first_replicas(&self, mut operand: Tensor, agreement: &Agreement<'_>) -> Result<Tensor> {
        // `buf_mut` copies the elements if they are shared.
        self.call_with(Call::Broadcast { data: operand.buf_mut()?, root: 0 }, agreement)?;
        Ok(operand)
    }

    /// Reduces the operands to replica 0, in its operand's memory unless it is shared. The other
    /// operands do not change.
    fn on_first_replica(&self, op: ReduceOp, mut operand: Tensor, agreement: &Agreement<'_>) -> Result<Tensor> {
        let root = 0;
        if self.replica_id_in_sync_group() != root {
            self.call_with(Call::Reduce { op, send: Some(operand.buf()), recv: None, root }, agreement)?;
        } else if let Some(recv) = operand.own_buf_mut() {
            self.call_with(Call::Reduce { op, send: None, recv: Some(recv), root }, agreement)?;
        } else {
            let mut result = self.held().room(operand.space(), operand.dtype(), operand.count())?;
            let (send, recv) = (Some(operand.buf()), Some(result.as_buf_mut()));
            self.call_with(Call::Reduce { op, send, recv, root }, agreement)?;
            operand = Tensor::from_memory(operand.shape().to_vec(), result)?;
        }
        Ok(operand)
    }
}
