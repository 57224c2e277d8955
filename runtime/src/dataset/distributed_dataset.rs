//! Distributed data sets: steps of one element for each replica, read ahead by a thread.

use super::{
    Cardinality, Dataset, Form, InputOptions, Share, TensorSpec,
    division::{Steps, without_rows},
};
use crate::{
    Communicator, Error, Nest, PerReplica, Result, Strategy,
    comm::{agreement::Agreement, call::Call},
    execution::context,
    kind, panics,
    value::{
        contract::{Contract, not_full},
        nest::{self, Leaf, NestSignature},
    },
};
use consonance_kernels::shm::codes::code_of;
use std::{
    fmt,
    sync::{
        Arc, Weak,
        mpsc::{Receiver, RecvTimeoutError, sync_channel},
    },
    thread,
};

/// A data set whose elements are divided among the replicas of a strategy.
///
/// Iterating with `for step in &dataset` gives a [`PerReplica`] for each step, to pass to
/// [`Strategy::run_with`](crate::Strategy::run_with). Each iteration starts at the first element.
///
/// Cloning gives another handle to the same data set.
#[derive(Clone)]
pub struct DistributedDataset<E> {
    strategy: Strategy,
    inner: Arc<Inner<E>>,
}

/// The parts of a data set that a thread needs to read ahead. They have no strategy: the thread may
/// live longer, and a worker leaves its group when the last handle to its strategy is dropped.
struct Inner<E> {
    dataset: Box<dyn Dataset<Element = E>>,
    share: Share,
    prefetch: usize,
}

impl<E: Nest + Clone + Send + 'static> DistributedDataset<E> {
    pub(crate) fn new(
        strategy: &Strategy,
        dataset: impl Dataset<Element = E>,
        share: Share,
        options: InputOptions,
    ) -> DistributedDataset<E> {
        let inner = Inner { dataset: Box::new(dataset), share, prefetch: options.prefetch };
        DistributedDataset { strategy: strategy.clone(), inner: Arc::new(inner) }
    }

    /// Returns whether the workers have their own data sets, which may end at different steps.
    fn ends_apart(&self) -> bool {
        self.inner.share.own && self.strategy.workers().is_some()
    }

    /// Iterates over the steps from the first, in epoch 0.
    pub fn iter(&self) -> DistributedIterator<E> {
        self.epoch(0)
    }

    /// Iterates over the steps of this epoch from the first. A [shuffled](super::Table::shuffle)
    /// data set has another order in each epoch.
    ///
    /// ```
    /// use consonance::{Dataset, MirroredStrategy, Tensor, dataset};
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let numbers = dataset::from_tensor_slices(Tensor::from([0, 1, 2, 3]))?.shuffle(1).batch(4);
    /// let numbers = strategy.distribute_dataset(numbers)?;
    /// for epoch in 0..3 {
    ///     for step in numbers.epoch(epoch) {
    ///         assert_eq!(step?[1].count(), 2);
    ///     }
    /// }
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn epoch(&self, epoch: u64) -> DistributedIterator<E> {
        let source = Source { inner: self.inner.clone(), state: Reading::Closed { epoch }, reader: None };
        let is_small = self.inner.dataset.copied_bytes().is_some_and(|bytes| bytes <= COPIED_BYTES);
        let feed = match self.inner.prefetch {
            _ if is_small => Feed::Here(source),
            0 => Feed::Here(source),
            batches => read_ahead(source, batches).unwrap_or_else(|error| Feed::Broken(Some(error))),
        };
        let common_end = self.ends_apart().then_some(CommonEnd { nothing: None });
        DistributedIterator { strategy: self.strategy.clone(), feed, common_end, full: None }
    }

    /// Returns the specs of the tensors of each replica's elements, in order. The number of rows is
    /// `None` if it may differ.
    ///
    /// If the data set does not give an element spec, this reads the first element.
    ///
    /// # Errors
    /// Those of the source; [`Error::InvalidCall`] if there is no element to read.
    ///
    /// ```
    /// use consonance::{Dataset, MirroredStrategy, Tensor, dataset};
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let rows = dataset::from_tensor_slices(Tensor::zeros(consonance::DType::F32, [10, 3]))?;
    /// let spec = |batches| Ok::<_, consonance::Error>(strategy.distribute_dataset(batches)?.element_spec()?[0].to_string());
    /// assert_eq!(spec(rows.clone().batch(4))?, "f32[?, 3]");
    /// assert_eq!(spec(rows.batch(4).drop_remainder())?, "f32[2, 3]");
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn element_spec(&self) -> Result<Vec<TensorSpec>> {
        let Inner { dataset, share: Share { form, replicas, local, .. }, .. } = &*self.inner;
        let known = dataset.element_spec();
        let is_known = known.is_some();
        let mut specs = match known {
            Some(specs) => specs,
            None => match dataset.iterate(0)?.next() {
                Some(element) => TensorSpec::all_of(element?),
                None => {
                    let expected = "an element, since only elements show what they are";
                    return Err(Error::invalid("DistributedDataset::element_spec", "self", expected, "none"));
                }
            },
        };
        // Whether each replica gets an element in the last step, too: else some get tensors without
        // rows.
        let full = match dataset.cardinality() {
            Cardinality::Infinite => true,
            _ if self.ends_apart() => false,
            _ if *form != Form::Each => true,
            Cardinality::Finite(count) => count % local.len() == 0,
            Cardinality::Unknown => local.len() == 1,
        };
        for rows in specs.iter_mut().filter_map(|spec| spec.shape.first_mut()) {
            *rows = rows.filter(|_| is_known && full).and_then(|rows| match form {
                Form::Each => Some(rows),
                _ => (rows % replicas == 0).then_some(rows / replicas),
            });
        }
        Ok(specs)
    }

    /// Returns the number of steps. If rows are [packed](super::Deal::Packed) it is, as in
    /// TensorFlow, the number of batches before packing. If workers have their own data sets it is
    /// unknown.
    pub fn cardinality(&self) -> Cardinality {
        let elements = if self.inner.share.form == Form::Each { self.inner.share.local.len() } else { 1 };
        match self.inner.dataset.cardinality() {
            Cardinality::Finite(_) if self.ends_apart() => Cardinality::Unknown,
            cardinality => cardinality.map(|count| count.div_ceil(elements)),
        }
    }
}

/// Iterates over the steps from the first.
impl<E: Nest + Clone + Send + 'static> IntoIterator for &DistributedDataset<E> {
    type Item = Result<PerReplica<E>>;
    type IntoIter = DistributedIterator<E>;

    fn into_iter(self) -> DistributedIterator<E> {
        self.iter()
    }
}

/// `DistributedDataset(MirroredStrategy(cpu:0, cpu:1), Finite(3))`
impl<E: Nest + Clone + Send + 'static> fmt::Debug for DistributedDataset<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DistributedDataset({}, {:?})", self.strategy, self.cardinality())
    }
}

/// The steps of a [`DistributedDataset`].
///
/// A separate thread reads at most [`InputOptions::prefetch`] steps ahead, unless steps are
/// [small copies](Dataset::copied_bytes). An error of the source
/// is returned for its step, after the steps before it, and ends the iteration. So does a panic, as
/// an error with its message.
///
/// If the source takes longer than the strategy's [timeout](crate::CommunicationOptions::timeout)
/// for a step, the result is [`Error::Timeout`]; the next call waits again.
///
/// Dropping the iterator ends the thread: at once if it waits for space, else when the source
/// returns its next element. If the source never returns, the thread stays; no call waits for it.
///
/// If workers have their own data sets, `next` is a collective of the workers: all take as many
/// steps as the longest data set has. A worker whose data set has ended gets tensors without rows,
/// so that its replicas can still take part in collectives. If one worker fails, all get an error,
/// which ends the iteration.
pub struct DistributedIterator<E> {
    strategy: Strategy,
    feed: Feed<E>,
    /// Makes the workers end together, if their data sets may end at different steps.
    common_end: Option<CommonEnd<E>>,
    /// The signature of the first value, if the strategy has static shapes without dynamic batches.
    full: Option<NestSignature>,
}

enum Feed<E> {
    /// A thread reads ahead while `_reader` is alive. It sends `None` after its last step.
    Ahead { steps: Receiver<Option<Result<PerReplica<E>>>>, has_ended: bool, _reader: Arc<()> },
    /// Steps are read when they are requested.
    Here(Source<E>),
    /// The thread could not be started, or the workers have ended together. The error is returned
    /// once.
    Broken(Option<Error>),
}

impl<E: Nest + Clone + Send + 'static> DistributedIterator<E> {
    /// Returns the next step, or `None` at the end: TensorFlow's `get_next_as_optional`.
    ///
    /// # Errors
    /// Those of the source, and [`Error::WrongContext`] in a replica or in another strategy's
    /// scope.
    ///
    /// ```
    /// use consonance::{MirroredStrategy, Tensor, dataset};
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let mut steps = strategy.distribute_dataset(dataset::from_fn(|| [Tensor::from([1, 2])]))?.iter();
    /// assert_eq!(steps.next_or_none()?.unwrap().values(), [Tensor::from([1]), Tensor::from([2])]);
    /// assert!(steps.next_or_none()?.is_none());
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn next_or_none(&mut self) -> Result<Option<PerReplica<E>>> {
        self.next().transpose()
    }
}

impl<E: Nest + Clone + Send + 'static> Iterator for DistributedIterator<E> {
    type Item = Result<PerReplica<E>>;

    fn next(&mut self) -> Option<Result<PerReplica<E>>> {
        let all_ended = self.common_end.is_some() && matches!(self.feed, Feed::Broken(None));
        let step = match context::require_cross_replica("DistributedIterator::next", &self.strategy) {
            // Workers that agree on steps must not wait for this one: pass the error of the wrong
            // scope to `agree`, like an error of this worker's data set.
            Err(error) if self.common_end.is_some() && !all_ended && context::replica().is_none() => Some(Err(error)),
            Err(error) => return Some(Err(error)),
            Ok(()) if all_ended => return None,
            Ok(()) => self.checked_step(),
        };
        let Some(common_end) = &mut self.common_end else { return step };
        let step = common_end.agree(&self.strategy, step).transpose();
        if !matches!(step, Some(Ok(_))) {
            self.feed = Feed::Broken(None);
        }
        step
    }
}

impl<E: Nest + Clone + Send + 'static> DistributedIterator<E> {
    /// Returns the next step of this process's data set. With static shapes it is checked, and its
    /// shapes are noted. A refused step ends the iteration; other errors pass through.
    fn checked_step(&mut self) -> Option<Result<PerReplica<E>>> {
        let (step, contract) = match (self.own_step()?, self.strategy.contract()) {
            (Ok(step), Some(contract)) => (step, contract),
            (step, _) => return Some(step),
        };
        let first = self.strategy.local_replicas().start;
        let leaves: Vec<Vec<Leaf>> = step.iter().map(|value| nest::take(&mut value.clone())).collect();
        let checked = contract.check_step("DistributedIterator::next", first, &leaves, &mut self.full);
        let checked = checked.and_then(|()| step.with_shapes());
        if checked.is_err() {
            self.feed = Feed::Broken(None);
        }
        Some(checked)
    }

    /// Returns the next step of this process's data set.
    fn own_step(&mut self) -> Option<Result<PerReplica<E>>> {
        match &mut self.feed {
            Feed::Ahead { has_ended: true, .. } => None,
            Feed::Ahead { steps, has_ended, .. } => {
                let timeout = self.strategy.options().configuration().timeout;
                let step = match steps.recv_timeout(timeout) {
                    Ok(step) => step,
                    Err(RecvTimeoutError::Disconnected) => {
                        *has_ended = true;
                        Some(Err(Error::other("the thread that reads the data set ended before the data set")))
                    }
                    Err(RecvTimeoutError::Timeout) => {
                        let call = "DistributedIterator::next".to_owned();
                        let last = "its data set has not given the next element".to_owned();
                        let missing = vec![(self.strategy.local_replicas().start, last)];
                        Some(Err(Error::Timeout { call, waited: timeout, missing }))
                    }
                };
                *has_ended |= step.is_none();
                step
            }
            Feed::Here(source) => source.next(),
            Feed::Broken(error) => error.take().map(Err),
        }
    }
}

/// Makes workers whose data sets end at different steps take the same number of steps.
struct CommonEnd<E> {
    /// The element for replicas after the end of the data set; known after the first element.
    nothing: Option<E>,
}

/// The states of a worker's data set, as workers exchange them.
const ENDED: u8 = 0;
const STEP: u8 = 1;
/// Ended without an element.
const EMPTY: u8 = 2;

impl<E: Nest + Clone + Send + 'static> CommonEnd<E> {
    /// Agrees with the other workers on the next step. `own` is that of this worker. Returns `None`
    /// when all have ended.
    fn agree(&mut self, strategy: &Strategy, own: Option<Result<PerReplica<E>>>) -> Result<Option<PerReplica<E>>> {
        let kind = kind::NEXT_STEP;
        let own = strategy.or_refuse(kind, own.transpose())?;
        if let (None, Some(step)) = (&self.nothing, &own) {
            self.nothing = Some(strategy.or_refuse(kind, without_rows(step[0].clone()))?);
        }
        let state = match (&own, &self.nothing) {
            (Some(_), _) => STEP,
            (None, Some(_)) => ENDED,
            (None, None) => EMPTY,
        };
        let contract = strategy.contract();
        let digest = u64::from(code_of(kind));
        let digest = contract.as_ref().map_or(digest, |contract| contract.sign(digest));
        let describe = || contract.as_ref().map(Contract::lines).unwrap_or_default();
        let tell = |communicator: &mut Communicator| {
            let agreement = Agreement { call: Some(kind), digest, describe: &describe };
            let (own, mut all) = ([state], vec![ENDED; communicator.size()]);
            let (send, recv) = (Some(own.as_slice().into()), all.as_mut_slice().into());
            communicator.execute(Call::AllGather { send, recv, counts: None }, &agreement).map(|()| all)
        };
        let told = strategy.across(kind.name(), tell).expect("workers that agree are several")?.swap_remove(0);
        if !told.contains(&STEP) {
            return Ok(None);
        }
        if let Some(replica) = told.iter().position(|&state| state == EMPTY) {
            let expected = "an element on every worker, since only elements show what those without rows are like";
            let source = Box::new(Error::invalid(kind.name(), "dataset", expected, "none"));
            return Err(Error::Replica { replica, source });
        }
        let is_fixed = contract.as_ref().is_some_and(|contract| !contract.dynamic_batch);
        if let Some(replica) = told.iter().position(|&state| state == ENDED).filter(|_| is_fixed) {
            let error = not_full(kind.name(), "dataset".to_owned(), "an end before those of others".to_owned());
            return Err(error.of_replica(replica));
        }
        if own.is_some() {
            return Ok(own);
        }
        let nothing = self.nothing.clone().expect("an element has shown it");
        let step = PerReplica::new(vec![nothing; strategy.local_replicas().len()]);
        if contract.is_some() { step.with_shapes().map(Some) } else { Ok(Some(step)) }
    }
}

/// The limit on an element that is copied when it is requested. To copy more rows from anywhere in
/// memory takes longer than to wake the thread that reads ahead (measured: PERF.md).
const COPIED_BYTES: usize = 32 << 10;

/// Limit on the steps that are read ahead: the channel allocates space for all of them at once.
const MOST_AHEAD: usize = 4096;

/// Starts a thread that keeps `batches` steps ready: one in the thread, the others in the channel.
fn read_ahead<E: Nest + Clone + Send + 'static>(mut source: Source<E>, batches: usize) -> Result<Feed<E>> {
    let (sender, steps) = sync_channel(batches.min(MOST_AHEAD) - 1);
    let reader = Arc::new(());
    source.reader = Some(Arc::downgrade(&reader));
    let body = move || {
        for step in source.by_ref().map(Some).chain([None]) {
            // The send fails when the iterator was dropped.
            if sender.send(step).is_err() {
                break;
            }
        }
    };
    let started = thread::Builder::new().name("prefetch".to_owned()).spawn(body);
    started.map_err(|source| Error::system("start a thread that reads ahead", source))?;
    Ok(Feed::Ahead { steps, has_ended: false, _reader: reader })
}

/// The steps of the data set, up to the first error.
struct Source<E> {
    inner: Arc<Inner<E>>,
    state: Reading<E>,
    /// Alive while the iterator of a thread that reads ahead exists. `None` if there is no thread.
    reader: Option<Weak<()>>,
}

enum Reading<E> {
    Closed { epoch: u64 },
    Open(Steps<E>),
    Ended,
}

impl<E: Nest + Clone + Send + 'static> Iterator for Source<E> {
    type Item = Result<PerReplica<E>>;

    fn next(&mut self) -> Option<Result<PerReplica<E>>> {
        let state = std::mem::replace(&mut self.state, Reading::Ended);
        let inner = &self.inner;
        let step = || {
            let mut steps = match state {
                Reading::Closed { epoch } => {
                    let elements = inner.dataset.iterate(epoch)?;
                    let reader = self.reader.clone();
                    // Checked at each element, because any number of elements without rows make no
                    // step.
                    let wanted = move |_: &_| reader.as_ref().is_none_or(|reader| reader.strong_count() > 0);
                    Steps::new(Box::new(elements.take_while(wanted)), inner.share.clone())
                }
                Reading::Open(steps) => steps,
                Reading::Ended => return Ok(None),
            };
            Ok(steps.next().transpose()?.map(|step| (step, steps)))
        };
        // A source that panicked is dropped and not used again.
        let panicked = |message| Err(Error::other(format!("the data set panicked: {message}")));
        let step = panics::catch(step).unwrap_or_else(panicked);
        match step {
            Ok(Some((step, steps))) => {
                self.state = Reading::Open(steps);
                Some(Ok(step))
            }
            Ok(None) => None,
            Err(error) => Some(Err(error)),
        }
    }
}

impl<E> fmt::Debug for DistributedIterator<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DistributedIterator").field("strategy", &self.strategy).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use crate::{DType, MirroredStrategy, Tensor, dataset};
    use std::{
        sync::mpsc::{RecvTimeoutError, sync_channel},
        time::Duration,
    };

    /// Much longer than any wait here; it only ends a test that would hang.
    const DEADLINE: Duration = Duration::from_secs(60);

    #[test]
    fn any_number_of_batches_may_be_read_ahead() {
        let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"]).unwrap();
        for batches in [0, 1, 2, usize::MAX] {
            let options = dataset::InputOptions::new().prefetch(batches);
            let steps = strategy.distribute_dataset_with(dataset::from_fn(|| [Tensor::from([1, 2])]), options).unwrap();
            assert_eq!(steps.iter().count(), 1);
        }
    }

    /// Found by a review: the thread noticed the dropped iterator only when it sent a step, and
    /// these batches make no step.
    #[test]
    fn dropping_ends_a_thread_without_a_step() {
        let (batch, batches) = sync_channel(0);
        let empty = dataset::from_fn(move || {
            let batch = batch.clone();
            std::iter::repeat_with(move || {
                let _ = batch.try_send(());
                Tensor::zeros(DType::F32, [0])
            })
        });
        let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"]).unwrap();
        let steps = strategy.distribute_dataset(empty).unwrap().iter();
        (0..3).for_each(|_| batches.recv_timeout(DEADLINE).expect("a batch, in time"));
        drop(steps);
        // One batch may have been sent before the drop. When the thread ends, the channel
        // disconnects.
        let ended = (0..2).any(|_| batches.recv_timeout(DEADLINE) == Err(RecvTimeoutError::Disconnected));
        assert!(ended, "the thread is still there");
    }
}
