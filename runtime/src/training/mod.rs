//! The parts of a data-parallel training loop beside the model: averaged gradients, their norm, a
//! comparison of the parameters, and metrics.
//!
//! | | |
//! |---|---|
//! | [`compare_parameters`] | at the start: an error names the replica and the tensor that differ |
//! | [`Gradients`] | sums or averages gradients over the replicas, while the backward pass computes them; accumulates several passes without communication |
//! | [`clip_by_global_norm`] | scales gradients down, by the same bits on every replica |
//! | [`Mean`], [`Sum`], [`Accuracy`], [`Precision`], [`Recall`], [`Auc`] | metrics over all samples of all replicas |
//!
//! Each replica has its own state, which [`run_with`](crate::Strategy::run_with) lends to it for a
//! run. The [guide](crate::guide::training) has a whole loop.
//!
//! ```
//! use consonance::{MirroredStrategy, PerReplica, Result, Tensor, training::{self, Gradients, Mean}};
//!
//! /// Fits y = w x, and returns the mean loss of the step.
//! fn step(replica: &consonance::ReplicaContext<'_>, w: &mut f32) -> Result<f64> {
//!     let x = 1.0 + replica.replica_id_in_sync_group() as f32;
//!     let mut loss = Mean::new();
//!     let mut gradients = Gradients::mean();
//!     let reduced = gradients.all_reduce(replica, |pass| {
//!         let error = *w * x - 3.0 * x;
//!         loss.add(f64::from(error * error));
//!         pass.push(2.0 * error * x)
//!     })?;
//!     let mut gradient = reduced.gradients[0];
//!     training::clip_by_global_norm(&mut gradient, 10.0)?;
//!     *w -= 0.1 * gradient;
//!     Ok(loss.result(replica)?.expect("each replica has a sample"))
//! }
//!
//! let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
//! let mut weights = [0.0f32; 2];
//! let losses = strategy.run_with(PerReplica::new(weights.iter_mut().collect()), |replica, w| {
//!     training::compare_parameters(replica, w)?;
//!     (0..9).map(|_| step(replica, w)).collect::<Result<Vec<f64>>>()
//! })?;
//! assert!(losses[0][8] < 0.2 && losses[0] == losses[1]);
//! assert_eq!(weights[0], weights[1]);
//! # Ok::<(), consonance::Error>(())
//! ```

mod gradients;
mod clipping;
mod comparison;
mod metrics;
mod classes;

pub use classes::{Auc, Curve, Precision, Recall};
pub use clipping::{clip_by_global_norm, global_norm};
pub use comparison::compare_parameters;
pub use gradients::{Communication, Gradients, Pass, Reduced};
pub use metrics::{Accuracy, Mean, Sum};
