//! Tables: columns with equal numbers of rows. Each row is an element.

use super::{
    Cardinality, Column, Dataset, Elements, TensorSpec,
    batch::check_size,
    order::{ChosenRows, Order, Pick},
    pool::Pool,
};
use crate::{
    Error, Nest, Result, Tensor,
    value::nest::{self, Value},
};
use std::{collections::BTreeMap, ops::Range};

/// Makes a data set of the rows of a column, or of several columns that are read together: a
/// [`Tensor`], a [`Column`], or a tuple, list or map of these. TensorFlow's
/// `Dataset.from_tensor_slices`.
///
/// Batches are read directly from the column into one tensor, so data in a file are copied once.
///
/// # Errors
/// [`Error::InvalidCall`] for a scalar, no column at all, or columns with different numbers of
/// rows.
///
/// ```
/// use consonance::{Dataset, Tensor, dataset};
/// let table = dataset::from_tensor_slices((Tensor::from([[1, 2], [3, 4]]), Tensor::from([0.5, 1.5])))?;
/// assert_eq!(table.iterate(0)?.last().unwrap()?, (Tensor::from([3, 4]), Tensor::from(1.5)));
/// # Ok::<(), consonance::Error>(())
/// ```
pub fn from_tensor_slices<C: Columns>(columns: C) -> Result<Table<C::Element>> {
    let call = "dataset::from_tensor_slices";
    let mut list = Vec::new();
    let empty = columns.into_columns(&mut list)?;
    let Some(first) = list.first() else {
        return Err(Error::invalid(call, "columns", "at least one column", "none"));
    };
    let rows = first.count();
    let leaves = nest::take(&mut empty.clone());
    if let Some((leaf, column)) = leaves.iter().zip(&list).find(|(_, column)| column.count() != rows) {
        let expected = format!("{rows} rows, as the first column has");
        return Err(Error::invalid(call, leaf.path.to_string(), expected, column.count().to_string()));
    }
    Ok(Table { columns: list, rows, picks: Vec::new(), empty })
}

/// A nest of columns: the argument of [`from_tensor_slices`].
pub trait Columns {
    /// The nest of one row's tensors.
    type Element: Nest + Clone + Send + Sync + 'static;

    /// Appends the columns in the order of an element's tensors. Returns an element with empty
    /// tensors.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] for a value that is no column.
    fn into_columns(self, columns: &mut Vec<Column>) -> Result<Self::Element>;
}

impl Columns for Column {
    type Element = Tensor;

    fn into_columns(self, columns: &mut Vec<Column>) -> Result<Tensor> {
        columns.push(self);
        Ok(Tensor::default())
    }
}

impl Columns for Tensor {
    type Element = Tensor;

    fn into_columns(self, columns: &mut Vec<Column>) -> Result<Tensor> {
        Column::try_from(self)?.into_columns(columns)
    }
}

impl<C: Columns> Columns for Vec<C> {
    type Element = Vec<C::Element>;

    fn into_columns(self, columns: &mut Vec<Column>) -> Result<Vec<C::Element>> {
        self.into_iter().map(|nest| nest.into_columns(columns)).collect()
    }
}

impl<K, C: Columns> Columns for BTreeMap<K, C>
where
    K: std::fmt::Display + Ord + Clone + Send + Sync + 'static,
{
    type Element = BTreeMap<K, C::Element>;

    fn into_columns(self, columns: &mut Vec<Column>) -> Result<BTreeMap<K, C::Element>> {
        self.into_iter().map(|(key, nest)| Ok((key, nest.into_columns(columns)?))).collect()
    }
}

macro_rules! columns_of_tuple {
    ($(($($nest:ident $index:tt),*))*) => {
        $(
            impl<$($nest: Columns),*> Columns for ($($nest,)*) {
                type Element = ($($nest::Element,)*);

                fn into_columns(self, columns: &mut Vec<Column>) -> Result<Self::Element> {
                    Ok(($(self.$index.into_columns(columns)?,)*))
                }
            }
        )*
    };
}

columns_of_tuple! {
    (A 0)
    (A 0, B 1)
    (A 0, B 1, C 2)
    (A 0, B 1, C 2, D 3)
    (A 0, B 1, C 2, D 3, E 4)
    (A 0, B 1, C 2, D 3, E 4, F 5)
    (A 0, B 1, C 2, D 3, E 4, F 5, G 6)
    (A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7)
}

/// All or some rows of columns, in some order. See [`from_tensor_slices`].
#[derive(Clone, Debug)]
pub struct Table<E> {
    columns: Vec<Column>,
    rows: usize,
    picks: Vec<Pick>,
    /// An element with empty tensors.
    empty: E,
}

impl<E: Nest + Clone + Send + Sync + 'static> Table<E> {
    /// Shuffles the rows. The order is a function of `seed` and the epoch alone: it is the same on
    /// every machine and in every version.
    ///
    /// Each epoch of [`repeat`](Dataset::repeat) and of
    /// [`DistributedDataset::epoch`](super::DistributedDataset::epoch) has another order. The order
    /// uses 8 bytes of memory per row.
    ///
    /// ```
    /// use consonance::{Dataset, Tensor, dataset};
    /// let numbers = dataset::from_tensor_slices(Tensor::from([0, 1, 2, 3, 4]))?.shuffle(42);
    /// let epochs: Vec<Tensor> = numbers.repeat(2).batch(5).iterate(0)?.collect::<Result<_, _>>()?;
    /// assert_eq!(epochs, [Tensor::from([2, 0, 4, 3, 1]), Tensor::from([3, 0, 2, 1, 4])]);
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn shuffle(self, seed: u64) -> Table<E> {
        self.pick(Pick::Shuffle { seed })
    }

    /// Keeps the first `count` rows, or all if there are fewer.
    pub fn take(self, count: usize) -> Table<E> {
        self.pick(Pick::Take(count))
    }

    /// Skips the first `count` rows.
    pub fn skip(self, count: usize) -> Table<E> {
        self.pick(Pick::Skip(count))
    }

    /// Keeps one shard, as [`Dataset::shard`] does. Rows of other shards are not read.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] when it is iterated, if there is no such shard.
    pub fn shard(self, count: usize, index: usize) -> Table<E> {
        self.pick(Pick::Shard { count, index })
    }

    fn pick(mut self, pick: Pick) -> Table<E> {
        self.picks.push(pick);
        self
    }

    fn reader(&self, epoch: u64) -> Result<Reader<E>> {
        let order = Order::new(self.rows, &self.picks, epoch)?;
        let columns = self.columns.iter().map(|column| (column.clone(), Pool::default())).collect();
        Ok(Reader { columns, order, empty: self.empty.clone() })
    }
}

impl<E: Nest + Clone + Send + Sync + 'static> Dataset for Table<E> {
    type Element = E;

    fn iterate(&self, epoch: u64) -> Result<Elements<E>> {
        let mut reader = self.reader(epoch)?;
        Ok(Box::new((0..reader.order.count()).map(move |place| reader.read(place..place + 1, false))))
    }

    fn batches(&self, epoch: u64, size: usize, drop_remainder: bool) -> Result<Elements<E>> {
        check_size(size)?;
        let mut reader = self.reader(epoch)?;
        let count = reader.order.count();
        let count = if drop_remainder { count - count % size } else { count };
        let starts = (0..count).step_by(size);
        Ok(Box::new(starts.map(move |start| reader.read(start..start.saturating_add(size).min(count), true))))
    }

    fn cardinality(&self) -> Cardinality {
        // The number of rows does not depend on the epoch. A shard that does not exist has no rows.
        let unordered: Vec<Pick> =
            self.picks.iter().copied().filter(|pick| !matches!(pick, Pick::Shuffle { .. })).collect();
        Cardinality::Finite(Order::new(self.rows, &unordered, 0).map_or(0, |order| order.count()))
    }

    fn element_spec(&self) -> Option<Vec<TensorSpec>> {
        let leaves = nest::take(&mut self.empty.clone());
        let spec = |(leaf, column): (nest::Leaf, &Column)| TensorSpec {
            path: leaf.path,
            dtype: column.dtype(),
            shape: column.row_shape().iter().copied().map(Some).collect(),
        };
        Some(leaves.into_iter().zip(&self.columns).map(spec).collect())
    }

    fn has_single_rows(&self) -> bool {
        true
    }

    fn reads_files(&self) -> bool {
        self.columns.iter().any(|column| column.rows().in_file())
    }

    fn copied_bytes(&self) -> Option<usize> {
        if self.reads_files() {
            return None;
        }
        self.columns.iter().try_fold(0usize, |bytes, column| {
            let row_count: usize = column.row_shape().iter().product();
            bytes.checked_add(row_count.checked_mul(column.dtype().size())?)
        })
    }
}

/// Reads rows of all columns in the given order.
struct Reader<E> {
    columns: Vec<(Column, Pool)>,
    order: Order,
    empty: E,
}

impl<E: Nest + Clone> Reader<E> {
    /// Reads the rows at `places` of the order: stacked if `batched`, else a single row.
    fn read(&mut self, places: Range<usize>, batched: bool) -> Result<E> {
        let mut element = self.empty.clone();
        let mut leaves = nest::take(&mut element);
        let count = places.len();
        let rows = self.order.rows(places);
        for (leaf, (column, pool)) in leaves.iter_mut().zip(&mut self.columns) {
            let column = column.rows();
            let mut shape = column.row_shape().to_vec();
            if batched {
                shape.insert(0, count);
            }
            let tensor = pool.tensor(column.dtype(), shape, |into| match &rows {
                ChosenRows::Range(rows) => column.read(rows.clone(), into),
                ChosenRows::List(rows) => column.read_listed(rows, into),
            })?;
            leaf.value = Value::Dense(tensor);
        }
        nest::put(element, leaves)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;

    #[test]
    fn a_batch_of_a_table_is_its_rows_stacked() {
        let columns = || {
            let images = Tensor::new([7, 2], &(0..14).map(|x| x as f32).collect::<Vec<_>>()).unwrap();
            (images, vec![Tensor::from((0..7u8).collect::<Vec<_>>())])
        };
        for table in [from_tensor_slices(columns()).unwrap(), from_tensor_slices(columns()).unwrap().shuffle(1).skip(1)]
        {
            for (size, drop_remainder) in [(1, false), (3, false), (3, true), (7, true), (9, true), (9, false)] {
                let straight = table.batches(2, size, drop_remainder).unwrap();
                let stacked = crate::dataset::batch::stack(table.iterate(2).unwrap(), size, drop_remainder).unwrap();
                let all = |elements: Elements<_>| elements.collect::<Result<Vec<(Tensor, Vec<Tensor>)>>>().unwrap();
                assert_eq!(all(straight), all(stacked));
            }
        }
    }

    /// Found by a review: computing the end of a full last batch overflowed.
    #[test]
    fn a_table_may_have_as_many_rows_as_there_are_numbers() {
        let table = from_tensor_slices(Tensor::zeros(DType::F32, [usize::MAX, 0])).unwrap();
        let rows = |batch: Result<Tensor>| batch.unwrap().shape()[0];
        let sizes: Vec<usize> = table.batch(usize::MAX - 5).iterate(0).unwrap().map(rows).collect();
        assert_eq!(sizes, [usize::MAX - 5, 5]);
    }

    /// Found by a review: the bytes of a row overflowed.
    #[test]
    fn a_row_may_have_more_bytes_than_there_are_numbers() -> Result<()> {
        let table = || from_tensor_slices(Tensor::zeros(DType::F32, [0, 1 << 62]));
        assert_eq!(table()?.batch(4).iterate(0)?.count(), 0);
        let strategy = crate::MirroredStrategy::new(["cpu:0", "cpu:1"])?;
        assert_eq!(strategy.distribute_dataset(table()?.shuffle(1).batch(4))?.iter().count(), 0);
        Ok(())
    }

    #[test]
    fn columns_must_have_equally_many_rows() {
        let error = from_tensor_slices((Tensor::from([1, 2]), Tensor::from([1]))).err().unwrap();
        assert!(matches!(&error, Error::InvalidCall { argument, .. } if argument == "value/1"), "{error}");
        assert!(from_tensor_slices(Tensor::from(1)).is_err());
        assert!(from_tensor_slices(Vec::<Tensor>::new()).is_err());
        assert!(from_tensor_slices(Tensor::from([1])).unwrap().batch(0).iterate(0).is_err());
        assert!(from_tensor_slices(Tensor::from([1])).unwrap().shard(1, 1).iterate(0).is_err());
    }
}
