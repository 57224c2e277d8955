//! The contributions of a replica that has several, each a nest: combined as they come, and then
//! with those of the other replicas.

use super::{earlier_contributions::Run, host_copies::on_host, nest_call::check_leaves, packed_sums::PackedSums};
use crate::{
    Axes, CommunicationOptions, Error, ReduceOp, ReplicaContext, Result,
    replica::verification::first_nan,
    value::nest::{Leaf, NestSignature},
};
use consonance_spec::Kind;
use std::{fmt, ops::Range};

/// The contributions of a replica among those of all. Room for them is of use as long as this is
/// the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Contributions {
    counted: Counted,
    run: Range<usize>,
    /// The number of contributions of all replicas.
    of: usize,
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
    place: Contributions,
    /// The number of contributions that were added.
    added: usize,
    /// The signature of the nests and the room for them, known from the first one.
    room: Option<(NestSignature, PackedSums)>,
    /// The first leaf in which a contribution had a NaN, if anybody looks for them.
    nan: Option<usize>,
}

impl GrainSum {
    /// Begins the contributions of this place.
    pub(crate) fn new(op: ReduceOp, place: Contributions) -> GrainSum {
        GrainSum { op, place, added: 0, room: None, nan: None }
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
        self.room.iter_mut().for_each(|(_, sums)| sums.clear());
    }

    /// Adds the next contribution: each one but the last.
    pub(crate) fn add(&mut self, call: &'static str, replica: &ReplicaContext<'_>, leaves: &mut [Leaf]) -> Result<()> {
        self.place.require_more(call, self.added)?;
        let options = replica.strategy().options();
        on_host(leaves)?;
        self.prepare(call, replica, leaves, &options)?.add(leaves)?;
        if options.verifies() {
            self.nan = first_nan(leaves).into_iter().chain(self.nan).min();
        }
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
        let is_whole = self.place.require_all(call, self.added);
        let copied = is_whole.and_then(|()| on_host(leaves));
        let checked = copied.and_then(|origin| self.prepare(call, replica, leaves, &options).map(|_| origin));
        let origin = replica.or_refuse(Kind::AllReduce, checked)?;
        let done = self.combine(call, replica, leaves, &options);
        self.clear();
        done.and_then(|()| origin.take_back(&replica.held(), leaves))
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
        let (_, sums) = self.room.as_mut().expect("the last contribution was checked");
        sums.all_reduce(&mut session, leaves)
    }

    /// Checks a contribution, and returns the room for it. Makes it for the first one of its kind.
    fn prepare(
        &mut self,
        call: &'static str,
        replica: &ReplicaContext<'_>,
        leaves: &[Leaf],
        options: &CommunicationOptions,
    ) -> Result<&mut PackedSums> {
        check_leaves(call, self.op, leaves)?;
        let outline = NestSignature::new(leaves, &Axes::default());
        let difference = self.room.as_ref().and_then(|(known, _)| known.difference(&outline));
        if let Some((path, expected, found)) = difference {
            if self.added > 0 {
                return Err(Error::invalid(call, path, expected, found));
            }
            self.room = None;
        }
        if self.room.is_none() {
            let contributions = (self.op, self.place.run.clone(), self.place.of);
            let sums = PackedSums::new(call, &replica.held(), contributions, leaves, options.pack_limit())?;
            self.room = Some((outline, sums));
        }
        Ok(&mut self.room.as_mut().expect("made above").1)
    }
}

impl Contributions {
    /// Returns the place of the contributions `run` of `0..of`, which this replica has.
    pub(crate) fn new(counted: Counted, replica: &ReplicaContext<'_>, run: Range<usize>, of: usize) -> Contributions {
        Contributions { counted, run, of, group: replica.strategy().group_number() }
    }

    /// Returns whether each replica has one contribution.
    pub(crate) fn is_of_one_each(&self, replicas: usize) -> bool {
        self.run.len() == 1 && self.of == replicas
    }

    /// Returns the contributions to a reduction by `op`.
    pub(crate) fn run_of(&self, op: ReduceOp) -> Run {
        Run { op, own: self.run.clone(), of: self.of }
    }

    /// Checks that the contribution after so many is not the last one.
    pub(crate) fn require_more(&self, call: &'static str, added: usize) -> Result<()> {
        if added < self.most() { Ok(()) } else { Err(self.miscounted(call, added + 1)) }
    }

    /// Checks that so many contributions are all before the last one.
    pub(crate) fn require_all(&self, call: &'static str, added: usize) -> Result<()> {
        if added == self.most() { Ok(()) } else { Err(self.miscounted(call, added)) }
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
impl fmt::Display for Contributions {
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
