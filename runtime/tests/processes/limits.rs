//! Processes that get no memory, or that closed file descriptors of the library.

use crate::{
    calls::{Calls, Random},
    driver::{self, Job, hear, number, say},
};
use consonance::{
    ClusterSpec, CommunicationOptions, Communicator, MultiWorkerMirroredStrategy, PerReplica, ReduceOp, Result,
    SimpleClusterResolver, Strategy, Tensor, TfConfigClusterResolver,
};
use nix::{
    sys::resource::{RLIM_INFINITY, Resource, setrlimit},
    unistd,
};
use std::{fs, path::Path, sync::Barrier, thread, time::Duration};

/// Sets a limit with room for a thread but not for a segment.
pub(crate) fn limit_addresses() {
    let status = fs::read_to_string("/proc/self/statm").unwrap();
    let pages = number(status.split(' ').next().unwrap());
    setrlimit(Resource::RLIMIT_AS, pages * 4096 + (16 << 20), RLIM_INFINITY).unwrap();
}

/// Joins, with a limit on address space or file size if the word asks for it, and makes a call.
pub(crate) fn limited(words: &[&str]) -> Result<()> {
    match words[0] {
        "addresses" => limit_addresses(),
        "files" => setrlimit(Resource::RLIMIT_FSIZE, 1 << 20, 1 << 20).unwrap(),
        _ => {}
    }
    let mut group = driver::join(1, driver::LONG)?;
    group.communicators()[0].all_reduce(ReduceOp::Sum, &mut [1.0f32; 1000])?;
    say("ok");
    Ok(())
}

/// Returns the report of each process when one of them has this limit.
fn limit(limited: usize, how: &str) -> Vec<String> {
    let mut job = Job::new(3);
    (0..3).for_each(|task| job.launch(task, if task == limited { how } else { "limited not" }));
    job.all().map(|process| process.line()).collect()
}

#[test]
fn a_limit_on_memory_is_an_error_and_the_others_hear_of_it() {
    for how in ["limited addresses", "limited files"] {
        let errors = limit(0, how);
        let problem = |task: usize| {
            let of = format!("failed Meeting call=ProcessGroup task=worker[{task}] (localhost:{}) problem=", task + 1);
            errors[task].strip_prefix(&of).unwrap_or_else(|| panic!("{errors:?}"))
        };
        // Sizes and limits are at the end of the words.
        let is_of_files = problem(0).contains("with files limited to 1048576 bytes (RLIMIT_FSIZE)");
        assert_eq!(is_of_files, how == "limited files", "{errors:?}");
        for task in [1, 2] {
            assert!(problem(task).starts_with("worker[0] (localhost:1) "), "{errors:?}");
            assert!(problem(task).ends_with(problem(0)), "{errors:?}");
        }
    }
    // This process cannot map the segment that the leader made.
    let errors = limit(1, "limited addresses");
    assert!(errors[1].starts_with("failed System ") && errors[1].contains(" what=map a segment of "), "{errors:?}");
    for error in [&errors[0], &errors[2]] {
        assert!(error.starts_with("failed Aborted call=all_reduce reason=Departure replica=1 "), "{errors:?}");
    }
    assert_eq!(limit(1, "limited files"), ["ok"; 3]);
}

/// Two ranks as threads. One of them gets no thread for its asynchronous calls.
pub(crate) fn threadless(_: &[&str]) -> Result<()> {
    let mut ranks = Communicator::threads(2);
    let (mut second, mut first) = (ranks.remove(1), ranks.remove(0));
    thread::scope(|threads| {
        let other = threads.spawn(move || second.barrier());
        // Until the thread has started, it needs memory.
        thread::sleep(Duration::from_millis(100));
        let pages = number(fs::read_to_string("/proc/self/statm").unwrap().split(' ').next().unwrap());
        setrlimit(Resource::RLIMIT_AS, pages * 4096, RLIM_INFINITY).unwrap();
        let result = first.scope(|_| Ok(()));
        setrlimit(Resource::RLIMIT_AS, RLIM_INFINITY, RLIM_INFINITY).unwrap();
        say(&driver::fields(&result.unwrap_err()));
        say(&driver::fields(&other.join().unwrap().unwrap_err()));
    });
    Ok(())
}

#[test]
fn the_others_hear_of_a_rank_without_a_thread_for_its_calls() {
    let mut job = Job::start(1, "threadless");
    let error = job.of(0).line();
    assert!(error.starts_with("System ") && error.contains(" what=start a thread for asynchronous calls"), "{error}");
    let error = job.of(0).line();
    assert!(error.starts_with("Aborted ") && error.contains(" replica=0 "), "{error}");
    job.end();
}

/// Two workers as threads. The second gets no threads for its two replicas, in a run or in a
/// cross-replica call.
pub(crate) fn teamless(words: &[&str]) -> Result<()> {
    let call = |strategy: &Strategy| match words[0] {
        "run" => strategy.run(|replica| replica.all_reduce(ReduceOp::Sum, 1i32)).map(|sums| sums[0]),
        _ => strategy.reduce(ReduceOp::Sum, &PerReplica::new(vec![1i32; strategy.local_replicas().len()]), None),
    };
    // The threads that a worker's ranks use to meet leave their stacks for reuse when they end.
    let (built, limited) = (Barrier::new(2), Barrier::new(2));
    let work = |index: usize, communicators| -> Result<()> {
        let cluster = ClusterSpec::new().job("worker", ["localhost:1", "localhost:2"])?;
        let resolver = SimpleClusterResolver::new(cluster).with_task("worker", index)?;
        let options = CommunicationOptions::new().timeout(driver::LONG / 4)?;
        let strategy = MultiWorkerMirroredStrategy::builder(resolver).options(options).build_on(communicators)?;
        built.wait();
        let failed = if index == 1 {
            let pages = number(fs::read_to_string("/proc/self/statm").unwrap().split(' ').next().unwrap());
            // Room for everything but a thread's stack.
            setrlimit(Resource::RLIMIT_AS, pages * 4096 + (1 << 20), RLIM_INFINITY).unwrap();
            // Use up the stacks of ended threads, which new threads could reuse.
            let sleep = || thread::Builder::new().spawn(thread::park);
            let asleep: Vec<_> = std::iter::from_fn(|| sleep().ok()).collect();
            let failed = call(&strategy);
            setrlimit(Resource::RLIMIT_AS, RLIM_INFINITY, RLIM_INFINITY).unwrap();
            limited.wait();
            asleep.iter().for_each(|thread| thread.thread().unpark());
            failed
        } else {
            let failed = call(&strategy);
            limited.wait();
            failed
        };
        let again = [call(&strategy), call(&strategy)];
        say(&format!(
            "{index} {again:?} {}",
            failed.map_or_else(|error| driver::fields(&error), |sum| format!("{sum}"))
        ));
        Ok(())
    };
    let mut ranks = Communicator::threads(3).into_iter();
    thread::scope(|threads| {
        let work = &work;
        let first = ranks.by_ref().take(1).collect();
        threads.spawn(move || work(0, first).unwrap());
        work(1, ranks.collect())
    })
}

#[test]
fn a_worker_without_threads_for_its_replicas_has_failed_for_all() {
    for call in ["run", "reduce"] {
        let mut job = Job::start(1, &format!("teamless {call}"));
        let mut lines = [job.of(0).line(), job.of(0).line()];
        lines.sort();
        let [first, second] = &lines;
        assert!(first.starts_with("0 [Ok(3), Ok(3)] Aborted "), "{lines:?}");
        assert!(first.contains(" reason=Failure replica=1 "), "{lines:?}");
        assert!(second.starts_with("1 [Ok(3), Ok(3)] System "), "{lines:?}");
        assert!(second.contains(" what=start the threads of MultiWorkerMirroredStrategy"), "{lines:?}");
        job.end();
    }
}

/// Closes the open descriptors of this process except the standard streams, and optionally opens
/// another file in place of each.
fn close_all(folder: Option<&Path>) {
    let open: Vec<i32> = fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok())
        .filter(|&descriptor| descriptor > 2)
        .collect();
    for &descriptor in &open {
        // The descriptor of the folder just read is closed already.
        let _ = unistd::close(descriptor);
    }
    for number in folder.into_iter().flat_map(|_| &open) {
        let file = fs::File::create(folder.unwrap().join(number.to_string())).unwrap();
        std::mem::forget(file);
    }
}

/// Waits until the thread that watches the peers sleeps in its system call, which keeps open what
/// others close. Before that its links would end, and the peers would take this process for lost.
fn await_watch() {
    // The system cuts the name `consonance-watch`.
    let sleeps = |task: fs::DirEntry| {
        let state = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        state.contains("(consonance-watc) S")
    };
    while !fs::read_dir("/proc/self/task").unwrap().any(|task| sleeps(task.unwrap())) {
        thread::sleep(Duration::from_millis(1));
    }
}

/// Makes calls; process 1 closes all its descriptors in between. Existing resources still work; a
/// call that needs a new one is an error.
pub(crate) fn closes(words: &[&str]) -> Result<()> {
    let mut group = driver::join(1, Duration::from_secs(3))?;
    let mut rank = group.communicators().remove(0);
    let odd = rank.rank() == 1;
    let calls = |rank: &mut Communicator, most| {
        let mut calls = Calls { random: Random(7), most, checks: true };
        (0..50).try_for_each(|_| calls.step(rank))
    };
    calls(&mut rank, 5000)?;
    if odd {
        await_watch();
        close_all(words.first().map(Path::new));
    }
    rank.all_reduce(ReduceOp::Sum, &mut [1.0f32; 1000])?;
    say("works");
    match calls(&mut rank, 3 << 20) {
        Ok(()) => say("ok"),
        Err(error) => say(&driver::fields(&error)),
    }
    let before = driver::cpu();
    thread::sleep(Duration::from_millis(300));
    let taken = driver::cpu() - before;
    assert!(taken < Duration::from_millis(100), "nothing is done, and it takes {taken:?}");
    hear();
    // To close a descriptor that is closed ends a program with checks: the standard library sees to
    // that.
    if odd && cfg!(debug_assertions) {
        std::process::exit(0);
    }
    Ok(())
}

#[test]
fn a_process_without_its_descriptors_works_or_reports_the_reason() {
    let temp = std::env::temp_dir().join(format!("consonance-closed-{}", std::process::id()));
    fs::create_dir_all(&temp).unwrap();
    for part in ["closes", &format!("closes {}", temp.display())] {
        let mut job = Job::start(3, part);
        job.all().for_each(|process| assert_eq!(process.line(), "works", "{part}"));
        for process in job.others(1) {
            let error = process.line();
            assert!(error.starts_with("Aborted ") && error.contains(" reason=Memory replica=1 "), "{error}");
        }
        let error = job.of(1).line();
        let is_closed = error.starts_with("System code=Some(9) ");
        assert!(is_closed && error.ends_with(" bytes of the memory that processes share"), "{error}");
        for process in job.all() {
            process.tell("end");
        }
        job.end();
    }
    // Nothing was written to these files or reserved in them.
    for file in fs::read_dir(&temp).unwrap() {
        let file = file.unwrap();
        assert_eq!(file.metadata().unwrap().len(), 0, "{file:?}");
    }
    fs::remove_dir_all(&temp).unwrap();
}

/// A worker of a strategy in calls of all workers. Process 1 closes the descriptor of the shared
/// memory, so it can map no more of it.
pub(crate) fn memoryless(_: &[&str]) -> Result<()> {
    let options = CommunicationOptions::new().timeout(driver::LONG / 4)?;
    let builder = MultiWorkerMirroredStrategy::builder(TfConfigClusterResolver::new()?).options(options);
    let strategy = builder.meeting(|group| Ok(group.reads_directly(false))).build()?;
    let sum = |count: usize| {
        let ones = strategy.distribute_values_from_function(|_| Tensor::from(vec![1i32; count]))?;
        strategy.reduce(ReduceOp::Sum, &ones, None)
    };
    let odd = strategy.local_replicas().start == 1;
    if odd {
        let is_segment = |path: &Path| {
            fs::read_link(path).is_ok_and(|target| target.to_string_lossy().starts_with("/memfd:consonance"))
        };
        let open = fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
        for path in open.filter(|path| is_segment(path)) {
            unistd::close(path.file_name().unwrap().to_str().unwrap().parse::<i32>().unwrap()).unwrap();
        }
    }
    say(&driver::fields(&sum(1 << 20).unwrap_err()));
    for count in [1, 2] {
        say(&format!("{:?}", sum(count).map_err(|error| driver::fields(&error))));
    }
    hear();
    // To close a descriptor that is closed ends a program with checks: the standard library sees to
    // that.
    std::process::exit(0);
}

/// Found by a review: the worker's next call failed too, so the next call of the others paired with
/// its call after that.
#[test]
fn a_worker_without_memory_for_a_call_has_one_failed_call_as_the_others_have() {
    let mut job = Job::start(2, "memoryless");
    let error = job.of(0).line();
    assert!(error.starts_with("Aborted ") && error.contains(" reason=Memory replica=1 "), "{error}");
    let error = job.of(1).line();
    assert!(error.starts_with("System ") && error.contains(" what=Strategy::reduce: reserve "), "{error}");
    for process in job.all() {
        for sum in [Tensor::from([2]), Tensor::from([2, 2])] {
            assert_eq!(process.line(), format!("{:?}", Ok::<_, ()>(sum)));
        }
    }
    job.all().for_each(|process| process.tell("end"));
    job.end();
}
