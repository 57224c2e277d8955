//! The program: the functions and variables that all processes declare in the same order.

use super::{
    context::WorkerContext,
    declarations::Known,
    effect::PartSpec,
    update_function::{DeclaredUpdate, UpdateFunction},
    variable::{Accessed, Layout},
    worker_state::Named,
};
use crate::{Error, Nest, Result, Tensor, value::nest::sent};
use consonance_spec::{Partitioner, RefusedPartition, RoundRobin};
use std::{
    any::type_name,
    fmt,
    marker::PhantomData,
    sync::{Arc, Weak},
};

/// A function of the program, which workers run: see
/// [`ClusterCoordinator::function`](super::ClusterCoordinator::function). A clone is the same
/// function.
pub struct Function<A, R> {
    pub(super) number: usize,
    pub(super) name: Arc<str>,
    pub(super) types: PhantomData<fn(A) -> R>,
}

/// All that a process declares before it meets the others.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) functions: Vec<Declared>,
    pub(super) known: Known,
    /// The shards of each server.
    pub(super) parts: Vec<Vec<PartSpec>>,
    /// The value of each of these shards, where this process plays that server.
    pub(super) values: Vec<Vec<Tensor>>,
    round: RoundRobin,
}

/// A function, as workers run it.
#[derive(Clone)]
pub(super) struct Declared {
    pub(super) name: Arc<str>,
    argument: &'static str,
    result: &'static str,
    pub(super) run: Arc<Run>,
}

/// Makes the bytes of the result from those of the argument.
type Run = dyn Fn(&WorkerContext<'_>, &[u8]) -> Result<Vec<u8>> + Send + Sync;

impl Program {
    pub(super) fn new(strategy: Weak<dyn Accessed>, workers: usize, servers: usize) -> Program {
        Program {
            functions: Vec::new(),
            known: Known::new(strategy, workers),
            parts: vec![Vec::new(); servers],
            values: vec![Vec::new(); servers],
            round: RoundRobin::new(servers),
        }
    }

    /// Adds a function.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] if there is one of this name.
    pub(super) fn function<A: Nest, R: Nest>(
        &mut self,
        name: &str,
        run: impl Fn(&WorkerContext<'_>, A) -> Result<R> + Send + Sync + 'static,
    ) -> Result<Function<A, R>> {
        if self.functions.iter().any(|function| &*function.name == name) {
            let call = "ClusterCoordinator::function";
            return Err(Error::invalid(call, "name", "one that no other function has", format!("{name:?}")));
        }
        let name: Arc<str> = name.into();
        let run = move |worker: &WorkerContext<'_>, argument: &[u8]| {
            let (bytes, references) = sent::to_bytes(run(worker, sent::from_bytes(argument, worker.known)?)?)?;
            worker.known.check_references("ClusterCoordinator::function", &references)?;
            Ok(bytes)
        };
        let (argument, result) = (type_name::<A>(), type_name::<R>());
        self.functions.push(Declared { name: name.clone(), argument, result, run: Arc::new(run) });
        Ok(Function { number: self.functions.len() - 1, name, types: PhantomData })
    }

    /// Adds an update function.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] if there is one of this name.
    pub(super) fn update_function<const N: usize>(
        &mut self,
        name: &str,
        update: impl Fn(&mut Tensor, &mut [Tensor; N], &Tensor) -> Result<()> + Send + Sync + 'static,
    ) -> Result<UpdateFunction<N>> {
        if self.known.update_functions.iter().any(|function| &*function.name == name) {
            let call = "ParameterServerStrategy::update_function";
            return Err(Error::invalid(call, "name", "one that no other function has", format!("{name:?}")));
        }
        let name: Arc<str> = name.into();
        self.known.update_functions.push(DeclaredUpdate::new(&name, update));
        Ok(UpdateFunction { number: self.known.update_functions.len() - 1, name })
    }

    /// Adds a variable, and keeps the values of shards of the servers that this process `plays`.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] for a partition that is refused, and for a value that is not in host
    /// memory.
    pub(super) fn variable(
        &mut self,
        value: &Tensor,
        partitioner: Option<&dyn Partitioner>,
        plays: impl Fn(usize) -> bool,
    ) -> Result<Arc<Layout>> {
        let call = "ParameterServerStrategy::variable";
        value.host().map_err(|error| error.of_call(call))?;
        let refused = |refused| Error::from(refused).of_call_named(call);
        let shards = match partitioner.filter(|_| value.rank() > 0) {
            None => 1,
            Some(partitioner) => {
                let partitions = partitioner.partitions(value.shape(), value.dtype(), 0).map_err(refused)?;
                shard_count(value.shape(), &partitions).map_err(refused)?
            }
        };
        let servers = self.round.place(shards);
        self.place(value, &servers, plays)
    }

    /// Adds a variable whose shards lie beside those of another one.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] for a value of other rows, and for one that is not in host memory.
    pub(super) fn slot(&mut self, of: &Layout, value: &Tensor, plays: impl Fn(usize) -> bool) -> Result<Arc<Layout>> {
        let call = "ParameterServerStrategy::slot";
        value.host().map_err(|error| error.of_call(call))?;
        if value.shape().first() != of.shape.first() {
            let expected = match of.shape.first() {
                None => "a scalar".to_owned(),
                Some(rows) => format!("{rows} rows"),
            };
            return Err(Error::invalid(call, "value", expected, value.spec()));
        }
        let servers: Vec<usize> = of.shards.iter().map(|shard| shard.server).collect();
        self.place(value, &servers, plays)
    }

    fn place(&mut self, value: &Tensor, servers: &[usize], plays: impl Fn(usize) -> bool) -> Result<Arc<Layout>> {
        let mut parts: Vec<usize> = self.parts.iter().map(Vec::len).collect();
        let layout =
            Layout::new(self.known.variables.len(), value.dtype(), value.shape().to_vec(), servers, &mut parts);
        for shard in &layout.shards {
            let rows = if layout.shape.is_empty() { value.clone() } else { value.rows(shard.rows.clone())? };
            self.parts[shard.server].push(PartSpec { dtype: layout.dtype, shape: rows.shape().to_vec() });
            if plays(shard.server) {
                self.values[shard.server].push(rows);
            }
        }
        let layout = Arc::new(layout);
        self.known.variables.push(layout.clone());
        Ok(layout)
    }

    /// Checks that a function is one of this program.
    pub(super) fn check<A, R>(&self, call: &'static str, function: &Function<A, R>) -> Result<()> {
        let own = self.functions.get(function.number);
        match own.is_some_and(|own| Arc::ptr_eq(&own.name, &function.name)) {
            true => Ok(()),
            false => Err(Error::invalid(call, "function", "one of this strategy", "one of another strategy")),
        }
    }

    /// Returns a line for each declaration. Processes with the same lines have the same program, as
    /// far as it can be known.
    pub(super) fn lines(&self) -> Vec<String> {
        let function = |of: &Declared| format!("function {:?}: {} -> {}", of.name, of.argument, of.result);
        let variable = |of: &Arc<Layout>| {
            let shards = of.shards.iter().map(|shard| format!("{:?} on ps[{}]", shard.rows, shard.server));
            format!("variable {}: {}, rows {}", of.number, of.spec(), shards.collect::<Vec<_>>().join(", "))
        };
        let update = |of: &DeclaredUpdate| format!("update function {:?} with {} slots", of.name, of.slots);
        let dataset = |of: &Named| format!("data set {:?}: {}", of.name, of.of);
        let value = |of: &Named| format!("value of each worker {:?}: {}", of.name, of.of);
        let functions = self.functions.iter().map(function).chain(self.known.update_functions.iter().map(update));
        let of_workers = self.known.datasets.iter().map(dataset).chain(self.known.worker_values.iter().map(value));
        functions.chain(self.known.variables.iter().map(variable)).chain(of_workers).collect()
    }
}

/// Returns the number of shards of a tensor that is no scalar, for these parts along its axes.
fn shard_count(shape: &[usize], partitions: &[usize]) -> Result<usize, RefusedPartition> {
    if partitions.len() != shape.len() {
        return Err(RefusedPartition::Rank { expected: shape.len(), found: partitions.len() });
    }
    for (axis, &parts) in partitions.iter().enumerate() {
        match (axis, parts) {
            (_, 0) => return Err(RefusedPartition::NoParts { axis }),
            (1.., 2..) => return Err(RefusedPartition::OtherAxis { axis, parts }),
            (0, _) | (_, 1) => {}
        }
    }
    // No shard is empty, but that of a tensor without rows.
    Ok(partitions[0].min(shape[0]).max(1))
}

impl fmt::Debug for Declared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Declared").field("name", &self.name).finish_non_exhaustive()
    }
}

impl<A, R> Clone for Function<A, R> {
    fn clone(&self) -> Function<A, R> {
        Function { number: self.number, name: self.name.clone(), types: PhantomData }
    }
}

impl<A, R> fmt::Debug for Function<A, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Function").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Makes the error of a partition that is refused.
impl From<RefusedPartition> for Error {
    fn from(refused: RefusedPartition) -> Error {
        use RefusedPartition::{AxisOutOfRange, NoParts, NotPositive, OtherAxis, Rank, Scalar};
        let (argument, expected, found) = match refused {
            NotPositive { argument } => (argument, "a positive number".to_owned(), "0".to_owned()),
            Scalar => ("shape", "one with an axis".to_owned(), "a scalar".to_owned()),
            AxisOutOfRange { axis, rank } => ("axis", format!("one below {rank}"), axis.to_string()),
            Rank { expected, found } => ("partitions", format!("{expected} numbers"), found.to_string()),
            NoParts { axis } => ("partitions", "at least 1 along each axis".to_owned(), format!("0 along axis {axis}")),
            OtherAxis { axis, parts } => {
                ("partitions", "1 along each axis but the first".to_owned(), format!("{parts} along axis {axis}"))
            }
        };
        Error::invalid("Partitioner", argument, expected, found)
    }
}
