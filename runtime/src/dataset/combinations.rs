//! Data sets made of several others.

use super::{Cardinality, Dataset, Elements, TensorSpec};
use crate::{Error, Result};
use std::{fmt, sync::Arc};

/// See [`Dataset::zip`].
#[derive(Clone, Debug)]
pub struct Zip<A, B> {
    first: A,
    second: B,
}

impl<A: Dataset, B: Dataset> Zip<A, B> {
    pub(super) fn new(first: A, second: B) -> Zip<A, B> {
        Zip { first, second }
    }
}

impl<A: Dataset, B: Dataset> Dataset for Zip<A, B> {
    type Element = (A::Element, B::Element);

    fn iterate(&self, epoch: u64) -> Result<Elements<(A::Element, B::Element)>> {
        // An error leaves the two in step: both have given an element.
        let pairs = self.first.iterate(epoch)?.zip(self.second.iterate(epoch)?);
        Ok(Box::new(pairs.map(|(first, second)| Ok((first?, second?)))))
    }

    fn cardinality(&self) -> Cardinality {
        match (self.first.cardinality(), self.second.cardinality()) {
            (Cardinality::Finite(first), Cardinality::Finite(second)) => Cardinality::Finite(first.min(second)),
            (Cardinality::Infinite, other) | (other, Cardinality::Infinite) => other,
            (Cardinality::Finite(0), _) | (_, Cardinality::Finite(0)) => Cardinality::Finite(0),
            (Cardinality::Unknown, Cardinality::Finite(_) | Cardinality::Unknown)
            | (Cardinality::Finite(_), Cardinality::Unknown) => Cardinality::Unknown,
        }
    }

    fn batch_size(&self) -> Option<usize> {
        self.first.batch_size().filter(|&rows| self.second.batch_size() == Some(rows))
    }

    fn element_spec(&self) -> Option<Vec<TensorSpec>> {
        let below = |index: usize, specs: Vec<TensorSpec>| {
            specs.into_iter().map(move |spec| TensorSpec { path: spec.path.below(index), ..spec })
        };
        Some(below(0, self.first.element_spec()?).chain(below(1, self.second.element_spec()?)).collect())
    }

    fn reads_files(&self) -> bool {
        self.first.reads_files() || self.second.reads_files()
    }

    fn has_single_rows(&self) -> bool {
        self.first.has_single_rows() || self.second.has_single_rows()
    }

    fn copied_bytes(&self) -> Option<usize> {
        self.first.copied_bytes()?.checked_add(self.second.copied_bytes()?)
    }
}

/// See [`Dataset::interleave`].
#[derive(Clone)]
pub struct Interleave<D, F> {
    dataset: D,
    f: Arc<F>,
    cycle_length: usize,
    block_length: usize,
}

impl<D: Dataset, F> Interleave<D, F> {
    pub(super) fn new(dataset: D, f: F, cycle_length: usize, block_length: usize) -> Interleave<D, F> {
        Interleave { dataset, f: Arc::new(f), cycle_length, block_length }
    }
}

impl<D, I, F> Dataset for Interleave<D, F>
where
    D: Dataset,
    I: Dataset,
    F: Fn(D::Element) -> Result<I> + Send + Sync + 'static,
{
    type Element = I::Element;

    fn iterate(&self, epoch: u64) -> Result<Elements<I::Element>> {
        let (cycle_length, block_length) = (self.cycle_length, self.block_length);
        for (argument, length) in [("cycle_length", cycle_length), ("block_length", block_length)] {
            if length == 0 {
                return Err(Error::invalid("Dataset::interleave", argument, "at least 1", "0"));
            }
        }
        let f = self.f.clone();
        let inner = self.dataset.iterate(epoch)?.map(move |element| f(element?)?.iterate(epoch));
        let slots = Slots { inner: Some(inner), open: Vec::new(), slot: 0, given: 0, cycle_length, block_length };
        Ok(Box::new(slots))
    }

    fn reads_files(&self) -> bool {
        self.dataset.reads_files()
    }
}

/// The elements of inner data sets in turn. `spec/src/dataset.rs` has the order.
struct Slots<I, E> {
    /// The data sets that have not begun; `None` after the last.
    inner: Option<I>,
    /// The rest of the data set in each slot that had one so far. It may have none for a turn.
    open: Vec<Option<Elements<E>>>,
    /// The slot whose turn it is: at most the number of those in `open`.
    slot: usize,
    /// The number of elements that it has given in this turn.
    given: usize,
    cycle_length: usize,
    block_length: usize,
}

impl<I, E> Slots<I, E> {
    /// Ends the turn of a slot.
    fn turn(&mut self) {
        self.given = 0;
        self.slot += 1;
        self.wrap();
    }

    /// Begins a new cycle after the last slot.
    fn wrap(&mut self) {
        if self.slot == self.cycle_length || self.inner.is_none() && self.slot >= self.open.len() {
            self.slot = 0;
        }
    }
}

impl<E, I: Iterator<Item = Result<Elements<E>>>> Iterator for Slots<I, E> {
    type Item = Result<E>;

    fn next(&mut self) -> Option<Result<E>> {
        loop {
            if let Some(Some(elements)) = self.open.get_mut(self.slot) {
                match elements.next() {
                    Some(element) => {
                        self.given += 1;
                        if self.given == self.block_length {
                            self.turn();
                        }
                        return Some(element);
                    }
                    None => {
                        self.open[self.slot] = None;
                        self.turn();
                    }
                }
                continue;
            }
            match self.inner.as_mut().and_then(Iterator::next) {
                Some(Ok(elements)) if self.slot < self.open.len() => self.open[self.slot] = Some(elements),
                Some(Ok(elements)) => self.open.push(Some(elements)),
                Some(Err(error)) => return Some(Err(error)),
                None => {
                    self.inner = None;
                    // Nothing comes into this slot any more.
                    if self.slot < self.open.len() {
                        self.open.remove(self.slot);
                    }
                    if self.open.is_empty() {
                        return None;
                    }
                    self.wrap();
                }
            }
        }
    }
}

impl<D: fmt::Debug, F> fmt::Debug for Interleave<D, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Interleave { dataset, f: _, cycle_length, block_length } = self;
        let mut fields = f.debug_struct("Interleave");
        let fields = fields.field("dataset", dataset).field("cycle_length", cycle_length);
        fields.field("block_length", block_length).finish_non_exhaustive()
    }
}
