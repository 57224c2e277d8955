//! `merge_call`: one function for all replicas, in the cross-replica context.

use super::board::{Left, Merging};
use crate::{
    Error, Nest, PerReplica, ReplicaContext, Result, Strategy,
    comm::agreement::Agreement,
    execution::{Workers, context},
    kind,
    value::{nest, per_replica::Merged},
};
use consonance_kernels::{
    digest::{digest, mix},
    group::Reason,
};
use std::{
    any::{TypeId, type_name},
    hash::{BuildHasher, BuildHasherDefault, DefaultHasher},
    marker::PhantomData,
    ops::Range,
};

impl ReplicaContext<'_> {
    /// Pauses all replicas, runs `merge` once in the cross-replica context with the arguments of
    /// all replicas, and resumes them with its result. A [`PerReplica`] gives each replica its own
    /// value, a [`Mirrored`](crate::Mirrored) ([`Strategy::mirror`]) gives all the same value, and
    /// `()` gives none.
    ///
    /// The function of replica 0 runs. If several processes have replicas, the function of the
    /// first replica of each process runs there, with the arguments of the replicas of that
    /// process. Its cross-replica calls are collectives of all replicas.
    ///
    /// The arguments are a nest. Its structure (the path of each leaf, and whether it is sparse)
    /// must be the same on all replicas. Tensors may differ in dtype and shape. Wrap a value that
    /// is not a nest in a [`nest::Opaque`].
    ///
    /// # Errors
    /// * [`Error::Mismatch`] with the path of the first leaf that another replica does not have.
    /// * The error of `merge`. All replicas get an [`Error::Mismatch`], [`Error::Left`],
    ///   [`Error::Timeout`] or [`Error::Aborted`] unchanged. Of any other error, replicas that did
    ///   not run the function get the text, in an [`Error::Replica`] that names the replica that
    ///   did. If several processes have replicas, the replicas of a process get the error of its
    ///   function. That error aborts the group, except an [`Error::Mismatch`], which all functions
    ///   get.
    /// * Otherwise as [`barrier`](ReplicaContext::barrier).
    ///
    /// ```
    /// use consonance::{MirroredStrategy, ReduceOp, Tensor};
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let totals = strategy.run(|replica| {
    ///     let x = Tensor::from(replica.replica_id_in_sync_group() as i32);
    ///     replica.merge_call(x, |strategy, all| Ok(strategy.mirror(strategy.reduce(ReduceOp::Sum, &all, None)?)))
    /// })?;
    /// assert_eq!(totals.values(), [Tensor::from(1), Tensor::from(1)]);
    ///
    /// // A function that only does something, such as to apply gradients.
    /// let weight = strategy.variable(|| Tensor::from(1.0f32))?;
    /// strategy.run(|replica| {
    ///     let gradient = Tensor::from(0.25 * replica.replica_id_in_sync_group() as f32);
    ///     replica.merge_call(gradient, |strategy, gradients| {
    ///         let sum = strategy.reduce(ReduceOp::Sum, &gradients, None)?;
    ///         strategy.update(&weight, |copy| copy.assign_sub(sum.clone()))?;
    ///         Ok(())
    ///     })
    /// })?;
    /// assert_eq!(weight.read()?, Tensor::from(0.75f32));
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn merge_call<A, M>(
        &self,
        mut arguments: A,
        merge: impl FnOnce(&Strategy, PerReplica<A>) -> Result<M>,
    ) -> Result<M::Value>
    where
        A: Nest + Send + 'static,
        M: Merged,
        M::Value: Send + 'static,
    {
        self.require("ReplicaContext::merge_call")?;
        // The function's calls are in no order with those that were enqueued.
        self.held().synchronize()?;
        let leaves = nest::take(&mut arguments);
        let structure = nest::Structure::new(&leaves);
        let arguments = nest::put(arguments, leaves).map_err(|error| error.of_call("ReplicaContext::merge_call"))?;
        let types = type_name::<(A, M)>();
        // Two types may have the same name, so type ids are compared too. Ids of another process
        // mean nothing, because it may be another build. With several processes, the replica that
        // runs the merge function compares the types within its process.
        let ids = self.strategy.workers().is_none().then(TypeId::of::<(A, M::Value)>);
        let describe = || {
            let ids = ids.map(|ids| ("type ids".to_owned(), format!("{ids:?}")));
            [("types".to_owned(), types.to_owned())].into_iter().chain(ids).chain(structure.lines()).collect()
        };
        let digest =
            mix(mix(digest(types), structure.digest()), BuildHasherDefault::<DefaultHasher>::new().hash_one(ids));
        let merges = *self.board.merges();
        self.board.put(self.place(), Box::new(Left::<A, M::Value>(arguments, PhantomData)));
        let arrived = self.meet(kind::MERGE_CALL, &Agreement { digest, describe: &describe, ..Agreement::NONE });
        if let Err(Error::Mismatch { .. }) = arrived {
            self.board.take(self.place());
        }
        arrived?;
        let failure = match self.strategy.workers() {
            None if self.place() == 0 => self.merge::<A, M>(merge),
            None => None,
            Some(workers) => self.lend_to_merge(workers, merges, || self.merge::<A, M>(merge))?,
        };
        let returned = self.meet(kind::MERGE_RETURN, &Agreement::NONE);
        if let Err(Error::Mismatch { .. }) = returned {
            // The function of another worker makes calls that this worker's did not make, and has
            // not returned yet.
            self.held().abort_handle().abort(Reason::Failure);
        }
        let result = match &returned {
            // Without this barrier the function may not have returned: the board may hold arguments
            // for it.
            Err(_) if self.strategy.workers().is_none() => None,
            _ => self.board.take(self.place()),
        };
        let result = result.and_then(|result| result.downcast::<Result<M::Value>>().ok());
        match (result.map(|result| *result), failure) {
            (_, Some(error)) | (Some(Err(error)), None) => Err(error),
            (Some(Ok(value)), None) => returned.map(|()| value),
            (None, None) => {
                Err(returned.expect_err("the first replica leaves a result of the agreed type for every replica"))
            }
        }
    }

    /// Lends the communicators of this worker's replicas to the merge function that the first of
    /// them runs. `merges` functions have ended before it.
    fn lend_to_merge(
        &self,
        workers: &Workers,
        merges: usize,
        merge: impl FnOnce() -> Option<Error>,
    ) -> Result<Option<Error>> {
        let aborter = self.held().abort_handle();
        self.held().lend();
        let timeout = self.strategy.options().configuration().timeout;
        let result = if self.place() == 0 {
            let _merging = Merging(&self.board);
            let _turn = workers.hand_over();
            let failure = merge();
            if failure.as_ref().is_some_and(|error| !matches!(error, Error::Mismatch { .. })) {
                // Tell the other workers' functions by an abort. They get a mismatch without it.
                aborter.abort(Reason::Failure);
            }
            Ok(failure)
        } else if self.board.wait_for_merge(merges, timeout) {
            Ok(None)
        } else {
            let first = self.strategy.local_replicas().start;
            let late = aborter.give_up(first, timeout);
            let what = match late == first {
                true => "its merge function has not returned".to_owned(),
                false => format!("the merge function of replica {first} waits for it"),
            };
            let missing = vec![(late, what)];
            Err(Error::Timeout { call: kind::MERGE_RETURN.to_string(), waited: timeout, missing })
        };
        self.held().take_back();
        result
    }

    /// Runs the merge function, and leaves each replica's result on the board. If the function
    /// fails, leaves the error for the other replicas there, and returns the error itself.
    fn merge<A, M>(&self, merge: impl FnOnce(&Strategy, PerReplica<A>) -> Result<M>) -> Option<Error>
    where
        A: Send + 'static,
        M: Merged,
        M::Value: Send + 'static,
    {
        let Range { start, end } = self.strategy.local_replicas();
        let replicas = end - start;
        let mut arguments = Vec::with_capacity(replicas);
        for place in 0..replicas {
            let left = self.board.take(place).expect("every replica left its arguments before it arrived");
            let Ok(left) = left.downcast::<Left<A, M::Value>>() else {
                let expected = format!("the types of replica {start}, {}", type_name::<(A, M)>());
                let error = Error::invalid("ReplicaContext::merge_call", "types", expected, "others of these names");
                return Some(error.of_replica(start + place));
            };
            arguments.push(left.0);
        }
        let arguments = PerReplica::new(arguments);
        let merged = context::within(&self.strategy, None, || merge(&self.strategy, arguments)).and_then(|merged| {
            let values = merged.split(replicas);
            if values.len() == replicas {
                return Ok(values);
            }
            let (expected, found) = (format!("{replicas} values"), format!("{} values", values.len()));
            Err(Error::invalid("ReplicaContext::merge_call", "the merge function's result", expected, found))
        });
        match merged {
            Ok(values) => {
                for (place, value) in values.into_iter().enumerate() {
                    self.board.put(place, Box::new(Ok::<_, Error>(value)));
                }
                None
            }
            Err(error) => {
                for place in 0..replicas {
                    self.board.put(place, Box::new(Err::<M::Value, _>(merge_failed(start, &error))));
                }
                Some(error)
            }
        }
    }
}

/// Returns the error of the merge function that `replica` ran, for the other replicas. An error of
/// a collective is the same for all; any other error belongs to that replica.
fn merge_failed(replica: usize, error: &Error) -> Error {
    match error {
        Error::Mismatch { .. } | Error::Left { .. } | Error::Timeout { .. } | Error::Aborted { .. } => error.clone(),
        _ => {
            let source = Error::other(format!("its merge function failed: {error}"));
            Error::Replica { replica, source: Box::new(source) }
        }
    }
}
