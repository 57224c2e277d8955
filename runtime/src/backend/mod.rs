//! Who carries out collectives: the seam between what users call and where ranks live.

mod host;

pub(crate) use host::{Host, Processes};

use crate::{Result, call::Call};
use consonance_kernels::{buffer::Memory, plan::Ground, step::Aborter};
use consonance_spec::{DType, Kind, Signature, World, call::mix};
use std::{ops::Range, time::Duration};

/// One rank of a group, wherever its peers are. `&mut self`: one call at a time is a fact of the type.
pub(crate) trait Backend: Send {
    /// This rank and the number of ranks.
    fn world(&self) -> World;

    /// Carries out `call`, whose `signature`, with that of the `arguments`, has been checked on this rank.
    ///
    /// # Errors
    /// [`Error::Mismatch`](crate::Error::Mismatch), [`Error::Left`](crate::Error::Left),
    /// [`Error::Timeout`](crate::Error::Timeout), [`Error::Aborted`](crate::Error::Aborted).
    fn execute(&mut self, call: Call<'_>, signature: &Signature, arguments: &Arguments<'_>) -> Result<()>;

    /// Takes part in the others' call with one that cannot be right, so that they need not wait: they are told `why`.
    ///
    /// # Errors
    /// As [`execute`](Backend::execute), if they were not told; what they did is their error.
    fn refuse(&mut self, signature: &Signature, why: &str) -> Result<()>;

    /// The group of the ranks that give the same `color`, ordered by `key` and then by rank; none for no color.
    ///
    /// # Errors
    /// As [`execute`](Backend::execute).
    fn split(&mut self, color: Option<u32>, key: i32) -> Result<Option<Box<dyn Backend>>>;

    /// Sets how the next calls are carried out.
    fn configure(&mut self, options: &Configuration);

    /// `count` elements, all zero, that every rank can read and write in place.
    ///
    /// # Errors
    /// [`Error::System`](crate::Error::System) if there is no memory for them.
    fn alloc(&self, dtype: DType, count: usize) -> Result<Memory>;

    /// What the way of the group's data depends on, or of those of this rank and `peer` alone, if they have met.
    fn ground(&self, peer: Option<usize>) -> Ground;

    /// A handle that ends the group from any thread.
    fn aborter(&self) -> Aborter;

    /// After an abort, waits until all ranks are ready to go on, and goes on; otherwise does nothing.
    ///
    /// # Errors
    /// As [`execute`](Backend::execute): a rank that is lost does not come back.
    fn renew(&mut self) -> Result<()>;

    /// Says whether this rank rests: it makes no call before `company`, ranks of the same process, have ended theirs.
    fn rest(&mut self, company: Range<usize>, resting: bool);
}

/// How calls are carried out. Results do not depend on it by a bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Configuration {
    /// How long a rank waits for another.
    pub(crate) timeout: Duration,
    /// How an all-reduce is done.
    pub(crate) implementation: Implementation,
}

/// How an all-reduce is done. The result is the same, bit for bit.
///
/// ```
/// use consonance::{Communicator, Implementation, ReduceOp};
/// let mut alone = Communicator::threads(1).remove(0);
/// alone.set_implementation(Implementation::OneShot);
/// let mut data = [1.5f32];
/// alone.all_reduce(ReduceOp::Sum, &mut data)?;
/// # Ok::<(), consonance::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Implementation {
    /// By size, as measured.
    #[default]
    Auto,
    /// Every rank reads all data and reduces all of it.
    OneShot,
    /// Every rank reduces its block of all data and writes it to all.
    TwoShot,
}

/// What a call's arguments are beyond its buffers: a digest that all ranks compare, and the words for it if they differ.
#[derive(Clone, Copy)]
pub(crate) struct Arguments<'a> {
    /// The call that users made, where the step at hand is of another kind.
    pub(crate) call: Option<Kind>,
    /// 0 where there is nothing more to compare.
    pub(crate) digest: u64,
    /// Each argument with its value, in an order that is the same on all ranks.
    pub(crate) describe: &'a dyn Fn() -> Vec<(String, String)>,
}

impl Arguments<'_> {
    /// Nothing beyond the buffers.
    pub(crate) const NONE: Arguments<'static> = Arguments { call: None, digest: 0, describe: &Vec::new };

    /// Adds their digest to a call's signature, if there are any.
    #[inline]
    pub(crate) fn sign(&self, signature: &mut Signature) {
        if self.digest != 0 {
            signature.detail = mix(signature.detail, self.digest);
        }
    }
}
