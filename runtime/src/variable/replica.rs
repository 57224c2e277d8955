//! Assignments by replicas.
//!
//! One to a variable that is synchronised on writing has three parts. The replicas compare what
//! they call and bring their operands together on replica 0; from then on none of them reads the
//! variable, because all have come here. Replica 0 writes the copy, which lies in the memory of
//! all. They meet again, so that what each reads next is the new value. Where several processes
//! have replicas, operands come together on all replicas, of which the first one of each process
//! writes its copy.

use super::{Update, Variable};
use crate::{
    Error, ReduceOp, ReplicaContext, Result, Tensor, VariableAggregation, VariableSynchronization,
    comm::{agreement::Agreement, call::Call},
};
use consonance_kernels::memory::Memory;
use consonance_spec::{Kind, call::mix};

impl ReplicaContext<'_> {
    /// Sets a variable from its replicas.
    ///
    /// One that is synchronised on writing is set to the aggregate of the replicas' values, in a
    /// call that all of them make: as of a collective, the replicas agree on the variable and the
    /// method. One that is synchronised on reading is set for this replica alone, who waits for
    /// nobody.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] if dtype or shape are not the variable's, the variable is another
    /// strategy's, or it has no aggregation where there are several replicas to aggregate;
    /// [`Error::Mismatch`] if the replicas did not call the same. In these cases the value is as
    /// before. [`Error::Left`], [`Error::Timeout`], [`Error::Aborted`] if a replica is gone: the
    /// value is then the old or the new one.
    ///
    /// ```
    /// use consonance::{MirroredStrategy, Tensor, Variable, VariableAggregation};
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let loss = strategy.scope(|| {
    ///     Variable::builder(|| Tensor::from(0.0f32)).aggregation(VariableAggregation::Mean).build()
    /// })??;
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
    /// })??;
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
        if variable.synchronization() == VariableSynchronization::OnRead || self.num_replicas_in_sync() == 1 {
            checked.map_err(|error| error.of_replica(id))?;
            let mut component = variable.0.places[self.place()].write(call, variable.strategy())?;
            update.apply(&mut component, operand);
            return Ok(());
        }
        let kind = update.kind();
        let op = checked.and_then(|()| match variable.aggregation() {
            VariableAggregation::Sum => Ok(Some(ReduceOp::Sum)),
            VariableAggregation::Mean => Ok(Some(ReduceOp::Mean)),
            VariableAggregation::OnlyFirstReplica => Ok(None),
            VariableAggregation::None => Err(variable.without_aggregation(call, "that replicas assign")),
        });
        let op = self.or_refuse(kind, op)?;
        let describe = || vec![("variable".to_owned(), format!("number {}, {}", variable.0.number, variable.spec()))];
        let agreement =
            Agreement { call: Some(kind), digest: mix(variable.0.number, kind as u64), describe: &describe };
        let everywhere = self.strategy().workers().is_some();
        let operand = match op {
            Some(op) if everywhere => self.on_all_replicas(op, operand, &agreement)?,
            Some(op) => self.on_first_replica(op, operand, &agreement)?,
            None if everywhere => self.first_replicas(operand, &agreement)?,
            // Replica 0 has it already.
            None => self.meet(kind, &agreement).map(|()| operand)?,
        };
        if self.place() == 0 {
            let copy = variable.0.places[0].write(call, variable.strategy());
            let mut copy = self.or_refuse(Kind::AssignReturn, copy)?;
            update.apply(&mut copy, operand);
        }
        self.meet(Kind::AssignReturn, &Agreement { call: Some(kind), ..Agreement::NONE })
    }

    fn check_variable(&self, call: &'static str, variable: &Variable) -> Result<()> {
        let (own, other) = (self.strategy(), variable.strategy());
        if own == other {
            return Ok(());
        }
        Err(Error::invalid(
            call,
            "variable",
            format!("one of this strategy, {own}"),
            format!("one of another, {other}"),
        ))
    }

    /// The operands combined, on every replica: in its operand's own memory if nobody else holds
    /// it.
    fn on_all_replicas(&self, op: ReduceOp, mut operand: Tensor, agreement: &Agreement<'_>) -> Result<Tensor> {
        if let Some(recv) = operand.own_buf_mut() {
            self.call_with(Call::AllReduce { op, send: None, recv }, agreement)?;
            return Ok(operand);
        }
        let mut result = Memory::zeroed(operand.dtype(), operand.count());
        let (send, recv) = (Some(operand.buf()), result.as_buf_mut());
        self.call_with(Call::AllReduce { op, send, recv }, agreement)?;
        Tensor::from_memory(operand.shape().to_vec(), result)
    }

    /// Replica 0's operand, on every replica.
    fn first_replicas(&self, mut operand: Tensor, agreement: &Agreement<'_>) -> Result<Tensor> {
        // A copy, where somebody else holds the elements.
        self.call_with(Call::Broadcast { data: operand.buf_mut(), root: 0 }, agreement)?;
        Ok(operand)
    }

    /// The operands combined, on replica 0: in its operand's own memory if nobody else holds it.
    /// The others' stay as they are.
    fn on_first_replica(&self, op: ReduceOp, mut operand: Tensor, agreement: &Agreement<'_>) -> Result<Tensor> {
        let root = 0;
        if self.replica_id_in_sync_group() != root {
            self.call_with(Call::Reduce { op, send: Some(operand.buf()), recv: None, root }, agreement)?;
        } else if let Some(recv) = operand.own_buf_mut() {
            self.call_with(Call::Reduce { op, send: None, recv: Some(recv), root }, agreement)?;
        } else {
            let mut result = Memory::zeroed(operand.dtype(), operand.count());
            let (send, recv) = (Some(operand.buf()), Some(result.as_buf_mut()));
            self.call_with(Call::Reduce { op, send, recv, root }, agreement)?;
            operand = Tensor::from_memory(operand.shape().to_vec(), result)?;
        }
        Ok(operand)
    }
}
