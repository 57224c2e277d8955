//! Calls that the host computes: they take copies of values that lie in the memory of a device, and
//! put the results where the values lay.

use crate::{
    Communicator, Error, Result, Tensor,
    value::nest::{Leaf, Value},
};
use consonance_kernels::memory::{Memory, Space};

/// The memory in which each leaf of a nest lay; empty if all lay on the host.
pub(crate) struct Origin(Vec<Space>);

/// Moves leaves to the host.
///
/// # Errors
/// [`Error::System`] if a device cannot be read, or the host has no memory.
pub(crate) fn on_host(leaves: &mut [Leaf]) -> Result<Origin> {
    let lies_there = |leaf: &Leaf| match &leaf.value {
        Value::Dense(tensor) => tensor.space() == Space::Host,
        Value::Sparse(slices) => slices.values.space() == Space::Host && slices.indices.space() == Space::Host,
    };
    if leaves.iter().all(lies_there) {
        return Ok(Origin(Vec::new()));
    }
    let origin = leaves.iter_mut().map(|leaf| match &mut leaf.value {
        Value::Dense(tensor) => host_copy(tensor),
        Value::Sparse(slices) => host_copy(&mut slices.indices).and(host_copy(&mut slices.values)),
    });
    origin.collect::<Result<_>>().map(Origin)
}

/// Returns the memory in which the tensor lay.
fn host_copy(tensor: &mut Tensor) -> Result<Space> {
    let space = tensor.space();
    if space != Space::Host {
        *tensor = tensor.to_host()?;
    }
    Ok(space)
}

impl Origin {
    /// Whether some leaves lay in the memory of a device.
    pub(crate) fn is_on_device(&self) -> bool {
        !self.0.is_empty()
    }

    /// Moves results to where the leaves lay. The indices of rows stay on the host.
    ///
    /// # Errors
    /// [`Error::System`] if a device has no memory, or cannot be written.
    pub(crate) fn take_back(&self, communicator: &Communicator, leaves: &mut [Leaf]) -> Result<()> {
        for (leaf, &space) in leaves.iter_mut().zip(&self.0).filter(|(_, space)| **space != Space::Host) {
            let tensor = match &mut leaf.value {
                Value::Dense(tensor) => tensor,
                Value::Sparse(slices) => &mut slices.values,
            };
            if let Memory::Device(mut memory) = communicator.room(space, tensor.dtype(), tensor.count())? {
                let written = memory.write(0, tensor.host()?);
                written.map_err(|source| Error::system(format!("copy {} to {space}", tensor.spec()), source))?;
                *tensor = Tensor::from_memory(tensor.shape().to_vec(), memory)?;
            }
        }
        Ok(())
    }
}
