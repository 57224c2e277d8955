//! The files from the processes of a launch with `--profile`. Each test runs this program again
//! with the launcher's variable, because the variable is read once.
#![cfg(target_os = "linux")]

use consonance::{
    Communicator, Error, MirroredStrategy, ProcessGroup, ReduceOp, UniqueId,
    profile::{self, EXTENSION, Event, Record, Transport, VARIABLE},
};
use consonance_kernels::os::record_file;
use consonance_spec::Kind;
use fork::{Fork, fork, waitpid};
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{self, Command, Output},
    thread,
};

/// The role of the program when it is run again.
const ROLE: &str = "CONSONANCE_TEST_ROLE";

/// A folder of its own. The drop removes it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = env::temp_dir().join(format!("consonance-profile-{name}-{}", process::id()));
        fs::create_dir(&path).expect("a new folder");
        Folder(path)
    }

    /// Returns the records of each file with the name of its thread.
    fn files(&self) -> Vec<(String, Vec<Record>)> {
        let entries = fs::read_dir(&self.0).expect("a folder").map(|entry| entry.expect("an entry").path());
        let mut files: Vec<_> = entries
            .map(|path| {
                assert_eq!(path.extension().expect("an ending"), EXTENSION);
                let contents = record_file::read(&fs::read(&path).expect("a file")).expect("a file of records");
                assert_eq!(contents.dropped, 0);
                let records = contents.records.iter().map(|words| Record::from_words(words).expect("a record"));
                (contents.name, records.collect())
            })
            .collect();
        files.sort_by(|a: &(String, Vec<Record>), b| a.0.cmp(&b.0));
        files
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Runs the role of this name in a process whose files go to `folder`.
fn run(role: &str, folder: &Path) -> Output {
    let mut command = Command::new(env::current_exe().expect("this program"));
    command.args(["--exact", "the_role", "--nocapture", "--test-threads", "1"]);
    let output = command.env(ROLE, role).env(VARIABLE, folder).output().expect("this program runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output
}

/// The program that the other tests run; without a role it does nothing.
#[test]
fn the_role() {
    match env::var(ROLE).as_deref() {
        Ok("threads") => (0..3).for_each(|_| sum_on_threads()),
        Ok("crowd") => crowd(),
        Ok("calls") => calls(),
        Ok("paths") => paths(),
        Ok("fork") => {
            Communicator::threads(1)[0].barrier().expect("nobody else");
            match fork().expect("a fork") {
                Fork::Child => {
                    Communicator::threads(1)[0].barrier().expect("nobody else");
                    process::exit(0)
                }
                Fork::Parent(child) => _ = waitpid(child).expect("the child ends"),
            }
            Communicator::threads(1)[0].barrier().expect("nobody else");
        }
        Ok("killed") => {
            let strategy = MirroredStrategy::new(["cpu:0"]).expect("a strategy");
            let _ = strategy.run(|replica| {
                replica.barrier()?;
                process::abort();
                #[allow(unreachable_code, reason = "the type of the result")]
                Ok(())
            });
        }
        _ => {}
    }
}

fn sum_on_threads() {
    let ranks = Communicator::threads(2).into_iter().enumerate();
    let threads = ranks.map(|(index, mut rank)| {
        let work = move || rank.all_reduce(ReduceOp::Sum, &mut [1.0f32; 25]).expect("both ranks call");
        thread::Builder::new().name(format!("rank {index}")).spawn(work).expect("a thread")
    });
    // A scope would wait for the ends of the functions only. A thread leaves its file later.
    threads.collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().expect("no panic"));
}

/// Threads of one name, some of which begin while others end.
fn crowd() {
    let call = || Communicator::threads(1)[0].barrier().expect("nobody else");
    let many = move || {
        for _ in 0..1000 {
            let one = thread::Builder::new().name("one of many".to_owned()).spawn(call).expect("a thread");
            one.join().expect("no panic");
        }
    };
    let threads: Vec<_> = (0..4).map(|_| thread::spawn(many)).collect();
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
}

/// A run with calls, one of which fails.
fn calls() {
    let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"]).expect("a strategy");
    let error = strategy.run(|replica| {
        replica.all_gather(consonance::Tensor::from([1u8, 2]), 0)?;
        let mismatch = replica.broadcast([1i32], replica.replica_id_in_sync_group());
        assert!(matches!(mismatch, Err(Error::Mismatch { .. })), "{mismatch:?}");
        mismatch.map(drop)
    });
    error.expect_err("the roots differ");
}

/// Calls whose data go in every way that there is, on two ranks that are threads, and on two that
/// take the role of processes.
fn paths() {
    let threads = Communicator::threads(2).into_iter().map(|mut rank| {
        thread::spawn(move || {
            let mut large = vec![1.0f32; 1 << 18];
            rank.all_reduce(ReduceOp::Sum, &mut large[..1]).expect("both ranks call");
            rank.all_reduce(ReduceOp::Sum, &mut large).expect("both ranks call");
        })
    });
    threads.collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().expect("no panic"));
    let ids = [(); 3].map(|()| UniqueId::new().expect("an id"));
    let processes = [0, 1].map(|index| {
        thread::spawn(move || {
            // With small staging ranks read each other's memory even where staging takes less time.
            let join = |id| {
                let group = ProcessGroup::with_id(id, index, 2).reads_directly(true).staging_bytes(256 << 10).join();
                group.expect("a group").communicators().remove(0)
            };
            let mut rank = join(&ids[0]);
            let (mut large, other) = (vec![1.0f32; 1 << 18], vec![1.0f32; 1 << 18]);
            // In the first barrier the ranks try to read each other's memory. After the second,
            // both know the result.
            rank.barrier().expect("both ranks call");
            rank.barrier().expect("both ranks call");
            rank.all_reduce(ReduceOp::Sum, &mut large[..1]).expect("both ranks call");
            rank.all_reduce(ReduceOp::Sum, &mut large).expect("both ranks call");
            rank.broadcast(&mut large, 0).expect("both ranks call");
            rank.all_to_all_into(&other, &mut large).expect("both ranks call");
            let mut shared = rank.alloc::<f32>(1 << 18).expect("memory");
            rank.all_reduce(ReduceOp::Sum, &mut shared).expect("both ranks call");
            let reads = rank.topology(None).expect("ranks that share memory").reads;
            println!("reads {reads}");
            // Ranks that have left a message before all had arrived know the result, too.
            let (mut gathers, mut receives) = (join(&ids[1]), join(&ids[2]));
            let mut both = [0u8; 2];
            gathers.gather(&[1u8], (index == 0).then_some(&mut both), 0).expect("both ranks call");
            gathers.all_to_all_into(&other, &mut large).expect("both ranks call");
            receives.broadcast(&mut both, 0).expect("both ranks call");
            receives.broadcast(&mut both, 0).expect("both ranks call");
            receives.all_to_all_into(&other, &mut large).expect("both ranks call");
        })
    });
    processes.into_iter().for_each(|process| process.join().expect("no panic"));
}

#[test]
fn the_path_of_each_call_s_data_is_recorded() {
    let folder = Folder::new("paths");
    let output = run("paths", &folder.0);
    let reads = String::from_utf8_lossy(&output.stdout).contains("reads true");
    let files = folder.files();
    let paths = |transport| {
        let calls = files.iter().flat_map(|(_, records)| records).filter_map(|record| match record.event {
            Event::Call(call) => Some(call),
            Event::Run | Event::Closure(_) | Event::Request(_) | Event::Gpu(_) | Event::Clock(_) => None,
        });
        let of_rank = calls.filter(|call| call.transport == Some(transport));
        of_rank.map(|call| call.path.map(profile::Path::name)).collect::<Vec<_>>()
    };
    // Each rank has a file of its own.
    let twice = |paths: &[Option<&'static str>]| paths.repeat(2);
    assert_eq!(paths(Transport::Threads), twice(&[Some("inline"), Some("in place")]));
    let read = if reads { "process read" } else { "staged" };
    let inline = Some("inline");
    let first = [None, None, inline, Some("two-shot"), Some("staged"), Some(read), Some("in place")];
    let others = [inline, Some(read), inline, inline, Some(read)];
    assert_eq!(paths(Transport::Processes), twice(&[&first[..], &others].concat()));
}

#[test]
fn threads_leave_their_file_to_the_next_of_the_same_name() {
    let folder = Folder::new("threads");
    run("threads", &folder.0);
    let files = folder.files();
    assert_eq!(files.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["rank 0", "rank 1"]);
    for (rank, (_, records)) in files.iter().enumerate() {
        assert_eq!(records.len(), 3);
        for (record, next) in records.iter().zip(records.iter().skip(1).map(Some).chain([None])) {
            assert_eq!((record.replica, record.replicas), (rank, 2));
            let Event::Call(call) = record.event else { panic!("{record:?}") };
            assert_eq!((call.name, call.step, call.op), (Kind::AllReduce, Kind::AllReduce, Some(ReduceOp::Sum)));
            assert_eq!((call.bytes, call.transport, call.failed), (100, Some(Transport::Threads), false));
            assert_eq!(call.path, Some(profile::Path::Inline));
            let end = record.end.expect("the call ended");
            assert!(call.waited.is_some_and(|waited| waited <= end - record.begin), "{record:?}");
            assert!(next.is_none_or(|next| end <= next.begin), "{record:?} and {next:?}");
        }
    }
}

/// A call began, by its record, before the thread that had the file had ended its own.
#[test]
fn a_thread_takes_a_file_before_its_call_begins() {
    let folder = Folder::new("crowd");
    run("crowd", &folder.0);
    let files = folder.files();
    assert_eq!(files.iter().map(|(_, records)| records.len()).sum::<usize>(), 4000);
    for (_, records) in files {
        for (record, next) in records.iter().zip(&records[1..]) {
            assert!(record.end.is_some_and(|end| end <= next.begin), "{record:?} and {next:?}");
        }
    }
}

#[test]
fn calls_are_in_their_run_and_a_failure_has_the_replica_at_fault() {
    let folder = Folder::new("calls");
    run("calls", &folder.0);
    let files = folder.files();
    assert_eq!(files.len(), 2, "{files:?}");
    for (_, records) in files {
        let (run, calls) = records.split_first().expect("a run");
        assert_eq!(run.event, Event::Run);
        let names = calls.iter().map(|call| match call.event {
            Event::Call(call) => (call.name, call.failed, call.culprit, call.waited.is_some()),
            Event::Run | Event::Closure(_) | Event::Request(_) | Event::Gpu(_) | Event::Clock(_) => panic!("{call:?}"),
        });
        let expected = [(Kind::AllGather, false, None, true), (Kind::Broadcast, true, Some(1), false)];
        assert_eq!(names.collect::<Vec<_>>(), expected);
        assert!(calls.iter().all(|call| run.begin <= call.begin && call.end <= run.end), "{records:?}");
    }
}

#[test]
fn a_fork_writes_nothing_into_the_files_of_its_parent() {
    let folder = Folder::new("fork");
    run("fork", &folder.0);
    let files = folder.files();
    assert_eq!(files.iter().map(|(_, records)| records.len()).collect::<Vec<_>>(), [2]);
}

#[test]
fn the_profile_of_an_aborted_process_has_its_open_call() {
    let folder = Folder::new("killed");
    let mut command = Command::new(env::current_exe().expect("this program"));
    command.args(["--exact", "the_role", "--test-threads", "1"]).env(ROLE, "killed").env(VARIABLE, &folder.0);
    assert!(!command.output().expect("this program runs").status.success());
    let files = folder.files();
    let ends: Vec<bool> = files[0].1.iter().map(|record| record.end.is_some()).collect();
    assert_eq!((files.len(), ends), (1, vec![false, true]), "the run goes on, its barrier has ended");
}

#[test]
fn an_absent_folder_costs_a_line_and_no_call() {
    let output = run("threads", Path::new("/no/such/folder"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = stderr.lines().filter(|line| line.contains("profile")).collect();
    let expected = "consonance: cannot write a profile to /no/such/folder: No such file or directory (os error 2)";
    assert_eq!(lines, [expected], "{stderr}");
}
