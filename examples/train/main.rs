//! Data-parallel training: copy both files of this folder as the start of a program of your own. It
//! depends on `consonance`, and for its data on
//! `smartcore = { version = "0.7", default-features = false, features = ["datasets"] }`.
//!
//! ```text
//! cargo run --release --example train                    # two replicas: threads of one process
//! cargo run --release --example train -- folder          # saves each epoch, and resumes from there
//! consonance run -n 2 -- target/release/examples/train   # four replicas, in two processes
//! ```

mod model;

use consonance::{DType, Result, checkpoint::CheckpointManager, prelude::*, training::Accuracy, training::Mean};
use model::{CLASSES, PIXELS, Pass};
use smartcore::dataset::digits::load_dataset;
use std::{env, ops::Range};

const REPLICAS: usize = 2;
const EPOCHS: u64 = 20;
const BATCH: usize = 60;
const LEARNING_RATE: f32 = 0.5;

fn main() -> Result<()> {
    // The workers that a launcher starts find each other. Without one this is the only worker.
    let strategy = MultiWorkerMirroredStrategy::from_environment()?.replicas(REPLICAS).build()?;

    // 1,797 handwritten digits: 1,500 to train on, the others to test with.
    let digits = load_dataset();
    let pixels: Vec<f32> = digits.data.iter().map(|brightness| brightness / 16.0).collect();
    let images = Tensor::new([digits.num_samples, PIXELS], &pixels)?;
    let labels: Tensor = digits.target.iter().map(|&digit| digit as u32).collect();
    let samples = |rows: Range<usize>| dataset::from_tensor_slices((images.rows(rows.clone())?, labels.rows(rows)?));
    // Each replica gets its part of every batch.
    let train = strategy.distribute_dataset(samples(0..1500)?.shuffle(1).batch(BATCH))?;
    let test = strategy.distribute_dataset(samples(1500..digits.num_samples)?.batch(BATCH))?;

    let weights = strategy.variable(|| Tensor::zeros(DType::F32, [PIXELS, CLASSES]))?;
    let checkpoints = env::args_os().nth(1).map(|folder| CheckpointManager::new(folder, 3)).transpose()?;
    let resumed = checkpoints.as_ref().map(|manager| manager.restore_or_initialize([("weights", &weights)]));
    for epoch in resumed.transpose()?.flatten().map_or(0, |restored| restored.step)..EPOCHS {
        let (mut loss, mut right) = (Mean::new(), Accuracy::new());
        for batch in train.epoch(epoch) {
            let pass = compute(&strategy, &weights, batch?)?;
            weights.assign_sub(pass.step(LEARNING_RATE)?)?;
            loss += pass.loss;
        }
        for batch in &test {
            right += compute(&strategy, &weights, batch?)?.right;
        }
        if let Some(manager) = &checkpoints {
            manager.save(epoch + 1, [("weights", &weights)])?;
        }
        if let (true, Some(loss), Some(right)) = (strategy.is_chief(), loss.value(), right.value()) {
            println!("epoch {epoch:2}: loss {loss:.4}, {:.1} % of the test digits are read right", 100.0 * right);
        }
    }
    Ok(())
}

/// Computes a batch on all replicas. Returns the sum, which has the same bits on each of them.
fn compute(strategy: &Strategy, weights: &Variable, batch: PerReplica<(Tensor, Tensor)>) -> Result<Pass> {
    let weights = weights.read()?;
    // This function runs on every replica at once, each on its own thread.
    let sums = strategy.run_with(batch, |replica, (images, labels)| {
        replica.all_reduce(ReduceOp::Sum, Pass::new(&weights, &images, &labels)?)
    })?;
    Ok(sums[0].clone())
}
