//! Collectives on slices as values. The cases, the bench and the tuner make their calls here.

use consonance::{
    Accumulator, Communicator, Element, Pending, ReduceOp, Result, Scope, SharedMemory,
    raw::{self, Agreement},
};
use consonance_spec::Kind;
use std::ops::{Deref, DerefMut};

/// One rank's part of a collective.
#[derive(Debug)]
pub struct Call<'a, T, R = T> {
    /// The kind. Splits and extensions have no buffers, and are no such calls.
    pub kind: Kind,
    /// The operation, if contributions are combined.
    pub op: ReduceOp,
    /// The root; the other rank of a send or a receive.
    pub root: usize,
    /// The sizes of the parts.
    pub counts: Counts<'a>,
    /// The buffer that is only read. Without it the call is in place.
    pub send: Option<&'a [T]>,
    /// The buffer that is written.
    pub recv: Option<&'a mut [R]>,
}

/// The sizes of the parts of the ranks.
#[derive(Clone, Copy, Debug)]
pub enum Counts<'a> {
    /// All are equal.
    Even,
    /// A size for each rank.
    Ragged(&'a [usize]),
    /// The counts that this rank sends to each rank, and those that it receives from each.
    Pairs(&'a [usize], &'a [usize]),
}

/// The result of a method that makes or starts a call.
trait Begun {
    /// Returns the handle of a call that was only started.
    fn begun(self) -> Result<Option<Pending>>;
}

impl Begun for Result<()> {
    fn begun(self) -> Result<Option<Pending>> {
        self.map(|()| None)
    }
}

impl Begun for Pending {
    fn begun(self) -> Result<Option<Pending>> {
        Ok(Some(self))
    }
}

impl Begun for Result<Pending> {
    fn begun(self) -> Result<Option<Pending>> {
        self.map(Some)
    }
}

/// Calls the method of `$on` that a call is: those of a communicator and of a scope have the same
/// names and arguments.
macro_rules! begin {
    ($call:expr, $on:expr) => {{
        let Call { kind, op, root, counts, send, recv } = $call;
        match (kind, counts, send, recv) {
            (Kind::Barrier, ..) => $on.barrier().begun(),
            (Kind::Broadcast, Counts::Even, None, Some(data)) => $on.broadcast(data, root).begun(),
            (Kind::AllReduce, Counts::Even, None, Some(data)) => $on.all_reduce(op, data).begun(),
            (Kind::AllReduce, Counts::Even, Some(send), Some(recv)) => $on.all_reduce_into(op, send, recv).begun(),
            (Kind::Reduce, Counts::Even, None, Some(data)) => $on.reduce(op, data, root).begun(),
            (Kind::Reduce, Counts::Even, Some(send), recv) => $on.reduce_into(op, send, recv, root).begun(),
            (Kind::ReduceScatter, Counts::Even, None, Some(data)) => $on.reduce_scatter(op, data).begun(),
            (Kind::ReduceScatter, Counts::Even, Some(send), Some(recv)) => {
                $on.reduce_scatter_into(op, send, recv).begun()
            }
            (Kind::AllGather, Counts::Ragged(counts), send, Some(recv)) => $on.all_gather_v(send, recv, counts).begun(),
            (Kind::AllGather, Counts::Even, None, Some(data)) => $on.all_gather(data).begun(),
            (Kind::AllGather, Counts::Even, Some(send), Some(recv)) => $on.all_gather_into(send, recv).begun(),
            (Kind::Gather, Counts::Ragged(counts), send, recv) => $on.gather_v(send, recv, counts, root).begun(),
            (Kind::Gather, Counts::Even, Some(send), recv) => $on.gather(send, recv, root).begun(),
            (Kind::Scatter, Counts::Ragged(counts), send, recv) => $on.scatter_v(send, recv, counts, root).begun(),
            (Kind::Scatter, Counts::Even, send, recv) => $on.scatter(send, recv, root).begun(),
            (Kind::AllToAll, Counts::Pairs(to, from), Some(send), Some(recv)) => {
                $on.all_to_all_v(send, to, recv, from).begun()
            }
            (Kind::AllToAll, Counts::Even, None, Some(data)) => $on.all_to_all(data).begun(),
            (Kind::AllToAll, Counts::Even, Some(send), Some(recv)) => $on.all_to_all_into(send, recv).begun(),
            (Kind::SendRecv, Counts::Even, Some(send), _) => $on.send(send, root).begun(),
            (Kind::SendRecv, Counts::Even, None, Some(recv)) => $on.recv(recv, root).begun(),
            // A rank that is neither of the two.
            (Kind::SendRecv, Counts::Even, None, None) => Ok(None),
            (Kind::Broadcast | Kind::AllReduce | Kind::Reduce | Kind::ReduceScatter, counts, send, recv)
            | (Kind::AllGather | Kind::Gather | Kind::Scatter | Kind::AllToAll | Kind::SendRecv, counts, send, recv)
            | (Kind::Split | Kind::Extension(_), counts, send, recv) => {
                unreachable!("{kind:?} with {counts:?}, {:?}, {:?}", send.is_some(), recv.is_some())
            }
        }
    }};
}

/// Calls the method of `$on` that a reduction of leaves is, or `$apart` if it is not in place.
macro_rules! on_leaves {
    ($call:expr, $on:expr, $sum:expr, $apart:expr) => {{
        let Call { kind, op, root, counts, send, recv } = $call;
        match (kind, send, recv) {
            (Kind::AllReduce, None, Some(last)) => $on.all_reduce_accumulated($sum, last),
            (Kind::Reduce, None, Some(last)) => $on.reduce_accumulated($sum, last, root),
            (Kind::ReduceScatter, None, Some(last)) => $on.reduce_scatter_accumulated($sum, last),
            (Kind::AllReduce | Kind::Reduce | Kind::ReduceScatter, send, recv)
            | (Kind::Barrier | Kind::Broadcast | Kind::AllGather | Kind::Gather | Kind::Scatter, send, recv)
            | (Kind::AllToAll | Kind::SendRecv | Kind::Split | Kind::Extension(_), send, recv) => {
                $apart(Call { kind, op, root, counts, send, recv }, $on, $sum)
            }
        }
    }};
}

impl<'a, T: Element> Call<'a, T> {
    /// Makes the call.
    ///
    /// # Errors
    /// The communicator's.
    pub fn make(self, communicator: &mut Communicator) -> Result<()> {
        begin!(self, communicator).map(drop)
    }

    /// Starts the call. Returns `None` if this rank takes no part in it.
    ///
    /// # Errors
    /// The scope's.
    pub fn start(self, scope: &Scope<'a>) -> Result<Option<Pending>> {
        begin!(self, scope)
    }

    /// Makes a reduction of the leaves of `sum` and of the input, which is the last leaf.
    ///
    /// # Errors
    /// The communicator's.
    pub fn make_on(self, communicator: &mut Communicator, sum: &mut Accumulator<T>) -> Result<()> {
        on_leaves!(self, communicator, sum, Call::make_apart_on)
    }

    /// Starts such a reduction.
    pub fn start_on(self, scope: &Scope<'a>, sum: &'a mut Accumulator<T>) -> Pending {
        on_leaves!(self, scope, sum, Call::start_apart_on)
    }
}

/// Calls the method of `$on` that a reduction of leaves to another place is.
macro_rules! apart_on_leaves {
    ($call:expr, $on:expr, $sum:expr) => {{
        let Call { kind, root, send, recv, .. } = $call;
        match (kind, send, recv) {
            (Kind::AllReduce, Some(last), Some(recv)) => $on.all_reduce_accumulated_into($sum, last, recv),
            (Kind::Reduce, Some(last), recv) => $on.reduce_accumulated_into($sum, last, recv, root),
            (Kind::ReduceScatter, Some(last), Some(recv)) => $on.reduce_scatter_accumulated_into($sum, last, recv),
            (Kind::AllReduce | Kind::Reduce | Kind::ReduceScatter, send, recv)
            | (Kind::Barrier | Kind::Broadcast | Kind::AllGather | Kind::Gather | Kind::Scatter, send, recv)
            | (Kind::AllToAll | Kind::SendRecv | Kind::Split | Kind::Extension(_), send, recv) => {
                unreachable!("{kind:?} of leaves, {:?}, {:?}", send.is_some(), recv.is_some())
            }
        }
    }};
}

/// Reductions to another place, whose elements may be of another type.
impl<'a, T: Element, R: Element> Call<'a, T, R> {
    /// Makes the reduction.
    ///
    /// # Errors
    /// The communicator's.
    pub fn make_apart(self, communicator: &mut Communicator) -> Result<()> {
        let Call { kind, op, root, send, recv, .. } = self;
        let call = match (kind, send, recv) {
            (Kind::AllReduce, Some(send), Some(recv)) => return communicator.all_reduce_into(op, send, recv),
            (Kind::ReduceScatter, send, Some(recv)) => {
                raw::Call::ReduceScatter { op, send: send.map(Into::into), recv: recv.into() }
            }
            (Kind::Reduce, send, recv) => {
                raw::Call::Reduce { op, send: send.map(Into::into), recv: recv.map(Into::into), root }
            }
            (Kind::AllReduce | Kind::ReduceScatter | Kind::Barrier | Kind::Broadcast | Kind::AllGather, ..)
            | (Kind::Gather | Kind::Scatter | Kind::AllToAll | Kind::SendRecv, ..)
            | (Kind::Split | Kind::Extension(_), ..) => unreachable!("{kind:?} to another place"),
        };
        communicator.execute(call, &Agreement::NONE)
    }

    /// Makes the reduction of the leaves of `sum` and of the input, which is the last leaf.
    ///
    /// # Errors
    /// The communicator's.
    pub fn make_apart_on(self, communicator: &mut Communicator, sum: &mut Accumulator<T>) -> Result<()> {
        apart_on_leaves!(self, communicator, sum)
    }

    /// Starts the reduction of leaves.
    pub fn start_apart_on(self, scope: &Scope<'a>, sum: &'a mut Accumulator<T>) -> Pending {
        apart_on_leaves!(self, scope, sum)
    }
}

/// Elements in memory of this process, or in memory that the ranks share.
pub enum Elements<T> {
    /// Memory of this process.
    Own(Vec<T>),
    /// Memory from [`Communicator::alloc`].
    Shared(SharedMemory<T>),
}

impl<T: Element> Deref for Elements<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Elements::Own(elements) => elements,
            Elements::Shared(elements) => elements,
        }
    }
}

impl<T: Element> DerefMut for Elements<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Elements::Own(elements) => elements,
            Elements::Shared(elements) => elements,
        }
    }
}
