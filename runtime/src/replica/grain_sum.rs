//! The contributions of a replica that has several, each a nest: combined as they come, and then
//! with those of the other replicas.
//!
//! Small tensors are fused, and each pack has an accumulation of its own
//! ([`Communicator::accumulator`](crate::Communicator::accumulator)). Sparse rows are kept, since
//! the result has all of them.

use super::nest_call::{check_leaves, fused, reduce_fused};
use crate::{
    Axes, CommunicationOptions, Error, IndexedSlices, ReduceOp, ReplicaContext, Result, Tensor,
    comm::accumulator::LeafSum,
    replica::verify::first_nan,
    value::nest::{Leaf, NestSignature, Value},
};
use consonance_kernels::{
    cpu::reduce::Reducer,
    memory::{HostBuf, HostMemory},
};
use consonance_spec::{Kind, packing};
use std::{fmt, iter, ops::Range};

/// The contributions of a replica among those of all. Room for them is of use as long as this is
/// the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    counted: Counted,
    run: Range<usize>,
    /// The number of contributions of all replicas.
    of: usize,
    pack_limit: usize,
    /// The group that has the memory.
    group: u64,
}

/// The name of contributions in errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counted {
    Grains,
    /// Backward passes without grains.
    Passes,
}

/// A replica's run of contributions.
pub(crate) struct GrainSum {
    op: ReduceOp,
    place: Place,
    /// The number of contributions that were added.
    added: usize,
    /// The signature of the nests, known from the first one.
    outline: Option<NestSignature>,
    packs: Vec<Pack>,
    /// The rows of earlier contributions, for each sparse leaf.
    rows: Vec<Vec<IndexedSlices>>,
    /// The first leaf in which a contribution had a NaN, if anybody looks for them.
    nan: Option<usize>,
}

/// Tensors that are reduced together.
struct Pack {
    /// The places of the tensors among the dense leaves.
    places: Vec<usize>,
    sum: LeafSum,
}

impl GrainSum {
    /// Begins the contributions of this place.
    pub(crate) fn new(op: ReduceOp, place: Place) -> GrainSum {
        let (packs, rows) = (Vec::new(), Vec::new());
        GrainSum { op, place, added: 0, outline: None, packs, rows, nan: None }
    }

    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    pub(crate) fn run(&self) -> Range<usize> {
        self.place.run.clone()
    }

    pub(crate) fn added(&self) -> usize {
        self.added
    }

    /// Drops the contributions that were added.
    pub(crate) fn clear(&mut self) {
        (self.added, self.nan) = (0, None);
        self.packs.iter_mut().for_each(|pack| pack.sum.sum.clear());
        self.rows.iter_mut().for_each(Vec::clear);
    }

    /// Checks that the next contribution is not the last one.
    pub(crate) fn require_more(&self, call: &'static str) -> Result<()> {
        match self.added < self.place.most() {
            true => Ok(()),
            false => Err(self.place.miscounted(call, self.added + 1)),
        }
    }

    /// Adds the next contribution: each one but the last.
    pub(crate) fn add(&mut self, call: &'static str, replica: &ReplicaContext<'_>, leaves: &[Leaf]) -> Result<()> {
        self.require_more(call)?;
        let options = replica.strategy().options();
        self.prepare(call, replica, leaves, &options)?;
        if options.verifies() {
            self.nan = first_nan(leaves).into_iter().chain(self.nan).min();
        }
        let tensors: Vec<&Tensor> = leaves.iter().filter_map(Leaf::as_dense).collect();
        for Pack { places, sum } in &mut self.packs {
            match places[..] {
                [place] => sum.sum.add(tensors[place].host()?),
                _ => {
                    let parts = places.iter().map(|&place| tensors[place].host());
                    sum.sum.add(fused(&parts.collect::<Result<Vec<_>>>()?).as_buf());
                }
            }
        }
        let slices = leaves.iter().filter_map(Leaf::as_sparse);
        self.rows.iter_mut().zip(slices).for_each(|(rows, slices)| rows.push(slices.clone()));
        self.added += 1;
        Ok(())
    }

    /// Combines the contributions of all replicas, of which `leaves` is the last one of this
    /// replica. Afterwards none are left, unless this replica's own call was invalid.
    pub(crate) fn all_reduce(
        &mut self,
        call: &'static str,
        replica: &ReplicaContext<'_>,
        leaves: &mut [Leaf],
    ) -> Result<()> {
        let options = replica.strategy().options();
        let is_whole = match self.added == self.place.most() {
            true => Ok(()),
            false => Err(self.place.miscounted(call, self.added)),
        };
        let checked = is_whole.and_then(|()| self.prepare(call, replica, leaves, &options));
        replica.or_refuse(Kind::AllReduce, checked)?;
        let done = self.combine(call, replica, leaves, &options);
        self.clear();
        done
    }

    fn combine(
        &mut self,
        call: &'static str,
        replica: &ReplicaContext<'_>,
        leaves: &mut [Leaf],
        options: &CommunicationOptions,
    ) -> Result<()> {
        let own_nan = || first_nan(leaves).into_iter().chain(self.nan).min();
        replica.refuse_nan_at(call, Kind::AllReduce, leaves, options, own_nan)?;
        let pack_limit = Some(options.pack_limit()).filter(|_| leaves.len() > 1);
        let session = replica.session(Kind::AllReduce, leaves, None, options);
        let mut session = session.with_contributions(self.place.of, pack_limit);
        if leaves.is_empty() {
            return session.all_reduce_leaves(self.op, leaves, 0);
        }
        let (mut tensors, mut sparse) = (Vec::new(), Vec::new());
        for leaf in leaves {
            match &mut leaf.value {
                Value::Dense(tensor) => tensors.push(tensor),
                Value::Sparse(slices) => sparse.push(slices),
            }
        }
        for Pack { places, sum } in &mut self.packs {
            reduce_fused(&mut tensors, places, |tensor| session.all_reduce_accumulated(sum, tensor))?;
        }
        for (slices, before) in sparse.into_iter().zip(&mut self.rows) {
            let (indices, values): (Vec<&Tensor>, Vec<&Tensor>) =
                before.iter().chain(iter::once(&*slices)).map(|slices| (&slices.indices, &slices.values)).unzip();
            (slices.indices, slices.values) = (joined(&indices)?, joined(&values)?);
            session.all_reduce_rows_of(self.place.of, self.op, slices)?;
        }
        Ok(())
    }

    /// Checks a contribution, and makes room if it is the first one of its kind.
    fn prepare(
        &mut self,
        call: &'static str,
        replica: &ReplicaContext<'_>,
        leaves: &[Leaf],
        options: &CommunicationOptions,
    ) -> Result<()> {
        check_leaves(call, self.op, leaves)?;
        leaves.iter().try_for_each(|leaf| leaf.require_host(call))?;
        let outline = NestSignature::new(leaves, &Axes::default());
        if let Some((path, expected, found)) = self.outline.as_ref().and_then(|known| known.difference(&outline)) {
            if self.added > 0 {
                return Err(Error::invalid(call, path, expected, found));
            }
        } else if self.outline.is_some() {
            return Ok(());
        }
        let sizes: Vec<_> =
            leaves.iter().filter_map(Leaf::as_dense).map(|tensor| (tensor.dtype(), tensor.buf().bytes())).collect();
        let counts: Vec<usize> = leaves.iter().filter_map(Leaf::as_dense).map(Tensor::count).collect();
        let communicator = replica.held();
        // Packing saves steps, and a single replica has none to save.
        let limit = if communicator.size() == 1 { 1 } else { options.pack_limit() };
        let pack = |places: Vec<usize>| {
            let dtype = sizes[places[0]].0;
            let reducer = Reducer::new(self.op, dtype).expect("the operation was checked");
            let count = places.iter().map(|&place| counts[place]).sum();
            let sum = communicator.leaf_sum(call, reducer, count, self.place.run.clone(), self.place.of)?;
            Ok(Pack { places, sum })
        };
        self.packs = packing::packs(&sizes, limit).into_iter().map(pack).collect::<Result<_>>()?;
        self.rows = vec![Vec::new(); leaves.len() - sizes.len()];
        self.outline = Some(outline);
        Ok(())
    }
}

impl Place {
    /// Returns the place of the contributions `run` of `0..of`, which this replica has.
    pub(crate) fn new(counted: Counted, replica: &ReplicaContext<'_>, run: Range<usize>, of: usize) -> Place {
        let strategy = replica.strategy();
        Place { counted, run, of, pack_limit: strategy.options().pack_limit(), group: strategy.group_number() }
    }

    /// Returns whether each replica has one contribution.
    pub(crate) fn is_of_one_each(&self, replicas: usize) -> bool {
        self.run.len() == 1 && self.of == replicas
    }

    /// Returns the number of contributions before the last.
    fn most(&self) -> usize {
        self.run.len().saturating_sub(1)
    }

    /// Returns the error of so many contributions before the last.
    fn miscounted(&self, call: &'static str, found: usize) -> Error {
        let (most, counted) = (self.most(), self.counted);
        let before = format!("{most} {counted} before the last");
        let expected = match counted {
            Counted::Grains => before,
            Counted::Passes => format!("{before} (Gradients::with_passes sets their number)"),
        };
        Error::invalid(call, counted.argument(), expected, format!("{found} {counted}"))
    }
}

/// `0..3 of 8 grains`
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of {} {}", self.run, self.of, self.counted)
    }
}

impl Counted {
    /// Returns the argument that errors name.
    pub(crate) fn argument(self) -> &'static str {
        match self {
            Counted::Grains => "grains",
            Counted::Passes => "passes",
        }
    }
}

impl fmt::Display for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.argument())
    }
}

/// Returns the rows of all tensors, at least one.
fn joined(tensors: &[&Tensor]) -> Result<Tensor> {
    let mut shape = tensors[0].shape().to_vec();
    shape[0] = tensors.iter().map(|tensor| tensor.shape()[0]).sum();
    let parts: Vec<HostBuf<'_>> = tensors.iter().map(|tensor| tensor.host()).collect::<Result<_>>()?;
    Tensor::from_memory(shape, HostMemory::concat(tensors[0].dtype(), &parts))
}
