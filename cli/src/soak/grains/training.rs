//! A training whose gradients are random, and depend on the weights.

use super::schedule::Kind;
use consonance::{Error, IndexedSlices, Nest, ReduceOp, Result, Strategy, Tensor, Variable, checkpoint};
use consonance_kernels::digest::mix;
use std::path::Path;

/// The shape of the weights: their nodes take more than the ranks give each other at once.
const SHAPE: [usize; 2] = [96, 32];

/// The elements of the bias.
const BIAS: usize = 10;

/// The most rows of a sparse gradient of a grain.
const ROWS: u64 = 6;

/// The state of a replica, the same on all.
#[derive(Clone, Nest)]
pub(super) struct State {
    /// The number of steps that are done.
    pub(super) step: u64,
    weights: Tensor,
    bias: Tensor,
}

impl State {
    pub(super) fn new() -> Result<State> {
        Ok(State { step: 0, weights: random(0, &SHAPE)?, bias: random(1, &[BIAS])? })
    }

    /// Does a step.
    ///
    /// # Errors
    /// Those of collectives. The state is then as before.
    pub(super) fn step(&mut self, strategy: &Strategy, kind: Kind) -> Result<()> {
        let (weights, bias) = match kind {
            Kind::Dense => {
                self.mean(strategy, |word| Ok((self.dense(mix(word, 0))?, random(mix(word, 1), &[BIAS])?)))?
            }
            Kind::Sparse => {
                let of_grain = |word| Ok((self.sparse(mix(word, 0))?, random(mix(word, 1), &[BIAS])?));
                let (weights, bias): (IndexedSlices, Tensor) = self.mean(strategy, of_grain)?;
                (weights.to_dense()?, bias)
            }
        };
        descend(&mut self.weights, &weights)?;
        descend(&mut self.bias, &bias)?;
        self.step += 1;
        Ok(())
    }

    /// Returns the mean of what `of_grain` returns for the seeds of all grains.
    fn mean<N: Nest + Send>(&self, strategy: &Strategy, of_grain: impl Fn(u64) -> Result<N> + Sync) -> Result<N> {
        let means = strategy.run(|replica| {
            let (mut mean, mut grains) = (replica.accumulator(ReduceOp::Mean)?, replica.grains());
            let last = grains.next_back().ok_or_else(|| Error::other("a replica without a grain"))?;
            for grain in grains {
                mean.add(of_grain(replica.seed(self.step, grain))?)?;
            }
            mean.all_reduce(of_grain(replica.seed(self.step, last))?)
        })?;
        means.into_values().into_iter().next().ok_or_else(|| Error::other("a process without a replica"))
    }

    fn dense(&self, word: u64) -> Result<Tensor> {
        let mut gradient = random(word, &SHAPE)?;
        let weights = self.weights.as_slice::<f32>()?;
        gradient.as_mut_slice::<f32>()?.iter_mut().zip(weights).for_each(|(gradient, weight)| *gradient += weight);
        Ok(gradient)
    }

    /// Returns a few rows, of which some may be the same.
    fn sparse(&self, word: u64) -> Result<IndexedSlices> {
        let indices: Vec<i64> =
            (0..1 + mix(word, 1) % ROWS).map(|row| (mix(word, 2 + row) % SHAPE[0] as u64) as i64).collect();
        let weights = self.weights.as_slice::<f32>()?;
        let mut values = random(word, &[indices.len(), SHAPE[1]])?;
        for (row, index) in values.as_mut_slice::<f32>()?.chunks_mut(SHAPE[1]).zip(&indices) {
            let weights = &weights[*index as usize * SHAPE[1]..];
            row.iter_mut().zip(weights).for_each(|(value, weight)| *value += weight);
        }
        IndexedSlices::new(values, Tensor::from(indices), Some(SHAPE.to_vec()))
    }

    /// Returns a digest of all bits.
    pub(super) fn digest(&self) -> Result<u64> {
        let elements = self.weights.as_slice::<f32>()?.iter().chain(self.bias.as_slice::<f32>()?);
        Ok(elements.fold(self.step, |digest, element| mix(digest, element.to_bits().into())))
    }

    /// Saves the state.
    ///
    /// # Errors
    /// Those of [`checkpoint::save`].
    pub(super) fn save(&self, path: &Path) -> Result<()> {
        let variables = self.variables()?;
        checkpoint::save(path, variables.iter().map(|(name, variable)| (*name, variable)))
    }

    /// Restores the saved state.
    ///
    /// # Errors
    /// Those of [`checkpoint::restore`].
    pub(super) fn restore(&mut self, path: &Path) -> Result<()> {
        let variables = self.variables()?;
        checkpoint::restore(path, variables.iter().map(|(name, variable)| (*name, variable)))?;
        let [(_, step), (_, weights), (_, bias)] = variables;
        *self = State { step: step.read()?.item()?, weights: weights.read()?, bias: bias.read()? };
        Ok(())
    }

    fn variables(&self) -> Result<[(&'static str, Variable); 3]> {
        Ok([
            ("step", Variable::new(Tensor::from(self.step))?),
            ("weights", Variable::new(self.weights.clone())?),
            ("bias", Variable::new(self.bias.clone())?),
        ])
    }

    /// Gives every replica the state of the one that has done the most steps.
    ///
    /// # Errors
    /// Those of collectives.
    pub(super) fn catch_up(&mut self, strategy: &Strategy) -> Result<()> {
        let states = strategy.run(|replica| {
            let steps = replica.all_gather(Tensor::from([self.step]), 0)?;
            let steps = steps.as_slice::<u64>()?;
            let most = steps.iter().max().and_then(|most| steps.iter().position(|step| step == most));
            replica.broadcast(self.clone(), most.unwrap_or(0))
        })?;
        *self = states[0].clone();
        Ok(())
    }
}

fn descend(tensor: &mut Tensor, gradient: &Tensor) -> Result<()> {
    let gradient = gradient.as_slice::<f32>()?;
    tensor.as_mut_slice::<f32>()?.iter_mut().zip(gradient).for_each(|(value, gradient)| *value -= 0.1 * gradient);
    Ok(())
}

/// Returns numbers of very different sizes, so that each order of a sum rounds in another way.
fn random(word: u64, shape: &[usize]) -> Result<Tensor> {
    let number = |index: u64| {
        let word = mix(word, index);
        let fraction = (word >> 40) as f32 / (1 << 24) as f32 - 0.5;
        fraction * f32::powi(2.0, (word % 16) as i32 - 12)
    };
    let elements: Vec<f32> = (0..shape.iter().product::<usize>() as u64).map(number).collect();
    Tensor::new(shape, &elements)
}
