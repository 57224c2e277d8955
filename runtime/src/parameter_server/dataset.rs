//! Data sets of workers: each worker has its own iteration, and its position commits with closures.

use super::{ClusterCoordinator, argument::Argument, context::WorkerContext, worker_state::Named};
use crate::{
    Dataset, Error, Nest, Result,
    dataset::{Elements, InputContext},
};
use std::{any::type_name, collections::VecDeque, fmt, iter::Fuse, sync::Arc};

/// A data set of which each worker has an iteration of its own: TensorFlow's per-worker data set
/// with its iterator. A clone is the same data set.
///
/// A closure takes elements by [`WorkerContext::next`]. They stay at their worker: nothing but the
/// position travels.
pub struct PerWorkerDataset<E> {
    declared: Named,
    workers: usize,
    make: Arc<Make<E>>,
}

type Make<E> = dyn Fn(InputContext) -> Result<Box<dyn Dataset<Element = E>>> + Send + Sync;

impl ClusterCoordinator {
    /// Declares a data set, by a name that no other one of the strategy has. Each worker makes its
    /// own when a closure first takes an element there, in epoch 0: [repeat](Dataset::repeat) it
    /// for more. The context has the number of the worker among all workers, for
    /// [`shard`](Dataset::shard), or to shuffle by another seed. A data set that does not use it
    /// has the same elements at all workers, as in TensorFlow.
    ///
    /// **Positions commit with closures.** The elements of a closure that ends are taken, each
    /// once. One that fails has taken nothing, and neither has an attempt that is lost with its
    /// worker: the next closure there gets the same elements again. A process in the place of a
    /// lost worker goes on at the first element that no closure took. It makes its data set anew
    /// and reads what comes before, so the elements must be the same each time: shuffle by a fixed
    /// seed.
    ///
    /// In [`Order::Scheduled`](super::Order::Scheduled) a closure that takes elements runs at a
    /// worker that does not depend on timing, and so it has the data set as an argument, whose
    /// value is `()`: `coordinator.schedule(&step, &batches)`, or
    /// `Argument::from(&batches).and(more)`.
    ///
    /// ```
    /// use consonance::{ClusterCoordinator, Dataset, ParameterServerStrategy, Tensor, dataset};
    /// use std::time::Duration;
    /// let strategy = ParameterServerStrategy::threads(2, 1)?;
    /// let total = strategy.variable(|| Tensor::from(0i64))?;
    /// let coordinator = ClusterCoordinator::new(&strategy);
    /// let numbers = coordinator.create_per_worker_dataset("numbers", |context| {
    ///     Ok(dataset::range(0, 10, 1)?.shard(context.num_input_pipelines, context.input_pipeline_id).repeat(None))
    /// })?;
    /// let add = coordinator.function("add", {
    ///     let total = total.clone();
    ///     move |worker, ()| {
    ///         let number = worker.next(&numbers)?.expect("it is repeated");
    ///         worker.assign_add(&total, &number)?;
    ///         Ok(number.item::<i64>()? % 2 == worker.worker_index() as i64)
    ///     }
    /// })?;
    /// let own = (0..6).map(|_| coordinator.schedule(&add, ())).collect::<Result<Vec<_>, _>>()?;
    /// coordinator.join(Duration::from_secs(60))?;
    /// assert!(own[5].fetch(Duration::from_secs(60))?);
    /// assert!((6..=24).contains(&total.read()?.item::<i64>()?));
    /// # Ok::<(), consonance::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidCall`] for a name that is taken; [`Error::WrongContext`] after the first
    /// closure was scheduled.
    pub fn create_per_worker_dataset<D: Dataset>(
        &self,
        name: &str,
        make: impl Fn(InputContext) -> Result<D> + Send + Sync + 'static,
    ) -> Result<PerWorkerDataset<D::Element>> {
        let call = "ClusterCoordinator::create_per_worker_dataset";
        let of = type_name::<D::Element>();
        let declared =
            self.strategy.inner().declare(call, |program| Named::add(&mut program.known.datasets, call, name, of))?;
        let make = move |context| make(context).map(|dataset| Box::new(dataset) as Box<dyn Dataset<Element = _>>);
        Ok(PerWorkerDataset { declared, workers: self.strategy.num_workers(), make: Arc::new(make) })
    }
}

impl WorkerContext<'_> {
    /// Takes the next element of a data set at this worker. `None` at the end, which takes nothing:
    /// whether the closure fails for it is the closure's affair. (TensorFlow's fails unless it asks
    /// for an optional.)
    ///
    /// # Errors
    /// Those of the data set and of the function that makes it. An error takes nothing, so that the
    /// next call tries the same element again. [`Error::InvalidCall`] for a data set of another
    /// strategy; in [`Order::Scheduled`](super::Order::Scheduled) also without a value for each
    /// worker among the arguments, such as the data set.
    ///
    /// ```
    /// use consonance::{ClusterCoordinator, ParameterServerStrategy, dataset};
    /// use std::time::Duration;
    /// let coordinator = ClusterCoordinator::new(&ParameterServerStrategy::threads(1, 1)?);
    /// let numbers = coordinator.create_per_worker_dataset("numbers", |_| dataset::range(0, 3, 1))?;
    /// let pair = coordinator.function("pair", {
    ///     let numbers = numbers.clone();
    ///     move |worker, ()| Ok([worker.next(&numbers)?, worker.next(&numbers)?].into_iter().flatten().count() as u64)
    /// })?;
    /// let pairs = [(); 3].map(|()| coordinator.schedule(&pair, &numbers));
    /// let counts = pairs.map(|pair| pair?.fetch(Duration::from_secs(60)));
    /// assert!(matches!(counts, [Ok(2), Ok(1), Ok(0)]));
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn next<E: Nest + Clone + Send + 'static>(&self, dataset: &PerWorkerDataset<E>) -> Result<Option<E>> {
        let call = "WorkerContext::next";
        let own = &self.own;
        let number = dataset.declared.number_in(&self.known.datasets, call, "dataset")?;
        let position = own.positions.as_ref().ok_or_else(|| {
            let expected = "a closure with a value for each worker as an argument, in Order::Scheduled: the data set";
            Error::invalid(call, "dataset", expected, "a closure that any worker may run")
        })?[number];
        let mut kept = own.kept.iterations[number].borrow_mut();
        let iteration = match &mut *kept {
            Some(iteration) => iteration,
            none => {
                let context = InputContext::new(self.known.workers, self.worker, 1);
                none.insert(Box::new(Iteration::new((dataset.make)(context)?)))
            }
        };
        let iteration: &mut Iteration<E> = iteration.downcast_mut().expect("its number has one type");
        iteration.commit(position);
        let taken = &own.taken[number];
        let element = iteration.element(taken.get())?;
        taken.set(taken.get() + usize::from(element.is_some()));
        Ok(element)
    }
}

/// The place of a worker in a data set.
struct Iteration<E> {
    dataset: Box<dyn Dataset<Element = E>>,
    /// The number of elements that committed closures have taken.
    position: usize,
    /// The next elements, which attempts have taken.
    given: VecDeque<E>,
    /// The elements after these. `None` before the first, and after an error or a panic: then the
    /// data set is iterated anew.
    rest: Option<Fuse<Elements<E>>>,
}

impl<E: Nest + Clone + Send + 'static> Iteration<E> {
    fn new(dataset: Box<dyn Dataset<Element = E>>) -> Iteration<E> {
        Iteration { dataset, position: 0, given: VecDeque::new(), rest: None }
    }

    /// Moves to the position of the chief.
    fn commit(&mut self, position: usize) {
        match position.checked_sub(self.position) {
            Some(taken) if taken <= self.given.len() => drop(self.given.drain(..taken)),
            // Other processes have run closures of this worker.
            Some(_) | None => {
                self.given.clear();
                self.rest = None;
            }
        }
        self.position = position;
    }

    /// Returns the element so many places after the position.
    ///
    /// # Errors
    /// Those of the data set.
    fn element(&mut self, place: usize) -> Result<Option<E>> {
        while self.given.len() <= place {
            // Taken out, so that one that fails or panics is not asked again.
            let mut rest = match self.rest.take() {
                Some(rest) => rest,
                None => self.rest_anew()?,
            };
            let element = rest.next().transpose()?;
            self.rest = Some(rest);
            match element {
                Some(element) => self.given.push_back(element),
                None => return Ok(None),
            }
        }
        Ok(self.given.get(place).cloned())
    }

    /// Iterates anew, up to the elements that are not given.
    fn rest_anew(&self) -> Result<Fuse<Elements<E>>> {
        let mut elements = self.dataset.iterate(0)?.fuse();
        for _ in 0..self.position + self.given.len() {
            if elements.next().transpose()?.is_none() {
                break;
            }
        }
        Ok(elements)
    }
}

/// Makes an argument whose value is `()`, and is a value for each worker all the same.
impl<E> From<&PerWorkerDataset<E>> for Argument<()> {
    fn from(dataset: &PerWorkerDataset<E>) -> Argument<()> {
        Argument::of_each_worker(dataset.workers)
    }
}

impl<E> Clone for PerWorkerDataset<E> {
    fn clone(&self) -> PerWorkerDataset<E> {
        PerWorkerDataset { declared: self.declared.clone(), workers: self.workers, make: self.make.clone() }
    }
}

impl<E> fmt::Debug for PerWorkerDataset<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PerWorkerDataset").field("declared", &self.declared).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            message::Done,
            schedule::{Next, Part, Schedule},
        },
        *,
    };
    use crate::{dataset, panics};
    use consonance_spec::{OnError, Order};
    use quickcheck::QuickCheck;
    use std::sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    };

    /// Iterates over numbers from 0, and counts how often it is iterated.
    fn numbers(end: u64, count: &Arc<AtomicUsize>) -> Iteration<u64> {
        let count = count.clone();
        Iteration::new(Box::new(dataset::from_fn(move || {
            count.fetch_add(1, Ordering::Relaxed);
            0..end
        })))
    }

    #[test]
    fn a_worker_gives_untaken_elements_again_without_a_new_iteration() -> Result<()> {
        let count = Arc::default();
        let mut iteration = numbers(4, &count);
        for (position, taken) in [(0, 2), (0, 3), (1, 1), (1, 3), (3, 0), (3, 1), (4, 0)] {
            iteration.commit(position);
            for place in 0..taken {
                assert_eq!(iteration.element(place)?, Some((position + place) as u64));
            }
        }
        assert_eq!((iteration.element(0)?, iteration.element(0)?), (None, None));
        assert_eq!(count.load(Ordering::Relaxed), 1);
        // Other processes have taken elements, or this one has none.
        for position in [1, 3, 0] {
            iteration.commit(position);
            assert_eq!(iteration.element(0)?, Some(position as u64));
        }
        assert_eq!(count.load(Ordering::Relaxed), 4);
        Ok(())
    }

    #[test]
    fn an_error_and_a_panic_take_nothing_and_are_tried_again() -> Result<()> {
        // The outcomes of the third element, the last one first.
        let fates = Mutex::new(vec![Ok(2), Err(Error::other("torn")), Err(Error::other("torn"))]);
        let fate = move |number: u64| match number {
            2 => {
                let fate = fates.lock().unwrap().pop();
                fate.expect("a fate")
            }
            number => Ok(number),
        };
        let mut iteration = Iteration::new(Box::new(dataset::from_fn(|| 0..4u64).map(fate)));
        assert_eq!((iteration.element(0)?, iteration.element(1)?), (Some(0), Some(1)));
        assert!(matches!(iteration.element(2), Err(Error::Other(_))));
        iteration.commit(1);
        assert_eq!(iteration.element(0)?, Some(1));
        assert!(matches!(iteration.element(1), Err(Error::Other(_))));
        assert_eq!((iteration.element(1)?, iteration.element(2)?, iteration.element(3)?), (Some(2), Some(3), None));
        // There is no fate any more: the map panics.
        iteration.commit(0);
        assert_eq!(iteration.element(1)?, Some(1));
        for _ in 0..2 {
            assert!(panics::catch(|| iteration.element(2)).is_err());
        }
        assert_eq!(iteration.element(1)?, Some(1));
        Ok(())
    }

    /// An attempt: its worker, the elements that it takes, and what becomes of it.
    type Tried = (bool, u8, u8);

    /// Two workers run closures that end, fail, are given up or are lost with or without the
    /// process. Those that have ended have taken each element once, in order.
    #[test]
    fn ended_closures_take_each_element_once_and_in_order() {
        fn holds(tried: Vec<Tried>, scheduled: bool) -> bool {
            let order = if scheduled { Order::Scheduled { window: 3.try_into().unwrap() } } else { Order::Arrival };
            let mut schedule = Schedule::new(order, OnError::Continue, 2, 1);
            let count = Arc::default();
            let mut processes = [numbers(40, &count), numbers(40, &count)];
            let mut taken = [Vec::new(), Vec::new()];
            let mut next = Next::Nothing;
            for (worker, takes, fate) in tried {
                let worker = usize::from(worker);
                loop {
                    next = match next {
                        Next::Nothing | Next::Forget(_) => break,
                        Next::Commit(effects) => schedule.committed(effects),
                    };
                }
                schedule.schedule((0, "take".into()), vec![Part::PerWorker(vec![Vec::new(); 2].into())]);
                let Some(begun) = schedule.begin(worker) else {
                    next = schedule.end_window();
                    continue;
                };
                processes[worker].commit(begun.positions.expect("it may take elements")[0]);
                let elements: Vec<u64> =
                    (0..takes as usize % 5).map_while(|place| processes[worker].element(place).unwrap()).collect();
                let done = Done { result: Vec::new(), servers: Vec::new(), taken: vec![elements.len()] };
                next = match fate % 6 {
                    0 | 1 => {
                        taken[worker].extend(elements);
                        schedule.ended(worker, begun.attempt, done)
                    }
                    2 => schedule.failed(worker, begun.attempt, Error::other("as it was asked")),
                    3 => {
                        let next = schedule.failed(worker, begun.attempt, Error::other("late"));
                        assert!(matches!(schedule.ended(worker, begun.attempt, done), Next::Forget(_)));
                        next
                    }
                    fate => {
                        if fate == 4 {
                            processes[worker] = numbers(40, &count);
                        }
                        schedule.lost(worker).1
                    }
                };
            }
            taken.iter().all(|taken| taken.iter().copied().eq(0..taken.len() as u64))
        }
        QuickCheck::new().quickcheck(holds as fn(Vec<Tried>, bool) -> bool);
    }
}
