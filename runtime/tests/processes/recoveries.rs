//! Servers that are lost: a chief that goes on with the values of a checkpoint.

use crate::driver::{self, Job, LONG, Signal, Way};
use consonance::{
    ClusterCoordinator, DType, Error, IndexedSlices, ParameterServerStrategy, RemoteValue, Result, Tensor,
    TfConfigClusterResolver, checkpoint,
    parameter_server::{FixedShardsPartitioner, OnError, Order},
};
use std::{
    collections::BTreeSet,
    env, fs,
    num::NonZeroUsize,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

const ROWS: usize = 64;

/// The orders of effects: that of arrival, and windows of seven.
const WINDOWS: [usize; 2] = [0, 7];

/// Plays the role of the process. The word is the window, or 0 for the order of arrival.
///
/// The chief obeys, and says what comes of it:
///
/// * `run FROM TO`: schedule and join the closures of these numbers;
/// * `begin COUNT`: schedule closures alone;
/// * `hold COUNT MILLISECONDS`: schedule closures that take this long;
/// * `lost`: fetch the result of the last one;
/// * `fill`, `read`, `save PATH`, `restore PATH`, `recover PATH MILLISECONDS`;
/// * `few PATH`: recover without a name for each variable;
/// * `calls`: make a call of each kind, and count the aborted ones;
/// * `all`: wait until each worker has run a closure, which changes nothing;
/// * `end`.
pub(crate) fn recovers(words: &[&str]) -> Result<()> {
    let order = NonZeroUsize::new(driver::number(words[0]) as usize);
    let order = order.map_or(Order::Arrival, |window| Order::Scheduled { window });
    let strategy = ParameterServerStrategy::builder(TfConfigClusterResolver::new()?)?
        .partitioner(FixedShardsPartitioner::new(5)?)
        .order(order)
        .on_error(OnError::Continue)
        .timeout(LONG / 2)
        .closure_timeout(LONG / 2)
        .build()?;
    let total = strategy.variable(|| Tensor::from(0i64))?;
    let table = strategy.variable(|| Tensor::zeros(DType::I64, [ROWS, 2]))?;
    let floats = strategy.variable(|| Tensor::zeros(DType::F32, [ROWS]))?;
    let marks = strategy.slot(&table, || Tensor::zeros(DType::I64, [ROWS]))?;
    let coordinator = ClusterCoordinator::new(&strategy);
    let count = coordinator.function("count", {
        let (total, table, marks) = (total.clone(), table.clone(), marks.clone());
        move |worker, number: i64| {
            worker.assign_add(&total, &Tensor::from(number))?;
            let rows = Tensor::from([number % ROWS as i64, (number + 40) % ROWS as i64]);
            let values = Tensor::from([[number, 1], [1, number]]);
            worker.scatter_add(&table, &IndexedSlices::new(values, rows.clone(), None)?)?;
            worker.scatter_add(&marks, &IndexedSlices::new(Tensor::from([1i64, 1]), rows, None)?)
        }
    })?;
    let slow = coordinator.function("slow", |_, milliseconds: u64| {
        thread::sleep(Duration::from_millis(milliseconds));
        Ok(())
    })?;
    let index = coordinator.function("index", |worker, ()| Ok(worker.worker_index() as u64))?;
    if !strategy.is_chief() {
        driver::say("serves");
        return strategy.serve().inspect(|()| driver::say("served"));
    }
    let named = || [("total", &total), ("table", &table), ("floats", &floats), ("marks", &marks)];
    let mut last: Option<RemoteValue<()>> = None;
    loop {
        let heard = driver::hear();
        let words: Vec<&str> = heard.split(' ').collect();
        let mut obey = || match words[..] {
            ["run", from, to] => {
                for number in driver::number(from)..driver::number(to) {
                    last = Some(coordinator.schedule(&count, number as i64)?);
                }
                let joined = coordinator.join(LONG / 2)?;
                Ok(format!("{:?}", joined.lost.iter().map(|lost| lost.worker).collect::<Vec<_>>()))
            }
            ["begin", closures] => {
                for number in 0..driver::number(closures) {
                    last = Some(coordinator.schedule(&count, number as i64)?);
                }
                Ok("all".to_owned())
            }
            ["hold", count, milliseconds] => {
                for _ in 0..driver::number(count) {
                    last = Some(coordinator.schedule(&slow, driver::number(milliseconds))?);
                }
                Ok("all".to_owned())
            }
            ["fill"] => {
                let value: Vec<f32> = (0..ROWS).map(|row| 0.1 + row as f32 / 3.0).collect();
                floats.assign(&Tensor::from(value)).map(|()| String::new())
            }
            ["save", path] => checkpoint::save(path, named()).map(|()| String::new()),
            ["restore", path] => checkpoint::restore(path, named()).map(|()| String::new()),
            ["recover", path, limit] => {
                let limit = Duration::from_millis(driver::number(limit));
                strategy.recover(path, named(), limit).map(|()| String::new())
            }
            ["few", path] => strategy.recover(path, named().into_iter().skip(1), LONG).map(|()| String::new()),
            ["read"] => {
                let integers = [total.read()?, table.read()?, marks.read()?];
                let integers = integers.iter().map(Tensor::as_slice::<i64>).collect::<Result<Vec<_>>>()?.concat();
                let bits: Vec<u32> =
                    floats.read()?.as_slice::<f32>()?.iter().map(|element| element.to_bits()).collect();
                Ok(format!("{integers:?} {bits:?}"))
            }
            ["calls"] => {
                let results = [
                    coordinator.schedule(&count, 0).map(drop),
                    coordinator.join(LONG).map(drop),
                    coordinator.done().map(drop),
                    table.read().map(drop),
                    table.lookup(&Tensor::from([0i64])).map(drop),
                    total.assign(&Tensor::from(0i64)),
                    checkpoint::save(env::temp_dir().join("never"), named()),
                ];
                let aborted =
                    |result: &Result<()>| matches!(result, Err(error @ Error::Aborted { .. }) if error.is_loss());
                Ok(format!("{}", results.iter().filter(|result| aborted(result)).count()))
            }
            ["lost"] => last.as_ref().expect("a closure").fetch(LONG).map(|()| String::new()),
            ["all"] => {
                let mut ran = BTreeSet::new();
                while ran.len() < strategy.num_workers() {
                    let more = (0..20).map(|_| coordinator.schedule(&index, ())).collect::<Result<Vec<_>>>()?;
                    for closure in more {
                        ran.insert(closure.fetch(LONG / 2)?);
                    }
                }
                Ok(String::new())
            }
            _ => Ok("end".to_owned()),
        };
        match obey() {
            Ok(end) if end == "end" => return Ok(()),
            Ok(answer) => driver::say(&format!("did {answer}")),
            Err(error) => driver::say(&format!("refused {}", driver::fields(&error))),
        }
    }
}

/// The path of a checkpoint, removed on drop.
struct Saved(PathBuf);

impl Saved {
    fn new(job: &Job) -> Saved {
        Saved(env::temp_dir().join(format!("consonance-recoveries-{}", job.name())))
    }

    fn path(&self) -> String {
        self.0.display().to_string()
    }
}

impl Drop for Saved {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn start(way: Way, workers: usize, servers: usize, window: usize) -> Job {
    let mut job = Job::with_servers(workers, servers).meeting(way);
    for task in 0..1 + workers + servers {
        job.launch(task, &format!("recovers {window}"));
    }
    job.others(0).for_each(|process| drop(process.expect("serves")));
    job
}

/// Has the chief obey, and returns its answer.
#[track_caller]
fn order(job: &mut Job, order: &str) -> String {
    job.of(0).tell(order);
    job.of(0).expect("did")
}

/// Has the chief obey, which fails. Returns the fields of the error.
#[track_caller]
fn refused(job: &mut Job, order: &str) -> String {
    job.of(0).tell(order);
    job.of(0).expect("refused")
}

#[track_caller]
fn kill(job: &mut Job, task: usize) {
    job.of(task).signal(Signal::SIGKILL);
    job.of(task).wait();
}

/// Ends the chief, and checks that these end as they should.
fn end(mut job: Job, alive: &[usize]) {
    job.of(0).tell("end");
    job.of(0).end();
    for &task in alive {
        job.of(task).expect("served");
        job.of(task).end();
    }
}

/// Returns all values after the closures of these numbers.
fn counted(numbers: impl IntoIterator<Item = i64>) -> String {
    let (mut total, mut table, mut marks) = (0, [[0i64; 2]; ROWS], [0i64; ROWS]);
    for number in numbers {
        total += number;
        let rows = [number as usize % ROWS, (number as usize + 40) % ROWS];
        for (row, values) in rows.into_iter().zip([[number, 1], [1, number]]) {
            table[row][0] += values[0];
            table[row][1] += values[1];
            marks[row] += 1;
        }
    }
    let integers: Vec<i64> = [total].into_iter().chain(table.into_iter().flatten()).chain(marks).collect();
    let bits: Vec<u32> = (0..ROWS).map(|row| (0.1 + row as f32 / 3.0).to_bits()).collect();
    format!("{integers:?} {bits:?}")
}

/// Fills the variables by 100 closures, saves them, and changes them again.
fn save(job: &mut Job, saved: &Saved) -> String {
    order(job, "fill");
    assert_eq!(order(job, "run 0 100"), "[]");
    let values = order(job, "read");
    assert_eq!(values, counted(0..100));
    order(job, &format!("save {}", saved.path()));
    order(job, "run 1000 1100");
    values
}

/// Waits until the chief knows of the loss of a server of this name.
#[track_caller]
fn sees_loss(job: &mut Job, name: &str) {
    let begin = Instant::now();
    loop {
        job.of(0).tell("run 0 10");
        let line = job.of(0).line();
        if let Some(lost) = line.strip_prefix("refused ") {
            assert!(lost.starts_with("Aborted") && lost.contains("lost=true") && lost.contains(name), "{lost}");
            return;
        }
        assert!(begin.elapsed() < LONG, "{line}");
    }
}

#[test]
fn the_servers_left_play_the_lost_one() {
    for way in Way::all() {
        for window in WINDOWS {
            let mut job = start(way, 2, 3, window);
            let saved = Saved::new(&job);
            let values = save(&mut job, &saved);
            order(&mut job, "begin 2000");
            order(&mut job, "hold 20 200");
            kill(&mut job, 4);
            sees_loss(&mut job, "ps[1]");
            assert_eq!(order(&mut job, "calls"), "7");
            thread::sleep(Duration::from_millis(100));
            assert_eq!(order(&mut job, "calls"), "7", "without a recovery nothing works");
            order(&mut job, &format!("recover {} 4000", saved.path()));
            let lost = refused(&mut job, "lost");
            assert!(lost.starts_with("Aborted") && lost.contains("lost=true"), "{lost}");
            assert_eq!(order(&mut job, "read"), values);
            assert_eq!(order(&mut job, "run 100 400"), "[]");
            assert_eq!(order(&mut job, "read"), counted(0..400));
            order(&mut job, "all");
            order(&mut job, &format!("save {}", saved.path()));
            order(&mut job, "run 400 450");
            order(&mut job, &format!("restore {}", saved.path()));
            assert_eq!(order(&mut job, "read"), counted(0..400));
            end(job, &[1, 2, 3, 5]);
        }
    }
}

/// A server that is stopped plays nothing, and the others go on. When it goes on, it plays again.
#[test]
fn a_stopped_server_holds_up_no_recovery() {
    for way in Way::all() {
        for window in WINDOWS {
            let mut job = start(way, 2, 3, window);
            let saved = Saved::new(&job);
            let values = save(&mut job, &saved);
            job.of(3).signal(Signal::SIGSTOP);
            kill(&mut job, 4);
            sees_loss(&mut job, "ps[1]");
            order(&mut job, &format!("recover {} 4000", saved.path()));
            assert_eq!(order(&mut job, "read"), values);
            assert_eq!(order(&mut job, "run 100 200"), "[]");
            job.of(3).signal(Signal::SIGCONT);
            assert_eq!(order(&mut job, "run 200 300"), "[]");
            assert_eq!(order(&mut job, "read"), counted(0..300));
            kill(&mut job, 5);
            sees_loss(&mut job, "ps[2]");
            order(&mut job, &format!("recover {} 4000", saved.path()));
            assert_eq!(order(&mut job, "read"), values);
            assert_eq!(order(&mut job, "run 100 200"), "[]");
            assert_eq!(order(&mut job, "read"), counted(0..200));
            order(&mut job, "all");
            end(job, &[1, 2, 3]);
        }
    }
}

/// The only worker is in the first closure when a server is lost. Its answer comes when it has the
/// first closure after the recovery, which has effects.
#[test]
fn an_answer_from_before_a_recovery_is_none_to_a_closure_after_it() {
    for window in WINDOWS {
        let mut job = start(Way::Memory, 1, 2, window);
        let saved = Saved::new(&job);
        order(&mut job, "fill");
        order(&mut job, &format!("save {}", saved.path()));
        order(&mut job, "hold 1 3000");
        kill(&mut job, 3);
        sees_loss(&mut job, "ps[1]");
        order(&mut job, &format!("recover {} 1500", saved.path()));
        assert_eq!(order(&mut job, "run 100 101"), "[]");
        assert_eq!(order(&mut job, "read"), counted(100..101));
        end(job, &[1, 2]);
    }
}

/// The process that comes plays its servers: at last it plays all of them.
#[test]
fn a_process_comes_in_the_place_of_a_lost_server() {
    for way in Way::all() {
        for window in WINDOWS {
            let mut job = start(way, 2, 2, window);
            let saved = Saved::new(&job);
            let values = save(&mut job, &saved);
            kill(&mut job, 3);
            sees_loss(&mut job, "ps[0]");
            job.of(0).tell(&format!("recover {} 40000", saved.path()));
            job.launch(3, &format!("recovers {window}"));
            job.of(3).expect("serves");
            job.of(0).expect("did");
            assert_eq!(order(&mut job, "read"), values);
            assert_eq!(order(&mut job, "run 100 300"), "[]");
            assert_eq!(order(&mut job, "read"), counted(0..300));
            kill(&mut job, 4);
            sees_loss(&mut job, "ps[1]");
            order(&mut job, &format!("recover {} 4000", saved.path()));
            assert_eq!(order(&mut job, "read"), values);
            assert_eq!(order(&mut job, "run 100 150"), "[]");
            assert_eq!(order(&mut job, "read"), counted(0..150));
            order(&mut job, "all");
            end(job, &[1, 2, 3]);
        }
    }
}

#[test]
fn servers_are_lost_one_after_the_other_until_none_is_left() {
    let mut job = start(Way::Memory, 2, 3, 0);
    let saved = Saved::new(&job);
    let values = save(&mut job, &saved);
    for (task, name) in [(3, "ps[0]"), (4, "ps[1]")] {
        order(&mut job, "begin 500");
        kill(&mut job, task);
        sees_loss(&mut job, name);
        order(&mut job, &format!("recover {} 3000", saved.path()));
        assert_eq!(order(&mut job, "read"), values);
        order(&mut job, "run 100 200");
        assert_eq!(order(&mut job, "read"), counted(0..200));
    }
    kill(&mut job, 5);
    sees_loss(&mut job, "ps[2]");
    let nobody = refused(&mut job, &format!("recover {} 3000", saved.path()));
    assert!(nobody.starts_with("Meeting call=ParameterServerStrategy::recover"), "{nobody}");
    assert!((0..3).all(|server| nobody.contains(&format!("ps[{server}]"))), "{nobody}");
    assert_eq!(order(&mut job, "calls"), "7");
    // A process that comes later is enough.
    job.launch(4, "recovers 0");
    job.of(4).expect("serves");
    order(&mut job, &format!("recover {} 4000", saved.path()));
    assert_eq!(order(&mut job, "read"), values);
    order(&mut job, "all");
    end(job, &[1, 2, 4]);
}

#[test]
fn a_worker_killed_meanwhile_holds_up_no_recovery() {
    let mut job = start(Way::Memory, 2, 2, 0);
    let saved = Saved::new(&job);
    let values = save(&mut job, &saved);
    kill(&mut job, 3);
    sees_loss(&mut job, "ps[0]");
    job.of(0).tell(&format!("recover {} 4000", saved.path()));
    thread::sleep(Duration::from_millis(300));
    kill(&mut job, 1);
    job.of(0).expect("did");
    assert_eq!(order(&mut job, "read"), values);
    let begin = Instant::now();
    let (mut lost, mut next) = (order(&mut job, "run 100 200"), 200);
    while lost != "[0]" {
        assert!(lost == "[]" && begin.elapsed() < LONG, "{lost}");
        lost = order(&mut job, &format!("run {next} {}", next + 1));
        next += 1;
    }
    assert_eq!(order(&mut job, "read"), counted(0..next));
    job.launch(1, "recovers 0");
    job.of(1).expect("serves");
    order(&mut job, "all");
    end(job, &[1, 2, 4]);
}

#[test]
fn a_refused_recovery_changes_nothing() {
    let mut job = start(Way::Memory, 1, 2, 0);
    let saved = Saved::new(&job);
    let values = save(&mut job, &saved);
    let path = saved.path();
    let none = refused(&mut job, &format!("recover {path} 3000"));
    assert!(none.starts_with("WrongContext call=ParameterServerStrategy::recover"), "{none}");
    kill(&mut job, 2);
    sees_loss(&mut job, "ps[0]");
    let few = refused(&mut job, &format!("few {path}"));
    assert!(few.starts_with("InvalidCall call=ParameterServerStrategy::recover argument=variables"), "{few}");
    assert!(few.contains("variable 0 of i64[]"), "{few}");
    let missing = refused(&mut job, &format!("recover {path}.none 500"));
    assert!(missing.starts_with("System"), "{missing}");
    let whole = fs::read(&saved.0).unwrap();
    let mut damaged = whole.clone();
    *damaged.last_mut().unwrap() ^= 1;
    fs::write(&saved.0, damaged).unwrap();
    let damaged = refused(&mut job, &format!("recover {path} 3000"));
    assert!(damaged.starts_with("InvalidCall"), "{damaged}");
    assert_eq!(order(&mut job, "calls"), "7");
    fs::write(&saved.0, whole).unwrap();
    order(&mut job, &format!("recover {path} 3000"));
    assert_eq!(order(&mut job, "read"), values);
    end(job, &[1, 3]);
}

/// Servers are killed and replaced again and again, also while the chief recovers.
#[test]
fn kills_at_any_moment_leave_the_values_of_the_checkpoint() {
    let mut job = start(Way::Memory, 2, 3, 0);
    let saved = Saved::new(&job);
    let values = save(&mut job, &saved);
    for round in 0u64..6 {
        let [first, second] = [3 + round as usize % 3, 3 + (round as usize + 1) % 3];
        order(&mut job, "begin 300");
        kill(&mut job, first);
        sees_loss(&mut job, "ps[");
        job.launch(first, "recovers 0");
        job.of(0).tell(&format!("recover {} 8000", saved.path()));
        thread::sleep(Duration::from_millis(17 * round));
        kill(&mut job, second);
        job.launch(second, "recovers 0");
        let begin = Instant::now();
        loop {
            let line = job.of(0).line();
            if line.starts_with("did") {
                // The second server may be lost after the recovery.
                job.of(0).tell("read");
                let line = job.of(0).line();
                if let Some(read) = line.strip_prefix("did ") {
                    assert_eq!(read, values);
                    job.of(0).tell("run 100 200");
                    if job.of(0).line().starts_with("did") {
                        break;
                    }
                }
            }
            assert!(begin.elapsed() < LONG, "{line}");
            job.of(0).tell(&format!("recover {} 8000", saved.path()));
        }
    }
    order(&mut job, "all");
    end(job, &[1, 2]);
}

#[test]
fn threads_are_never_lost() -> Result<()> {
    let strategy = ParameterServerStrategy::threads(1, 1)?;
    let table = strategy.variable(|| Tensor::from([1i64]))?;
    for _ in 0..2 {
        let refused = strategy.recover("no file", [("table", &table)], LONG).unwrap_err();
        assert!(matches!(refused, Error::WrongContext { call: "ParameterServerStrategy::recover", .. }), "{refused}");
        table.read()?;
    }
    Ok(())
}
