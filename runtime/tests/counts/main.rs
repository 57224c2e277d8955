//! Collectives on slices allocate nothing after their first call, and calls of strategies allocate,
//! ask the system and wake threads no more than they did.
//!
//! Both are counted for the whole process, so this is a separate program: the threads of the usual
//! test harness allocate at any time.

mod strategies;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod system_calls;

use consonance::{Communicator, Implementation, ReduceOp, Tensor};
#[cfg(target_os = "linux")]
use consonance::{ProcessGroup, TfConfigClusterResolver};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use std::{alloc::System, sync::Barrier, thread};

/// Counts every allocation of the process.
#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

fn main() {
    #[cfg(target_os = "linux")]
    match std::env::var("PART").as_deref() {
        Ok("process") => return one_of_two_processes(),
        #[cfg(target_arch = "x86_64")]
        Ok("traced") => return system_calls::make_the_calls(),
        _ => {}
    }
    collectives_on_slices_allocate_nothing_after_their_first_call();
    #[cfg(target_os = "linux")]
    nor_do_they_between_processes();
    a_tensor_passed_by_value_is_reduced_in_its_own_memory();
    ranks_take_memory_for_the_others_when_they_send_to_them();
    println!("no collective on slices allocated after its first call");
    strategies::allocate_no_more_than_they_did();
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    system_calls::strategies_ask_the_system_no_more_than_they_did();
    #[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
    println!("skipped: system calls are counted on Linux on x86-64");
}

/// Every blocking collective on slices.
fn all_calls(rank: &mut Communicator, small: &mut [f32; 8], large: &mut [f32], other: &mut [f32], bytes: &mut [u8]) {
    let half = large.len() / 2;
    for implementation in [Implementation::Auto, Implementation::OneShot, Implementation::TwoShot] {
        rank.set_implementation(implementation);
        rank.all_reduce(ReduceOp::Sum, small).unwrap();
        rank.all_reduce(ReduceOp::Mean, large).unwrap();
        rank.all_reduce_into(ReduceOp::Max, large, other).unwrap();
    }
    rank.reduce(ReduceOp::Sum, large, 1).unwrap();
    rank.reduce_scatter(ReduceOp::Sum, large).unwrap();
    rank.reduce_scatter_into(ReduceOp::Sum, large, &mut other[..half]).unwrap();
    rank.broadcast(small, 0).unwrap();
    rank.broadcast(large, 1).unwrap();
    rank.all_gather(large).unwrap();
    rank.all_gather_into(&large[..half], other).unwrap();
    let is_root = rank.rank() == 0;
    rank.gather(&large[..half], is_root.then_some(&mut *other), 0).unwrap();
    rank.scatter(is_root.then_some(&*large), Some(&mut other[..half]), 0).unwrap();
    rank.all_to_all(large).unwrap();
    rank.all_to_all_into(large, other).unwrap();
    rank.all_to_all(bytes).unwrap();
    rank.reduce_into(ReduceOp::Sum, large, is_root.then_some(&mut *other), 0).unwrap();
    let counts = [half - 1, half + 1];
    let part = if is_root { 0..half - 1 } else { half - 1..2 * half };
    rank.all_gather_v(Some(&large[part.clone()]), other, &counts).unwrap();
    rank.gather_v(Some(&large[part.clone()]), is_root.then_some(&mut *other), &counts, 0).unwrap();
    rank.scatter_v(is_root.then_some(&*large), Some(&mut other[part]), &counts, 0).unwrap();
    rank.all_to_all_v(large, &[half; 2], other, &[half; 2]).unwrap();
    match rank.rank() {
        0 => rank.send(large, 1).unwrap(),
        _ => rank.recv(large, 0).unwrap(),
    }
    rank.barrier().unwrap();
}

fn collectives_on_slices_allocate_nothing_after_their_first_call() {
    let ready = Barrier::new(3);
    let done = Barrier::new(3);
    thread::scope(|scope| {
        for mut rank in Communicator::threads(2) {
            let (ready, done) = (&ready, &done);
            scope.spawn(move || {
                let (mut small, mut large, mut other) = ([1.0; 8], vec![1.0; 10_000], vec![0.0; 10_000]);
                let mut bytes = [1; 1000];
                all_calls(&mut rank, &mut small, &mut large, &mut other, &mut bytes);
                ready.wait();
                ready.wait();
                for _ in 0..100 {
                    all_calls(&mut rank, &mut small, &mut large, &mut other, &mut bytes);
                }
                done.wait();
                done.wait();
            });
        }
        ready.wait();
        let region = Region::new(ALLOCATOR);
        ready.wait();
        done.wait();
        let stats = region.change();
        done.wait();
        assert_eq!((stats.allocations, stats.reallocations), (0, 0), "{stats:?}");
    });
}

/// Starts this program again as both processes of a group.
#[cfg(target_os = "linux")]
fn nor_do_they_between_processes() {
    let start = |index| {
        let cluster = r#"{"worker": ["localhost:1", "localhost:2"]}"#;
        let config = format!(r#"{{"cluster": {cluster}, "task": {{"type": "worker", "index": {index}}}}}"#);
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command
            .env("PART", "process")
            .env("TF_CONFIG", config)
            .env("CONSONANCE_JOB", format!("alloc-{}", std::process::id()));
        command.spawn().unwrap()
    };
    for mut process in [0, 1].map(start) {
        assert!(process.wait().unwrap().success());
    }
}

/// Payloads that are copied in to shared memory and, above some size, read directly from the peer's
/// memory.
#[cfg(target_os = "linux")]
fn one_of_two_processes() {
    let mut group = ProcessGroup::builder(TfConfigClusterResolver::new().unwrap()).join().unwrap();
    let mut rank = group.communicators().remove(0);
    rank.broadcast(&mut vec![1f32; 1 << 17], 0).unwrap();
    // The measurement before this call has left no memory to a thread, which would allocate later.
    assert!(!threads().iter().any(|name| name == "kept pages"), "{:?}", threads());
    for count in [10_000, 1 << 19] {
        let (mut small, mut large, mut other) = ([1.0; 8], vec![1.0; count], vec![0.0; count]);
        let mut bytes = [1; 1000];
        all_calls(&mut rank, &mut small, &mut large, &mut other, &mut bytes);
        until_others_sleep();
        let region = Region::new(ALLOCATOR);
        for _ in 0..10 {
            all_calls(&mut rank, &mut small, &mut large, &mut other, &mut bytes);
        }
        let stats = region.change();
        assert_eq!((stats.allocations, stats.reallocations), (0, 0), "{count} elements: {stats:?}");
        // Keeps the other process alive until here: its end would be an event.
        rank.barrier().unwrap();
    }
}

/// Returns the names of the threads of this process.
#[cfg(target_os = "linux")]
fn threads() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    // A thread may have ended meanwhile.
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.map(|name| name.trim_end().to_owned()).collect()
}

/// Waits until all other threads sleep. The thread that watches the other process allocates when it
/// starts.
#[cfg(target_os = "linux")]
fn until_others_sleep() {
    let begin = std::time::Instant::now();
    let sleeps = |task: std::fs::DirEntry| {
        let stat = std::fs::read_to_string(task.path().join("stat")).unwrap();
        task.file_name().to_str() == Some(&std::process::id().to_string())
            || stat.rsplit(") ").next().is_some_and(|state| state.starts_with('S'))
    };
    while !std::fs::read_dir("/proc/self/task").unwrap().all(|task| sleeps(task.unwrap())) {
        assert!(begin.elapsed().as_secs() < 30, "a thread does not sleep");
        thread::yield_now();
    }
}

/// A tensor that is not shared is reduced in place: the result has its memory.
fn a_tensor_passed_by_value_is_reduced_in_its_own_memory() {
    let strategy = consonance::MirroredStrategy::new(["cpu:0", "cpu:1"]).unwrap();
    let moved = strategy.run(|replica| {
        let tensor = Tensor::from(vec![1.0f64; 100_000]);
        let before = tensor.as_slice::<f64>()?.as_ptr() as usize;
        let shared = Tensor::from(vec![1.0f64; 100_000]);
        let kept = shared.clone();
        let sum = replica.all_reduce(ReduceOp::Sum, tensor)?;
        let sum_of_shared = replica.all_reduce(ReduceOp::Sum, shared)?;
        assert_eq!((kept.as_slice::<f64>()?[0], sum_of_shared.as_slice::<f64>()?[0]), (1.0, 2.0));
        Ok(before != sum.as_slice::<f64>()?.as_ptr() as usize)
    });
    assert_eq!(moved.unwrap().values(), [false, false]);
}

/// Each rank used to allocate a pair with each other rank, even if it never sent to it.
fn ranks_take_memory_for_the_others_when_they_send_to_them() {
    const RANKS: usize = 512;
    let region = Region::new(ALLOCATOR);
    let group = Communicator::threads(RANKS);
    let bytes = region.change().bytes_allocated;
    drop(group);
    // The addresses of the peers' buffers are a few words each. A rank's record has room for the
    // payloads of several calls.
    let (addresses, record) = (RANKS * 16 * size_of::<usize>(), 40 << 10);
    assert!(bytes < RANKS * (addresses + record), "{bytes} bytes for {RANKS} ranks");
}
