//! Data sets: the input of replicas.
//!
//! A [`Dataset`] is a sequence of elements, each a [nest](Nest) of tensors, that can be iterated
//! any number of times. Make one from arrays in memory or in files ([`from_tensor_slices`]), from
//! numbers ([`range`]), from any iterator ([`from_fn`]), or by implementing the trait. Its methods
//! are adaptors like those of an iterator.
//! [`Strategy::distribute_dataset`](crate::Strategy::distribute_dataset) divides its batches among
//! replicas.
//!
//! ```
//! use consonance::{Dataset, MirroredStrategy, ReduceOp, Tensor, dataset};
//!
//! let images = Tensor::new([6, 2], &[0.0f32; 12])?;
//! let labels = Tensor::from([0i64, 1, 2, 3, 4, 5]);
//! let batches = dataset::from_tensor_slices((images, labels))?.shuffle(7).batch(4);
//!
//! let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
//! let batches = strategy.distribute_dataset(batches)?;
//! let mut seen = 0;
//! for batch in &batches {
//!     let sums = strategy.run_with(batch?, |_, (_images, labels)| Ok(labels))?;
//!     seen += strategy.reduce(ReduceOp::Sum, &sums, 0)?.item::<i64>()?;
//! }
//! assert_eq!(seen, 15);
//! # Ok::<(), consonance::Error>(())
//! ```

mod adaptors;
mod batch;
mod column;
mod combinations;
mod division;
mod distributed_dataset;
pub(crate) mod file;
mod grains;
mod input;
mod order;
mod pool;
mod range;
mod strategy;
mod table;

pub use adaptors::{Filter, FromFn, Map, Repeat, Shard, Skip, Take, from_fn, try_from_fn};
pub use batch::Batch;
pub use column::Column;
pub use combinations::{Interleave, Zip};
pub use distributed_dataset::{DistributedDataset, DistributedIterator};
#[cfg(feature = "csv")]
pub use file::{CsvColumn, CsvOptions};
pub use grains::{DistributedGrains, GrainsIterator};
pub use input::{AutoShardPolicy, Deal, InputContext, InputOptions};
pub use range::range;
pub use table::{Columns, Table, from_tensor_slices};

pub(crate) use division::{Form, Share, not_batched};

use crate::{
    DType, Nest, Result,
    value::nest::{self, Path},
};
use std::fmt;

/// An iterator over the elements of a data set.
pub type Elements<E> = Box<dyn Iterator<Item = Result<E>> + Send>;

/// A sequence of elements that can be iterated any number of times.
///
/// Only [`iterate`](Dataset::iterate) is required. The other methods tell more about the elements:
///
/// ```
/// use consonance::{Dataset, Result, Tensor, dataset::Elements};
///
/// struct Squares(i64);
///
/// impl Dataset for Squares {
///     type Element = Tensor;
///
///     fn iterate(&self, _epoch: u64) -> Result<Elements<Tensor>> {
///         Ok(Box::new((0..self.0).map(|x| Ok(Tensor::from(x * x)))))
///     }
/// }
///
/// let batches: Vec<Tensor> = Squares(5).batch(2).iterate(0)?.collect::<Result<_>>()?;
/// assert_eq!(batches, [Tensor::from([0i64, 1]), Tensor::from([4i64, 9]), Tensor::from([16i64])]);
/// # Ok::<(), consonance::Error>(())
/// ```
pub trait Dataset: Send + Sync + 'static {
    /// One element.
    type Element: Nest + Clone + Send + 'static;

    /// Iterates over the elements from the first.
    ///
    /// Only a [shuffled](Table::shuffle) data set uses `epoch`: its order is a function of its seed
    /// and the epoch alone. [`repeat`](Dataset::repeat) counts epochs.
    ///
    /// # Errors
    /// Those of the source. The source decides whether elements follow a failed one; a
    /// [distributed](crate::Strategy::distribute_dataset) data set ends there.
    fn iterate(&self, epoch: u64) -> Result<Elements<Self::Element>>;

    /// Iterates over batches of `size` elements, stacked along a new axis 0. The last batch has the
    /// elements that are left, unless `drop_remainder`.
    ///
    /// # Errors
    /// As [`iterate`](Dataset::iterate); [`Error::InvalidCall`](crate::Error::InvalidCall) for a
    /// size of zero, or elements of different dtypes or shapes.
    fn batches(&self, epoch: u64, size: usize, drop_remainder: bool) -> Result<Elements<Self::Element>> {
        batch::stack(self.iterate(epoch)?, size, drop_remainder)
    }

    /// Returns the number of elements.
    fn cardinality(&self) -> Cardinality {
        Cardinality::Unknown
    }

    /// Returns the number of rows of a full batch, if each element is a batch.
    fn batch_size(&self) -> Option<usize> {
        None
    }

    /// Returns the specs of an element's tensors, in order, if they are known before an element is
    /// read.
    fn element_spec(&self) -> Option<Vec<TensorSpec>> {
        None
    }

    /// Returns whether elements are read from files.
    fn reads_files(&self) -> bool {
        false
    }

    /// Returns whether each element is known to be one row, and no batch. Such a data set is not
    /// divided among several replicas: [batch](Dataset::batch) it first.
    fn has_single_rows(&self) -> bool {
        false
    }

    /// Returns the bytes of an element, if to read one is only to copy these bytes in memory. A
    /// [distributed](crate::Strategy::distribute_dataset) data set reads small elements of this
    /// kind when they are requested, because a thread that reads ahead costs more.
    fn copied_bytes(&self) -> Option<usize> {
        None
    }

    /// Applies `f` to each element.
    fn map<U, F>(self, f: F) -> Map<Self, F>
    where
        Self: Sized,
        U: Nest + Clone + Send + 'static,
        F: Fn(Self::Element) -> Result<U> + Send + Sync + 'static,
    {
        Map::new(self, f)
    }

    /// Keeps the elements for which `f` returns true.
    fn filter<F>(self, f: F) -> Filter<Self, F>
    where
        Self: Sized,
        F: Fn(&Self::Element) -> Result<bool> + Send + Sync + 'static,
    {
        Filter::new(self, f)
    }

    /// Keeps the first `count` elements, or all if there are fewer.
    fn take(self, count: usize) -> Take<Self>
    where
        Self: Sized,
    {
        Take::new(self, count)
    }

    /// Skips the first `count` elements.
    fn skip(self, count: usize) -> Skip<Self>
    where
        Self: Sized,
    {
        Skip::new(self, count)
    }

    /// Repeats the elements `count` times, or without end: `repeat(3)`, `repeat(None)`. Each
    /// repetition is an epoch, so a shuffled data set has another order each time. A data set
    /// without elements is not repeated.
    ///
    /// ```
    /// use consonance::{Dataset, Tensor, dataset, dataset::Cardinality};
    /// let numbers = dataset::from_tensor_slices(Tensor::from([1, 2, 3]))?;
    /// assert_eq!(numbers.clone().repeat(2).cardinality(), Cardinality::Finite(6));
    /// assert_eq!(numbers.repeat(None).iterate(0)?.take(100).count(), 100);
    /// # Ok::<(), consonance::Error>(())
    /// ```
    fn repeat(self, count: impl Into<Option<u64>>) -> Repeat<Self>
    where
        Self: Sized,
    {
        Repeat::new(self, count.into())
    }

    /// Keeps every `count`-th element, beginning with element `index`: one of `count` shards. Each
    /// element is in exactly one of the shards.
    ///
    /// # Errors
    /// [`Error::InvalidCall`](crate::Error::InvalidCall) when it is iterated, if there is no such
    /// shard.
    fn shard(self, count: usize, index: usize) -> Shard<Self>
    where
        Self: Sized,
    {
        Shard::new(self, count, index)
    }

    /// Pairs the elements with those of `other`, in order. It ends with the shorter one.
    ///
    /// ```
    /// use consonance::{Dataset, Tensor, dataset};
    /// let pairs = dataset::range(0, 3, 1)?.zip(dataset::range(10, 100, 10)?);
    /// let last = pairs.iterate(0)?.last().unwrap()?;
    /// assert_eq!(last, (Tensor::from(2i64), Tensor::from(30i64)));
    /// # Ok::<(), consonance::Error>(())
    /// ```
    fn zip<D: Dataset>(self, other: D) -> Zip<Self, D>
    where
        Self: Sized,
    {
        Zip::new(self, other)
    }

    /// Makes a data set of each element, such as the rows of a file, and takes the elements of
    /// `cycle_length` of these data sets in turn, `block_length` of each. If one ends, the next one
    /// takes its place when its turn comes again. The order is TensorFlow's; it depends on nothing
    /// but the arguments.
    ///
    /// With a `cycle_length` of 1 it is one data set after the other, TensorFlow's `flat_map`.
    ///
    /// # Errors
    /// [`Error::InvalidCall`](crate::Error::InvalidCall) for a length of 0, when it is iterated. An
    /// error of `f` is returned in the place of the elements; the next data set follows.
    ///
    /// ```
    /// use consonance::{Dataset, Tensor, dataset};
    /// let thrice = |x: Tensor| Ok(dataset::from_fn(move || vec![x.clone(); 3]));
    /// let mixed = dataset::range(1, 5, 1)?.interleave(thrice, 2, 2).batch(100);
    /// let expected = Tensor::from([1i64, 1, 2, 2, 1, 2, 3, 3, 4, 4, 3, 4]);
    /// assert_eq!(mixed.iterate(0)?.next().unwrap()?, expected);
    /// # Ok::<(), consonance::Error>(())
    /// ```
    fn interleave<D, F>(self, f: F, cycle_length: usize, block_length: usize) -> Interleave<Self, F>
    where
        Self: Sized,
        D: Dataset,
        F: Fn(Self::Element) -> Result<D> + Send + Sync + 'static,
    {
        Interleave::new(self, f, cycle_length, block_length)
    }

    /// Combines elements into batches of `size`, stacked along a new axis 0. The last batch may
    /// have fewer.
    ///
    /// # Errors
    /// As [`batches`](Dataset::batches), when it is iterated.
    ///
    /// ```
    /// use consonance::{Dataset, Tensor, dataset};
    /// let rows = dataset::from_tensor_slices(Tensor::from([[1, 2], [3, 4], [5, 6]]))?;
    /// let batches = rows.batch(2);
    /// assert_eq!(batches.iterate(0)?.last().unwrap()?, Tensor::from([[5, 6]]));
    /// assert_eq!(batches.drop_remainder().iterate(0)?.count(), 1);
    /// # Ok::<(), consonance::Error>(())
    /// ```
    fn batch(self, size: usize) -> Batch<Self>
    where
        Self: Sized,
    {
        Batch::new(self, size)
    }
}

/// Forwards to the data set in the box.
impl<E: Nest + Clone + Send + 'static> Dataset for Box<dyn Dataset<Element = E>> {
    type Element = E;

    fn iterate(&self, epoch: u64) -> Result<Elements<E>> {
        (**self).iterate(epoch)
    }

    fn batches(&self, epoch: u64, size: usize, drop_remainder: bool) -> Result<Elements<E>> {
        (**self).batches(epoch, size, drop_remainder)
    }

    fn cardinality(&self) -> Cardinality {
        (**self).cardinality()
    }

    fn batch_size(&self) -> Option<usize> {
        (**self).batch_size()
    }

    fn element_spec(&self) -> Option<Vec<TensorSpec>> {
        (**self).element_spec()
    }

    fn reads_files(&self) -> bool {
        (**self).reads_files()
    }

    fn has_single_rows(&self) -> bool {
        (**self).has_single_rows()
    }

    fn copied_bytes(&self) -> Option<usize> {
        (**self).copied_bytes()
    }
}

/// The number of elements of a data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cardinality {
    /// This number.
    Finite(usize),
    /// Without end.
    Infinite,
    /// Unknown before the elements are read.
    Unknown,
}

impl Cardinality {
    /// Applies `f` to a finite number.
    pub(crate) fn map(self, f: impl FnOnce(usize) -> usize) -> Cardinality {
        match self {
            Cardinality::Finite(count) => Cardinality::Finite(f(count)),
            other => other,
        }
    }
}

/// Path, dtype and shape of one tensor of every element.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// The path of the tensor in the element.
    pub path: Path,
    /// The element type.
    pub dtype: DType,
    /// The size of each dimension; `None` where it may differ from element to element.
    pub shape: Vec<Option<usize>>,
}

impl TensorSpec {
    /// Returns the specs of this element's tensors. For sparse rows it is that of their values.
    pub(crate) fn all_of<E: Nest>(mut element: E) -> Vec<TensorSpec> {
        let specs = nest::take(&mut element).into_iter().map(|leaf| {
            let tensor = match &leaf.value {
                nest::Value::Dense(tensor) => tensor,
                nest::Value::Sparse(slices) => slices.values(),
            };
            TensorSpec {
                dtype: tensor.dtype(),
                shape: tensor.shape().iter().copied().map(Some).collect(),
                path: leaf.path,
            }
        });
        specs.collect()
    }
}

/// `f32[?, 28, 28]`
impl fmt::Display for TensorSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dims: Vec<String> =
            self.shape.iter().map(|dim| dim.map_or_else(|| "?".to_owned(), |dim| dim.to_string())).collect();
        write!(f, "{}[{}]", self.dtype, dims.join(", "))
    }
}
