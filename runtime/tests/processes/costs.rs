//! The resources of a group: CPU time, memory, and names in the system.

use crate::driver::{self, Job, Signal, hear, say};
use consonance::{MirroredStrategy, PerReplica, ReduceOp, Result, Tensor};
use std::{collections::HashSet, fs, path::Path, thread, time::Duration};

/// Returns this process's memory in kilobytes. Shared pages count in part (`Pss`) or whole (`Rss`).
fn memory(what: &str) -> i64 {
    let rollup = fs::read_to_string("/proc/self/smaps_rollup").unwrap();
    let line = rollup.lines().find(|line| line.starts_with(what)).expect("a line for it");
    line.split_whitespace().nth(1).expect("a number").parse().unwrap()
}

/// Waits in two calls, a small and a larger one, for process 0, which makes each a second late.
pub(crate) fn waits(_: &[&str]) -> Result<()> {
    let mut group = driver::join(1, driver::LONG)?;
    let mut rank = group.communicators().remove(0);
    let mut data = vec![1.0f32; 1 << 14];
    rank.all_reduce(ReduceOp::Sum, &mut data)?;
    for count in [1, 1 << 14] {
        if rank.rank() == 0 {
            thread::sleep(Duration::from_secs(1));
        }
        let before = driver::cpu();
        rank.all_reduce(ReduceOp::Sum, &mut data[..count])?;
        let taken = driver::cpu() - before;
        say(&format!("took {}", taken.as_micros()));
    }
    Ok(())
}

#[test]
fn a_waiting_rank_sleeps() {
    let mut job = Job::start(3, "waits");
    for process in job.all() {
        for _ in 0..2 {
            let taken = Duration::from_micros(driver::number(&process.expect("took")));
            println!("a wait of a second takes {taken:?} of the processor");
            assert!(taken < Duration::from_millis(20), "{taken:?}");
        }
    }
    job.end();
}

/// Two ranks of eight. Reports the memory of the idle group, and the resident size of the segment
/// after large calls.
pub(crate) fn rests(_: &[&str]) -> Result<()> {
    // The memory of any program after it made a communicator and a thread.
    thread::spawn(|| drop(consonance::Communicator::threads(2))).join().unwrap();
    let before = ["Rss:", "Pss:"].map(memory);
    let mut group = driver::join(2, driver::LONG)?;
    let ranks = group.communicators();
    let after = ["Rss:", "Pss:"].map(memory);
    say(&format!("idle {} {}", after[0] - before[0], after[1] - before[1]));
    let blocks = thread::scope(|scope| {
        let ranks = ranks.into_iter().map(|mut rank| {
            scope.spawn(move || {
                let mut data = vec![1.0f32; 16 << 20];
                rank.all_reduce(ReduceOp::Sum, &mut data)?;
                assert!(data.iter().all(|&sum| sum == 8.0));
                rank.all_gather(&mut data)?;
                rank.barrier()?;
                Ok(segment_bytes())
            })
        });
        ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().unwrap()).collect::<Result<Vec<u64>>>()
    })?;
    say(&format!("segment {}", blocks[0]));
    Ok(())
}

/// Returns the number of resident bytes of the segment.
fn segment_bytes() -> u64 {
    let descriptors = fs::read_dir("/proc/self/fd").unwrap().map_while(std::result::Result::ok);
    let is_segment = |path: &std::path::PathBuf| {
        fs::read_link(path).is_ok_and(|target| target.to_string_lossy().starts_with("/memfd:consonance"))
    };
    let segment = descriptors.map(|entry| entry.path()).find(is_segment).expect("the segment is open");
    std::os::unix::fs::MetadataExt::blocks(&fs::metadata(segment).unwrap()) * 512
}

#[test]
fn an_idle_group_takes_little_memory_and_a_busy_one_stays_within_its_limit() {
    let mut job = Job::start(4, "rests");
    for process in job.all() {
        let idle = process.expect("idle");
        println!("an idle process of a group of 8 ranks takes {idle} kB (whole, in parts)");
        let kilobytes: Vec<i64> = idle.split(' ').map(|number| number.parse().unwrap()).collect();
        assert!(kilobytes[0] < 4096, "{idle} kB");
    }
    for process in job.all() {
        let bytes = driver::number(&process.expect("segment"));
        println!("after 64 MiB on each of 8 ranks the segment has {bytes} bytes");
        assert!(bytes <= 8 * (1 << 20) + (1 << 20), "{bytes} bytes");
    }
    job.end();
}

/// A strategy makes large results. Reports how many kilobytes more the process has right after that
/// and after two idle seconds, and the CPU time of these seconds in microseconds.
pub(crate) fn keeps(_: &[&str]) -> Result<()> {
    let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    let values = PerReplica::new(vec![Tensor::from(vec![1f32; LARGE]); 2]);
    let sum = |values: &PerReplica<Tensor>| strategy.reduce(ReduceOp::Sum, values, None);
    sum(&PerReplica::new(vec![Tensor::from(vec![1f32; 1 << 20]); 2]))?;
    let before = memory("Pss:");
    for _ in 0..3 {
        drop(sum(&values)?);
    }
    let (kept, begin) = (memory("Pss:") - before, driver::cpu());
    thread::sleep(Duration::from_secs(2));
    say(&format!("kept {kept} {} {}", memory("Pss:") - before, (driver::cpu() - begin).as_micros()));
    Ok(())
}

/// Elements of a result of [`keeps`].
const LARGE: usize = 16 << 20;

#[test]
fn an_idle_strategy_gives_back_its_kept_memory() {
    let mut job = Job::start(1, "keeps");
    for process in job.all() {
        let kept = process.expect("kept");
        println!("an idle strategy: {kept} (kilobytes at once, after two seconds, microseconds of CPU time)");
        let [at_once, later, cpu] =
            kept.split(' ').map(|number| number.parse::<i64>().unwrap()).collect::<Vec<_>>()[..]
        else {
            panic!("three numbers")
        };
        let result = (LARGE * size_of::<f32>() / 1024) as i64;
        assert!(at_once > result / 2, "nothing was kept: {kept}");
        assert!(later < result / 8, "{kept}");
        assert!(cpu < 20_000, "{kept}");
    }
    job.end();
}

/// Reports the names of this process in the system, and waits.
pub(crate) fn names(_: &[&str]) -> Result<()> {
    let mut group = driver::join(1, driver::LONG)?;
    let mut rank = group.communicators().remove(0);
    rank.all_reduce(ReduceOp::Sum, &mut [1.0f32; 100_000])?;
    let sockets = fs::read_dir("/proc/self/fd").unwrap().map_while(std::result::Result::ok);
    let sockets = sockets.filter_map(|entry| fs::read_link(entry.path()).ok());
    let sockets: HashSet<String> = sockets.map(|target| target.to_string_lossy().into_owned()).collect();
    let own = |line: &&str| {
        let inode = line.split_whitespace().nth(6).unwrap_or_default();
        sockets.contains(&format!("socket:[{inode}]"))
    };
    let table = fs::read_to_string("/proc/net/unix").unwrap();
    let names: HashSet<&str> = table.lines().filter(own).filter_map(|line| line.split_whitespace().nth(7)).collect();
    say(&format!("names {}", names.into_iter().collect::<Vec<_>>().join(" ")));
    hear();
    Ok(())
}

fn folder(path: impl AsRef<Path>) -> Vec<String> {
    let entries = fs::read_dir(path).unwrap().map_while(std::result::Result::ok);
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn nothing_is_left_of_a_killed_job() {
    // The common folder also has files of other tests, which appear and disappear.
    let temp = std::env::temp_dir().join(format!("consonance-left-{}", std::process::id()));
    fs::create_dir(&temp).unwrap();
    let mut job = Job::new(3).with_temp(&temp);
    (0..3).for_each(|task| job.launch(task, "names"));
    let mut names = Vec::new();
    for process in job.all() {
        let said = process.expect("names");
        names.extend(said.split(' ').map(str::to_owned));
    }
    assert!(names.iter().any(|name| name.starts_with("@consonance-")), "{names:?}");
    job.all().for_each(|process| process.signal(Signal::SIGKILL));
    let mut pids = Vec::new();
    for process in job.all() {
        process.wait();
        pids.push(process.pid().to_string());
    }
    let table = fs::read_to_string("/proc/net/unix").unwrap();
    let left: Vec<&String> = names.iter().filter(|name| table.contains(name.as_str())).collect();
    assert!(left.is_empty(), "{left:?}");
    assert_eq!(folder(&temp), [""; 0]);
    fs::remove_dir(&temp).unwrap();
    let shared = folder("/dev/shm");
    let numbers =
        |name: &str| name.split(|letter: char| !letter.is_ascii_digit()).any(|part| pids.iter().any(|pid| pid == part));
    let left: Vec<&String> = shared.iter().filter(|name| numbers(name)).collect();
    assert!(left.is_empty(), "{left:?}");
}
