//! The command line of `consonance`, and how each subcommand uses its arguments.

mod bench;
mod bench_processes;
mod doctor;
mod gpu_check;
mod explain;
mod output;
mod terminal;
mod timeline;
#[cfg(target_os = "linux")]
mod tune;
#[cfg(target_os = "linux")]
mod process_states;
#[cfg(target_os = "linux")]
mod links;
mod trace;
#[cfg(target_os = "linux")]
mod soak;

use crate::{
    bench::{BenchError, remove_all},
    executable,
    launcher::{self, Cable, Cuts, Launch, MAX_HOSTS, Node},
};
use clap::error::ErrorKind;
use clap::{Parser, Subcommand};
use consonance::ClusterSpec;
use consonance_harness::counted_calls::COUNTED;
use std::{
    ffi::OsString,
    num::NonZeroUsize,
    ops::RangeInclusive,
    panic,
    path::PathBuf,
    process::{self, ExitCode},
    time::Duration,
};

/// Tools for programs that use Consonance.
#[derive(Parser)]
#[command(name = "consonance", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(Run),
    Timeline(timeline::Timeline),
    #[cfg(target_os = "linux")]
    Trace(trace::Trace),
    Bench(bench::Arguments),
    Doctor(doctor::Doctor),
    GpuCheck(gpu_check::GpuCheck),
    Explain(explain::Explain),
    #[cfg(target_os = "linux")]
    Tune(tune::Tune),
    #[cfg(target_os = "linux")]
    Soak(soak::Command),
    #[cfg(target_os = "linux")]
    #[command(hide = true)]
    SoakWorker(soak::WorkerCommand),
    #[cfg(target_os = "linux")]
    #[command(hide = true)]
    SoakGrains(soak::GrainCommand),
    #[cfg(target_os = "linux")]
    #[command(hide = true)]
    SoakServers(soak::ServerCommand),
    #[command(hide = true)]
    BenchRank(bench_processes::Rank),
    #[command(hide = true)]
    BenchThreads(bench_processes::Threads),
    #[command(hide = true)]
    BenchBusy,
    #[command(hide = true)]
    BenchWorker(bench_processes::Worker),
    #[command(hide = true)]
    BenchRole(bench_processes::Role),
    #[command(hide = true)]
    DoctorGpu(gpu_check::DoctorGpu),
    #[cfg(target_os = "linux")]
    #[command(hide = true)]
    DoctorWire(doctor::OneWire),
    #[command(hide = true)]
    DoctorTrial(doctor::Trial),
    #[command(hide = true)]
    Counted(Counted),
}

/// Start a program as the workers of a cluster on this machine.
///
/// With --hosts, this machine plays several hosts, each with N workers. A host has a network,
/// process ids and a name of its own (host0, host1, …), made of namespaces that end with this
/// command; the files are shared. The hosts reach each other at 10.77.0.1, 10.77.0.2, …, and
/// nothing else. Needs root, iproute2 and util-linux. `nsenter --target PID --all COMMAND` runs a
/// command on a worker's host, where PID is the worker's process id as this command prints it.
///
/// With --nodes, --node and --chief, this command runs on several hosts, on each with the number of
/// that host: host I has the workers I·N, I·N+1, …. Worker 0 listens at the chief's address, and
/// the others ask it where all are. Each command starts, names and ends the workers of its host
/// alone; the others get an error. With --max-restarts, the commands of all hosts first tell each
/// other where their workers listen (so each needs that option), and each replaces workers of its
/// host. TF_CONFIG then has the addresses of all.
///
/// With --chief and --ps, this command starts a chief and P parameter servers, too, for programs
/// with a ParameterServerStrategy. TF_CONFIG then has the jobs chief, worker and ps, and there are
/// none of torchrun's variables. With --hosts, the chief is on the first of them, and servers are
/// dealt to them in turn. The launch ends with its chief. If that ends with status 0, so
/// does this command: the others have 2 s to end by themselves. If it fails, it is named and not
/// replaced. Workers and servers that fail are treated alike, as below: a program that goes on
/// without them needs --max-restarts or --keep-going. Lines of output begin with [chief],
/// [worker 0] or [ps 0].
///
/// Sets for each worker TF_CONFIG (the cluster and this task) and CONSONANCE_JOB (a job id that no
/// other launch has), or with --nodes CONSONANCE_CHIEF; for programs of torchrun also RANK,
/// WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT. Puts the worker before
/// each line of its output: `[worker 0] …`. SIGINT, SIGTERM and SIGHUP are forwarded to all workers
/// and to the processes that they started. A SIGINT after an earlier SIGINT or SIGTERM kills them.
///
/// If a worker ends by a signal or with a status other than 0, the other workers get SIGTERM, and
/// SIGKILL 2 s later. With --keep-going they go on, and with --max-restarts another process is
/// started in its place, with its environment and TORCHELASTIC_RESTART_COUNT, its number of
/// restarts. If the workers that still run, or were started, at the last failure end with status 0,
/// so does this command.
///
/// Otherwise the worker at fault is named at the end, and its status (for a signal: 128 and the
/// signal's number) is the status of this command. It is the first worker that failed or, if that
/// worker's error named another worker, the named one. If the named one has not failed, but has
/// left with status 0, is stopped or still runs, the line names both, and the status is that of the
/// one that failed. A worker that ends while another waits for it to join the group of all workers
/// counts as failed; if it ended with status 0, the status of this command is 1. So does one that a
/// replacement waits for when all others have ended.
///
/// Other statuses are 1 (the output cannot be written), 124 (the time was up), 125 (the launcher
/// failed), 126 (the program cannot be started), 127 (there is no such program) and 130 (a second
/// SIGINT). Another line names the workers that had to be killed. With --timeout, output that
/// nobody reads within 5 s of the end is dropped, and a last line says so.
#[derive(clap::Args)]
struct Run {
    /// Number of workers, of each host
    #[arg(short = 'n', long, value_name = "N", allow_negative_numbers = true,
        value_parser = number::<NonZeroUsize>(1..=usize::MAX))]
    workers: NonZeroUsize,
    /// Play this many hosts on this machine
    #[arg(long, value_name = "H", allow_negative_numbers = true, value_parser = number::<NonZeroUsize>(1..=MAX_HOSTS))]
    hosts: Option<NonZeroUsize>,
    /// Let the cables of these hosts delay, reorder, lose and cut off frames, such as
    /// `delay=2ms,spread=1ms,loss=0.01,cut=1s,every=20s,seed=7`, or some of these, in each
    /// direction. Each frame takes the delay and a part of the spread; in each 20 s the cable is
    /// cut for 1 s
    #[arg(long, value_name = "CABLE", requires = "hosts", conflicts_with = "nodes", value_parser = cable)]
    cable: Option<Cable>,
    /// Number of hosts on which this command runs, each with the same N
    #[arg(long, value_name = "N", allow_negative_numbers = true, requires = "node", requires = "chief",
        conflicts_with = "hosts", value_parser = number::<NonZeroUsize>(1..=MAX_NODES))]
    nodes: Option<NonZeroUsize>,
    /// Number of this host among them, from 0; that of the chief is 0
    #[arg(long, value_name = "I", allow_negative_numbers = true, requires = "nodes",
        value_parser = number::<usize>(0..=usize::MAX))]
    node: Option<usize>,
    /// With --ps, start a chief, too. With --nodes, the address of host 0 that all of them reach,
    /// and a port that is free there, as the next one
    #[arg(long, value_name = "HOST:PORT", num_args = 0..=1, value_parser = chief)]
    chief: Option<Option<String>>,
    /// Number of parameter servers, beside the workers and the chief
    #[arg(long, value_name = "P", allow_negative_numbers = true, requires = "chief",
        conflicts_with = "nodes", value_parser = number::<NonZeroUsize>(1..=usize::MAX))]
    ps: Option<NonZeroUsize>,
    /// Set CONSONANCE_JOB, which is the same on all of these hosts and differs from launch to
    /// launch: a worker that an earlier launch left behind then takes no place in this one
    #[arg(long, value_name = "ID", requires = "nodes")]
    job: Option<String>,
    /// Set CONSONANCE_REPLICAS, the number of replicas of each worker
    #[arg(long, value_name = "R", allow_negative_numbers = true,
        value_parser = number::<NonZeroUsize>(1..=usize::MAX))]
    replicas: Option<NonZeroUsize>,
    /// End all workers after this time: 500ms, 30s, 5m, 2h; a number without a unit is seconds
    #[arg(long, value_name = "TIME", value_parser = time)]
    timeout: Option<Duration>,
    /// Let the other workers go on when one fails, for programs that reform their group after a
    /// loss
    #[arg(long)]
    keep_going: bool,
    /// Start a process in the place of each worker that fails, N at most in all, for programs that
    /// reform their group. If the processes of a worker fail within 10 s of their start, the next
    /// one starts after a pause that grows up to 5 s. The failure after these ends all workers,
    /// unless --keep-going is set
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true,
        value_parser = number::<usize>(0..=usize::MAX))]
    max_restarts: usize,
    /// Print the variables that are set for each worker, as a shell takes them, so that a
    /// replacement can be started by hand
    #[arg(long)]
    print_environment: bool,
    /// Write a timeline of all workers' calls to this file, for https://ui.perfetto.dev. With
    /// --nodes all hosts need this option, and host 0 writes the calls of all
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// The problem of an address that nothing uses.
const CHIEF_ADDRESS: &str = "an address for '--chief' is for launches on several hosts: expected '--nodes <N>', too";

/// The problem of a chief that is neither a process of this launch nor at an address.
const CHIEF_ALONE: &str = "'--chief' needs '--ps <P>', or with '--nodes <N>' an address: '--chief <HOST:PORT>'";

/// The most hosts of --nodes: a group on several hosts has at most as many processes.
const MAX_NODES: usize = 256;

/// Runs a call for `harness/perf/compare`. Without a name, prints the names, one a line.
#[derive(clap::Args)]
struct Counted {
    name: Option<String>,
    #[arg(default_value_t = 1)]
    calls: usize,
}

/// Runs the command with these arguments, the first of which is the command's own name.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    ExitCode::from(status(arguments))
}

/// Does what [`main`] does, and returns the exit status as a number.
pub fn status(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    end_with_the_reader();
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let own = arguments.get(1..).unwrap_or_default();
    launcher::become_worker_of(own.iter().cloned());
    executable::remember(own);
    let status = match Arguments::try_parse_from(arguments) {
        Ok(Arguments { command }) => carry_out(command),
        Err(error) => {
            // If this fails, there is nowhere else to report the error.
            let _ = error.print();
            error.exit_code()
        }
    };
    u8::try_from(status).unwrap_or(1)
}

/// Ends the process if nobody can read what it prints: quietly after the reader has gone, as in
/// `consonance bench all_reduce | head`, and otherwise with the system's reason.
fn end_with_the_reader() {
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        let message = panic.payload().downcast_ref::<String>();
        let Some(reason) = message.and_then(|message| message.strip_prefix("failed printing to stdout: ")) else {
            return usual(panic);
        };
        remove_all();
        if reason.starts_with("Broken pipe") {
            process::exit(0);
        }
        eprintln!("consonance: cannot write: {reason}");
        process::exit(1);
    }));
}

fn carry_out(command: Command) -> i32 {
    match command {
        Command::Run(arguments) => match launch(arguments) {
            Ok(launch) => launch.run_and_tell(),
            Err(problem) => status_of("consonance", Err(problem)),
        },
        Command::Timeline(timeline) => status_of("consonance", timeline.run()),
        #[cfg(target_os = "linux")]
        Command::Trace(trace) => status_of("consonance", trace.run()),
        Command::Bench(arguments) => status_of("consonance bench", bench::bench(arguments)),
        Command::Doctor(doctor) => doctor.run(),
        Command::DoctorTrial(trial) => trial.run(),
        Command::DoctorGpu(gpu) => gpu.run(),
        #[cfg(target_os = "linux")]
        Command::DoctorWire(wire) => wire.run(),
        Command::GpuCheck(check) => check.run(),
        Command::Explain(explain) => status_of("consonance", explain.run()),
        #[cfg(target_os = "linux")]
        Command::Tune(tune) => status_of("consonance", tune.run()),
        Command::BenchRank(rank) => bench_processes::rank(&rank),
        Command::BenchThreads(threads) => bench_processes::threads(&threads),
        Command::BenchBusy => bench_processes::busy_process(),
        Command::BenchWorker(worker) => bench_processes::worker(&worker),
        Command::BenchRole(role) => bench_processes::role(&role),
        Command::Counted(counted) => count(&counted),
        #[cfg(target_os = "linux")]
        Command::Soak(soak) => status_of("consonance", soak.run()),
        #[cfg(target_os = "linux")]
        Command::SoakWorker(worker) => worker.run(),
        #[cfg(target_os = "linux")]
        Command::SoakGrains(worker) => worker.run(),
        #[cfg(target_os = "linux")]
        Command::SoakServers(role) => role.run(),
    }
}

fn count(arguments: &Counted) -> i32 {
    let Some(wanted) = &arguments.name else {
        COUNTED.iter().for_each(|(name, _)| println!("{name}"));
        return 0;
    };
    match COUNTED.iter().find(|(name, _)| name == wanted) {
        Some((_, work)) => work(arguments.calls),
        None => eprintln!("consonance: there is no counted work named {wanted}"),
    }
    i32::from(!COUNTED.iter().any(|(name, _)| name == wanted))
}

/// The reason why a subcommand failed.
enum Problem {
    /// An option has a value that it cannot have together with the others. The sentence is worded
    /// as the parser of the command line words the values that it refuses.
    Usage(String),
    /// Something failed.
    Failed(String),
}

impl From<String> for Problem {
    fn from(why: String) -> Problem {
        Problem::Failed(why)
    }
}

impl From<BenchError> for Problem {
    fn from(error: BenchError) -> Problem {
        match error {
            BenchError::Invalid { .. } => Problem::Usage(error.to_string()),
            BenchError::Failed(why) => Problem::Failed(why),
        }
    }
}

/// Returns 0, or the status for the problem after printing it: for a wrong value what the parser of
/// the command line prints and returns, otherwise 1.
fn status_of(name: &str, result: Result<(), impl Into<Problem>>) -> i32 {
    match result.map_err(Into::into) {
        Ok(()) => 0,
        Err(Problem::Usage(sentence)) => {
            let text = format!("{sentence}\n\nFor more information, try '--help'.\n");
            let error = clap::Error::raw(ErrorKind::ValueValidation, text);
            // If this fails, there is nowhere else to report the error.
            let _ = error.print();
            error.exit_code()
        }
        Err(Problem::Failed(why)) => {
            eprintln!("{name}: {why}");
            1
        }
    }
}

fn launch(arguments: Run) -> Result<Launch, Problem> {
    let address = match (arguments.chief, arguments.nodes, arguments.ps) {
        (Some(Some(_)), None, _) => return Err(Problem::Usage(CHIEF_ADDRESS.to_owned())),
        (Some(None), Some(_), _) | (Some(None), _, None) => return Err(Problem::Usage(CHIEF_ALONE.to_owned())),
        (address, ..) => address.flatten(),
    };
    let (node, job) = (arguments.nodes.zip(arguments.node).zip(address), arguments.job);
    let node = node.map(|((nodes, node), chief)| Node { nodes, node, chief, job });
    if let Some(Node { nodes, node, .. }) = node.as_ref().filter(|node| node.node >= node.nodes.get()) {
        let sentence = format!("invalid value '{node}' for '--node <I>': expected less than {nodes}, --nodes");
        return Err(Problem::Usage(sentence));
    }
    Ok(Launch {
        workers: arguments.workers,
        hosts: arguments.hosts,
        cable: arguments.cable,
        servers: arguments.ps,
        node,
        replicas: arguments.replicas,
        timeout: arguments.timeout,
        keep_going: arguments.keep_going,
        max_restarts: arguments.max_restarts,
        print_environment: arguments.print_environment,
        profile: arguments.profile,
        program: PathBuf::from(&arguments.program[0]),
        arguments: arguments.program[1..].to_vec(),
    })
}

/// Parses the address of the chief.
fn chief(text: &str) -> Result<String, String> {
    let is_address = ClusterSpec::new().job("chief", [text]).is_ok();
    let port: Option<u16> = text.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
    match port.filter(|port| is_address && (1..u16::MAX).contains(port)) {
        Some(_) => Ok(text.to_owned()),
        None => Err("expected host:port, with a port from 1 to 65534".to_owned()),
    }
}

/// Returns the parser of whole numbers within `range`.
fn number<T: TryFrom<usize>>(
    range: RangeInclusive<usize>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static {
    move |text| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        number.and_then(|number| T::try_from(number).ok()).ok_or_else(|| match (*range.start(), *range.end()) {
            (0, usize::MAX) => "expected a whole number".to_owned(),
            (least, usize::MAX) => format!("expected a whole number of at least {least}"),
            (least, most) => format!("expected a whole number from {least} to {most}"),
        })
    }
}

/// Parses what cables do.
fn cable(text: &str) -> Result<Cable, String> {
    let (mut cable, mut cut, mut every) = (Cable::default(), Duration::ZERO, None);
    for part in text.split(',') {
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        let time = || time(value).map_err(|expected| format!("{name}: {expected}"));
        let wrong = |expected: &str| format!("{name}: expected {expected}");
        match name {
            "delay" => cable.delay = time()?,
            "spread" => cable.spread = time()?,
            "cut" => cut = time()?,
            "every" => every = Some(time()?),
            "loss" => {
                let part = value.parse().ok().filter(|part| (0.0..=1.0).contains(part));
                cable.loss = part.ok_or_else(|| wrong("a part of the frames, from 0 to 1"))?;
            }
            "seed" => cable.seed = value.parse().map_err(|_| wrong("a whole number"))?,
            _ => return Err(format!("expected delay, spread, loss, cut, every or seed, found '{name}'")),
        }
    }
    cable.cuts = match (cut, every) {
        (Duration::ZERO, None) => None,
        (time, Some(every)) if !time.is_zero() && time <= every => Some(Cuts { time, every }),
        _ => return Err("expected cut and every, and a cut that is no longer than every".to_owned()),
    };
    Ok(cable)
}

/// Parses a time: a whole number and its unit.
fn time(text: &str) -> Result<Duration, String> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let unit = match unit {
        "ms" => Some(Duration::from_millis(1)),
        "s" | "" => Some(Duration::from_secs(1)),
        "m" => Some(Duration::from_secs(60)),
        "h" => Some(Duration::from_secs(60 * 60)),
        _ => None,
    };
    let time = number.parse().ok().zip(unit).and_then(|(number, unit): (u32, Duration)| unit.checked_mul(number));
    time.filter(|time| !time.is_zero())
        .ok_or_else(|| "expected a time above 0, such as 500ms, 30s, 5m or 2h".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cable_is_read_as_it_is_written() {
        let [ms, second] = [Duration::from_millis(1), Duration::from_secs(1)];
        let cuts = Some(Cuts { time: second, every: 20 * second });
        let read = cable("delay=2ms,spread=1ms,loss=0.01,cut=1s,every=20s,seed=7");
        let expected = Cable { seed: 7, delay: 2 * ms, spread: ms, loss: 0.01, cuts };
        assert_eq!(read, Ok(expected));
        for one in [expected, Cable::default(), Cable { cuts: None, ..expected }] {
            assert_eq!(cable(&one.to_string()), Ok(one));
        }
        for wrong in ["", "delay", "delay=0", "every=1s", "cut=2s,every=1s", "loss=-0.1", "loss=NaN", "seed=-1"] {
            assert!(cable(wrong).is_err(), "{wrong}");
        }
    }
}
