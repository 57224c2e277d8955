//! The names that most programs use, for `use consonance::prelude::*`. They clash with no name of
//! the standard library or of `ndarray`: errors and results keep their path.
//!
//! ```
//! use consonance::prelude::*;
//! let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
//! let sums = strategy.run(|replica| replica.all_reduce(ReduceOp::Sum, Tensor::from([1.0f32, 2.0])))?;
//! assert_eq!(strategy.local_results(&sums)[0], Tensor::from([2.0f32, 4.0]));
//! # Ok::<(), consonance::Error>(())
//! ```

pub use crate::{
    CentralStorageStrategy, ClusterResolver, Dataset, Element, IndexedSlices, MirroredStrategy,
    MultiWorkerMirroredStrategy, Nest, OneDeviceStrategy, PerReplica, ReduceOp, ReplicaContext, Strategy, Tensor,
    Variable, VariableAggregation, VariableSynchronization, dataset,
};
