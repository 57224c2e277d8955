//! The option of a strategy that makes it refuse what a TPU would refuse.

use crate::{
    PerReplica, Result, Strategy,
    value::{contract::Contract, nest::NestSignature},
};
use std::{
    collections::HashSet,
    panic::Location,
    sync::{Mutex, MutexGuard},
};

/// The contract of a TPU, for a program that is to be ready before the machine is: one compiled
/// program runs on all replicas, so a tensor has one shape everywhere. A strategy with this option
/// refuses calls that break [its rules](crate::guide::strategies#static-shapes). No value changes.
///
/// Tensors of collectives are compared on all workers. Arguments of
/// [`run_with`](Strategy::run_with) are compared within each process before the function runs, and
/// on all workers in its collectives. Operations of `reduce_scatter`, and of slices other than
/// `all_reduce_slice`, are not checked.
///
/// ```
/// use consonance::{MirroredStrategy, StaticShapes, Tensor};
/// let strategy = MirroredStrategy::builder(["cpu:0", "cpu:1"]).static_shapes(StaticShapes::new()).build()?;
/// let error = strategy.run(|replica| {
///     let rows = 1 + replica.replica_id_in_sync_group();
///     replica.all_gather(Tensor::from(vec![0.5f32; rows]), 0)
/// });
/// let expected = "mismatch in value of replica 1: expected f32[1], found f32[2]; rule \"gathered shape\" of static \
///     shapes: one rank and shape on all replicas, also along the axis";
/// assert!(error.unwrap_err().to_string().contains(expected));
/// # Ok::<(), consonance::Error>(())
/// ```
#[derive(Debug)]
pub struct StaticShapes {
    contract: Contract,
    functions: Mutex<Vec<Function>>,
}

/// A function of runs, and the digests of the sets of shapes that its arguments had.
#[derive(Debug)]
struct Function {
    name: &'static str,
    call: &'static Location<'static>,
    sets: HashSet<u64>,
}

/// The number of times that a TPU would compile one function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Compilations {
    /// The function, as the compiler names it.
    pub function: &'static str,
    /// The place of the call of [`run`](Strategy::run) or [`run_with`](Strategy::run_with).
    pub call: &'static Location<'static>,
    /// The number of different sets of shapes of its arguments.
    pub count: usize,
}

impl StaticShapes {
    /// Makes the option: batches are dynamic.
    pub fn new() -> StaticShapes {
        StaticShapes { contract: Contract::new(true), functions: Mutex::default() }
    }

    /// Sets whether the batches of replicas may differ in their numbers of rows. If not, arguments
    /// have one shape, and data sets give full batches only. On a TPU batches are dynamic by
    /// default, and are padded.
    ///
    /// ```
    /// use consonance::{Dataset, MirroredStrategy, StaticShapes, Tensor, dataset};
    /// let shapes = StaticShapes::new().dynamic_batch(false);
    /// let strategy = MirroredStrategy::builder(["cpu:0", "cpu:1"]).static_shapes(shapes).build()?;
    /// let numbers = dataset::from_tensor_slices(Tensor::from([0, 1, 2, 3, 4]))?;
    /// let error = strategy.distribute_dataset(numbers.clone().batch(2)).unwrap_err();
    /// assert!(error.to_string().contains("drop_remainder"));
    /// assert!(strategy.distribute_dataset(numbers.batch(2).drop_remainder()).is_ok());
    /// # Ok::<(), consonance::Error>(())
    /// ```
    #[must_use]
    pub fn dynamic_batch(mut self, dynamic: bool) -> StaticShapes {
        self.contract.dynamic_batch = dynamic;
        self
    }

    /// Returns how often a TPU would compile each function of [`run`](Strategy::run) and
    /// [`run_with`](Strategy::run_with) so far: once for each new set of shapes of its arguments,
    /// in this process. The batches of one run are padded to the largest along axis 0. Functions
    /// are in the order of their first runs. A function is one by its type and the place of the
    /// call. All arguments whose shapes [are not noted](PerReplica::with_shapes) are one set.
    /// Captured values are not seen.
    ///
    /// ```
    /// use consonance::{Dataset, MirroredStrategy, StaticShapes, Tensor, dataset};
    /// let strategy = MirroredStrategy::builder(["cpu:0", "cpu:1"]).static_shapes(StaticShapes::new()).build()?;
    /// // Batches of 4, 4 and 2 rows: another shape in the last step.
    /// let batches = dataset::from_tensor_slices(Tensor::from(vec![0.5f32; 10]))?.batch(4);
    /// for step in &strategy.distribute_dataset(batches)? {
    ///     strategy.run_with(step?, |_replica, rows| Ok(rows.count()))?;
    /// }
    /// let compilations = strategy.static_shapes().unwrap().compilations();
    /// assert_eq!((compilations.len(), compilations[0].count), (1, 2));
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn compilations(&self) -> Vec<Compilations> {
        let of = |function: &Function| {
            let &Function { name, call, ref sets } = function;
            Compilations { function: name, call, count: sets.len() }
        };
        self.functions().iter().map(of).collect()
    }

    /// Notes the shapes of a run's arguments.
    fn note(&self, name: &'static str, call: &'static Location<'static>, set: u64) {
        let mut functions = self.functions();
        match functions.iter_mut().find(|function| (function.name, function.call) == (name, call)) {
            Some(function) => _ = function.sets.insert(set),
            None => functions.push(Function { name, call, sets: HashSet::from([set]) }),
        }
    }

    fn functions(&self) -> MutexGuard<'_, Vec<Function>> {
        self.functions.lock().expect("nobody panics holding the list")
    }
}

impl Default for StaticShapes {
    fn default() -> StaticShapes {
        StaticShapes::new()
    }
}

impl Strategy {
    /// Returns the option of static shapes, if the strategy was made with it: TensorFlow's
    /// `experimental_require_static_shapes`.
    ///
    /// ```
    /// use consonance::{MirroredStrategy, StaticShapes};
    /// assert!(MirroredStrategy::new(["cpu:0"])?.static_shapes().is_none());
    /// let strategy = MirroredStrategy::builder(["cpu:0"]).static_shapes(StaticShapes::new()).build()?;
    /// assert!(strategy.static_shapes().is_some());
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn static_shapes(&self) -> Option<&StaticShapes> {
        self.0.static_shapes.as_ref()
    }

    /// Returns the contract of static shapes, if the strategy obeys it.
    pub(crate) fn contract(&self) -> Option<Contract> {
        self.static_shapes().map(|shapes| shapes.contract.clone())
    }

    /// Compares the noted shapes of a run's arguments, if the strategy has the option.
    pub(crate) fn check_arguments<A>(&self, call: &'static str, arguments: &PerReplica<A>) -> Result<()> {
        match (self.contract(), arguments.shapes()) {
            (Some(contract), Some(shapes)) => contract.check_arguments(call, self.local_replicas().start, shapes),
            (None, _) | (_, None) => Ok(()),
        }
    }

    /// Counts the shapes of a run's arguments for its function, if the strategy has the option. The
    /// function is its name and the place of the call.
    pub(crate) fn count_shapes<A>(
        &self,
        (name, call): (&'static str, &'static Location<'static>),
        arguments: &PerReplica<A>,
    ) {
        let Some(shapes) = self.static_shapes() else { return };
        let padded = arguments.shapes().and_then(NestSignature::padded);
        shapes.note(name, call, padded.map_or(0, |shapes| shapes.digest()));
    }
}
