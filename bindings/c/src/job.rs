//! Collectives as values that own their counts.

use crate::{codes::Type, leaves::Leaves};
use consonance::{
    Communicator, Result,
    raw::{Agreement, Call},
};

/// A collective with its buffers and counts, and the element type of its caller.
///
/// ```
/// use consonance::{Communicator, ReduceOp, raw::Call};
/// use consonance_c::{codes::TYPES, Job};
/// let complex64 = TYPES[13];
/// let data: &'static mut [f32] = vec![1.0, 2.0].leak();
/// let job = Job::new(Call::AllReduce { op: ReduceOp::Sum, send: None, recv: data.into() }, complex64);
/// job.execute(&mut Communicator::threads(1).remove(0))?;
/// # Ok::<(), consonance::Error>(())
/// ```
#[derive(Debug)]
pub struct Job {
    call: Call<'static>,
    counts: Vec<usize>,
    recv_counts: Vec<usize>,
    of: Option<Type>,
    way: Way,
}

/// The way in which a reduction combines what the ranks have.
#[derive(Debug)]
enum Way {
    /// Plain, or no reduction.
    Plain,
    /// With the leaves of each rank.
    Leaves(Leaves),
    /// Rounded once.
    Exact,
}

impl Job {
    /// Makes a collective on elements of a type. Counts in `call` are those of parts.
    #[inline]
    pub fn new(call: Call<'static>, of: Type) -> Job {
        Job { call, counts: Vec::new(), recv_counts: Vec::new(), of: Some(of), way: Way::Plain }
    }

    /// Makes a barrier.
    pub fn barrier() -> Job {
        Job { call: Call::Barrier, counts: Vec::new(), recv_counts: Vec::new(), of: None, way: Way::Plain }
    }

    /// Returns the element type; `None` for a barrier.
    pub fn of_type(&self) -> Option<Type> {
        self.of
    }

    /// Adds the number of parts of each rank. In an all-to-all they are those that this rank sends.
    pub fn with_counts(self, counts: Vec<usize>) -> Job {
        Job { counts, ..self }
    }

    /// Adds the number of parts that this rank receives from each rank.
    pub fn with_recv_counts(self, recv_counts: Vec<usize>) -> Job {
        Job { recv_counts, ..self }
    }

    /// Makes a reduction one of leaves: the job's input is the last leaf.
    pub fn with_leaves(self, leaves: &Leaves) -> Job {
        Job { way: Way::Leaves(leaves.clone()), ..self }
    }

    /// Makes an all-reduce exact: each result is rounded once.
    pub fn exact(self) -> Job {
        Job { way: Way::Exact, ..self }
    }

    /// Returns what executes jobs one after the other, until one fails.
    pub(crate) fn in_turn(jobs: Vec<Job>) -> impl FnOnce(&mut Communicator) -> Result<()> + Send + 'static {
        |communicator| communicator.as_one(|rank| jobs.into_iter().try_for_each(|job| job.execute(rank)))
    }

    #[inline]
    pub(crate) fn into_work(self) -> impl FnOnce(&mut Communicator) -> Result<()> + Send + 'static {
        |communicator| self.execute(communicator)
    }

    /// Executes the collective.
    ///
    /// # Errors
    /// As [`Communicator::execute`].
    ///
    /// # Panics
    /// If there are counts for a call that has none.
    #[inline]
    pub fn execute(self, communicator: &mut Communicator) -> Result<()> {
        let Job { call, counts: given, recv_counts, of, way } = self;
        let mut call: Call<'_> = call;
        if !given.is_empty() {
            match &mut call {
                Call::Gather { counts, .. } | Call::AllGather { counts, .. } | Call::Scatter { counts, .. } => {
                    *counts = Some(&given);
                }
                Call::AllToAll { counts, .. } => *counts = Some((&given, &recv_counts)),
                _ => unreachable!("a call with counts"),
            }
        }
        // Ranks also agree on a type that its parts do not tell.
        let other = of.filter(|of| !of.is_plain());
        let describe = || other.iter().map(|of| ("type".to_owned(), of.name.to_owned())).collect();
        let agreement = other.map_or(Agreement::NONE, |of| Agreement::new(of.number as u64, &describe));
        match way {
            Way::Plain => communicator.execute(call, &agreement),
            Way::Leaves(leaves) => communicator.execute_accumulated(call, &mut leaves.lock(), &agreement),
            Way::Exact => communicator.execute_exact(call, &agreement),
        }
    }
}
