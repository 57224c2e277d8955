//! The state of a training between two epochs, in a checkpoint.

use crate::{network::Network, plan::Plan};
use consonance::{Error, Result, Tensor, Variable, checkpoint};
use std::path::Path;

/// The state of a replica. All replicas start from the same state and apply the same gradients, so
/// their states stay the same.
#[derive(Clone)]
pub(crate) struct Model {
    pub(crate) network: Network,
    pub(crate) velocity: Network,
}

impl Model {
    /// Saves the model after `epoch`.
    pub(crate) fn save(&self, path: &Path, plan: &Plan, grains: usize, epoch: usize) -> Result<()> {
        let mut state = self.tensors();
        state.push(("plan".to_owned(), identity(plan, grains)));
        state.push(("epoch".to_owned(), Tensor::from(epoch as u64)));
        let variables = variables(state)?;
        checkpoint::save(path, variables.iter().map(|(name, variable)| (name, variable)))
    }

    /// Restores the saved model, and returns the epoch after which it was saved.
    ///
    /// # Errors
    /// Those of [`checkpoint::restore`]. Also an error if the file is of another training, which
    /// this one cannot continue.
    pub(crate) fn restore(&mut self, path: &Path, plan: &Plan, grains: usize) -> Result<usize> {
        let mine = identity(plan, grains);
        let about = variables(vec![
            ("plan".to_owned(), Tensor::zeros(mine.dtype(), mine.shape())),
            ("epoch".to_owned(), Tensor::from(0u64)),
        ])?;
        checkpoint::restore(path, about.iter().map(|(name, variable)| (name, variable)))?;
        let saved = about[0].1.read()?;
        if saved != mine {
            return Err(Error::other(format!(
                "{} is of another training: [grains, batch, seed, bits of the learning rate] were {saved:#}, not {mine:#}",
                path.display()
            )));
        }
        let epoch = about[1].1.read()?.item::<u64>()? as usize;
        if epoch > plan.epochs {
            let problem = format!("{} is of epoch {epoch}, after the last of {}", path.display(), plan.epochs);
            return Err(Error::other(problem));
        }
        let variables = variables(self.tensors())?;
        checkpoint::restore(path, variables.iter().map(|(name, variable)| (name, variable)))?;
        for (tensor, (_, variable)) in self.network.tensors_mut().chain(self.velocity.tensors_mut()).zip(&variables) {
            *tensor = variable.read()?;
        }
        Ok(epoch)
    }

    /// Returns all tensors with their names.
    fn tensors(&self) -> Vec<(String, Tensor)> {
        let name = |of: &str, index: usize| format!("{of}.{}.{}", index / 2, ["weights", "bias"][index % 2]);
        let network =
            self.network.tensors().enumerate().map(|(index, tensor)| (name("network", index), tensor.clone()));
        let velocity =
            self.velocity.tensors().enumerate().map(|(index, tensor)| (name("velocity", index), tensor.clone()));
        network.chain(velocity).collect()
    }
}

/// Returns what must be the same for a resumed training to end with the same bits. The sizes of the
/// layers are not in it: they show in the weights' shapes.
fn identity(plan: &Plan, grains: usize) -> Tensor {
    Tensor::from([grains as u64, plan.batch as u64, plan.seed, plan.learning_rate.to_bits().into()])
}

fn variables(tensors: Vec<(String, Tensor)>) -> Result<Vec<(String, Variable)>> {
    tensors.into_iter().map(|(name, tensor)| Ok((name, Variable::new(tensor)?))).collect()
}
