//! Variables on servers, and where they lie.

use crate::{DType, Error, IndexedSlices, Result, Tensor, value::indexed_slices, variable::update::Update};
use consonance_spec::Shards;
use std::{
    fmt,
    ops::Range,
    ptr,
    sync::{Arc, Weak},
};

/// A variable whose rows lie on the servers of a
/// [`ParameterServerStrategy`](crate::ParameterServerStrategy), in shards along axis 0.
///
/// A clone is the same variable. In a closure it is read and changed through the
/// [`WorkerContext`](super::WorkerContext), at the chief by these methods. Each shard is read as of
/// one moment, and several shards one after the other.
///
/// In [`Order::Arrival`](super::Order::Arrival) the chief reads the newest values, and changes them
/// at once. In [`Order::Scheduled`](super::Order::Scheduled) each of these methods ends the window
/// and waits for all closures, so that its place among them is fixed.
///
/// It is a [nest](crate::Nest) without leaves. A closure gets it as an argument, or as a part of
/// one, and otherwise captures it:
///
/// ```
/// use consonance::{ClusterCoordinator, ParameterServerStrategy, ShardedVariable, Tensor};
/// use std::time::Duration;
/// let strategy = ParameterServerStrategy::threads(2, 1)?;
/// let totals = [strategy.variable(|| Tensor::from(0i64))?, strategy.variable(|| Tensor::from(0i64))?];
/// let coordinator = ClusterCoordinator::new(&strategy);
/// let add = coordinator.function("add", |worker, (total, number): (ShardedVariable, i64)| {
///     worker.assign_add(&total, &Tensor::from(number))
/// })?;
/// # if !strategy.is_chief() { return strategy.serve(); }
/// for number in 0..10 {
///     coordinator.schedule(&add, (totals[number as usize % 2].clone(), number))?;
/// }
/// coordinator.join(Duration::from_secs(60))?;
/// assert_eq!(totals[1].read()?, Tensor::from(25i64));
/// # Ok::<(), consonance::Error>(())
/// ```
///
/// ```
/// use consonance::{ParameterServerStrategy, Tensor, parameter_server::FixedShardsPartitioner};
/// let strategy = ParameterServerStrategy::builder_of_threads(1, 2)
///     .partitioner(FixedShardsPartitioner::new(2)?)
///     .build()?;
/// let table = strategy.variable(|| Tensor::from([[1.0f32], [2.0], [3.0]]))?;
/// assert_eq!(table.shards(), [(0..2, 0), (2..3, 1)]);
/// table.assign_add(&Tensor::from([[0.5f32], [0.5], [0.5]]))?;
/// assert_eq!(table.lookup(&Tensor::from([2i64, 0]))?, Tensor::from([[3.5f32], [1.5]]));
/// # Ok::<(), consonance::Error>(())
/// ```
#[derive(Clone)]
pub struct ShardedVariable {
    pub(super) layout: Arc<Layout>,
    pub(super) strategy: Weak<dyn Accessed>,
}

/// The type of a variable, and where its rows lie.
#[derive(Debug)]
pub(super) struct Layout {
    /// Its number among the variables of the program.
    pub(super) number: usize,
    pub(super) dtype: DType,
    pub(super) shape: Vec<usize>,
    pub(super) shards: Vec<Shard>,
}

/// The rows of a variable on one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shard {
    /// Its rows; of a scalar one.
    pub(super) rows: Range<usize>,
    pub(super) server: usize,
    /// Its number among the parts of the server's memory.
    pub(super) part: usize,
}

/// The calls of a variable outside of closures.
pub(super) trait Accessed: Send + Sync {
    /// Checks that this process is the chief.
    fn check_chief(&self, call: &'static str) -> Result<()>;
    /// Waits until all closures have ended whose place is before an access of the chief.
    fn settle(&self, call: &'static str) -> Result<()>;
    fn read(&self, call: &'static str, layout: &Layout, asked: Asked<'_>) -> Result<Tensor>;
    fn update(&self, call: &'static str, layout: &Arc<Layout>, update: Update, value: &Tensor) -> Result<()>;
    /// Changes the rows of these numbers, which `slices` has.
    fn update_rows(
        &self,
        call: &'static str,
        layout: &Arc<Layout>,
        update: Update,
        rows: (Vec<usize>, &IndexedSlices),
    ) -> Result<()>;
}

/// The rows that are read.
#[derive(Clone, Copy, Debug)]
pub(super) enum Asked<'a> {
    All,
    Rows(&'a [usize]),
}

impl Layout {
    /// Makes the layout of a variable. `servers` has the server of each shard, and `parts` the
    /// number of parts that each server has; the shards are added to them.
    pub(super) fn new(
        number: usize,
        dtype: DType,
        shape: Vec<usize>,
        servers: &[usize],
        parts: &mut [usize],
    ) -> Layout {
        let rows = Shards::new(shape.first().copied().unwrap_or(1), servers.len());
        let shard = |(shard, &server): (usize, &usize)| {
            parts[server] += 1;
            Shard { rows: rows.rows_of(shard), server, part: parts[server] - 1 }
        };
        let shards = servers.iter().enumerate().map(shard).collect();
        Layout { number, dtype, shape, shards }
    }

    /// Returns the elements of a row; of a scalar, the one that it has.
    pub(super) fn row_count(&self) -> usize {
        self.shape.get(1..).unwrap_or_default().iter().product()
    }

    pub(super) fn rows(&self) -> usize {
        self.shape.first().copied().unwrap_or(1)
    }

    /// Returns the shard of a row.
    pub(super) fn shard_of(&self, row: usize) -> usize {
        self.shards.partition_point(|shard| shard.rows.end <= row)
    }

    /// Returns the shape of the rows that are asked for.
    pub(super) fn shape_of(&self, asked: Asked<'_>) -> Vec<usize> {
        match asked {
            Asked::All => self.shape.clone(),
            Asked::Rows(rows) => [&[rows.len()], &self.shape[1..]].concat(),
        }
    }

    /// Returns whether the shards have the same rows, on the same servers, as those of another one.
    pub(super) fn is_beside(&self, other: &Layout) -> bool {
        let places = |of: &Layout| of.shards.iter().map(|shard| (shard.rows.clone(), shard.server)).collect::<Vec<_>>();
        self.shape.first() == other.shape.first() && places(self) == places(other)
    }

    pub(super) fn spec(&self) -> String {
        format!("{}{:?}", self.dtype, self.shape)
    }

    /// Checks a value for all rows.
    pub(super) fn check(&self, call: &'static str, update: Update, value: &Tensor) -> Result<()> {
        if (value.dtype(), value.shape()) != (self.dtype, &self.shape[..]) {
            return Err(Error::invalid(call, "value", self.spec(), value.spec()));
        }
        update.check(call, value)
    }

    /// Checks rows, and returns their numbers.
    pub(super) fn check_rows(&self, call: &'static str, update: Update, rows: &IndexedSlices) -> Result<Vec<usize>> {
        let spec = |dtype: DType, shape: &[usize]| format!("rows of {dtype}{shape:?}");
        let row_shape = self.shape.get(1..).ok_or_else(|| self.no_rows(call))?;
        let expected = spec(self.dtype, row_shape);
        let found = spec(rows.values().dtype(), &rows.values().shape()[1..]);
        if expected != found {
            return Err(Error::invalid(call, "rows", expected, found));
        }
        if let Some(shape) = rows.dense_shape().filter(|&shape| shape != self.shape) {
            let expected = format!("rows of a tensor of shape {:?}", self.shape);
            return Err(Error::invalid(call, "rows", expected, format!("shape {shape:?}")));
        }
        update.check(call, rows.values())?;
        self.check_indices(call, rows.indices())
    }

    /// Checks indices of rows, and returns them.
    pub(super) fn check_indices(&self, call: &'static str, indices: &Tensor) -> Result<Vec<usize>> {
        if self.shape.is_empty() {
            return Err(self.no_rows(call));
        }
        let wide: Vec<i64> = match indexed_slices::is_narrow(indices.dtype()).filter(|_| indices.rank() == 1) {
            Some(false) => indices.as_slice::<i64>()?.to_vec(),
            Some(true) => indices.as_slice::<i32>()?.iter().copied().map(i64::from).collect(),
            None => return Err(Error::invalid(call, "indices", "i32 or i64 of one dimension", indices.spec())),
        };
        let rows = self.rows();
        let row = |(place, index): (usize, i64)| {
            usize::try_from(index).ok().filter(|&row| row < rows).ok_or_else(|| {
                let expected = match rows {
                    0 => "no row of a variable without rows".to_owned(),
                    rows => format!("a row from 0 to {}", rows - 1),
                };
                Error::invalid(call, format!("indices[{place}]"), expected, index.to_string())
            })
        };
        wide.into_iter().enumerate().map(row).collect()
    }

    /// Checks a range of rows, and returns their numbers.
    pub(super) fn check_range(&self, call: &'static str, rows: Range<usize>) -> Result<Vec<usize>> {
        if self.shape.is_empty() {
            return Err(self.no_rows(call));
        }
        if rows.start > rows.end || rows.end > self.rows() {
            let expected = format!("a range within 0..{}", self.rows());
            return Err(Error::invalid(call, "rows", expected, format!("{rows:?}")));
        }
        Ok(rows.collect())
    }

    fn no_rows(&self, call: &'static str) -> Error {
        Error::invalid(call, "variable", "one with rows", format!("{}, a scalar", self.dtype))
    }
}

/// Checks that a variable is one of these, which are those of a program.
pub(super) fn check_own(call: &'static str, argument: &str, own: &[Arc<Layout>], variable: &Layout) -> Result<()> {
    match own.get(variable.number).is_some_and(|own| ptr::eq(&**own, variable)) {
        true => Ok(()),
        false => Err(Error::invalid(call, argument, "one of this strategy", "one of another strategy")),
    }
}

impl ShardedVariable {
    /// Returns the element type.
    pub fn dtype(&self) -> DType {
        self.layout.dtype
    }

    /// Returns the shape.
    pub fn shape(&self) -> &[usize] {
        &self.layout.shape
    }

    /// Returns the rows of each shard, and the number of its server.
    pub fn shards(&self) -> Vec<(Range<usize>, usize)> {
        self.layout.shards.iter().map(|shard| (shard.rows.clone(), shard.server)).collect()
    }

    /// Returns the value. Only the chief calls it.
    ///
    /// # Errors
    /// [`Error::WrongContext`] in a worker or a server, [`Error::Aborted`] if a server was lost,
    /// [`Error::Timeout`] if closures do not end, [`Error::Meeting`] if the processes do not meet.
    pub fn read(&self) -> Result<Tensor> {
        self.read_of("ShardedVariable::read", Asked::All)
    }

    /// Returns these rows, of shape `[rows, ...]`. Only the chief calls it.
    ///
    /// # Errors
    /// As [`read`](Self::read), and [`Error::InvalidCall`] for rows that are not there.
    pub fn read_rows(&self, rows: Range<usize>) -> Result<Tensor> {
        let call = "ShardedVariable::read_rows";
        self.read_of(call, Asked::Rows(&self.layout.check_range(call, rows)?))
    }

    /// Returns the rows with these indices, in their order, each as often as it is asked for.
    /// `indices` has shape `[rows]` and dtype i32 or i64. Only the chief calls it.
    ///
    /// # Errors
    /// As [`read`](Self::read), and [`Error::InvalidCall`] for an index out of range.
    pub fn lookup(&self, indices: &Tensor) -> Result<Tensor> {
        let call = "ShardedVariable::lookup";
        self.read_of(call, Asked::Rows(&self.layout.check_indices(call, indices)?))
    }

    /// Sets the value. Only the chief calls it.
    ///
    /// # Errors
    /// As [`read`](Self::read), and [`Error::InvalidCall`] for a value of another dtype or shape.
    pub fn assign(&self, value: &Tensor) -> Result<()> {
        self.update("ShardedVariable::assign", Update::Assign, value)
    }

    /// Adds to the value. Only the chief calls it.
    ///
    /// # Errors
    /// As [`assign`](Self::assign), also for a variable of `bool`.
    pub fn assign_add(&self, value: &Tensor) -> Result<()> {
        self.update("ShardedVariable::assign_add", Update::AssignAdd, value)
    }

    /// Subtracts from the value. Only the chief calls it.
    ///
    /// # Errors
    /// As [`assign_add`](Self::assign_add).
    pub fn assign_sub(&self, value: &Tensor) -> Result<()> {
        self.update("ShardedVariable::assign_sub", Update::AssignSub, value)
    }

    /// Sets rows, one after the other: the last of rows with the same index counts. Only the chief
    /// calls it.
    ///
    /// ```
    /// use consonance::{IndexedSlices, ParameterServerStrategy, Tensor};
    /// let strategy = ParameterServerStrategy::threads(1, 2)?;
    /// let table = strategy.variable(|| Tensor::from([[1.0f32], [2.0], [3.0]]))?;
    /// let rows = |values, indices| IndexedSlices::new(Tensor::from(values), Tensor::from(indices), None);
    /// table.scatter_update(&rows([[7.0f32], [8.0]], [2i64, 0])?)?;
    /// table.scatter_add(&rows([[0.5f32], [0.25]], [1i64, 1])?)?;
    /// assert_eq!(table.read()?, Tensor::from([[8.0f32], [2.75], [7.0]]));
    /// # Ok::<(), consonance::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`read`](Self::read), and [`Error::InvalidCall`] for rows of another dtype or shape, and
    /// an index out of range.
    pub fn scatter_update(&self, rows: &IndexedSlices) -> Result<()> {
        self.scatter("ShardedVariable::scatter_update", Update::Assign, rows)
    }

    /// Adds rows to those of the value, one after the other. Only the chief calls it.
    ///
    /// # Errors
    /// As [`scatter_update`](Self::scatter_update), also for a variable of `bool`.
    pub fn scatter_add(&self, rows: &IndexedSlices) -> Result<()> {
        self.scatter("ShardedVariable::scatter_add", Update::AssignAdd, rows)
    }

    /// Subtracts rows from those of the value, one after the other. Only the chief calls it.
    ///
    /// # Errors
    /// As [`scatter_add`](Self::scatter_add).
    pub fn scatter_sub(&self, rows: &IndexedSlices) -> Result<()> {
        self.scatter("ShardedVariable::scatter_sub", Update::AssignSub, rows)
    }

    fn scatter(&self, call: &'static str, update: Update, slices: &IndexedSlices) -> Result<()> {
        let rows = self.layout.check_rows(call, update, slices)?;
        let strategy = self.of_chief(call)?;
        strategy.settle(call)?;
        strategy.update_rows(call, &self.layout, update, (rows, slices))
    }

    pub(super) fn read_of(&self, call: &'static str, asked: Asked<'_>) -> Result<Tensor> {
        let strategy = self.of_chief(call)?;
        strategy.settle(call)?;
        strategy.read(call, &self.layout, asked)
    }

    pub(super) fn update(&self, call: &'static str, update: Update, value: &Tensor) -> Result<()> {
        self.layout.check(call, update, value)?;
        let strategy = self.of_chief(call)?;
        strategy.settle(call)?;
        strategy.update(call, &self.layout, update, value)
    }

    /// Returns the strategy, at the chief.
    pub(super) fn of_chief(&self, call: &'static str) -> Result<Arc<dyn Accessed>> {
        let strategy = self.strategy.upgrade().ok_or_else(|| Error::WrongContext {
            call,
            problem: "the variable's strategy was dropped, and its servers with it".to_owned(),
        })?;
        strategy.check_chief(call)?;
        Ok(strategy)
    }
}

impl fmt::Debug for ShardedVariable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShardedVariable").field("layout", &self.layout).finish_non_exhaustive()
    }
}
