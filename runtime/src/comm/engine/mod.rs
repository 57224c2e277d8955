//! Who carries out collectives: the seam between what users call and where ranks live.

mod abort;
pub(crate) mod host;
mod lowered;

pub use abort::{Abort, AbortHandle};
pub(crate) use host::{Host, Processes};
pub(crate) use lowered::Lowered;

use crate::{
    Error, Result,
    comm::{call::Call, options::Configuration},
};
use consonance_kernels::{
    group::Reason,
    memory::{Memory, Space},
};
use consonance_spec::{DType, Kind, Signature, World};
use std::{any::Any, ops::Range};

/// One rank of a group, wherever its peers are. `&mut self`: one call at a time is a fact of the
/// type.
///
/// An engine that carries out [every call](Service::Calls) is used as it is. One that carries
/// [messages](Service::Messages) alone (MPI, a socket, a queue) gets two calls, [`Call::Send`] and
/// [`Call::Recv`]; the runtime makes all others of them: it compares the ranks' calls first, and
/// folds in the canonical order. So the bits, the checks and the words of errors are the same on
/// every engine. [`Communicator::from_engine`](crate::Communicator::from_engine) makes a
/// communicator of one.
///
/// The [guide](crate::guide::engines) has an engine of messages that runs.
///
/// Every wait of an engine ends at the deadline of its [`Configuration`], with [`Error::Timeout`]
/// that names who is missing, and ends the group, so that no peer waits longer.
pub trait Engine: Any + Send {
    /// This rank and the number of ranks.
    fn world(&self) -> World;

    /// What the engine does by itself.
    fn service(&self) -> Service;

    /// Whether the engine's calls take buffers in `space`. A call with others is refused before it
    /// gets here. By default they take host memory alone.
    fn reaches(&self, space: Space) -> bool {
        space == Space::Host
    }

    /// Begins a call of several messages: together their waits end at one deadline. Only an engine
    /// of [messages](Service::Messages) hears this.
    fn begin_call(&mut self) {}

    /// Carries out `call`, whose arguments have been checked on this rank. `signature` is what all
    /// ranks must agree on: if one differs, no data moves. `name` is the call that the user made,
    /// for errors; the step at hand may be of another kind.
    ///
    /// # Errors
    /// [`Failure`]: the ranks disagree, or [`Error::Left`], [`Error::Timeout`], [`Error::Aborted`]
    /// or [`Error::System`].
    fn execute(&mut self, call: Call<'_>, signature: &Signature, name: Kind) -> Result<(), Failure>;

    /// Sets how the next calls are carried out.
    fn configure(&mut self, configuration: &Configuration);

    /// A handle that ends the group from any thread.
    fn abort_handle(&self) -> AbortHandle;

    /// The group of `members`, ranks of this one, in which each has its place among them as its
    /// rank. All ranks of this group make the call, with the list that they are in; a rank that is
    /// in none gives an empty list and gets no group. Calls of the two groups do not mix. An abort
    /// of this group ends the new one, too. The new one is [configured](Engine::configure)
    /// afterwards.
    ///
    /// # Errors
    /// [`Error::WrongContext`] if the engine has no subgroups; otherwise as
    /// [`execute`](Engine::execute).
    fn subgroup(&mut self, _members: &[usize]) -> Result<Option<Box<dyn Engine>>, Failure> {
        Err(cannot("split").into())
    }

    /// `count` elements, all zero, in memory that the engine's calls need not copy from. By default
    /// any memory.
    ///
    /// # Errors
    /// [`Error::System`] if there is no memory for them.
    fn alloc(&self, dtype: DType, count: usize) -> Result<Memory> {
        let what = || format!("allocate {count} elements of {dtype}");
        Memory::try_zeroed(dtype, count).map_err(|source| Error::System { what: what(), source })
    }

    /// After an abort, waits until all ranks are ready to go on, and goes on; otherwise does
    /// nothing. By default a group that was ended stays so.
    ///
    /// # Errors
    /// As [`execute`](Engine::execute): a rank that is lost does not come back.
    fn renew(&mut self) -> Result<()> {
        match self.abort_handle().is_aborted() {
            true => Err(cannot("the next run")),
            false => Ok(()),
        }
    }

    /// Ends this rank's part in a run: who waits for it is told that it has left. Whether the group
    /// may go on: if so, all ranks [begin](Engine::begin_run) another run later. By default not:
    /// then the engine is dropped at once, which tells the others.
    fn end_run(&mut self) -> bool {
        false
    }

    /// Begins another run, once every rank has [ended](Engine::end_run) its part in the last one.
    /// False if the group does not go on: then the strategy makes another one.
    fn begin_run(&mut self) -> bool {
        false
    }

    /// Says whether this rank is idle: it makes no call before `company`, ranks of the same
    /// process, have ended theirs. One of them that waits for it is told so. By default it waits
    /// until its deadline.
    fn set_idle(&mut self, _company: Range<usize>, _idle: bool) {}
}

/// What an engine does by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Every call. It compares the ranks' signatures before data move, and reduces in the canonical
    /// order.
    Calls,
    /// [`Call::Send`] and [`Call::Recv`] of any number of bytes, in order between two ranks. A
    /// receiver knows how many come. Up to [`EAGER_BYTES`](Service::EAGER_BYTES) are sent without
    /// waiting for the receiver.
    ///
    /// Who does not come to a call is named as on any engine. One that stops in the middle of it
    /// may be told as another one that waits for it. Calls allocate what is on its way.
    Messages,
}

impl Service {
    /// Bytes of a message that is sent before its receiver asks for it.
    pub const EAGER_BYTES: usize = 64;
}

/// Why a call did not happen.
#[derive(Debug)]
pub enum Failure {
    /// The ranks did not make the same call: all, or this one and its peer in a call of two. No
    /// data has moved, and the group works: the runtime finds out who differs.
    Disagreement {
        /// The other rank of a call of two.
        peer: Option<usize>,
    },
    /// Anything else.
    Error(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Error(error)
    }
}

fn cannot(call: &'static str) -> Error {
    Error::WrongContext { call, problem: "the engine of this communicator cannot do this".to_owned() }
}

/// Why a group was ended, in words that follow the culprit's number.
pub(crate) fn words(reason: Reason) -> &'static str {
    match reason {
        Reason::Deadline => "did not come before the deadline of another",
        Reason::Panic => "panicked",
        Reason::Failure => "failed",
        Reason::Memory => "got no memory for its data",
        Reason::Departure => "left with its process",
        Reason::Death => "was lost with its process",
        Reason::Return => "returned while another waited for it",
        Reason::Leave => "left",
    }
}

impl Error {
    /// The error of `call` in a group that was ended in the name of `replica`, a rank of it: for
    /// engines.
    ///
    /// ```
    /// use consonance::{Error, raw::Reason};
    /// assert_eq!(Error::aborted("barrier", 2, Reason::Panic).to_string(), "barrier: replica 2 panicked");
    /// ```
    pub fn aborted(call: &str, replica: usize, reason: Reason) -> Error {
        let lost = matches!(reason, Reason::Death | Reason::Departure);
        let (call, reason) = (call.to_owned(), words(reason).to_owned());
        Error::Aborted { call, replica, reason, lost, calls: Vec::new() }
    }
}
