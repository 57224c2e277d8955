//! Reductions of ranks that have different numbers of contributions.
//!
//! The ranks tell each other their runs of leaves, and each one computes the nodes of all. If all
//! ranks reach what each of them holds, rank `r` folds block `r` of all nodes and of the last leaf
//! of all ranks in the shape of the tree, in place, in the same step.
//!
//! Otherwise the nodes travel. Few bytes: every rank gets the nodes of all ranks. More: rank `r`
//! gets block `r` of all nodes: the first nodes of all ranks in one exchange, the second nodes in
//! the next one, and so on, in place. It folds them, and the blocks of the result are gathered.

use super::{
    accumulator::{Ends, LeafSum},
    agreement::Agreement,
    call::{Call, OnHost},
    engine::{Gap, LeavesStep, gap},
};
use crate::{Communicator, Error, Result};
use consonance_kernels::{
    cpu::reduce::{Accumulation, Node, Source, nodes},
    digest::mix,
    group::{Last, OwnHoldings, Reason, plan::Targets},
    memory::{BufMut, HostBufMut, HostMemory, Space},
    shm::codes::code_of,
};
use consonance_spec::{DType, Kind, ReduceOp, Signature, partition};
use std::{io, ops::Range};

/// Up to so many bytes of the nodes of a rank, every rank gets all nodes.
const SHORT_BYTES: usize = 8 << 10;

/// Marks the calls on leaves among other calls of their kind.
const ON_LEAVES: u64 = 0x6c65_6176_6573;

impl Communicator {
    /// Executes a reduction of leaves, as [`execute`](Communicator::execute) does for calls with
    /// one contribution a rank: `call` is an all-reduce, a reduce or a reduce-scatter, and its
    /// input is the last leaf. A reduce may be in place on the root alone.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] for another call, another operation than that of `sum`, or memory of
    /// a device; otherwise as
    /// [`all_reduce_accumulated`](Communicator::all_reduce_accumulated).
    ///
    /// ```
    /// use consonance::{Communicator, DType, ReduceOp, raw::{Agreement, Call}};
    /// let mut alone = Communicator::threads(1).remove(0);
    /// let mut sum = alone.accumulator_of(DType::F32, ReduceOp::Sum, 2, 0..2, 2)?;
    /// sum.add([1.0f32, 2.0].as_slice().into())?;
    /// let mut last = [0.5f32, 1.5];
    /// let call = Call::AllReduce { op: ReduceOp::Sum, send: None, recv: last.as_mut_slice().into() };
    /// alone.execute_accumulated(call, &mut sum, &Agreement::NONE)?;
    /// assert_eq!(last, [1.5, 3.5]);
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn execute_accumulated(&mut self, call: Call<'_>, sum: &mut LeafSum, agreement: &Agreement<'_>) -> Result<()> {
        let kind = call.kind();
        match self.ends_of(call, sum) {
            Ok((ends, root)) => self.accumulated_as((kind, root), sum, ends, agreement),
            Err(error) => {
                let error = error.of_replica(self.rank());
                let _ = self.refuse(kind, &error);
                Err(error)
            }
        }
    }

    /// Returns the last leaf of a call with the place of its result, and the root, or 0 without
    /// one.
    fn ends_of<'a>(&self, call: Call<'a>, sum: &LeafSum) -> Result<(Ends<'a>, usize)> {
        let kind = call.kind();
        let invalid =
            |argument: &str, expected: String, found: String| Error::invalid(kind.name(), argument, expected, found);
        if let Some((argument, space)) = call.outside(|space| space == Space::Host) {
            return Err(invalid(argument, format!("memory of {}", Space::Host), format!("memory of {space}")));
        }
        let (op, send, recv, root) = match call {
            Call::AllReduce { op, send, recv } | Call::ReduceScatter { op, send, recv } => (op, send, Some(recv), 0),
            Call::Reduce { op, send, recv, root } => (op, send, recv, root),
            _ => return Err(invalid("call", "a reduction".to_owned(), kind.to_string())),
        };
        let (own, dtype) = (sum.sum.reducer().op(), sum.sum.reducer().input());
        if op != own {
            return Err(invalid("op", own.to_string(), op.to_string()));
        }
        let recv = recv.filter(|_| kind != Kind::Reduce || self.rank() == root).on_host();
        let ends = match (send.on_host(), recv) {
            (Some(last), recv) => Ends::Apart(last, recv),
            (None, Some(data)) => Ends::InPlace(data),
            (None, None) => return Err(invalid("send", "a buffer to read".to_owned(), "none".to_owned())),
        };
        let found = ends.last().dtype();
        if found != dtype {
            return Err(invalid("last", format!("elements of {dtype}"), format!("elements of {found}")));
        }
        Ok((ends, root))
    }

    pub(super) fn accumulated(&mut self, kind: Kind, sum: &mut LeafSum, ends: Ends<'_>, root: usize) -> Result<()> {
        self.accumulated_as((kind, root), sum, ends, &Agreement::NONE)
    }

    fn accumulated_as(
        &mut self,
        (kind, root): (Kind, usize),
        sum: &mut LeafSum,
        ends: Ends<'_>,
        agreement: &Agreement<'_>,
    ) -> Result<()> {
        if let Err(error) = self.check_ends(kind, &sum.sum, &ends, root) {
            let error = error.of_replica(self.rank());
            let _ = self.refuse(kind, &error);
            return Err(error);
        }
        let done = self.combine_leaves((kind, root), sum, ends, agreement);
        self.hear(done)
    }

    /// Does [`all_reduce_accumulated`](Communicator::all_reduce_accumulated) with valid arguments,
    /// as a step of a call on which the ranks agree.
    pub(crate) fn all_reduce_leaves(
        &mut self,
        sum: &mut LeafSum,
        ends: Ends<'_>,
        agreement: &Agreement<'_>,
    ) -> Result<()> {
        let done = self.combine_leaves((Kind::AllReduce, 0), sum, ends, agreement);
        self.hear(done)
    }

    /// Checks what is invalid whatever the other ranks pass.
    fn check_ends(&self, kind: Kind, sum: &Accumulation, ends: &Ends<'_>, root: usize) -> Result<()> {
        let invalid = |argument: &str, expected: String, found: String| {
            Err(Error::invalid(kind.name(), argument, expected, found))
        };
        let elements = |count: usize| format!("{count} elements");
        let (count, most, size) = (sum.count(), sum.run().len().saturating_sub(1), self.size());
        if ends.last().count() != count {
            return invalid("last", elements(count), elements(ends.last().count()));
        }
        if sum.added() != most {
            return invalid("leaves", format!("{most} leaves before the last"), format!("{} leaves", sum.added()));
        }
        if root >= size {
            return invalid("root", format!("a rank below {size}"), root.to_string());
        }
        if kind == Kind::ReduceScatter && !count.is_multiple_of(size) {
            return invalid("last", format!("a multiple of {size} elements"), elements(count));
        }
        let (op, output) = (sum.reducer().op(), sum.reducer().output());
        let part = if kind == Kind::ReduceScatter { count / size } else { count };
        match ends {
            Ends::InPlace(data) if data.dtype() != output => {
                let found = format!("{op}, whose result is {output}");
                invalid("op", format!("an operation whose result is {}", data.dtype()), found)
            }
            Ends::Apart(_, Some(recv)) if recv.dtype() != output => {
                invalid("recv", format!("elements of {output}"), format!("elements of {}", recv.dtype()))
            }
            Ends::Apart(_, Some(recv)) if recv.count() != part => {
                invalid("recv", elements(part), elements(recv.count()))
            }
            Ends::Apart(_, None) if kind != Kind::Reduce || self.rank() == root => {
                invalid("recv", "a buffer on the root".to_owned(), "none".to_owned())
            }
            Ends::InPlace(_) | Ends::Apart(..) => Ok(()),
        }
    }

    /// Executes a call of which this rank's arguments are valid.
    fn combine_leaves(
        &mut self,
        (kind, root): (Kind, usize),
        parts: &mut LeafSum,
        ends: Ends<'_>,
        agreement: &Agreement<'_>,
    ) -> Result<()> {
        let sum = &parts.sum;
        let call = Leaves {
            kind,
            op: sum.reducer().op(),
            input: sum.reducer().input(),
            count: sum.count(),
            root: (kind == Kind::Reduce).then_some(root),
            of: sum.of(),
            agreement,
        };
        let mut ends = ends;
        let owned = match self.meet_leaves(&call, parts, &mut ends) {
            Ok(Some(owned)) => owned,
            Err(error @ Error::Mismatch { .. }) => return Err(error),
            done => {
                parts.sum.clear();
                return done.map(drop);
            }
        };
        let LeafSum { sum, received, .. } = parts;
        if owned.iter().all(|nodes| matches!(&nodes[..], [node] if node.len() == 1)) {
            // A contribution of each rank: the plain call.
            return self.combine_single(&call, root, ends);
        }
        if !sum.run().is_empty() {
            sum.add(ends.last());
        }
        let recv = ends.into_recv();
        let done = self.combine_nodes(&call, sum, received, &owned, recv);
        sum.clear();
        done
    }

    /// Combines the only leaf of each rank.
    fn combine_single(&mut self, call: &Leaves<'_>, root: usize, ends: Ends<'_>) -> Result<()> {
        let (op, kind) = (call.op, call.kind);
        let (send, recv) = match ends {
            Ends::InPlace(data) => (None, Some(data.into())),
            Ends::Apart(last, recv) => (Some(last.into()), recv.map(BufMut::from)),
        };
        let step = match recv {
            Some(recv) if kind == Kind::AllReduce => Call::AllReduce { op, send, recv },
            Some(recv) if kind == Kind::ReduceScatter => Call::ReduceScatter { op, send, recv },
            recv => Call::Reduce { op, send, recv, root },
        };
        call.step(self, call.input, step)
    }

    /// Tells the other ranks this rank's run. Combines the leaves in the same step if all ranks
    /// reach them; otherwise returns the nodes of each rank.
    fn meet_leaves(
        &mut self,
        call: &Leaves<'_>,
        parts: &mut LeafSum,
        ends: &mut Ends<'_>,
    ) -> Result<Option<Vec<Vec<Range<usize>>>>> {
        let mut runs = Vec::new();
        if self.engine.has_leaves_step() {
            if self.combine_in_place(call, parts, ends, &mut runs)? {
                return Ok(None);
            }
        } else {
            self.tell_leaves(call, parts.leaves(), &mut runs)?;
        }
        if let Some(Gap { rank, expected, found }) = gap(&runs, call.of) {
            self.engine.blame(rank);
            let name = call.agreement.call.unwrap_or(call.kind).to_string();
            return Err(Error::Mismatch { call: name, replica: rank, argument: "leaves".to_owned(), expected, found });
        }
        Ok(Some(runs.iter().map(|run| nodes(call.of, std::slice::from_ref(run))).collect()))
    }

    /// Combines the leaves of all ranks in one step, and returns true, if all ranks reach them.
    /// Otherwise sets `runs` to the leaves of each rank.
    fn combine_in_place(
        &mut self,
        call: &Leaves<'_>,
        LeafSum { sum, known, .. }: &mut LeafSum,
        ends: &mut Ends<'_>,
        runs: &mut Vec<Range<usize>>,
    ) -> Result<bool> {
        let last = match ends {
            Ends::InPlace(data) => Some(Last::InPlace(data.reborrow())),
            Ends::Apart(last, None) => Some(Last::ToRead(*last)),
            // The others cannot reach a leaf and a result in two places.
            Ends::Apart(_, Some(_)) => None,
        };
        let targets = match (call.kind, call.root) {
            (_, Some(root)) => Targets::Root(root),
            (Kind::ReduceScatter, None) => Targets::Own,
            (_, None) => Targets::All,
        };
        let (reducer, count, run, of) = (sum.reducer(), sum.count(), sum.run(), sum.of());
        let own = last.map(|last| OwnHoldings { nodes: sum.values(), last });
        let step = LeavesStep { reducer, count, targets, run, of, own, runs, known };
        call.signed(call.kind, call.input, |signature, agreement| {
            self.leaves_step(step, count * call.input.size(), signature, agreement)
        })
    }

    /// Tells the other ranks this rank's leaves, and sets `runs` to those of each rank.
    fn tell_leaves(&mut self, call: &Leaves<'_>, own: Range<usize>, runs: &mut Vec<Range<usize>>) -> Result<()> {
        let own = [own.start as u64, own.end as u64];
        let mut all = vec![[0u64; 2]; self.size()];
        let recv = all.as_flattened_mut().into();
        call.step(self, DType::U64, Call::AllGather { send: Some(own.as_slice().into()), recv, counts: None })?;
        runs.extend(all.iter().map(|&[start, end]| start as usize..end as usize));
        Ok(())
    }

    /// Combines the nodes of all ranks. Without `recv` this rank gets no result.
    fn combine_nodes(
        &mut self,
        call: &Leaves<'_>,
        sum: &Accumulation,
        received: &mut Vec<u8>,
        owned: &[Vec<Range<usize>>],
        recv: Option<HostBufMut<'_>>,
    ) -> Result<()> {
        let (rank, size, count, reducer) = (self.rank(), self.size(), sum.count(), sum.reducer());
        let bytes = |count: usize| reducer.accumulator_bytes(count);
        let blocks: Vec<Range<usize>> = (0..size).map(|rank| partition::block(count, size, rank)).collect();
        let own = blocks[rank].clone();
        let most = owned.iter().map(Vec::len).max().unwrap_or(0);
        let is_short = most * bytes(count) <= SHORT_BYTES;
        let part = if is_short { 0..count } else { own.clone() };
        self.make_room(received, owned.iter().map(Vec::len).sum(), bytes(part.len()))?;
        let sources = match is_short {
            true => self.gather_nodes(call, sum, received, owned)?,
            false => self.scatter_nodes(call, sum, received, owned, &blocks)?,
        };
        let shape = reducer.shape(call.of, &sources).expect("the runs of all ranks have each leaf once");
        let wanted = if call.kind == Kind::ReduceScatter { own.clone() } else { part.clone() };
        let range = bytes(wanted.start - part.start)..bytes(wanted.end - part.start);
        let node = |node: usize| &received[node * bytes(part.len())..][range.clone()];
        let values: Vec<Source<'_>> = (0..sources.len()).map(|place| Source::Accumulators(node(place))).collect();
        let finish = |target: &mut HostBufMut<'_>| shape.finish(&values, target, call.of as u64);
        let counts: Vec<usize> = blocks.iter().map(Range::len).collect();
        match (recv, call.kind) {
            (Some(mut recv), Kind::ReduceScatter) if recv.count() == own.len() => finish(&mut recv),
            (Some(recv), Kind::ReduceScatter) => finish(&mut recv.slice(own)),
            (Some(mut recv), _) if is_short => finish(&mut recv),
            (None, _) if is_short => {}
            (Some(mut recv), Kind::AllReduce) => {
                finish(&mut recv.reborrow().slice(own));
                call.step(
                    self,
                    reducer.output(),
                    Call::AllGather { send: None, recv: recv.into(), counts: Some(&counts) },
                )?;
            }
            (Some(mut recv), _) => {
                finish(&mut recv.reborrow().slice(own));
                let (counts, root) = (Some(counts.as_slice()), rank);
                call.step(self, reducer.output(), Call::Gather { send: None, recv: Some(recv.into()), counts, root })?;
            }
            (None, _) => {
                let mut result = self.room_or_abort(|| HostMemory::try_unspecified(reducer.output(), own.len()))?;
                finish(&mut result.as_buf_mut());
                let (counts, root) = (Some(counts.as_slice()), call.root.unwrap_or(0));
                let send = Some(result.as_buf().into());
                call.step(self, reducer.output(), Call::Gather { send, recv: None, counts, root })?;
            }
        }
        Ok(())
    }

    /// Gives all nodes of all ranks to each rank, and returns them in the order in which they
    /// arrive.
    fn gather_nodes(
        &mut self,
        call: &Leaves<'_>,
        sum: &Accumulation,
        received: &mut [u8],
        owned: &[Vec<Range<usize>>],
    ) -> Result<Vec<Node>> {
        let bytes = sum.reducer().accumulator_bytes(sum.count());
        let counts: Vec<usize> = owned.iter().map(|nodes| nodes.len() * bytes).collect();
        let (send, recv) = (Some(sum.values().into()), received.into());
        call.step(self, DType::U8, Call::AllGather { send, recv, counts: Some(&counts) })?;
        Ok(owned.iter().flatten().cloned().map(Node::kept).collect())
    }

    /// Gives block `r` of all nodes of all ranks to rank `r`, and returns the nodes in the order in
    /// which they arrive.
    fn scatter_nodes(
        &mut self,
        call: &Leaves<'_>,
        sum: &Accumulation,
        received: &mut [u8],
        owned: &[Vec<Range<usize>>],
        blocks: &[Range<usize>],
    ) -> Result<Vec<Node>> {
        let (rank, bytes) = (self.rank(), |count: usize| sum.reducer().accumulator_bytes(count));
        let (mut rest, mut sources) = (received, Vec::new());
        for place in 0..owned.iter().map(Vec::len).max().unwrap_or(0) {
            let part = |is_there: bool, block: usize| if is_there { bytes(blocks[block].len()) } else { 0 };
            let sent: Vec<usize> = (0..blocks.len()).map(|to| part(owned[rank].len() > place, to)).collect();
            let wanted: Vec<usize> = owned.iter().map(|nodes| part(nodes.len() > place, rank)).collect();
            let recv = rest.split_off_mut(..wanted.iter().sum()).expect("room for all nodes");
            let all = bytes(sum.count());
            let own = sum.values().get(place * all..(place + 1) * all).unwrap_or_default();
            let (send, counts) = (Some(own.into()), Some((sent.as_slice(), wanted.as_slice())));
            call.step(self, DType::U8, Call::AllToAll { send, recv: recv.into(), counts })?;
            sources.extend(owned.iter().filter_map(|nodes| nodes.get(place)).cloned().map(Node::kept));
        }
        Ok(sources)
    }

    /// Makes room for so many nodes of this many bytes.
    fn make_room(&self, room: &mut Vec<u8>, nodes: usize, bytes: usize) -> Result<()> {
        let bytes = nodes.saturating_mul(bytes);
        self.room_or_abort(|| {
            let more = bytes.saturating_sub(room.len());
            room.try_reserve_exact(more).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))
        })?;
        // Only more room is cleared: all of it is written before it is read.
        room.resize(bytes, 0);
        Ok(())
    }

    /// Returns memory for a call that the other ranks make already. If there is none, ends the
    /// group: the other ranks wait for data that this rank will not send.
    fn room_or_abort<M>(&self, make: impl FnOnce() -> io::Result<M>) -> Result<M> {
        make().map_err(|source| {
            self.engine.abort_handle().abort(Reason::Memory);
            Error::system("allocate memory for the nodes of other replicas", source)
        })
    }
}

/// A call on leaves.
struct Leaves<'a> {
    kind: Kind,
    op: ReduceOp,
    /// The element type of the leaves.
    input: DType,
    /// The number of elements of a leaf.
    count: usize,
    root: Option<usize>,
    /// The number of leaves of all ranks.
    of: usize,
    /// Properties that the ranks compare besides.
    agreement: &'a Agreement<'a>,
}

impl Leaves<'_> {
    /// Executes a step of the call, which moves elements of `dtype`.
    fn step(&self, communicator: &mut Communicator, dtype: DType, step: Call<'_>) -> Result<()> {
        self.signed(step.kind(), dtype, |signature, agreement| communicator.step(step, signature, agreement))
    }

    /// Calls `make` with what the ranks compare in a step of this kind, which moves elements of
    /// `dtype`. They compare the call in each.
    fn signed<R>(&self, step: Kind, dtype: DType, make: impl FnOnce(&Signature, &Agreement<'_>) -> R) -> R {
        let Leaves { kind, op, input, count, root, of, agreement } = *self;
        let say = |argument: &str, value: String| (argument.to_owned(), value);
        let describe = || {
            let mut lines = (agreement.describe)();
            // A call on a nest describes its leaves itself.
            if agreement.call.is_none() {
                let leaves = say("leaves", format!("of {of}"));
                lines.extend([leaves, say("dtype", input.to_string()), say("count", count.to_string())]);
            }
            lines
        };
        // Steps of another kind than the call have no other trace of it.
        let call = mix(code_of(kind).into(), input as u64);
        let digest = mix(mix(of as u64, count as u64), mix(call, ON_LEAVES ^ agreement.digest));
        let agreement = Agreement { call: agreement.call.or(Some(kind)), ..Agreement::new(digest, &describe) };
        let mut signature = Signature { op: Some(op), dtype: Some(dtype), root, ..Signature::new(step) };
        agreement.sign(&mut signature);
        make(&signature, &agreement)
    }
}
