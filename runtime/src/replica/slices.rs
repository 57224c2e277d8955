//! Collectives of a replica on slices, bytes and objects: they move no tensor.

use crate::{
    ReplicaContext, Result,
    comm::call::Call,
    error::{IntoReduceOp, op_of},
};
use consonance_spec::{Element, Kind};

impl ReplicaContext<'_> {
    /// Combines `data` over all replicas, in place: [`all_reduce`](ReplicaContext::all_reduce) for
    /// a buffer of your own. Counts are the same on all replicas.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`](crate::Communicator::all_reduce).
    ///
    /// ```
    /// use consonance::{MirroredStrategy, ReduceOp};
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let gradients = strategy.run(|replica| {
    ///     let mut gradient = vec![replica.replica_id_in_sync_group() as f32; 3];
    ///     replica.all_reduce_slice(ReduceOp::Mean, &mut gradient)?;
    ///     Ok(gradient)
    /// })?;
    /// assert_eq!(gradients[0], [0.5; 3]);
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn all_reduce_slice<T: Element>(&self, op: impl IntoReduceOp, data: &mut [T]) -> Result<()> {
        let call = "ReplicaContext::all_reduce_slice";
        self.require(call)?;
        let op = self.or_refuse(Kind::AllReduce, self.reduced_op(call, op))?;
        self.refuse_nan_in(call, Kind::AllReduce, (&*data).into())?;
        self.configured().call(Call::AllReduce { op, send: None, recv: data.into() })
    }

    /// Combines `send` over all replicas, and writes this replica's block of the result to `recv`.
    /// `send` has as many elements as the `recv` of all replicas together.
    ///
    /// # Errors
    /// As [`all_reduce_slice`](ReplicaContext::all_reduce_slice).
    ///
    /// ```
    /// use consonance::MirroredStrategy;
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let blocks = strategy.run(|replica| {
    ///     let mut block = [0; 2];
    ///     replica.reduce_scatter_slice("sum", &[1, 2, 3, 4], &mut block)?;
    ///     Ok(block)
    /// })?;
    /// assert_eq!(blocks.values(), [[2, 4], [6, 8]]);
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn reduce_scatter_slice<T: Element>(&self, op: impl IntoReduceOp, send: &[T], recv: &mut [T]) -> Result<()> {
        let call = "ReplicaContext::reduce_scatter_slice";
        self.require(call)?;
        let op = self.or_refuse(Kind::ReduceScatter, op_of(call, op))?;
        self.refuse_nan_in(call, Kind::ReduceScatter, send.into())?;
        self.configured().call(Call::ReduceScatter { op, send: Some(send.into()), recv: recv.into() })
    }

    /// Copies the `data` of replica `root` to the `data` of all replicas, which has the same count.
    ///
    /// # Errors
    /// As [`Communicator::broadcast`](crate::Communicator::broadcast).
    ///
    /// ```
    /// use consonance::MirroredStrategy;
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let weights = strategy.run(|replica| {
    ///     let mut weights = [replica.replica_id_in_sync_group() as f32; 2];
    ///     replica.broadcast_slice(&mut weights, 1)?;
    ///     Ok(weights)
    /// })?;
    /// assert_eq!(weights.values(), [[1.0, 1.0], [1.0, 1.0]]);
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn broadcast_slice<T: Element>(&self, data: &mut [T], root: usize) -> Result<()> {
        self.require("ReplicaContext::broadcast_slice")?;
        self.configured().call(Call::Broadcast { data: data.into(), root })
    }

    /// Concatenates the `send` of all replicas, in replica order, into `recv`. Counts are the same
    /// on all replicas.
    ///
    /// # Errors
    /// As [`Communicator::all_gather`](crate::Communicator::all_gather).
    ///
    /// ```
    /// use consonance::MirroredStrategy;
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let all = strategy.run(|replica| {
    ///     let mut all = [0u64; 2];
    ///     replica.all_gather_slice(&[replica.replica_id_in_sync_group() as u64], &mut all)?;
    ///     Ok(all)
    /// })?;
    /// assert_eq!(all[0], [0, 1]);
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn all_gather_slice<T: Element>(&self, send: &[T], recv: &mut [T]) -> Result<()> {
        self.require("ReplicaContext::all_gather_slice")?;
        self.configured().call(Call::AllGather { send: Some(send.into()), recv: recv.into(), counts: None })
    }

    /// Sends the `bytes` of replica `root` to all replicas. The `bytes` of the others are replaced:
    /// they need not know the length.
    ///
    /// # Errors
    /// As [`Communicator::broadcast_bytes`](crate::Communicator::broadcast_bytes).
    ///
    /// ```
    /// use consonance::MirroredStrategy;
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let names = strategy.run(|replica| {
    ///     let mut name = if replica.replica_id_in_sync_group() == 0 { b"model-7".to_vec() } else { vec![] };
    ///     replica.broadcast_bytes(&mut name, 0)?;
    ///     Ok(name)
    /// })?;
    /// assert_eq!(names[1], b"model-7");
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn broadcast_bytes(&self, bytes: &mut Vec<u8>, root: usize) -> Result<()> {
        self.require("ReplicaContext::broadcast_bytes")?;
        self.configured().broadcast_bytes(bytes, root)
    }

    /// Returns the `bytes` of all replicas, in replica order. Lengths may differ.
    ///
    /// # Errors
    /// As [`Communicator::all_gather_bytes`](crate::Communicator::all_gather_bytes).
    ///
    /// ```
    /// use consonance::MirroredStrategy;
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let all = strategy.run(|replica| replica.all_gather_bytes(&vec![7; replica.replica_id_in_sync_group()]))?;
    /// assert_eq!(all[0], [vec![], vec![7]]);
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn all_gather_bytes(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.require("ReplicaContext::all_gather_bytes")?;
        self.configured().all_gather_bytes(bytes)
    }

    /// Sends the `object` of replica `root` to all replicas. The others pass `None`. Needs the
    /// feature `serde`.
    ///
    /// # Errors
    /// As [`Communicator::broadcast_object`](crate::Communicator::broadcast_object).
    ///
    /// ```
    /// use consonance::MirroredStrategy;
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let settings = ("adam".to_owned(), vec![0.9, 0.999]);
    /// let received = strategy.run(|replica| {
    ///     let own = (replica.replica_id_in_sync_group() == 0).then_some(&settings);
    ///     replica.broadcast_object(own, 0)
    /// })?;
    /// assert_eq!(received[1], settings);
    /// # Ok::<(), consonance::Error>(())
    /// ```
    #[cfg(feature = "serde")]
    pub fn broadcast_object<T: serde::Serialize + serde::de::DeserializeOwned>(
        &self,
        object: Option<&T>,
        root: usize,
    ) -> Result<T> {
        self.require("ReplicaContext::broadcast_object")?;
        self.configured().broadcast_object(object, root)
    }

    /// Returns the `object` of every replica, in replica order. Needs the feature `serde`.
    ///
    /// # Errors
    /// As [`Communicator::all_gather_object`](crate::Communicator::all_gather_object).
    ///
    /// ```
    /// use consonance::MirroredStrategy;
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let all = strategy.run(|replica| {
    ///     replica.all_gather_object(&format!("replica {}", replica.replica_id_in_sync_group()))
    /// })?;
    /// assert_eq!(all[0], ["replica 0", "replica 1"]);
    /// # Ok::<(), consonance::Error>(())
    /// ```
    #[cfg(feature = "serde")]
    pub fn all_gather_object<T: serde::Serialize + serde::de::DeserializeOwned>(&self, object: &T) -> Result<Vec<T>> {
        self.require("ReplicaContext::all_gather_object")?;
        self.configured().all_gather_object(object)
    }
}
