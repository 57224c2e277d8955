//! Data sets made from iterators, and adaptors of data sets.

use super::{Cardinality, Dataset, Elements, TensorSpec};
use crate::{Error, Nest, Result};
use std::{fmt, sync::Arc};

/// Makes a data set of an iterator's elements. Each iteration calls `make` for a new iterator.
///
/// ```
/// use consonance::{Dataset, Tensor, dataset};
/// let batches = dataset::from_fn(|| (0..3).map(|x| Tensor::from([x, x + 1])));
/// assert_eq!(batches.iterate(0)?.last().unwrap()?, Tensor::from([2, 3]));
/// # Ok::<(), consonance::Error>(())
/// ```
pub fn from_fn<I>(make: impl Fn() -> I + Send + Sync + 'static) -> FromFn<I::Item>
where
    I: IntoIterator<IntoIter: Send + 'static, Item: Nest + Clone + Send + 'static>,
{
    FromFn(Arc::new(move || Ok(Box::new(make().into_iter().map(Ok)))))
}

/// Does [`from_fn`] for a source that may fail, such as a file: both `make` and each element return
/// a `Result`.
///
/// ```
/// use consonance::{Dataset, Error, Tensor, dataset};
/// let numbers = dataset::try_from_fn(|| {
///     Ok("1\n2\nthree".lines().map(|line| line.parse::<i32>().map(Tensor::from).map_err(Error::other)))
/// });
/// let mut numbers = numbers.iterate(0)?;
/// assert_eq!(numbers.next().unwrap()?, Tensor::from(1));
/// assert!(numbers.last().unwrap().is_err());
/// # Ok::<(), Error>(())
/// ```
pub fn try_from_fn<I, E>(make: impl Fn() -> Result<I> + Send + Sync + 'static) -> FromFn<E>
where
    I: IntoIterator<IntoIter: Send + 'static, Item = Result<E>>,
    E: Nest + Clone + Send + 'static,
{
    FromFn(Arc::new(move || Ok(Box::new(make()?.into_iter()))))
}

/// See [`from_fn`] and [`try_from_fn`].
#[derive(Clone)]
pub struct FromFn<E>(Arc<dyn Fn() -> Result<Elements<E>> + Send + Sync>);

impl<E: Nest + Clone + Send + 'static> Dataset for FromFn<E> {
    type Element = E;

    fn iterate(&self, _epoch: u64) -> Result<Elements<E>> {
        (self.0)()
    }
}

/// See [`Dataset::map`].
#[derive(Clone)]
pub struct Map<D, F> {
    dataset: D,
    f: Arc<F>,
}

impl<D: Dataset, F> Map<D, F> {
    pub(super) fn new(dataset: D, f: F) -> Map<D, F> {
        Map { dataset, f: Arc::new(f) }
    }
}

impl<D, U, F> Dataset for Map<D, F>
where
    D: Dataset,
    U: Nest + Clone + Send + 'static,
    F: Fn(D::Element) -> Result<U> + Send + Sync + 'static,
{
    type Element = U;

    fn iterate(&self, epoch: u64) -> Result<Elements<U>> {
        let f = self.f.clone();
        Ok(Box::new(self.dataset.iterate(epoch)?.map(move |element| f(element?))))
    }

    fn cardinality(&self) -> Cardinality {
        self.dataset.cardinality()
    }

    fn reads_files(&self) -> bool {
        self.dataset.reads_files()
    }
}

/// The methods of adaptors that do not change the elements: they forward to the data set below.
macro_rules! same_elements {
    () => {
        fn batch_size(&self) -> Option<usize> {
            self.dataset.batch_size()
        }

        fn element_spec(&self) -> Option<Vec<TensorSpec>> {
            self.dataset.element_spec()
        }

        fn reads_files(&self) -> bool {
            self.dataset.reads_files()
        }

        fn has_single_rows(&self) -> bool {
            self.dataset.has_single_rows()
        }
    };
}

/// See [`Dataset::filter`].
#[derive(Clone)]
pub struct Filter<D, F> {
    dataset: D,
    f: Arc<F>,
}

impl<D: Dataset, F> Filter<D, F> {
    pub(super) fn new(dataset: D, f: F) -> Filter<D, F> {
        Filter { dataset, f: Arc::new(f) }
    }
}

impl<D, F> Dataset for Filter<D, F>
where
    D: Dataset,
    F: Fn(&D::Element) -> Result<bool> + Send + Sync + 'static,
{
    type Element = D::Element;

    fn iterate(&self, epoch: u64) -> Result<Elements<D::Element>> {
        let f = self.f.clone();
        let keep = move |element: Result<D::Element>| {
            let wanted = element.and_then(|element| Ok(f(&element)?.then_some(element)));
            wanted.transpose()
        };
        Ok(Box::new(self.dataset.iterate(epoch)?.filter_map(keep)))
    }

    fn cardinality(&self) -> Cardinality {
        match self.dataset.cardinality() {
            Cardinality::Finite(0) => Cardinality::Finite(0),
            _ => Cardinality::Unknown,
        }
    }

    same_elements!();
}

/// See [`Dataset::take`].
#[derive(Clone, Debug)]
pub struct Take<D> {
    dataset: D,
    count: usize,
}

impl<D: Dataset> Take<D> {
    pub(super) fn new(dataset: D, count: usize) -> Take<D> {
        Take { dataset, count }
    }
}

impl<D: Dataset> Dataset for Take<D> {
    type Element = D::Element;

    fn iterate(&self, epoch: u64) -> Result<Elements<D::Element>> {
        Ok(Box::new(self.dataset.iterate(epoch)?.take(self.count)))
    }

    fn cardinality(&self) -> Cardinality {
        match self.dataset.cardinality() {
            Cardinality::Infinite => Cardinality::Finite(self.count),
            other => other.map(|all| all.min(self.count)),
        }
    }

    same_elements!();
}

/// See [`Dataset::skip`].
#[derive(Clone, Debug)]
pub struct Skip<D> {
    dataset: D,
    count: usize,
}

impl<D: Dataset> Skip<D> {
    pub(super) fn new(dataset: D, count: usize) -> Skip<D> {
        Skip { dataset, count }
    }
}

impl<D: Dataset> Dataset for Skip<D> {
    type Element = D::Element;

    fn iterate(&self, epoch: u64) -> Result<Elements<D::Element>> {
        let mut left = self.count;
        // An error among the skipped elements is returned.
        let keep = move |element: &Result<D::Element>| {
            let skipped = left > 0 && element.is_ok();
            left -= usize::from(skipped);
            !skipped
        };
        Ok(Box::new(self.dataset.iterate(epoch)?.filter(keep)))
    }

    fn cardinality(&self) -> Cardinality {
        self.dataset.cardinality().map(|all| all.saturating_sub(self.count))
    }

    same_elements!();
}

/// See [`Dataset::shard`].
#[derive(Clone, Debug)]
pub struct Shard<D> {
    dataset: D,
    count: usize,
    index: usize,
}

impl<D: Dataset> Shard<D> {
    pub(super) fn new(dataset: D, count: usize, index: usize) -> Shard<D> {
        Shard { dataset, count, index }
    }
}

impl<D: Dataset> Dataset for Shard<D> {
    type Element = D::Element;

    fn iterate(&self, epoch: u64) -> Result<Elements<D::Element>> {
        let (count, index) = (self.count, self.index);
        check_shard(count, index)?;
        let mut place = 0;
        let keep = move |element: &Result<D::Element>| {
            let own = place == index || element.is_err();
            place = (place + 1) % count;
            own
        };
        Ok(Box::new(self.dataset.iterate(epoch)?.filter(keep)))
    }

    fn cardinality(&self) -> Cardinality {
        self.dataset.cardinality().map(|all| all.saturating_sub(self.index).div_ceil(self.count.max(1)))
    }

    same_elements!();
}

pub(super) fn check_shard(count: usize, index: usize) -> Result<()> {
    let call = "Dataset::shard";
    if count == 0 {
        return Err(Error::invalid(call, "count", "at least one shard", "0"));
    }
    if index < count {
        return Ok(());
    }
    Err(Error::invalid(call, "index", format!("less than {count}, the number of shards"), index.to_string()))
}

/// See [`Dataset::repeat`].
#[derive(Clone, Debug)]
pub struct Repeat<D> {
    dataset: Arc<D>,
    count: Option<u64>,
}

impl<D: Dataset> Repeat<D> {
    pub(super) fn new(dataset: D, count: Option<u64>) -> Repeat<D> {
        Repeat { dataset: Arc::new(dataset), count }
    }
}

impl<D: Dataset> Dataset for Repeat<D> {
    type Element = D::Element;

    fn iterate(&self, epoch: u64) -> Result<Elements<D::Element>> {
        // If a repetition is repeated, its second run continues with the next epochs.
        let first = epoch.wrapping_mul(self.count.unwrap_or(1));
        Ok(Box::new(Repetition { dataset: self.dataset.clone(), left: self.count, epoch: first, now: None }))
    }

    fn cardinality(&self) -> Cardinality {
        match (self.dataset.cardinality(), self.count) {
            (Cardinality::Finite(0), _) | (_, Some(0)) => Cardinality::Finite(0),
            (Cardinality::Finite(all), Some(count)) => {
                Cardinality::Finite(all.saturating_mul(usize::try_from(count).unwrap_or(usize::MAX)))
            }
            (Cardinality::Finite(_), None) => Cardinality::Infinite,
            (other, _) => other,
        }
    }

    fn copied_bytes(&self) -> Option<usize> {
        self.dataset.copied_bytes()
    }

    same_elements!();
}

/// The elements of a repetition.
struct Repetition<D: Dataset> {
    dataset: Arc<D>,
    /// The number of epochs still to begin; `None` without end.
    left: Option<u64>,
    /// The next epoch.
    epoch: u64,
    /// The rest of the current epoch, and whether it had an element.
    now: Option<(Elements<D::Element>, bool)>,
}

impl<D: Dataset> Iterator for Repetition<D> {
    type Item = Result<D::Element>;

    fn next(&mut self) -> Option<Result<D::Element>> {
        loop {
            if let Some((elements, any)) = &mut self.now {
                if let Some(element) = elements.next() {
                    *any = true;
                    return Some(element);
                }
                if !*any {
                    // A data set without elements stays empty: do not repeat it.
                    self.left = Some(0);
                }
            }
            self.now = None;
            self.left = match self.left {
                Some(0) => return None,
                left => left.map(|left| left - 1),
            };
            match self.dataset.iterate(self.epoch) {
                Ok(elements) => self.now = Some((elements, false)),
                Err(error) => {
                    self.left = Some(0);
                    return Some(Err(error));
                }
            }
            self.epoch = self.epoch.wrapping_add(1);
        }
    }
}

impl<E> fmt::Debug for FromFn<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FromFn").finish_non_exhaustive()
    }
}

impl<D: fmt::Debug, F> fmt::Debug for Map<D, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Map").field("dataset", &self.dataset).finish_non_exhaustive()
    }
}

impl<D: fmt::Debug, F> fmt::Debug for Filter<D, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Filter").field("dataset", &self.dataset).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Tensor,
        dataset::from_tensor_slices,
        fields::{found, refusal},
    };

    fn numbers(count: i32) -> impl Dataset<Element = Tensor> + Clone {
        from_tensor_slices(Tensor::from((0..count).collect::<Vec<_>>())).unwrap()
    }

    /// The same numbers, as a data set with the general adaptors instead of the table's own.
    fn iterated(count: i32) -> FromFn<Tensor> {
        from_fn(move || (0..count).map(Tensor::from))
    }

    fn read(dataset: &impl Dataset<Element = Tensor>) -> Vec<i32> {
        dataset.iterate(0).unwrap().map(|x| x.unwrap().item().unwrap()).collect()
    }

    #[test]
    fn adaptors_do_as_iterators_do() {
        for count in [0, 1, 5, 12] {
            let all = || 0..count;
            assert_eq!(
                read(&iterated(count).map(|x| Ok(Tensor::from(x.item::<i32>()? * 2)))),
                Vec::from_iter(all().map(|x| x * 2))
            );
            let even = iterated(count).filter(|x| Ok(x.item::<i32>()? % 2 == 0));
            assert_eq!(read(&even), Vec::from_iter(all().filter(|x| x % 2 == 0)));
            for part in [0, 1, 4, 20] {
                assert_eq!(read(&iterated(count).take(part)), Vec::from_iter(all().take(part)));
                assert_eq!(read(&iterated(count).skip(part)), Vec::from_iter(all().skip(part)));
            }
            for (shards, index) in [(1, 0), (3, 0), (3, 2)] {
                let own = Vec::from_iter(all().skip(index).step_by(shards));
                assert_eq!(read(&iterated(count).shard(shards, index)), own);
                assert_eq!(numbers(count).shard(shards, index).cardinality(), Cardinality::Finite(own.len()));
            }
            assert_eq!(read(&iterated(count).repeat(3)), Vec::from_iter(all().chain(all()).chain(all())));
        }
        assert!(read(&iterated(0).repeat(None)).is_empty());
        assert_eq!(read(&iterated(2).repeat(None).take(5)), [0, 1, 0, 1, 0]);
        assert!(iterated(2).shard(2, 2).iterate(0).is_err());
        let none = iterated(2).shard(0, 0).iterate(0).err().expect("an error");
        assert_eq!((refusal(&none), found(&none)), (("Dataset::shard", "count", None), "0"));
    }

    #[test]
    fn errors_pass_every_adaptor() {
        let broken = || try_from_fn(|| Ok([Ok(Tensor::from(0)), Err(Error::other("torn"))]));
        let fails = |dataset: &dyn Dataset<Element = Tensor>| dataset.iterate(0).unwrap().any(|x| x.is_err());
        assert!(fails(&broken().map(Ok)));
        assert!(fails(&broken().filter(|_| Ok(false))));
        assert!(fails(&broken().skip(5)));
        assert!(fails(&broken().shard(3, 2)));
        assert!(fails(&broken().repeat(2)));
        assert!(fails(&broken().batch(2)));
        let closed = || try_from_fn(|| Err::<[Result<Tensor>; 0], _>(Error::other("closed")));
        assert!(closed().iterate(0).is_err());
        assert!(fails(&closed().repeat(None)));
    }
}
