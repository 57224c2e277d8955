//! Groups of real processes, connected by sockets: the sums have the same bits as between threads,
//! and an error names a process that is lost.

use consonance::{Communicator, Error, ReduceOp};
use std::{
    env,
    io::{BufRead, BufReader, Write, stdin},
    net::{SocketAddr, TcpListener},
    process::{Child, Command, Stdio},
    time::Duration,
};

const RANK: &str = "MESSAGES_TEST_RANK";
const SIZE: usize = 3;
const TIMEOUT: Duration = Duration::from_secs(60);

/// Returns the contribution of rank `rank`. The sum of all depends on the order of the additions.
fn brings(rank: usize) -> Vec<f32> {
    (0..1000).map(|place| (1.0 + rank as f32 * 1e-3) / (place as f32 + 0.1)).collect()
}

fn bits(sums: &[f32]) -> String {
    sums.iter().map(|sum| format!("{:08x}", sum.to_bits())).collect()
}

/// Runs as one of the processes if the environment says which.
#[test]
fn process() {
    let Ok(rank) = env::var(RANK) else { return };
    let rank = rank.parse().expect("a number");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    println!("> {}", listener.local_addr().expect("it is bound"));
    let mut addresses = String::new();
    stdin().read_line(&mut addresses).expect("the test tells all addresses");
    let addresses: Vec<SocketAddr> =
        addresses.split_whitespace().map(|address| address.parse().expect("an address")).collect();
    let engine = consonance_messages::processes(rank, listener, &addresses, TIMEOUT).expect("the others come");
    let mut communicator = Communicator::from_engine(engine);
    communicator.set_timeout(TIMEOUT).expect("a timeout that ends");
    let mut data = brings(rank);
    communicator.all_reduce(ReduceOp::Sum, &mut data).expect("all are here");
    println!("> {}", bits(&data));
    if rank == 1 {
        // The test kills this process while it sleeps.
        std::thread::sleep(TIMEOUT);
    }
    match communicator.barrier() {
        Err(Error::Aborted { replica, lost: true, .. }) => println!("> without {replica}"),
        other => println!("> {other:?}"),
    }
}

struct Process(Child, BufReader<std::process::ChildStdout>);

impl Process {
    fn start(rank: usize) -> Process {
        let mut command = Command::new(env::current_exe().expect("a test has a program"));
        command.args(["--exact", "process", "--nocapture"]);
        command.env(RANK, rank.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        let output = BufReader::new(child.stdout.take().expect("it is a pipe"));
        Process(child, output)
    }

    /// Returns the next line of its output.
    fn line(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.1.read_line(&mut line).expect("text") > 0, "the process has ended");
            // The first line of a process follows output of the test harness.
            if let Some((_, said)) = line.trim_end().split_once("> ") {
                return said.to_owned();
            }
        }
    }
}

#[test]
fn processes_have_the_sums_of_threads_and_name_a_killed_one() {
    let mut processes: Vec<Process> = (0..SIZE).map(Process::start).collect();
    let addresses: Vec<String> = processes.iter_mut().map(Process::line).collect();
    for Process(child, _) in &mut processes {
        let mut input = child.stdin.take().expect("it is a pipe");
        writeln!(input, "{}", addresses.join(" ")).expect("it reads");
    }

    let sum = |mut communicator: Communicator| {
        let mut data = brings(communicator.rank());
        communicator.all_reduce(ReduceOp::Sum, &mut data).map(|()| bits(&data))
    };
    let expected = std::thread::scope(|scope| {
        let ranks: Vec<_> =
            Communicator::threads(SIZE).into_iter().map(|rank| scope.spawn(move || sum(rank))).collect();
        ranks.into_iter().map(|rank| rank.join().expect("no panic").expect("all are here")).collect::<Vec<_>>()
    });
    for process in &mut processes {
        assert_eq!(process.line(), expected[0]);
    }
    processes[1].0.kill().expect("it runs");
    for rank in [0, 2] {
        assert_eq!(processes[rank].line(), "without 1");
    }
    for process in &mut processes {
        process.0.wait().expect("it ends");
    }
}
