//! Communicators whose calls take memory of a GPU, in the order of a stream of the caller.

use crate::{
    CommunicationOptions, Communicator, Device, Error, Result,
    comm::{
        call::Call,
        engine::{self, Buffers, OnGpu, Way},
    },
    device,
};
use consonance_kernels::{
    cuda::{CallerStream, Uuid},
    memory::Space,
};

/// The stream of the caller that orders calls, and why the engine cannot do so, if it cannot.
pub(super) struct Order {
    stream: CallerStream,
    refused: Option<Error>,
}

/// The order of calls by a stream. Its drop brings the order before it back.
struct Ordered<'c> {
    communicator: &'c mut Communicator,
    before: Option<Box<Order>>,
}

impl Communicator {
    /// Makes a new group of threads of this process, one on each of these devices, and returns its
    /// communicators in rank order. The calls of a rank on a GPU take buffers in its memory, and in
    /// that of the host. The [guide](crate::guide::strategies#gpus) has an example.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] for a device that does not exist; [`Error::System`] if a GPU cannot
    /// be opened.
    ///
    /// ```
    /// use consonance::{Communicator, Device};
    /// let ranks = Communicator::on_devices([Device::Cpu(0), Device::Cpu(1)])?;
    /// assert_eq!(ranks.len(), 2);
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn on_devices<D>(devices: impl IntoIterator<Item = D>) -> Result<Vec<Communicator>>
    where
        D: TryInto<Device>,
        Error: From<D::Error>,
    {
        const CALL: &str = "Communicator::on_devices";
        let devices = devices.into_iter().map(|device| device::resolve(CALL, device)).collect::<Result<Vec<_>>>()?;
        let engines = engine::local(CALL, &devices, CommunicationOptions::new().configuration())?;
        Ok(engines.into_iter().map(Communicator::from_engine).collect())
    }

    /// Puts this rank on a device: on a GPU its calls take buffers in the GPU's memory, too. They
    /// are made on copies in host memory. Each rank chooses for itself.
    ///
    /// # Errors
    /// As [`on_devices`](Communicator::on_devices).
    ///
    /// ```
    /// use consonance::Communicator;
    /// let alone = Communicator::threads(1).remove(0).on_device("cpu:0")?;
    /// assert_eq!(alone.size(), 1);
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn on_device<D>(self, device: D) -> Result<Communicator>
    where
        D: TryInto<Device>,
        Error: From<D::Error>,
    {
        const CALL: &str = "Communicator::on_device";
        let device = device::resolve(CALL, device)?;
        Ok(OnGpu::place(CALL, vec![self], &[device])?.remove(0))
    }

    /// Makes `calls` in the order of a stream of another library: a call on memory of the stream's
    /// GPU begins after the work that the stream has, and the stream's later work begins after the
    /// call. Calls on host memory are not ordered.
    ///
    /// A call compares itself with those of the other ranks on the host, as always. An all-reduce
    /// between ranks of one GPU that were made by [`on_devices`](Communicator::on_devices) then
    /// returns before the GPU has done it. Every other call waits on this thread for the stream's
    /// work, at most for the timeout, and is done when it returns.
    ///
    /// A stream of another device, and one that is being captured into a graph, are
    /// [`Error::InvalidCall`] from the calls, and all ranks are told.
    ///
    /// ```
    /// use consonance::{Communicator, Error, ReduceOp, raw::{CallerStream, Call, Agreement}};
    /// fn sum(rank: &mut Communicator, stream: &CallerStream, call: Call<'_>) -> Result<(), Error> {
    ///     rank.on_stream(stream, |rank| rank.execute(call, &Agreement::NONE))
    /// }
    /// ```
    pub fn on_stream<R>(&mut self, stream: &CallerStream, calls: impl FnOnce(&mut Communicator) -> R) -> R {
        let refused = self.engine.order_by(Some(stream)).err();
        let order = Some(Box::new(Order { stream: stream.clone(), refused }));
        let before = std::mem::replace(&mut self.order, order);
        let ordered = Ordered { communicator: self, before };
        calls(ordered.communicator)
    }

    /// Returns the way of the data of a call with these buffers, for `consonance explain`.
    #[doc(hidden)]
    pub fn way(&self, buffers: &Buffers) -> Way {
        self.engine.way(buffers)
    }

    /// Returns the number of this rank's GPU in this process, and its identity.
    #[doc(hidden)]
    pub fn gpu(&self) -> Option<(usize, Uuid)> {
        self.engine.explain(None).gpu
    }

    /// Checks a call on memory of a device, before the ranks compare it.
    #[inline]
    pub(super) fn check_on_device(&self, call: &Call<'_>) -> Result<()> {
        match call.outside(|space| space == Space::Host) {
            None => Ok(()),
            Some(_) => self.check_order_and_memory(call),
        }
    }

    #[cold]
    fn check_order_and_memory(&self, call: &Call<'_>) -> Result<()> {
        match self.order.as_ref().and_then(|order| order.refused.as_ref()) {
            Some(refused) => Err(refused.clone()),
            None => self.engine.check(call),
        }
    }
}

impl Drop for Ordered<'_> {
    fn drop(&mut self) {
        let before = self.before.take();
        let refused = self.communicator.engine.order_by(before.as_ref().map(|order| &order.stream));
        debug_assert_eq!(refused.is_err(), before.as_ref().is_some_and(|order| order.refused.is_some()));
        self.communicator.order = before;
    }
}
