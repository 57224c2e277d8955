//! Copies of tensors in the memory of other devices.

use crate::{Device, Error, Result, Tensor, device};
use consonance_kernels::memory::Space;

impl Tensor {
    /// Returns a tensor of the same elements in the memory of this device: this one if they lie
    /// there, else a copy, which is made after the calls that are enqueued on them.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] for a device that does not exist; [`Error::System`] if a device has
    /// no memory, or cannot be read or written.
    ///
    /// ```
    /// use consonance::Tensor;
    /// let x = Tensor::from([1.5f32, 2.5]);
    /// assert_eq!(x.to("cpu:0")?, x);
    /// // Without a GPU the error says what is missing.
    /// if let Ok(on_gpu) = x.to("cuda:0") {
    ///     assert_eq!(on_gpu.to_host()?, x);
    /// }
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn to<D>(&self, device: D) -> Result<Tensor>
    where
        D: TryInto<Device>,
        Error: From<D::Error>,
    {
        self.clone().into_space("Tensor::to", device::resolve("Tensor::to", device)?.space())
    }

    /// Returns a tensor of the same elements in this memory: this one if they lie there, else a
    /// copy.
    ///
    /// # Errors
    /// [`Error::WrongContext`] in a child that was forked after the driver was loaded;
    /// [`Error::System`] if a device cannot be opened, has no memory, or cannot be read or written.
    pub(crate) fn into_space(self, call: &'static str, space: Space) -> Result<Tensor> {
        if self.space() == space {
            return Ok(self);
        }
        let on_host = self.to_host()?;
        let gpu = match space {
            Space::Host => return Ok(on_host),
            Space::Cuda(gpu) => device::open(call, gpu as usize)?,
        };
        let what = || format!("copy {} to {}", self.spec(), gpu.space());
        let copied = gpu.alloc(self.dtype(), self.count()).and_then(|mut memory| {
            memory.write(0, on_host.host().expect("a copy on the host"))?;
            Ok(memory)
        });
        Tensor::from_memory(self.shape().to_vec(), copied.map_err(|source| Error::system(what(), source))?)
    }
}
