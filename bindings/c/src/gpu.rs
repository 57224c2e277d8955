//! The GPU of a rank, and the stream that orders its calls.

use consonance::{Communicator, Result, raw::CallerStream};
use std::sync::{Mutex, PoisonError};

/// The GPU of a rank.
pub(crate) struct OnGpu {
    pub(crate) number: u32,
    /// The stream of the next calls.
    stream: Mutex<Option<CallerStream>>,
}

/// The order of a call on memory of a GPU.
pub(crate) enum Order {
    /// The rank is on no GPU.
    Host,
    /// The GPU has done the call when it ends.
    Finished,
    /// The call is one of the stream's work.
    Stream(CallerStream),
}

impl OnGpu {
    pub(crate) fn new(number: u32) -> OnGpu {
        OnGpu { number, stream: Mutex::default() }
    }

    /// Sets the stream of the next calls.
    pub(crate) fn set_stream(&self, stream: Option<CallerStream>) {
        *self.stream.lock().unwrap_or_else(PoisonError::into_inner) = stream;
    }

    pub(crate) fn order(&self) -> Order {
        let stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner).clone();
        stream.map_or(Order::Finished, Order::Stream)
    }
}

impl Order {
    /// Does the work of a call in this order.
    #[inline(always)]
    pub(crate) fn make(
        self,
        communicator: &mut Communicator,
        work: impl FnOnce(&mut Communicator) -> Result<()>,
    ) -> Result<()> {
        match self {
            Order::Host => work(communicator),
            Order::Stream(stream) => communicator.on_stream(&stream, work),
            Order::Finished => {
                let done = work(communicator);
                // Also after an error: the GPU uses the buffers until then.
                let finished = communicator.synchronize();
                done.and(finished)
            }
        }
    }
}
