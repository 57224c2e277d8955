//! Closures: what they read, what they do, and the attempts to run them.

use std::fmt::Debug;

/// The variables on the servers, all together.
pub trait Variables: Clone + Debug {
    /// The part of the variables that is read.
    type Read;
    /// The value of what is read.
    type Value: Clone + Debug;
    /// A change of variables.
    type Effect: Clone + Debug;
    /// The reason why a read or a change is refused. It depends on the types and shapes of
    /// variables, not on their values. So an effect that was not refused at the worker is not
    /// refused at its commit.
    type Refused;

    /// Returns a value.
    ///
    /// # Errors
    /// If it is refused.
    fn read(&self, read: &Self::Read) -> Result<Self::Value, Self::Refused>;

    /// Changes variables.
    ///
    /// # Errors
    /// If it is refused. Then nothing has changed.
    fn update(&mut self, effect: &Self::Effect) -> Result<(), Self::Refused>;
}

/// A function that is scheduled, with its arguments.
///
/// Its next step depends on what it has seen and on nothing else. So another attempt does the same
/// as long as it sees the same.
pub trait Closure<V: Variables> {
    /// The result.
    type Result: Clone + Debug;
    /// The error with which it fails.
    type Error: Clone + Debug + From<V::Refused>;

    /// Returns the numbers of the closures whose results are arguments. They were scheduled before.
    fn needs(&self) -> Vec<usize>;

    /// Whether an argument has a value of its own for each worker.
    fn is_per_worker(&self) -> bool;

    /// Returns the next step.
    fn step(&self, seen: &Seen<V::Value, Self::Result>) -> Step<V::Read, V::Effect, Self::Result, Self::Error>;
}

/// All that an attempt has seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen<Value, Result> {
    /// The number of the worker.
    pub worker: usize,
    /// The results that the closure [needs](Closure::needs).
    pub arguments: Vec<Result>,
    /// The outcome of each step.
    pub steps: Vec<Came<Value>>,
}

/// The outcome of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Came<Value> {
    /// The value that was read.
    Value(Value),
    /// The position of the element that was taken from a data set.
    Position(usize),
    /// The update was noted.
    Updated,
}

/// A step of a closure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step<Read, Effect, Result, Error> {
    /// Reads variables.
    Read(Read),
    /// Changes variables.
    Update(Effect),
    /// Takes the next element of this data set, of which each worker has its own. In
    /// [`Order::Scheduled`](super::Order::Scheduled) only a closure
    /// [with a value for each worker](Closure::is_per_worker) does: the elements of others would
    /// depend on timing.
    Next(usize),
    /// Returns a result.
    Return(Result),
    /// Fails.
    Fail(Error),
}

/// A failure of a closure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure<Error> {
    /// The number of the closure.
    pub number: usize,
    /// The worker.
    pub worker: usize,
    /// The error.
    pub error: Error,
}

/// A worker's attempt to run a closure.
#[derive(Clone, Debug)]
pub struct Attempt<V: Variables, C: Closure<V>> {
    /// The number of the closure.
    pub(super) number: usize,
    /// The attempts of all closures before it.
    pub(super) id: usize,
    /// All that it has seen.
    pub(super) seen: Seen<V::Value, C::Result>,
    /// The effects so far, in their order.
    pub(super) effects: Vec<V::Effect>,
    /// The data sets of which it has taken elements, each as often as an element was taken.
    pub(super) taken: Vec<usize>,
}

impl<V: Variables, C: Closure<V>> Attempt<V, C> {
    /// Returns the number of the closure.
    pub fn number(&self) -> usize {
        self.number
    }

    /// Returns the worker.
    pub fn worker(&self) -> usize {
        self.seen.worker
    }

    /// Returns what it has seen.
    pub fn seen(&self) -> &Seen<V::Value, C::Result> {
        &self.seen
    }

    /// Returns its effects so far, in their order.
    pub fn effects(&self) -> &[V::Effect] {
        &self.effects
    }

    /// Returns variables as the attempt sees them: the committed ones, with its own effects.
    pub fn view(&self, committed: &V) -> V {
        let mut view = committed.clone();
        for effect in &self.effects {
            let is_updated = view.update(effect).is_ok();
            assert!(is_updated, "an effect that was not refused is not refused later");
        }
        view
    }
}
