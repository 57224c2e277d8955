//! One call of a replica on a nest, as steps of its communicator: one for each pack of small
//! tensors and each large tensor, two for sparse rows (three in a gather).

use crate::{
    Axes, Communicator, DType, IndexedSlices, ReduceOp, Result, Tensor,
    comm::{
        accumulator::{Ends, LeafSum},
        agreement::Agreement,
        call::Call,
    },
    value::{
        axis::{Flat, no_memory, require_contributions},
        contract::Contract,
        indexed_slices,
        nest::{Leaf, NestSignature, Value},
        tensor,
    },
};
use consonance_kernels::{
    cpu::{
        copy::copy_own,
        reduce::{Node, Reducer, Source, nodes},
    },
    digest::mix,
    memory::{BufMut, HostBuf, HostMemory, Space},
    shm::codes::code_of,
};
use consonance_spec::{Kind, packing, partition};
use std::ops::{DerefMut, Range};

/// The steps of one call on a nest. Each step's signature has the digest of the whole nest, so the
/// first step already compares it.
pub(crate) struct NestCall<C> {
    kind: Kind,
    communicator: C,
    outline: NestSignature,
    digest: u64,
    /// The axes along which sizes may differ between replicas.
    axes: Axes,
    contract: Option<Contract>,
    /// The reduction op of a call whose steps are plain exchanges. No step's signature has it, so
    /// it is mixed into the digest here.
    own_op: Option<ReduceOp>,
    /// The number of contributions of all replicas, if these may have several.
    contributions: Option<usize>,
    /// The limit on a pack in bytes, if there is something to pack. It is part of the description
    /// only: if it differs, the steps differ.
    pack_limit: Option<usize>,
}

impl<C: DerefMut<Target = Communicator>> NestCall<C> {
    /// Makes a call of this kind on `leaves`, whose sizes along the axes `ragged` may differ
    /// between replicas. With a contract of static shapes they may not, and replicas agree on it.
    pub(crate) fn new(
        kind: Kind,
        communicator: C,
        leaves: &[Leaf],
        ragged: Axes,
        contract: Option<Contract>,
    ) -> NestCall<C> {
        let outline = match &contract {
            None => NestSignature::new(leaves, &ragged),
            Some(_) => NestSignature::of_static_shapes(leaves),
        };
        let outline = if communicator.mixed { outline.in_any_memory() } else { outline };
        let digest = [code_of(kind).into(), ragged.digest()].into_iter().fold(outline.digest(), mix);
        let digest = contract.as_ref().map_or(digest, |contract| contract.sign(digest));
        NestCall {
            kind,
            communicator,
            outline,
            digest,
            axes: ragged,
            contract,
            own_op: None,
            contributions: None,
            pack_limit: None,
        }
    }

    /// Makes the replicas also agree on an operation that is in none of the steps.
    pub(crate) fn with_own_op(self, op: ReduceOp) -> NestCall<C> {
        NestCall { own_op: Some(op), ..self }
    }

    /// Does [`with_own_op`](NestCall::with_own_op) for the steps from here on.
    pub(super) fn set_own_op(&mut self, op: ReduceOp) {
        self.own_op = Some(op);
    }

    /// Makes the replicas also agree on the number of contributions of all of them, and on the
    /// limit of packs if the nest has several tensors.
    pub(crate) fn with_contributions(self, contributions: usize, pack_limit: Option<usize>) -> NestCall<C> {
        NestCall { contributions: Some(contributions), pack_limit, ..self }
    }

    pub(super) fn communicator(&self) -> &Communicator {
        &self.communicator
    }

    pub(crate) fn call(&mut self, call: Call<'_>) -> Result<()> {
        self.agreed(|communicator, agreement| communicator.execute(call, agreement))
    }

    /// Combines the contributions of all replicas: those in `sum`, and `last`, the last one of this
    /// replica, which becomes the result.
    pub(super) fn all_reduce_accumulated(&mut self, sum: &mut LeafSum, last: &mut Tensor) -> Result<()> {
        let (dtype, output) = (last.dtype(), sum.sum.reducer().output());
        if dtype == output
            && let Some(place) = last.own_buf_mut().and_then(BufMut::host)
        {
            let in_place = |communicator: &mut Communicator, agreement: &Agreement<'_>| {
                communicator.all_reduce_leaves(sum, Ends::InPlace(place), agreement)
            };
            return self.agreed(in_place);
        }
        let mut recv = self.communicator.room(Space::Host, output, last.count())?;
        let ends = Ends::Apart(last.host()?, recv.as_buf_mut().host());
        self.agreed(|communicator, agreement| communicator.all_reduce_leaves(sum, ends, agreement))?;
        *last = Tensor::from_memory(last.shape().to_vec(), recv)?;
        Ok(())
    }

    /// Makes a step with the agreement on the whole nest.
    pub(super) fn agreed<R>(&mut self, step: impl FnOnce(&mut Communicator, &Agreement<'_>) -> R) -> R {
        let describe = || {
            // The axis comes first, because shapes are described without their size along it.
            let axis = self.axes.describe().map(|axes| ("axis".to_owned(), axes));
            let op = self.own_op.map(|op| ("op".to_owned(), op.to_string()));
            let pack_limit = self.pack_limit.map(|bytes| ("bytes_per_pack".to_owned(), bytes.to_string()));
            let contributions = self.contributions.map(|of| ("leaves".to_owned(), format!("of {of}")));
            // The contract comes last: calls on slices do not describe it.
            let contract = self.contract.as_ref().map(Contract::lines).unwrap_or_default();
            let arguments = axis.into_iter().chain(self.outline.lines()).chain(op).chain(contributions);
            arguments.chain(pack_limit).chain(contract).collect()
        };
        let digest = self.own_op.map_or(self.digest, |op| mix(self.digest, op as u64));
        let digest = self.contributions.map_or(digest, |of| mix(digest, of as u64));
        step(&mut self.communicator, &Agreement { call: Some(self.kind), digest, describe: &describe })
    }

    /// Combines every leaf over the replicas. Small tensors are fused, up to `pack_limit` bytes.
    pub(crate) fn all_reduce_leaves(&mut self, op: ReduceOp, leaves: &mut [Leaf], pack_limit: usize) -> Result<()> {
        if leaves.is_empty() {
            return self.all_reduce(op, &mut Tensor::default());
        }
        if let [Leaf { value: Value::Dense(tensor), .. }] = leaves {
            return self.all_reduce(op, tensor);
        }
        // Only tensors in host memory are packed, and only if they lie there on all ranks.
        let packs = !self.communicator.mixed;
        let (mut tensors, mut unpacked, mut sparse) = (Vec::new(), Vec::new(), Vec::new());
        for leaf in leaves {
            match &mut leaf.value {
                Value::Dense(tensor) => match tensor.space() {
                    Space::Host if packs => tensors.push(tensor),
                    Space::Host | Space::Cuda(_) => unpacked.push(tensor),
                },
                Value::Sparse(slices) => sparse.push(slices),
            }
        }
        unpacked.into_iter().try_for_each(|tensor| self.all_reduce(op, tensor))?;
        let sizes: Vec<_> = tensors.iter().map(|tensor| (tensor.dtype(), tensor.buf().bytes())).collect();
        self.pack_limit = Some(pack_limit).filter(|_| tensors.len() > 1);
        // Packing saves steps, and a single replica has none to save.
        let limit = if self.communicator.size() == 1 { 1 } else { pack_limit };
        for pack in packing::packs(&sizes, limit) {
            self.all_reduce_pack(op, &mut tensors, &pack)?;
        }
        sparse.into_iter().try_for_each(|slices| self.all_reduce_rows(op, slices))
    }

    /// Concatenates every leaf over the replicas along its axis in `axes`.
    pub(crate) fn all_gather_leaves(&mut self, leaves: &mut [Leaf], axes: &[usize]) -> Result<()> {
        if leaves.is_empty() {
            return self.call(Call::AllGather { send: None, recv: [0u8; 0].as_mut_slice().into(), counts: None });
        }
        for (leaf, &axis) in leaves.iter_mut().zip(axes) {
            match &mut leaf.value {
                Value::Dense(tensor) => *tensor = self.concat(tensor, axis)?.0,
                Value::Sparse(slices) => *slices = self.gather_rows(slices)?,
            }
        }
        Ok(())
    }

    /// Reduces tensors along their `removed` axes and over the contributions of all replicas. The
    /// tensors are those of this replica's contributions, at least one, which agree in the other
    /// axes. The replicas exchange their unrounded partial results and the numbers of elements in
    /// them.
    ///
    /// # Panics
    /// If `op` is not defined on the dtype, or no axis is removed.
    pub(crate) fn all_reduce_along(&mut self, op: ReduceOp, tensors: &[&Tensor], removed: &[bool]) -> Result<Tensor> {
        self.own_op = Some(op);
        let (rank, size, dtype) = (self.communicator.rank(), self.communicator.size(), tensors[0].dtype());
        let of = self.contributions.unwrap_or(size);
        let (kept, reducer) = (Flat::kept(tensors[0], removed), Reducer::new(op, dtype).expect("a defined operation"));
        let flats = tensors.iter().map(|tensor| Flat::new(tensor, removed)).collect::<Result<Vec<_>>>()?;
        let partials = flats.iter().map(|flat| flat.partial(op)).collect::<Result<Vec<_>>>()?;
        let run = |rank| partition::block(of, size, rank);
        let owned: Vec<Vec<Range<usize>>> = (0..size).map(|rank| nodes(of, &[run(rank)])).collect();
        let bytes = partials[0].as_bytes().len();
        let mut own = vec![0u8; owned[rank].len() * bytes];
        for (node, value) in owned[rank].iter().zip(own.chunks_exact_mut(bytes.max(1))) {
            let inside = node.start - run(rank).start..node.end - run(rank).start;
            let parts: Vec<Source<'_>> =
                partials[inside].iter().map(|partial| Source::Accumulators(partial.as_bytes())).collect();
            let leaves: Vec<Node> = (0..node.len()).map(|leaf| Node::kept(leaf..leaf + 1)).collect();
            reducer.shape(node.len(), &leaves).expect("the leaves of a node").keep(&parts, value);
        }
        let elements: Vec<u8> = flats.iter().flat_map(|flat| (flat.elements() as u64).to_ne_bytes()).collect();
        let send = HostMemory::concat(DType::U8, &[own.as_slice().into(), elements.as_slice().into()]);
        let counts: Vec<usize> =
            (0..size).map(|rank| owned[rank].len() * bytes + run(rank).len() * size_of::<u64>()).collect();
        let mut all = vec![0u8; counts.iter().sum()];
        let (send, recv) = (Some(send.as_buf().into()), all.as_mut_slice().into());
        self.call(Call::AllGather { send, recv, counts: Some(&counts).filter(|_| of != size).map(Vec::as_slice) })?;
        let (mut values, mut elements, mut rest) = (Vec::with_capacity(of), Vec::with_capacity(of), all.as_slice());
        for (nodes, count) in owned.iter().zip(&counts) {
            let (part, after) = rest.split_at(*count);
            let (accumulators, numbers) = part.split_at(nodes.len() * bytes);
            values.extend((0..nodes.len()).map(|node| Source::Accumulators(&accumulators[node * bytes..][..bytes])));
            elements.extend(numbers.as_chunks().0.iter().map(|&count| u64::from_ne_bytes(count)));
            rest = after;
        }
        require_contributions(
            self.kind.name(),
            op.name(),
            op.has_identity(),
            elements.iter().map(|&count| count as usize),
        )?;
        let result = HostMemory::try_unspecified(reducer.output(), kept.iter().product());
        let mut result = result.map_err(no_memory(dtype, &kept))?;
        let sources: Vec<Node> = owned.into_iter().flatten().map(Node::kept).collect();
        let divisor = elements.iter().fold(0, |sum: u64, &count| sum.wrapping_add(count));
        let shape = reducer.shape(of, &sources).expect("the nodes of all replicas");
        shape.finish(&values, &mut result.as_buf_mut(), divisor);
        Tensor::from_memory(kept, result)
    }

    /// All-reduces the tensors of one pack, fused if there are several.
    fn all_reduce_pack(&mut self, op: ReduceOp, tensors: &mut [&mut Tensor], pack: &[usize]) -> Result<()> {
        reduce_fused(tensors, pack, |tensor| self.all_reduce(op, tensor))
    }

    /// All-reduces a tensor: in its own memory if that is not shared and the result has the same
    /// dtype.
    pub(crate) fn all_reduce(&mut self, op: ReduceOp, tensor: &mut Tensor) -> Result<()> {
        if op.result(tensor.dtype()) == Some(tensor.dtype())
            && let Some(recv) = tensor.own_buf_mut()
        {
            return self.call(Call::AllReduce { op, send: None, recv });
        }
        let dtype = op.result(tensor.dtype()).unwrap_or(tensor.dtype());
        let mut recv = self.communicator.room(tensor.space(), dtype, tensor.count())?;
        self.call(Call::AllReduce { op, send: Some(tensor.buf()), recv: recv.as_buf_mut() })?;
        *tensor = Tensor::from_memory(tensor.shape().to_vec(), recv)?;
        Ok(())
    }

    pub(crate) fn sum_on(&mut self, root: usize, tensor: &mut Tensor) -> Result<()> {
        let (op, send) = (ReduceOp::Sum, Some(tensor.buf()));
        if self.communicator.rank() != root {
            self.call(Call::Reduce { op, send, recv: None, root })?;
            *tensor = Tensor::zeros(tensor.dtype(), tensor.shape());
            return Ok(());
        }
        let mut sum = self.communicator.room(tensor.space(), tensor.dtype(), tensor.count())?;
        self.call(Call::Reduce { op, send, recv: Some(sum.as_buf_mut()), root })?;
        *tensor = Tensor::from_memory(tensor.shape().to_vec(), sum)?;
        Ok(())
    }

    pub(crate) fn reduce_scatter(&mut self, op: ReduceOp, tensor: &mut Tensor) -> Result<()> {
        let mut shape = tensor.shape().to_vec();
        shape[0] /= self.communicator.size();
        let dtype = op.result(tensor.dtype()).unwrap_or(tensor.dtype());
        let mut recv = self.communicator.room(tensor.space(), dtype, shape.iter().product())?;
        self.call(Call::ReduceScatter { op, send: Some(tensor.buf()), recv: recv.as_buf_mut() })?;
        *tensor = Tensor::from_memory(shape, recv)?;
        Ok(())
    }

    pub(crate) fn all_reduce_rows(&mut self, op: ReduceOp, slices: &mut IndexedSlices) -> Result<()> {
        let replicas = self.communicator.size();
        self.all_reduce_rows_of(replicas, op, slices)
    }

    /// Concatenates the rows of all replicas, which are those of so many contributions.
    pub(super) fn all_reduce_rows_of(
        &mut self,
        contributions: usize,
        op: ReduceOp,
        slices: &mut IndexedSlices,
    ) -> Result<()> {
        self.own_op = Some(op);
        slices.indices = self.concat(&slices.indices, 0)?.0;
        slices.values = self.concat(&slices.values, 0)?.0;
        if op == ReduceOp::Mean {
            slices.values = indexed_slices::divide("ReplicaContext::all_reduce", &slices.values, contributions)?;
        }
        Ok(())
    }

    /// Returns the rows of the concatenated large tensors, whose sizes may differ.
    fn gather_rows(&mut self, slices: &IndexedSlices) -> Result<IndexedSlices> {
        let size = slices.dense_shape.as_ref().map_or(0, |shape| shape[0]);
        let sizes = self.sizes(size)?;
        let (indices, counts) = self.concat(&slices.indices, 0)?;
        let (values, _) = self.concat(&slices.values, 0)?;
        let call = if self.kind == Kind::AllGather { "ReplicaContext::all_gather" } else { self.kind.name() };
        indexed_slices::gathered(call, values, indices, &counts, &sizes)
    }

    /// Returns the number of this replica among those of the call, and theirs.
    pub(super) fn place(&self) -> (usize, usize) {
        (self.communicator.rank(), self.communicator.size())
    }

    /// Gathers the `size` of each replica.
    pub(super) fn sizes(&mut self, size: usize) -> Result<Vec<usize>> {
        let (mut recv, own) = (vec![0; self.communicator.size()], [size as u64]);
        self.call(Call::AllGather {
            send: Some(own.as_slice().into()),
            recv: recv.as_mut_slice().into(),
            counts: None,
        })?;
        Ok(recv.into_iter().map(|size: u64| size as usize).collect())
    }

    /// Concatenates along `axis`. Also returns each replica's size along it.
    fn concat(&mut self, tensor: &Tensor, axis: usize) -> Result<(Tensor, Vec<usize>)> {
        let shape = tensor.shape();
        let (rows, inner): (usize, usize) = (shape[..axis].iter().product(), shape[axis + 1..].iter().product());
        if rows * inner == 0 {
            // The counts of empty parts do not determine their sizes along the axis.
            let sizes = self.sizes(shape[axis])?;
            let shape = tensor::joined(self.kind.name(), shape, axis, &sizes)?;
            return Ok((Tensor::zeros(tensor.dtype(), shape), sizes));
        }
        let (mut recv, mut sizes) = (None, Vec::new());
        self.call(Call::Concat { send: tensor.buf(), rows, recv: &mut recv, counts: &mut sizes })?;
        sizes.iter_mut().for_each(|count| *count /= rows * inner);
        let shape = tensor::joined(self.kind.name(), shape, axis, &sizes)?;
        let memory = recv.expect("a concatenation that succeeded leaves its result");
        Ok((Tensor::from_memory(shape, memory)?, sizes))
    }
}

/// Checks that the operation is defined on every leaf, and returns it.
pub(crate) fn check_leaves(call: &'static str, op: ReduceOp, leaves: &[Leaf]) -> Result<ReduceOp> {
    leaves.iter().try_for_each(|leaf| leaf.check_op(call, op)).map(|()| op)
}

/// Returns the tensors of a pack, one after the other.
pub(super) fn fused(parts: &[HostBuf<'_>]) -> HostMemory {
    HostMemory::concat(parts[0].dtype(), parts)
}

/// Calls `reduce` for the tensors of one pack, fused if there are several.
pub(super) fn reduce_fused(
    tensors: &mut [&mut Tensor],
    pack: &[usize],
    reduce: impl FnOnce(&mut Tensor) -> Result<()>,
) -> Result<()> {
    if let &[place] = pack {
        return reduce(tensors[place]);
    }
    let parts: Vec<HostBuf<'_>> = pack.iter().map(|&place| tensors[place].host()).collect::<Result<_>>()?;
    let memory = fused(&parts);
    let mut fused = Tensor::from_memory(vec![memory.count()], memory)?;
    reduce(&mut fused)?;
    let mut start = 0;
    for &place in pack {
        let tensor = &mut *tensors[place];
        let part = fused.host()?.slice(start..start + tensor.count());
        start += tensor.count();
        match tensor.own_buf_mut().filter(|own| own.dtype() == part.dtype()).and_then(BufMut::host) {
            Some(mut own) => copy_own(part, &mut own),
            None => *tensor = Tensor::from_memory(tensor.shape().to_vec(), HostMemory::from(part))?,
        }
    }
    Ok(())
}
