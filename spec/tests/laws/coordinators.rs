use consonance_spec::{
    OnError, Order, Updates,
    array::Array,
    parameter_server::{
        Attempt, Came, Change, Closure, Coordinator, Effect, Failures, Refused, Rows, Seen, State, Step, Stepped,
        Tables, Variables,
    },
    variable::Update,
};
use quickcheck::{Arbitrary, Gen, TestResult, quickcheck};
use std::num::NonZeroUsize;

/// The rows of each of two variables.
const ROWS: usize = 3;

/// A closure of random steps. Its result is all that it has seen.
#[derive(Clone, Debug)]
struct Random {
    needs: Option<usize>,
    is_per_worker: bool,
    steps: Vec<Act>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Act {
    Read(usize),
    Lookup(usize, i64),
    /// Assigns what was last seen, twice, plus the number.
    Assign(usize, i64),
    Add(usize, i64),
    ScatterSub(usize, i64, i64),
    Next,
    /// Fails if what was last seen is odd.
    FailIfOdd,
}

/// The reason of a failure.
#[derive(Clone, Debug, PartialEq)]
enum Why {
    Odd,
    Refused(Refused),
}

impl From<Refused> for Why {
    fn from(refused: Refused) -> Why {
        Why::Refused(refused)
    }
}

type Results = Vec<i64>;

/// Returns all numbers that an attempt has seen.
fn numbers(seen: &Seen<Array<i64>, Results>) -> Results {
    let came = |came: &Came<Array<i64>>| match came {
        Came::Value(value) => value.data.clone(),
        Came::Position(position) => vec![*position as i64],
        Came::Updated => Vec::new(),
    };
    seen.arguments.iter().flatten().copied().chain(seen.steps.iter().flat_map(came)).collect()
}

impl Random {
    fn acts(&self, seen: &Seen<Array<i64>, Results>) -> Option<Act> {
        self.steps.iter().filter(|act| **act != Act::FailIfOdd).nth(seen.steps.len()).copied()
    }

    /// Whether it fails before its next step.
    fn fails(&self, seen: &Seen<Array<i64>, Results>) -> bool {
        let done = seen.steps.len();
        let next = self.steps.iter().enumerate().filter(|(_, act)| **act != Act::FailIfOdd).nth(done);
        let next = next.map_or(self.steps.len(), |(place, _)| place);
        let is_checked = next > 0 && self.steps[next - 1] == Act::FailIfOdd;
        is_checked && numbers(seen).last().is_some_and(|last| last % 2 != 0)
    }
}

impl Closure<Tables<i64>> for Random {
    type Result = Results;
    type Error = Why;

    fn needs(&self) -> Vec<usize> {
        self.needs.into_iter().collect()
    }

    fn is_per_worker(&self) -> bool {
        self.is_per_worker
    }

    fn step(&self, seen: &Seen<Array<i64>, Results>) -> Step<Rows, Change<i64>, Results, Why> {
        if self.fails(seen) {
            return Step::Fail(Why::Odd);
        }
        let whole = |value: i64| Array::new(&[ROWS], vec![value; ROWS]);
        let last = numbers(seen).last().copied().unwrap_or_default();
        match self.acts(seen) {
            None => Step::Return(numbers(seen)),
            Some(Act::Read(variable)) => Step::Read(Rows { variable, indices: None }),
            Some(Act::Lookup(variable, row)) => Step::Read(Rows { variable, indices: Some(vec![row, row]) }),
            Some(Act::Assign(variable, x)) => {
                let value = last.wrapping_mul(2).wrapping_add(x);
                Step::Update(Change::Effect(variable, Effect::Assign(Update::Assign, whole(value))))
            }
            Some(Act::Add(variable, x)) => {
                Step::Update(Change::Effect(variable, Effect::Assign(Update::AssignAdd, whole(x))))
            }
            Some(Act::ScatterSub(variable, row, x)) => {
                let values = Array::new(&[2], vec![x, 3 * x]);
                Step::Update(Change::Effect(variable, Effect::Scatter(Update::AssignSub, vec![row, row], values)))
            }
            Some(Act::Next) => Step::Next(0),
            Some(Act::FailIfOdd) => unreachable!("it is not a step"),
        }
    }
}

/// A call of the chief.
#[derive(Clone, Debug)]
enum Call {
    Schedule(Random),
    Join,
    Reads,
    Writes(i64),
}

/// A program of the chief.
#[derive(Clone, Debug)]
struct Program(Vec<Call>);

impl Arbitrary for Program {
    fn arbitrary(g: &mut Gen) -> Program {
        let mut number = 0;
        let takes_elements = bool::arbitrary(g);
        let calls = (0..usize::arbitrary(g) % 14).map(|_| match u8::arbitrary(g) % 8 {
            0 => Call::Join,
            1 if bool::arbitrary(g) => Call::Writes(i8::arbitrary(g).into()),
            1 => Call::Reads,
            _ => {
                let needs = (number > 0 && u8::arbitrary(g) % 4 == 0).then(|| usize::arbitrary(g) % number);
                number += 1;
                let is_per_worker = takes_elements && u8::arbitrary(g) % 4 > 0;
                let steps = (0..usize::arbitrary(g) % 6).map(|_| act(g, is_per_worker)).collect();
                Call::Schedule(Random { needs, is_per_worker, steps })
            }
        });
        Program(calls.collect())
    }

    fn shrink(&self) -> Box<dyn Iterator<Item = Program>> {
        // A closure needs an earlier one by its number, so only the end can go.
        let calls = self.0.clone();
        Box::new((0..calls.len()).map(move |count| Program(calls[..count].to_vec())))
    }
}

fn act(g: &mut Gen, is_per_worker: bool) -> Act {
    let (variable, x) = (usize::arbitrary(g) % 2, i64::from(i8::arbitrary(g)));
    // Now and then out of range.
    let row = i64::from(u8::arbitrary(g)) % 16 % (ROWS as i64 + 1);
    let row = if u8::arbitrary(g) % 4 == 0 { row } else { row % ROWS as i64 };
    match u8::arbitrary(g) % 8 {
        0..4 if is_per_worker && bool::arbitrary(g) => Act::Next,
        0 => Act::Read(variable),
        1 => Act::Lookup(variable, row),
        2 => Act::Assign(variable, x),
        3 | 4 => Act::Add(variable, x),
        5 => Act::ScatterSub(variable, row, x),
        6 => Act::Read(variable),
        _ => Act::FailIfOdd,
    }
}

type Playing = Coordinator<Tables<i64>, Random>;
/// The numbers of the closures and the reasons.
type Told = Vec<(usize, Why)>;

/// All that can be seen of a program that has ended.
#[derive(Clone, Debug, PartialEq)]
struct Outcome {
    variables: Tables<i64>,
    states: Vec<Ended>,
    /// The failures that each call returned, one list a `join`.
    joins: Vec<Told>,
    /// The values that the chief read.
    reads: Vec<Array<i64>>,
}

#[derive(Clone, Debug, PartialEq)]
enum Ended {
    Ready(Results),
    Failed(Why),
    Cancelled,
    Refused,
}

fn told(failures: Failures<Why>) -> Told {
    failures.into_iter().map(|failure| (failure.number, failure.error)).collect()
}

fn initial() -> Tables<i64> {
    Tables(vec![Array::new(&[ROWS], vec![1, 2, 3]), Array::new(&[ROWS], vec![10, 20, 30])])
}

/// Something that happened at a worker.
struct Event<'a> {
    before: &'a Playing,
    after: &'a Playing,
    attempt: &'a Attempt<Tables<i64>, Random>,
    stepped: Stepped,
}

/// Plays a program. `timing` says who goes on: the chief, a worker, or an attempt that was taken
/// for lost. Afterwards nobody is lost.
fn play(
    program: &Program,
    order: Order,
    on_error: OnError,
    workers: usize,
    timing: &[u8],
    mut check: impl FnMut(Event),
) -> Outcome {
    let mut playing = Coordinator::new(order, on_error, workers, initial(), 1);
    let mut attempts: Vec<Option<Attempt<Tables<i64>, Random>>> = vec![None; workers];
    let mut late: Vec<Attempt<Tables<i64>, Random>> = Vec::new();
    let (mut joins, mut reads) = (Vec::new(), Vec::new());
    let mut calls = program.0.iter().cloned().chain([Call::Join]).peekable();
    let mut timing = timing.iter().copied().chain((0..=255).map(|byte| byte & 0x0f).cycle());
    let mut idle = 0;
    while calls.peek().is_some() {
        idle += 1;
        assert!(idle < 2000, "it does not end");
        let byte = usize::from(timing.next().expect("it has no end"));
        let (who, how) = (byte % 16 % (workers + 1), byte / 16);
        if who == workers {
            let has_returned = match calls.peek().expect("a call") {
                Call::Schedule(closure) => {
                    let answer = playing.schedule(closure.clone());
                    if let Err(failures) = answer {
                        joins.push(told(failures));
                    }
                    true
                }
                Call::Join => {
                    let answer = playing.join();
                    let has_returned = answer.is_some();
                    joins.extend(answer.map(|answer| answer.err().map_or_else(Vec::new, told)));
                    has_returned
                }
                Call::Reads => {
                    let read = playing.chief_reads(&Rows { variable: 1, indices: None });
                    reads.extend(read.clone().map(|read| read.expect("a variable")));
                    read.is_some()
                }
                Call::Writes(x) => {
                    let value = Array::new(&[ROWS], vec![*x; ROWS]);
                    playing.chief_updates(&Change::Effect(0, Effect::Assign(Update::Assign, value))).is_some()
                }
            };
            if has_returned {
                calls.next();
                idle = 0;
            }
            continue;
        }
        let before = playing.clone();
        match (how, &mut attempts[who]) {
            (14, running) => {
                playing.loses(who);
                late.extend(running.take());
            }
            (12 | 13, _) if !late.is_empty() => {
                let place = who % late.len();
                let stepped = playing.steps(&mut late[place]);
                assert_ne!(stepped, Stepped::HasEnded, "an attempt that was taken for lost has committed");
                check(Event { before: &before, after: &playing, attempt: &late[place], stepped });
                if stepped == Stepped::IsLate {
                    late.remove(place);
                }
            }
            (_, None) => attempts[who] = playing.starts(who),
            (_, Some(attempt)) => {
                let stepped = playing.steps(attempt);
                check(Event { before: &before, after: &playing, attempt, stepped });
                match stepped {
                    Stepped::GoesOn => {}
                    Stepped::HasEnded => {
                        attempts[who] = None;
                        idle = 0;
                    }
                    Stepped::IsLate => panic!("nobody took the attempt for lost"),
                }
            }
        }
    }
    let state = |number| match playing.state(number) {
        State::Ready(result) => Ended::Ready(result.clone()),
        State::Failed(failure) => Ended::Failed(failure.error.clone()),
        State::Cancelled => Ended::Cancelled,
        State::Refused => Ended::Refused,
        open @ (State::Waiting | State::Running) => panic!("closure {number} is {open:?} after join"),
    };
    let states = (0..playing.scheduled()).map(state).collect();
    Outcome { variables: playing.committed().clone(), states, joins, reads }
}

fn window(number: u8) -> Order {
    Order::Scheduled { window: NonZeroUsize::new(usize::from(number) % 4 + 1).expect("not 0") }
}

fn on_error(continues: bool) -> OnError {
    if continues { OnError::Continue } else { OnError::Cancel }
}

fn without_workers_values(program: &Program) -> bool {
    program.0.iter().all(|call| !matches!(call, Call::Schedule(closure) if closure.is_per_worker))
}

/// Runs one closure alone.
fn alone(closure: &Random, base: &Tables<i64>, arguments: Vec<Results>) -> (Ended, Tables<i64>) {
    let mut seen = Seen { worker: 0, arguments, steps: Vec::new() };
    let mut own = base.clone();
    loop {
        let came = match closure.step(&seen) {
            Step::Read(read) => own.read(&read).map(Came::Value),
            Step::Update(effect) => own.update(&effect).map(|()| Came::Updated),
            Step::Next(_) => unreachable!("there are no data sets"),
            Step::Return(result) => return (Ended::Ready(result), own),
            Step::Fail(why) => return (Ended::Failed(why), base.clone()),
        };
        match came {
            Ok(came) => seen.steps.push(came),
            Err(refused) => return (Ended::Failed(refused.into()), base.clone()),
        }
    }
}

/// Plays a program without timing: with windows of one closure, the closures run one after the
/// other, each when it is scheduled.
fn one_after_the_other(program: &Program, on_error: OnError) -> Outcome {
    let mut outcome = Outcome { variables: initial(), states: Vec::new(), joins: Vec::new(), reads: Vec::new() };
    let mut failures = Vec::new();
    for call in program.0.iter().chain([&Call::Join]) {
        match call {
            Call::Schedule(closure) => {
                let argument = |&needed: &usize| match &outcome.states[needed] {
                    Ended::Ready(result) => Some(result.clone()),
                    Ended::Failed(_) | Ended::Cancelled | Ended::Refused => None,
                };
                let arguments: Option<Vec<Results>> = closure.needs.iter().map(argument).collect();
                let is_cancelled = on_error == OnError::Cancel && !failures.is_empty();
                let state = match arguments.filter(|_| !is_cancelled) {
                    None => Ended::Cancelled,
                    Some(arguments) => {
                        let (state, variables) = alone(closure, &outcome.variables, arguments);
                        outcome.variables = variables;
                        state
                    }
                };
                if let Ended::Failed(why) = &state {
                    failures.push((outcome.states.len(), why.clone()));
                }
                outcome.states.push(state);
            }
            Call::Join => outcome.joins.push(std::mem::take(&mut failures)),
            Call::Reads => outcome.reads.push(outcome.variables.0[1].clone()),
            Call::Writes(x) => outcome.variables.0[0].data = vec![*x; ROWS],
        }
    }
    outcome
}

quickcheck! {
    fn scheduled_closures_give_the_same_whatever_the_timing(
        program: Program, size: u8, continues: bool, workers: u8, one: Vec<u8>, other: Vec<u8>
    ) -> bool {
        let (order, on_error, workers) = (window(size), on_error(continues), usize::from(workers) % 4 + 1);
        play(&program, order, on_error, workers, &one, |_| {}) == play(&program, order, on_error, workers, &other, |_| {})
    }

    fn scheduled_closures_give_the_same_whatever_the_workers(
        program: Program, size: u8, continues: bool, workers: (u8, u8), one: Vec<u8>, other: Vec<u8>
    ) -> TestResult {
        if !without_workers_values(&program) {
            return TestResult::discard();
        }
        let (order, on_error) = (window(size), on_error(continues));
        let outcome = |workers: u8, timing: &[u8]| {
            play(&program, order, on_error, usize::from(workers) % 5 + 1, timing, |_| {})
        };
        TestResult::from_bool(outcome(workers.0, &one) == outcome(workers.1, &other))
    }

    fn windows_of_one_are_one_closure_after_the_other(
        program: Program, continues: bool, workers: u8, timing: Vec<u8>
    ) -> TestResult {
        if !without_workers_values(&program) {
            return TestResult::discard();
        }
        let on_error = on_error(continues);
        let played = play(&program, window(0), on_error, usize::from(workers) % 5 + 1, &timing, |_| {});
        TestResult::from_bool(played == one_after_the_other(&program, on_error))
    }

    fn a_window_reads_the_state_left_by_the_window_before(program: Program, size: u8, workers: u8, timing: Vec<u8>) -> () {
        let workers = usize::from(workers) % 5 + 1;
        let order = window(size);
        let mut reads = vec![None; program.0.len()];
        play(&program, order, OnError::Continue, workers, &timing, |event| {
            // All attempts of a closure find the same variables.
            let own = &mut reads[event.attempt.number()];
            if event.stepped == Stepped::GoesOn {
                let is_late = *event.before.state(event.attempt.number()) != State::Running;
                let found = own.get_or_insert_with(|| event.before.committed().clone());
                assert!(is_late || found == event.before.committed());
            }
        });
    }

    fn only_ready_closures_commit_and_each_once(
        program: Program, continues: bool, workers: u8, timing: Vec<u8>
    ) -> () {
        let mut committed = Vec::new();
        let outcome = play(&program, Order::Arrival, on_error(continues), usize::from(workers) % 5 + 1, &timing, |event| {
            let number = event.attempt.number();
            let mut expected = event.before.committed().clone();
            if event.stepped == Stepped::HasEnded && matches!(event.after.state(number), State::Ready(_)) {
                for effect in event.attempt.effects() {
                    expected.update(effect).expect("it was not refused before");
                }
                committed.push(number);
            }
            assert_eq!(*event.after.committed(), expected);
        });
        committed.sort_unstable();
        let is_ready = |number: &usize| matches!(outcome.states[*number], Ended::Ready(_));
        assert_eq!(committed, (0..outcome.states.len()).filter(is_ready).collect::<Vec<_>>());
    }

    fn a_closure_sees_the_newest_values_and_its_own_effects(
        program: Program, workers: u8, timing: Vec<u8>
    ) -> () {
        play(&program, Order::Arrival, OnError::Continue, usize::from(workers) % 5 + 1, &timing, |event| {
            if event.stepped != Stepped::GoesOn {
                return;
            }
            let mut seen = event.attempt.seen().clone();
            let Some(Came::Value(value)) = seen.steps.pop() else { return };
            let calls = program.0.iter().filter_map(|call| match call {
                Call::Schedule(closure) => Some(closure),
                Call::Join | Call::Reads | Call::Writes(_) => None,
            });
            let closure = calls.clone().nth(event.attempt.number()).expect("it was scheduled");
            let Step::Read(read) = closure.step(&seen) else { panic!("a value of what was not read") };
            let mut tables = event.before.committed().clone();
            for effect in event.attempt.effects() {
                tables.update(effect).expect("it was not refused");
            }
            assert_eq!(tables.read(&read), Ok(value));
        });
    }

    fn each_failure_is_returned_once(program: Program, scheduled: bool, continues: bool, workers: u8, timing: Vec<u8>) -> () {
        let order = if scheduled { window(2) } else { Order::Arrival };
        let outcome = play(&program, order, on_error(continues), usize::from(workers) % 5 + 1, &timing, |_| {});
        let mut returned: Told = outcome.joins.concat();
        returned.sort_by_key(|(number, _)| *number);
        let failed = outcome.states.iter().enumerate().filter_map(|(number, state)| match state {
            Ended::Failed(why) => Some((number, why.clone())),
            Ended::Ready(_) | Ended::Cancelled | Ended::Refused => None,
        });
        assert_eq!(returned, failed.collect::<Vec<_>>());
    }

    fn nothing_is_cancelled_without_a_reason(program: Program, scheduled: bool, continues: bool, workers: u8, timing: Vec<u8>) -> () {
        let order = if scheduled { window(2) } else { Order::Arrival };
        let outcome = play(&program, order, on_error(continues), usize::from(workers) % 5 + 1, &timing, |_| {});
        let closures: Vec<&Random> = program.0.iter().filter_map(|call| match call {
            Call::Schedule(closure) => Some(closure),
            Call::Join | Call::Reads | Call::Writes(_) => None,
        }).collect();
        let has_failed = outcome.states.iter().any(|state| matches!(state, Ended::Failed(_)));
        for (number, state) in outcome.states.iter().enumerate() {
            let lacks = closures[number].needs.is_some_and(|needed| !matches!(outcome.states[needed], Ended::Ready(_)));
            assert!(!lacks || matches!(state, Ended::Cancelled | Ended::Refused));
            match state {
                Ended::Cancelled => assert!(lacks || !continues && has_failed),
                Ended::Refused => assert!(!continues && !scheduled && has_failed),
                Ended::Ready(_) | Ended::Failed(_) => {}
            }
        }
    }

    fn ready_closures_take_each_element_of_a_worker_once_in_order(
        program: Program, scheduled: bool, continues: bool, workers: u8, timing: Vec<u8>
    ) -> () {
        let order = if scheduled { window(2) } else { Order::Arrival };
        let workers = usize::from(workers) % 5 + 1;
        let mut taken = vec![0; workers];
        play(&program, order, on_error(continues), workers, &timing, |event| {
            let worker = event.attempt.worker();
            let is_ready = matches!(event.after.state(event.attempt.number()), State::Ready(_));
            if event.stepped == Stepped::HasEnded && is_ready {
                for came in &event.attempt.seen().steps {
                    if let Came::Position(position) = came {
                        assert_eq!(*position, taken[worker]);
                        taken[worker] += 1;
                    }
                }
            }
            assert_eq!(event.after.position(0, worker), taken[worker]);
        });
    }
}

#[test]
fn scheduled_closures_with_data_run_at_home_in_order() {
    let takes = |needs| Random { needs, is_per_worker: true, steps: vec![Act::Next] };
    let mut playing = Coordinator::new(window(3), OnError::Cancel, 2, initial(), 1);
    for closure in [takes(None), takes(None), takes(Some(1))] {
        playing.schedule(closure).expect("nothing has failed");
    }
    let finish = |playing: &mut Playing, mut attempt| while playing.steps(&mut attempt) == Stepped::GoesOn {};
    // Worker 1 leaves closure 0, which has begun nowhere.
    let own = playing.starts(1).expect("closure 1");
    assert_eq!(own.number(), 1);
    let first = playing.starts(0).expect("closure 0");
    finish(&mut playing, first);
    // Closure 2 needs closure 1.
    assert!(playing.starts(0).is_none());
    finish(&mut playing, own);
    assert!(playing.starts(1).is_none());
    let last = playing.starts(0).expect("closure 2");
    finish(&mut playing, last);
    assert_eq!([playing.position(0, 0), playing.position(0, 1)], [2, 1]);
    // No later one goes before a closure of the same worker that waits for an argument.
    let mut playing = Coordinator::new(window(3), OnError::Cancel, 2, initial(), 1);
    let plain = Random { needs: None, is_per_worker: false, steps: vec![Act::Read(0)] };
    for closure in [plain.clone(), takes(Some(0)), plain, takes(None)] {
        playing.schedule(closure).expect("nothing has failed");
    }
    let first = playing.starts(0).expect("closure 0");
    let second = playing.starts(1).expect("closure 2");
    assert_eq!(second.number(), 2);
    finish(&mut playing, second);
    assert!(playing.starts(1).is_none());
    finish(&mut playing, first);
    assert_eq!(playing.starts(1).map(|attempt| attempt.number()), Some(1));
}

#[test]
fn a_join_waits_and_returns_all_failures() {
    let fails = || Random { needs: None, is_per_worker: false, steps: vec![Act::Read(0), Act::FailIfOdd] };
    let mut playing = Coordinator::new(Order::Arrival, OnError::Cancel, 2, initial(), 0);
    for _ in 0..3 {
        playing.schedule(fails()).expect("nothing has failed");
    }
    let mut attempts = [0, 1].map(|worker| playing.starts(worker).expect("a closure"));
    for attempt in &mut attempts {
        assert_eq!(playing.steps(attempt), Stepped::GoesOn);
    }
    assert!(playing.join().is_none());
    assert_eq!(playing.steps(&mut attempts[1]), Stepped::HasEnded);
    // The one that has not begun is cancelled, and the one that has goes on.
    assert_eq!([0, 2].map(|number| playing.state(number).clone()), [State::Running, State::Cancelled]);
    assert_eq!(playing.steps(&mut attempts[0]), Stepped::HasEnded);
    let failures = playing.join().expect("all have ended").expect_err("two have failed");
    assert_eq!(failures.iter().map(|failure| (failure.number, failure.worker)).collect::<Vec<_>>(), [(1, 1), (0, 0)]);
    assert_eq!(playing.join(), Some(Ok(())));
    assert_eq!(playing.schedule(fails()), Ok(3));
}

#[test]
fn a_schedule_after_a_failure_returns_it_and_is_refused() {
    let fails = || Random { needs: None, is_per_worker: false, steps: vec![Act::Lookup(0, 3)] };
    let mut playing = Coordinator::new(Order::Arrival, OnError::Cancel, 1, initial(), 0);
    playing.schedule(fails()).expect("nothing has failed");
    let mut attempt = playing.starts(0).expect("closure 0");
    assert_eq!(playing.steps(&mut attempt), Stepped::HasEnded);
    let failures = playing.schedule(fails()).expect_err("one has failed");
    let refused = Refused::IndexOutOfRange { position: 0, index: 3, rows: 3 };
    assert_eq!(told(failures), [(0, Why::Refused(refused))]);
    assert_eq!(*playing.state(1), State::Refused);
    assert_eq!(playing.schedule(fails()), Ok(2));
}

#[test]
fn a_closure_past_its_deadline_fails_and_its_attempt_is_late() {
    let adds = Random { needs: None, is_per_worker: false, steps: vec![Act::Add(0, 1)] };
    let mut playing = Coordinator::new(Order::Arrival, OnError::Continue, 1, initial(), 0);
    playing.schedule(adds).expect("nothing has failed");
    let mut attempt = playing.starts(0).expect("closure 0");
    assert_eq!(playing.steps(&mut attempt), Stepped::GoesOn);
    playing.gives_up(0, Why::Odd);
    assert_eq!(playing.steps(&mut attempt), Stepped::IsLate);
    assert_eq!(*playing.committed(), initial());
    assert_eq!(told(playing.join().expect("all have ended").expect_err("it has failed")), [(0, Why::Odd)]);
}

/// Returns the variables after the first of two workers was lost in its second step of three, and
/// the other has run the closure.
fn after_a_loss(updates: Updates) -> Vec<i64> {
    let variables = Tables(vec![Array::new(&[ROWS], vec![0; ROWS]); 2]);
    let mut coordinator = Coordinator::new(Order::Arrival, OnError::Cancel, 2, variables, 1).with_updates(updates);
    let steps = vec![Act::Add(0, 1), Act::Add(0, 10), Act::Add(1, 100)];
    coordinator.schedule(Random { steps, needs: None, is_per_worker: false }).expect("none has failed");
    let mut lost = coordinator.starts(0).expect("a closure waits");
    assert_eq!([(); 2].map(|()| coordinator.steps(&mut lost)), [Stepped::GoesOn; 2]);
    coordinator.loses(0);
    let mut other = coordinator.starts(1).expect("the closure waits again");
    while coordinator.steps(&mut other) == Stepped::GoesOn {}
    assert_eq!(coordinator.join(), Some(Ok(())));
    coordinator.committed().0.iter().map(|table| table.data[0]).collect()
}

#[test]
fn changes_at_once_of_a_lost_attempt_stay() {
    assert_eq!(after_a_loss(Updates::AtEnd), [11, 100]);
    assert_eq!(after_a_loss(Updates::AtOnce), [22, 100]);
}
