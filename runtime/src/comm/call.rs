//! One collective call as a value, and the checks that need the arguments of one rank only.

use crate::{Error, Result, error::operation_on};
use consonance_kernels::{
    digest::digest_counts,
    memory::{Buf, BufMut, HostBuf, HostBufMut, Memory, Space},
};
use consonance_spec::{DType, Element, Kind, ReduceOp, Signature, World};

/// A collective with its buffers.
///
/// `send` is this rank's input and `recv` its output. Without `send` the call works in place, on
/// `recv`. Counts are in elements. A list of counts has one for each rank and is the same on every
/// rank, except in `AllToAll`. Without it parts are even.
#[derive(Debug)]
#[allow(missing_docs, reason = "fields are told of above and at their variants")]
pub enum Call<'a> {
    /// Waits for every other rank.
    Barrier,
    /// Copies `root`'s data to all ranks.
    Broadcast { data: BufMut<'a>, root: usize },
    /// Combines all ranks' data on `root`. Only `root` needs `recv`.
    Reduce { op: ReduceOp, send: Option<Buf<'a>>, recv: Option<BufMut<'a>>, root: usize },
    /// Combines all ranks' data on all ranks.
    AllReduce { op: ReduceOp, send: Option<Buf<'a>>, recv: BufMut<'a> },
    /// Combines all ranks' data and gives each rank one block. Its target is `recv`, or in place
    /// the rank's own block of `recv`.
    ReduceScatter { op: ReduceOp, send: Option<Buf<'a>>, recv: BufMut<'a> },
    /// Concatenates all ranks' data in rank order on `root`. Only `root` needs `recv`.
    Gather { send: Option<Buf<'a>>, recv: Option<BufMut<'a>>, counts: Option<&'a [usize]>, root: usize },
    /// Concatenates all ranks' data in rank order on all ranks.
    AllGather { send: Option<Buf<'a>>, recv: BufMut<'a>, counts: Option<&'a [usize]> },
    /// Like `AllGather`, but the ranks do not know each other's counts before the call. Each rank's
    /// data is `rows` rows. Row `i` of the result concatenates the rows `i` of all ranks, in rank
    /// order. On success `recv` holds the result and `counts` the count of each rank.
    Concat { send: Buf<'a>, rows: usize, recv: &'a mut Option<Memory>, counts: &'a mut Vec<usize> },
    /// Copies a part of `root`'s data to each rank. Only `root` needs `send`. Without `recv` its
    /// own part stays in place.
    Scatter { send: Option<Buf<'a>>, recv: Option<BufMut<'a>>, counts: Option<&'a [usize]>, root: usize },
    /// Copies a part from each rank to each rank. `counts` are the counts that this rank sends to
    /// each rank, and those that it receives from each rank.
    AllToAll { send: Option<Buf<'a>>, recv: BufMut<'a>, counts: Option<(&'a [usize], &'a [usize])> },
    /// Sends data to rank `to`, which makes the matching `Recv`.
    Send { data: Buf<'a>, to: usize },
    /// Receives data from rank `from`, which makes the matching `Send`.
    Recv { data: BufMut<'a>, from: usize },
}

impl<'a> Call<'a> {
    /// Makes the in-place reduce of `data` on `root`, as `rank` calls it.
    pub(crate) fn reduce_in_place<T: Element>(op: ReduceOp, data: &'a mut [T], root: usize, rank: usize) -> Call<'a> {
        if rank == root {
            Call::Reduce { op, send: None, recv: Some(data.into()), root }
        } else {
            Call::Reduce { op, send: Some((&*data).into()), recv: None, root }
        }
    }

    /// Returns the kind of the call.
    pub fn kind(&self) -> Kind {
        match self {
            Call::Barrier => Kind::Barrier,
            Call::Broadcast { .. } => Kind::Broadcast,
            Call::Reduce { .. } => Kind::Reduce,
            Call::AllReduce { .. } => Kind::AllReduce,
            Call::ReduceScatter { .. } => Kind::ReduceScatter,
            Call::Gather { .. } => Kind::Gather,
            Call::AllGather { .. } | Call::Concat { .. } => Kind::AllGather,
            Call::Scatter { .. } => Kind::Scatter,
            Call::AllToAll { .. } => Kind::AllToAll,
            Call::Send { .. } | Call::Recv { .. } => Kind::SendRecv,
        }
    }

    /// Returns the buffers of this rank: the input, and the output.
    #[inline]
    pub(crate) fn buffers(&self) -> (Option<&Buf<'a>>, Option<&BufMut<'a>>) {
        match self {
            Call::Barrier => (None, None),
            Call::Broadcast { data, .. } | Call::Recv { data, .. } => (None, Some(data)),
            Call::Send { data, .. } => (Some(data), None),
            Call::Concat { send, .. } => (Some(send), None),
            Call::Reduce { send, recv, .. } | Call::Gather { send, recv, .. } | Call::Scatter { send, recv, .. } => {
                (send.as_ref(), recv.as_ref())
            }
            Call::AllReduce { send, recv, .. }
            | Call::ReduceScatter { send, recv, .. }
            | Call::AllGather { send, recv, .. }
            | Call::AllToAll { send, recv, .. } => (send.as_ref(), Some(recv)),
        }
    }

    /// Returns the first buffer in a space that the engine does not reach: its argument name and
    /// its space.
    #[inline]
    pub(crate) fn outside(&self, reaches: impl Fn(Space) -> bool) -> Option<(&'static str, Space)> {
        let (send, recv) = self.buffers();
        let (send, recv) = (send.map(Buf::space), recv.map(BufMut::space));
        let send = send.filter(|&space| !reaches(space)).map(|space| ("send", space));
        send.or_else(|| recv.filter(|&space| !reaches(space)).map(|space| ("recv", space)))
    }

    /// Returns the bytes of this rank's input to `Concat`, which peers do not know. `None` for
    /// other calls.
    pub(crate) fn concat_bytes(&self) -> Option<usize> {
        match self {
            Call::Concat { send, .. } => Some(send.bytes()),
            Call::Barrier
            | Call::Broadcast { .. }
            | Call::Reduce { .. }
            | Call::AllReduce { .. }
            | Call::ReduceScatter { .. }
            | Call::Gather { .. }
            | Call::AllGather { .. }
            | Call::Scatter { .. }
            | Call::AllToAll { .. }
            | Call::Send { .. }
            | Call::Recv { .. } => None,
        }
    }

    /// Checks the arguments, and adds to the signature the properties that all ranks must agree on.
    /// The signature is filled in place: a move of a value just written in parts would stall on the
    /// pending stores.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] for arguments that are invalid whatever the other ranks pass.
    #[inline(always)]
    pub(crate) fn sign(&self, world: World, signature: &mut Signature) -> Result<()> {
        let check = Check { call: self.kind().name(), world };
        match self {
            Call::Barrier => {}
            Call::Broadcast { data, root } => {
                signature.dtype = Some(data.dtype());
                signature.count = Some(data.count());
                signature.root = Some(check.rank("root", *root)?);
            }
            Call::Reduce { op, send, recv, root } => {
                let input = check.input(send, recv.as_ref())?;
                check.defined(*op, input.dtype)?;
                if world.rank() == *root {
                    let recv = recv.as_ref().ok_or_else(|| check.missing("recv", "on the root"))?;
                    check.same_count(input.count, recv.count())?;
                    check.result(*op, input.dtype, recv.dtype(), send.is_none())?;
                }
                signature.op = Some(*op);
                signature.dtype = Some(input.dtype);
                signature.count = Some(input.count);
                signature.root = Some(check.rank("root", *root)?);
            }
            Call::AllReduce { op, send, recv } => {
                let input = check.input(send, Some(recv))?;
                check.same_count(input.count, recv.count())?;
                check.result(*op, input.dtype, recv.dtype(), send.is_none())?;
                signature.op = Some(*op);
                signature.dtype = Some(input.dtype);
                signature.count = Some(input.count);
            }
            Call::ReduceScatter { op, send, recv } => {
                let input = check.input(send, Some(recv))?;
                check.divisible(if send.is_some() { "send" } else { "data" }, input.count)?;
                if send.is_some() {
                    check.same_count(input.count / world.size(), recv.count())?;
                }
                check.result(*op, input.dtype, recv.dtype(), send.is_none())?;
                signature.op = Some(*op);
                signature.dtype = Some(input.dtype);
                signature.count = Some(input.count);
            }
            Call::Gather { send, recv, counts, root } => {
                signature.root = Some(check.rank("root", *root)?);
                let recv = recv.as_ref().filter(|_| world.rank() == *root);
                if world.rank() == *root && recv.is_none() {
                    return Err(check.missing("recv", "on the root"));
                }
                check.gathered(signature, send, recv, *counts)?;
            }
            Call::AllGather { send, recv, counts } => check.gathered(signature, send, Some(recv), *counts)?,
            Call::Concat { send, .. } => signature.dtype = Some(send.dtype()),
            Call::Scatter { send, recv, counts, root } => {
                signature.root = Some(check.rank("root", *root)?);
                check.scattered(signature, send, recv, *counts)?;
            }
            Call::AllToAll { send, recv, counts } => check.exchanged(signature, send, recv, *counts)?,
            Call::Send { data, to } => {
                check.other("to", *to)?;
                signature.dtype = Some(data.dtype());
                signature.count = Some(data.count());
                signature.root = Some(world.rank());
            }
            Call::Recv { data, from } => {
                signature.root = Some(check.other("from", *from)?);
                signature.dtype = Some(data.dtype());
                signature.count = Some(data.count());
            }
        }
        Ok(())
    }
}

/// A buffer of a call on an engine that reaches host memory only. `Communicator::execute` has
/// checked its space.
pub(crate) trait OnHost {
    /// The same buffer as one in host memory.
    type Host;

    /// Converts the buffer, which lies in host memory.
    fn on_host(self) -> Self::Host;
}

impl<'a> OnHost for Buf<'a> {
    type Host = HostBuf<'a>;

    #[inline]
    fn on_host(self) -> HostBuf<'a> {
        self.host().expect("Communicator::execute refuses what the engine does not reach")
    }
}

impl<'a> OnHost for BufMut<'a> {
    type Host = HostBufMut<'a>;

    #[inline]
    fn on_host(self) -> HostBufMut<'a> {
        self.host().expect("Communicator::execute refuses what the engine does not reach")
    }
}

impl<B: OnHost> OnHost for Option<B> {
    type Host = Option<B::Host>;

    #[inline]
    fn on_host(self) -> Self::Host {
        self.map(B::on_host)
    }
}

/// The dtype and count of a rank's input.
struct Input {
    dtype: DType,
    count: usize,
}

/// Checks of one call's arguments.
struct Check {
    call: &'static str,
    world: World,
}

impl Check {
    #[cold]
    fn invalid(&self, argument: &str, expected: impl Into<String>, found: impl Into<String>) -> Error {
        Error::invalid(self.call, argument, expected, found).of_replica(self.world.rank())
    }

    fn missing(&self, argument: &str, place: &str) -> Error {
        self.invalid(argument, format!("a buffer {place}"), "none")
    }

    fn rank(&self, argument: &str, rank: usize) -> Result<usize> {
        if rank < self.world.size() {
            return Ok(rank);
        }
        Err(self.invalid(argument, format!("a rank below {}", self.world.size()), rank.to_string()))
    }

    fn other(&self, argument: &str, rank: usize) -> Result<usize> {
        match self.rank(argument, rank)? {
            own if own == self.world.rank() => Err(self.invalid(argument, "another rank", "this rank itself")),
            rank => Ok(rank),
        }
    }

    #[inline]
    fn input(&self, send: &Option<Buf<'_>>, recv: Option<&BufMut<'_>>) -> Result<Input> {
        let apart = send.map(|buf| Input { dtype: buf.dtype(), count: buf.count() });
        apart
            .or_else(|| recv.map(|buf| Input { dtype: buf.dtype(), count: buf.count() }))
            .ok_or_else(|| self.missing("send", "to read"))
    }

    #[inline]
    fn same_count(&self, expected: usize, found: usize) -> Result<()> {
        if expected == found {
            return Ok(());
        }
        Err(self.invalid("recv", format!("{expected} elements"), format!("{found} elements")))
    }

    fn same_dtype(&self, expected: DType, found: DType) -> Result<()> {
        if expected == found {
            return Ok(());
        }
        Err(self.invalid("recv", format!("elements of {expected}"), format!("elements of {found}")))
    }

    fn divisible(&self, argument: &str, count: usize) -> Result<()> {
        let size = self.world.size();
        if count.is_multiple_of(size) {
            return Ok(());
        }
        Err(self.invalid(argument, format!("a multiple of {size} elements"), format!("{count} elements")))
    }

    /// Returns the element type of `op`'s result.
    #[inline]
    fn defined(&self, op: ReduceOp, dtype: DType) -> Result<DType> {
        op.result(dtype).ok_or_else(|| self.invalid("op", operation_on(dtype, ""), op.name()))
    }

    /// Checks that the result of `op` on `dtype` has the element type of `recv`.
    #[inline]
    fn result(&self, op: ReduceOp, dtype: DType, recv: DType, in_place: bool) -> Result<()> {
        match self.defined(op, dtype)? {
            result if result == recv => Ok(()),
            result if in_place => {
                let found = format!("{op}, whose result is {result}");
                Err(self.invalid("op", format!("an operation whose result is {dtype}"), found))
            }
            result => Err(self.invalid("recv", format!("elements of {result}"), format!("elements of {recv}"))),
        }
    }

    /// Checks `counts` against `own`, this rank's part, and adds their digest to the signature.
    /// Without `counts` every part is `own`.
    fn parts(&self, signature: &mut Signature, counts: Option<&[usize]>, own: Option<usize>) -> Result<()> {
        let Some(counts) = counts else {
            signature.count = own;
            return Ok(());
        };
        let size = self.world.size();
        if counts.len() != size {
            return Err(self.invalid("counts", format!("{size} counts"), format!("{} counts", counts.len())));
        }
        let listed = counts[self.world.rank()];
        if let Some(own) = own.filter(|&own| own != listed) {
            return Err(self.invalid("counts", format!("{own} elements of this rank"), listed.to_string()));
        }
        signature.detail = digest_counts(counts);
        Ok(())
    }

    /// Returns the sum of counts of elements of this type. Every rank checks it, even without a
    /// buffer of this size, because every rank computes with it.
    fn total(&self, argument: &str, counts: &[usize], dtype: DType) -> Result<usize> {
        let total = counts.iter().try_fold(0usize, |total, &count| total.checked_add(count));
        let bytes = |total: usize| total.checked_mul(dtype.size()).filter(|&bytes| isize::try_from(bytes).is_ok());
        total
            .filter(|&total| bytes(total).is_some())
            .ok_or_else(|| self.invalid(argument, "counts of elements that a buffer can have", format!("{counts:?}")))
    }

    fn gathered(
        &self,
        signature: &mut Signature,
        send: &Option<Buf<'_>>,
        recv: Option<&BufMut<'_>>,
        counts: Option<&[usize]>,
    ) -> Result<()> {
        let input = self.input(send, recv)?;
        signature.dtype = Some(input.dtype);
        let own = match (send, counts) {
            (Some(send), _) => Some(send.count()),
            (None, Some(_)) => None,
            (None, None) => {
                self.divisible("data", input.count)?;
                Some(input.count / self.world.size())
            }
        };
        self.parts(signature, counts, own)?;
        let total = match counts {
            Some(counts) => self.total("counts", counts, input.dtype)?,
            None => own.unwrap_or(0) * self.world.size(),
        };
        let Some(recv) = recv else { return Ok(()) };
        self.same_dtype(input.dtype, recv.dtype())?;
        self.same_count(total, recv.count())
    }

    fn scattered(
        &self,
        signature: &mut Signature,
        send: &Option<Buf<'_>>,
        recv: &Option<BufMut<'_>>,
        counts: Option<&[usize]>,
    ) -> Result<()> {
        let root = signature.root == Some(self.world.rank());
        let own = match (send, recv, counts) {
            (Some(send), _, None) if root => {
                self.divisible("send", send.count())?;
                Some(send.count() / self.world.size())
            }
            (None, ..) if root => return Err(self.missing("send", "on the root")),
            (_, None, _) if !root => return Err(self.missing("recv", "on every rank but the root")),
            (_, recv, _) => recv.as_ref().map(|recv| recv.count()),
        };
        self.parts(signature, counts, own)?;
        if let (Some(send), Some(recv), true) = (send, recv, root) {
            self.same_dtype(send.dtype(), recv.dtype())?;
            self.same_count(counts.map_or(own.unwrap_or(0), |counts| counts[self.world.rank()]), recv.count())?;
        }
        signature.dtype = match (send, recv, root) {
            (Some(send), _, true) => Some(send.dtype()),
            (_, recv, _) => recv.as_ref().map(|recv| recv.dtype()),
        };
        let (Some(counts), Some(dtype)) = (counts, signature.dtype) else { return Ok(()) };
        let total = self.total("counts", counts, dtype)?;
        match send {
            Some(send) if root && send.count() != total => {
                Err(self.invalid("send", format!("{total} elements"), format!("{} elements", send.count())))
            }
            _ => Ok(()),
        }
    }

    fn exchanged(
        &self,
        signature: &mut Signature,
        send: &Option<Buf<'_>>,
        recv: &BufMut<'_>,
        counts: Option<(&[usize], &[usize])>,
    ) -> Result<()> {
        let input = self.input(send, Some(recv))?;
        signature.dtype = Some(input.dtype);
        self.same_dtype(input.dtype, recv.dtype())?;
        let Some((send_counts, recv_counts)) = counts else {
            self.divisible("send", input.count)?;
            signature.count = Some(input.count);
            return self.same_count(input.count, recv.count());
        };
        for (argument, counts, count) in
            [("send_counts", send_counts, input.count), ("recv_counts", recv_counts, recv.count())]
        {
            if counts.len() != self.world.size() {
                let expected = format!("{} counts", self.world.size());
                return Err(self.invalid(argument, expected, format!("{} counts", counts.len())));
            }
            let total = self.total(argument, counts, input.dtype)?;
            if total != count {
                return Err(self.invalid(argument, format!("{count} elements in all"), total.to_string()));
            }
        }
        Ok(())
    }
}

/// Rank `from` sends `sent` elements to rank `to`, which expects `expected`.
pub(crate) struct UnlikeCounts {
    from: usize,
    to: usize,
    sent: usize,
    expected: usize,
}

impl UnlikeCounts {
    /// Returns the error. All ranks get the same one, and no data has moved.
    pub(crate) fn error(&self, call: Kind) -> Error {
        Error::Mismatch {
            call: call.to_string(),
            replica: self.to,
            argument: format!("recv_counts[{}]", self.from),
            expected: self.sent.to_string(),
            found: self.expected.to_string(),
        }
    }
}

/// Returns the first pair of ranks whose counts differ. A rank's row of the table has the counts
/// that it sends to each rank, then the counts that it receives from each rank.
pub(crate) fn unlike_counts(table: &[u64], size: usize) -> Option<UnlikeCounts> {
    let row = 2 * size;
    (0..size).flat_map(|from| (0..size).map(move |to| (from, to))).find_map(|(from, to)| {
        let (sent, expected) = (table[from * row + to] as usize, table[to * row + size + from] as usize);
        (sent != expected).then_some(UnlikeCounts { from, to, sent, expected })
    })
}
