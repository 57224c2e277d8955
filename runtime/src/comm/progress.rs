//! Calls that are finished later than they return.

use crate::{Communicator, Error, Result, panics};
use consonance_kernels::group::Reason;

impl Communicator {
    /// Waits until the calls that an engine only [enqueued](crate::raw::Engine::synchronize) on a
    /// device are finished. Calls on host memory are finished when they return.
    ///
    /// # Errors
    /// The first error of these calls.
    ///
    /// ```
    /// # use consonance::Communicator;
    /// let mut alone = Communicator::threads(1).remove(0);
    /// alone.barrier()?;
    /// alone.synchronize()?;
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn synchronize(&mut self) -> Result<()> {
        self.engine.synchronize()
    }

    /// Does `work`, and waits until the calls that it enqueued are finished, also after an error:
    /// the engine uses their buffers until then. A panic of `work` aborts the group, and is the
    /// error.
    pub(crate) fn complete<R>(&mut self, work: impl FnOnce(&mut Communicator) -> Result<R>) -> Result<R> {
        let done = panics::catch(|| work(self)).unwrap_or_else(|message| {
            self.abort_handle().abort(Reason::Panic);
            Err(Error::Panic { replica: self.rank(), message })
        });
        let finished = self.synchronize();
        done.and_then(|value| finished.map(|()| value))
    }
}
