//! Groups of real processes: this test program starts itself again, once for each of them.
#![cfg(target_os = "linux")]

use consonance::{CommunicationOptions, Communicator, Error, ProcessGroup, ReduceOp, TfConfigClusterResolver};
use std::{
    env,
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

/// What a process of this name does; it prints what it found.
fn play(part: &str) -> Result<(), Error> {
    match part {
        "sums" => each_rank(1, |rank| {
            for size in [1, 20, 21, 1000, 5000, 300_000] {
                let mut data: Vec<f32> = (0..size).map(|index| (index % 97) as f32 + rank.rank() as f32).collect();
                rank.all_reduce(ReduceOp::Sum, &mut data)?;
                let ranks = rank.size() as f32;
                let right =
                    |(index, &value): (usize, &f32)| value == (index % 97) as f32 * ranks + ranks * (ranks - 1.0) / 2.0;
                assert!(data.iter().enumerate().all(right), "{size} on rank {}", rank.rank());
            }
            Ok(())
        })?,
        "until_lost" => {
            let mut group = join(1)?;
            let mut rank = group.communicators().remove(0);
            println!("ready");
            let error = loop {
                if let Err(error) = rank.all_reduce(ReduceOp::Sum, &mut [1.0f32; 1000]) {
                    break error;
                }
            };
            println!("{error}");
            drop(rank);
            group.reform(Duration::ZERO)?;
            let mut rank = group.communicators().remove(0);
            let mut data = [1.0f32; 1000];
            rank.all_reduce(ReduceOp::Sum, &mut data)?;
            println!("generation {}: {} of {}: {}", group.generation(), rank.rank(), rank.size(), data[999]);
        }
        _ => panic!("no part {part}"),
    }
    Ok(())
}

fn join(replicas: usize) -> Result<ProcessGroup, Error> {
    let options = CommunicationOptions::new().timeout(Duration::from_secs(10))?;
    let builder = ProcessGroup::builder(TfConfigClusterResolver::new()?).replicas(replicas).options(options);
    builder.timeout(Duration::from_secs(20))?.join()
}

fn each_rank(replicas: usize, body: impl Fn(&mut Communicator) -> Result<(), Error> + Sync) -> Result<(), Error> {
    let mut group = join(replicas)?;
    let body = &body;
    thread::scope(|scope| {
        let ranks = group.communicators().into_iter().map(|mut rank| scope.spawn(move || body(&mut rank)));
        ranks.collect::<Vec<_>>().into_iter().try_for_each(|rank| rank.join().unwrap())
    })
}

/// Not a test: what the started processes run.
#[test]
fn process() {
    if let Ok(part) = env::var("PART")
        && let Err(error) = play(&part)
    {
        println!("error: {error}");
        std::process::exit(3);
    }
}

/// Processes that end with this value, whatever happens.
struct Processes(Vec<Child>);

impl Processes {
    fn start(part: &str, count: usize) -> Processes {
        let port = 20_000 + std::process::id() % 20_000;
        let workers: Vec<String> =
            (0..count).map(|index| format!(r#""localhost:{}""#, port as usize + index)).collect();
        let start = |index: usize| {
            let cluster = format!(
                r#"{{"cluster": {{"worker": [{}]}}, "task": {{"type": "worker", "index": {index}}}}}"#,
                workers.join(", ")
            );
            let mut command = Command::new(env::current_exe().unwrap());
            command.args(["--exact", "process", "--nocapture"]).env("PART", part).env("TF_CONFIG", cluster);
            command.env("CONSONANCE_JOB", part);
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        };
        Processes((0..count).map(start).collect())
    }

    fn outputs(mut self) -> Vec<String> {
        let text = |child: Child| {
            let Output { stdout, stderr, .. } = child.wait_with_output().unwrap();
            String::from_utf8_lossy(&stdout).into_owned() + &String::from_utf8_lossy(&stderr)
        };
        std::mem::take(&mut self.0).into_iter().map(text).collect()
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn processes_combine_data_of_any_size() {
    for count in [1, 2, 3, 8] {
        for output in Processes::start("sums", count).outputs() {
            assert!(output.contains("test result: ok"), "{output}");
        }
    }
}

#[test]
fn who_is_left_goes_on() {
    let begin = Instant::now();
    let mut processes = Processes::start("until_lost", 3);
    thread::sleep(Duration::from_millis(300));
    processes.0[1].kill().unwrap();
    for output in processes.outputs() {
        eprintln!("{output}");
    }
    eprintln!("{:?}", begin.elapsed());
}
