//! The coordinator: the closures of a program, what commits of them, and what it answers.

use super::{
    closure::{Attempt, Came, Closure, Failure, Seen, Step, Variables},
    order::{OnError, Order, Updates},
};

/// The progress of a closure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State<Result, Error> {
    /// It waits for a worker, for its arguments or for its window.
    Waiting,
    /// A worker runs it.
    Running,
    /// It has ended with this result.
    Ready(Result),
    /// It has failed. It leaves no effect and has taken no element.
    Failed(Failure<Error>),
    /// It was cancelled, or a closure was whose result it needs. It leaves no effect.
    Cancelled,
    /// An error was returned in its place, and it was not scheduled.
    Refused,
}

/// The outcome of a step for its attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stepped {
    /// It goes on.
    GoesOn,
    /// It has ended, and the closure with it.
    HasEnded,
    /// Another attempt stands in its place, or has ended. Nothing of this one is left.
    IsLate,
}

/// A coordinator with its workers, and the variables on the servers.
///
/// Things happen to it one after the other, in any order that its methods allow: that is the
/// timing of a real one. A method that would wait returns `None`, and changes nothing but that it
/// ends a window.
///
/// * An attempt commits as a whole or not at all, and of a closure at most one does: the one that
///   was begun last. Each closure that is [`State::Ready`] has left its effects once, or leaves
///   them when its window ends.
/// * An attempt sees committed variables and its own effects.
/// * Each worker has a position in each data set. The elements of a closure that fails, or of an
///   attempt that is lost, are taken again. So a replacement goes on at the first element that no
///   closure took that is ready.
/// * In [`Order::Scheduled`] variables, results and failures are a function of the closures, of the
///   window and of the calls of `join`. A closure with an argument that differs from worker to
///   worker runs at the worker `number % workers`, and with such arguments they are a function of
///   the number of workers, too. So the chief's own reads and updates have their places between
///   windows, and only `join` returns errors.
#[derive(Clone, Debug)]
pub struct Coordinator<V: Variables, C: Closure<V>> {
    order: Order,
    updates: Updates,
    on_error: OnError,
    committed: V,
    closures: Vec<Scheduled<V, C>>,
    /// The attempt that each worker runs: the closure and the attempt's number.
    runs: Vec<Option<(usize, usize)>>,
    /// The number of attempts so far.
    attempts: usize,
    /// The elements that closures which are ready have taken, for each data set and worker.
    positions: Vec<Vec<usize>>,
    /// The failures that no call has returned, in the order in which they came.
    failures: Vec<Failure<C::Error>>,
    /// The window of the next closure, and the number of closures that it has.
    window: (usize, usize),
    /// The number of windows that have committed.
    windows_committed: usize,
    /// Whether closures that have not begun are cancelled, until the failures are returned.
    cancels: bool,
}

#[derive(Clone, Debug)]
struct Scheduled<V: Variables, C: Closure<V>> {
    closure: C,
    window: usize,
    state: State<C::Result, C::Error>,
    /// The effects that have not committed.
    effects: Vec<V::Effect>,
}

/// The failures that a call returns, at least one. No later call returns them again.
pub type Failures<E> = Vec<Failure<E>>;

impl<V: Variables, C: Closure<V> + Clone> Coordinator<V, C> {
    /// Makes a coordinator without closures.
    ///
    /// # Panics
    /// If there are no workers.
    pub fn new(order: Order, on_error: OnError, workers: usize, variables: V, datasets: usize) -> Coordinator<V, C> {
        assert!(workers > 0, "closures without workers");
        Coordinator {
            order,
            updates: Updates::default(),
            on_error,
            committed: variables,
            closures: Vec::new(),
            runs: vec![None; workers],
            attempts: 0,
            positions: vec![vec![0; workers]; datasets],
            failures: Vec::new(),
            window: (0, 0),
            windows_committed: 0,
            cancels: false,
        }
    }

    /// Sets the time at which changes take effect. With [`Updates::AtOnce`] attempts that fail or
    /// are lost leave effects, and closures may leave theirs again.
    ///
    /// # Panics
    /// If changes at once are to have an order.
    pub fn with_updates(self, updates: Updates) -> Coordinator<V, C> {
        assert!(updates == Updates::AtEnd || self.order == Order::Arrival, "changes at once have no order");
        Coordinator { updates, ..self }
    }

    /// Returns the committed variables.
    pub fn committed(&self) -> &V {
        &self.committed
    }

    /// Returns the number of elements of a data set that closures of a worker have taken.
    pub fn position(&self, dataset: usize, worker: usize) -> usize {
        self.positions[dataset][worker]
    }

    /// Returns how far a closure has come.
    pub fn state(&self, number: usize) -> &State<C::Result, C::Error> {
        &self.closures[number].state
    }

    /// Returns the number of closures, with those that were refused.
    pub fn scheduled(&self) -> usize {
        self.closures.len()
    }

    /// Adds a data set, at whose first element all workers are.
    pub fn add_dataset(&mut self) -> usize {
        self.positions.push(vec![0; self.runs.len()]);
        self.positions.len() - 1
    }

    /// Schedules a closure, and returns its number.
    ///
    /// # Errors
    /// If closures have failed that no call has returned, in [`Order::Arrival`] with
    /// [`OnError::Cancel`]. Then this one is refused. It has a number all the same.
    pub fn schedule(&mut self, closure: C) -> Result<usize, Failures<C::Error>> {
        let number = self.closures.len();
        let answer = self.tell_early().map(|()| number);
        if let Order::Scheduled { window } = self.order {
            if self.window.1 == window.get() {
                self.end_window();
            }
            self.window.1 += 1;
        }
        let state = if answer.is_ok() { State::Waiting } else { State::Refused };
        self.closures.push(Scheduled { closure, window: self.window.0, state, effects: Vec::new() });
        self.settle();
        answer
    }

    /// A worker that runs nothing takes the first closure that can begin. Returns its attempt, or
    /// `None` if none can begin.
    ///
    /// # Panics
    /// If the worker runs a closure.
    pub fn starts(&mut self, worker: usize) -> Option<Attempt<V, C>> {
        assert!(self.runs[worker].is_none(), "worker {worker} runs a closure");
        let number = (0..self.closures.len()).find(|&number| self.can_start(number, worker))?;
        let id = self.attempts;
        self.attempts += 1;
        self.runs[worker] = Some((number, id));
        self.closures[number].state = State::Running;
        let arguments = self.arguments(number).expect("all arguments are ready");
        let seen = Seen { worker, arguments, steps: Vec::new() };
        Some(Attempt { number, id, seen, effects: Vec::new(), taken: Vec::new() })
    }

    /// An attempt takes its next step. A read or an update that is refused is its failure.
    pub fn steps(&mut self, attempt: &mut Attempt<V, C>) -> Stepped {
        let step = self.closures[attempt.number].closure.step(&attempt.seen);
        let mut view = attempt.view(&self.committed);
        let came = match step {
            Step::Read(read) => view.read(&read).map(Came::Value),
            Step::Update(effect) => view.update(&effect).map(|()| {
                match self.updates {
                    Updates::AtEnd => attempt.effects.push(effect),
                    Updates::AtOnce => self.commit([effect]),
                }
                Came::Updated
            }),
            Step::Next(dataset) => {
                let before = attempt.taken.iter().filter(|&&taken| taken == dataset).count();
                attempt.taken.push(dataset);
                Ok(Came::Position(self.positions[dataset][attempt.worker()] + before))
            }
            Step::Return(result) => return self.ends(attempt, Ok(result)),
            Step::Fail(error) => return self.ends(attempt, Err(error)),
        };
        match came {
            Ok(came) => attempt.seen.steps.push(came),
            Err(refused) => return self.ends(attempt, Err(refused.into())),
        }
        Stepped::GoesOn
    }

    /// A worker is lost, or is taken for lost. If it runs a closure, the closure waits again,
    /// before all later ones. The worker, or its replacement, may take another one at once.
    pub fn loses(&mut self, worker: usize) {
        if let Some((number, _)) = self.runs[worker].take() {
            self.closures[number].state = State::Waiting;
        }
        self.settle();
    }

    /// The deadline of the closure passes that a worker runs: the closure fails with this error.
    ///
    /// # Panics
    /// If the worker runs none.
    pub fn gives_up(&mut self, worker: usize, error: C::Error) {
        let (number, _) = self.runs[worker].expect("the worker runs a closure");
        self.fails(Failure { number, worker, error });
    }

    /// Waits for all closures.
    ///
    /// # Errors
    /// If closures have failed that no call has returned: all of them. In [`Order::Scheduled`] they
    /// are in the order in which they were scheduled.
    pub fn join(&mut self) -> Option<Result<(), Failures<C::Error>>> {
        self.all_have_ended().then(|| self.tell())
    }

    /// Returns whether all closures have ended, without waiting.
    ///
    /// # Errors
    /// As [`schedule`](Self::schedule).
    pub fn done(&mut self) -> Result<bool, Failures<C::Error>> {
        self.tell_early()?;
        Ok(!self.closures.iter().any(Scheduled::is_open))
    }

    /// The chief reads variables: in [`Order::Arrival`] at once, in [`Order::Scheduled`] after all
    /// closures that were scheduled before.
    pub fn chief_reads(&mut self, read: &V::Read) -> Option<Result<V::Value, V::Refused>> {
        (self.order == Order::Arrival || self.all_have_ended()).then(|| self.committed.read(read))
    }

    /// The chief changes variables. It waits as when it reads them.
    pub fn chief_updates(&mut self, effect: &V::Effect) -> Option<Result<(), V::Refused>> {
        (self.order == Order::Arrival || self.all_have_ended()).then(|| self.committed.update(effect))
    }

    /// Ends the window, and returns whether all closures have ended.
    fn all_have_ended(&mut self) -> bool {
        if self.window.1 > 0 {
            self.end_window();
        }
        self.settle();
        !self.closures.iter().any(Scheduled::is_open)
    }

    fn end_window(&mut self) {
        self.window = (self.window.0 + 1, 0);
    }

    fn tell(&mut self) -> Result<(), Failures<C::Error>> {
        self.cancels = false;
        let failures = std::mem::take(&mut self.failures);
        if failures.is_empty() { Ok(()) } else { Err(failures) }
    }

    /// Returns failures before all closures have ended, where this depends on nothing but timing.
    fn tell_early(&mut self) -> Result<(), Failures<C::Error>> {
        match (self.order, self.on_error) {
            (Order::Arrival, OnError::Cancel) => self.tell(),
            (Order::Scheduled { .. }, _) | (_, OnError::Continue) => Ok(()),
        }
    }

    fn arguments(&self, number: usize) -> Option<Vec<C::Result>> {
        let result = |needed: usize| match &self.closures[needed].state {
            State::Ready(result) => Some(result.clone()),
            State::Waiting | State::Running | State::Failed(_) | State::Cancelled | State::Refused => None,
        };
        self.closures[number].closure.needs().into_iter().map(result).collect()
    }

    fn can_start(&self, number: usize, worker: usize) -> bool {
        let own = |number: usize| self.closures[number].closure.is_per_worker() && number % self.runs.len() == worker;
        let waits = |number: usize| matches!(self.closures[number].state, State::Waiting);
        let has_its_turn = match self.order {
            Order::Arrival => true,
            Order::Scheduled { .. } => {
                let is_in_order = || own(number) && !(0..number).any(|earlier| own(earlier) && waits(earlier));
                self.closures[number].window == self.windows_committed
                    && (!self.closures[number].closure.is_per_worker() || is_in_order())
            }
        };
        waits(number) && has_its_turn && self.arguments(number).is_some()
    }

    fn ends(&mut self, attempt: &Attempt<V, C>, result: Result<C::Result, C::Error>) -> Stepped {
        let (number, worker) = (attempt.number, attempt.worker());
        if self.runs[worker] != Some((number, attempt.id)) {
            return Stepped::IsLate;
        }
        match result {
            Err(error) => self.fails(Failure { number, worker, error }),
            Ok(result) => {
                self.runs[worker] = None;
                attempt.taken.iter().for_each(|&dataset| self.positions[dataset][worker] += 1);
                let closure = &mut self.closures[number];
                (closure.state, closure.effects) = (State::Ready(result), attempt.effects.clone());
                if self.order == Order::Arrival {
                    self.commit_closure(number);
                }
                self.settle();
            }
        }
        Stepped::HasEnded
    }

    fn fails(&mut self, failure: Failure<C::Error>) {
        self.runs[failure.worker] = None;
        self.closures[failure.number].state = State::Failed(failure.clone());
        if self.order == Order::Arrival {
            self.failures.push(failure);
            self.cancels = self.on_error == OnError::Cancel;
        }
        self.settle();
    }

    fn commit_closure(&mut self, number: usize) {
        let effects = std::mem::take(&mut self.closures[number].effects);
        self.commit(effects);
    }

    fn commit(&mut self, effects: impl IntoIterator<Item = V::Effect>) {
        for effect in effects {
            let is_updated = self.committed.update(&effect).is_ok();
            assert!(is_updated, "an effect that was not refused is not refused later");
        }
    }

    /// Commits windows that are complete, and cancels closures.
    fn settle(&mut self) {
        while self.commits_window() {}
        // In the order of their numbers: a closure needs earlier ones.
        for number in 0..self.closures.len() {
            let is_lost = |needed: &usize| match self.closures[*needed].state {
                State::Failed(_) | State::Cancelled | State::Refused => true,
                State::Waiting | State::Running | State::Ready(_) => false,
            };
            let Scheduled { closure, state, .. } = &self.closures[number];
            if matches!(state, State::Waiting) && (self.cancels || closure.needs().iter().any(is_lost)) {
                self.closures[number].state = State::Cancelled;
            }
        }
        if self.is_complete() && !self.is_open(self.windows_committed) {
            self.settle();
        }
    }

    /// Commits the next window, if it is complete. Returns whether it did.
    fn commits_window(&mut self) -> bool {
        let window = self.windows_committed;
        if !self.is_complete() || self.is_open(window) {
            return false;
        }
        self.windows_committed += 1;
        for number in 0..self.closures.len() {
            if self.closures[number].window != window {
                continue;
            }
            self.commit_closure(number);
            if let State::Failed(failure) = &self.closures[number].state {
                self.failures.push(failure.clone());
                self.cancels = self.on_error == OnError::Cancel;
            }
        }
        true
    }

    /// Whether no closure can come into the window that commits next.
    fn is_complete(&self) -> bool {
        match self.order {
            Order::Arrival => false,
            Order::Scheduled { window } => {
                let (next, closures) = self.window;
                self.windows_committed < next || self.windows_committed == next && closures == window.get()
            }
        }
    }

    fn is_open(&self, window: usize) -> bool {
        self.closures.iter().any(|closure| closure.window == window && closure.is_open())
    }
}

impl<V: Variables, C: Closure<V>> Scheduled<V, C> {
    /// Whether it has not ended.
    fn is_open(&self) -> bool {
        match self.state {
            State::Waiting | State::Running => true,
            State::Ready(_) | State::Failed(_) | State::Cancelled | State::Refused => false,
        }
    }
}
