//! Makes calls with threads and with processes, and compares every bit with the spec. The processes
//! also report whether the system lets them read each other's memory, and which pipelines they
//! choose for their data: they try both as any group does.

use super::{
    limits::{PTRACE_SCOPE, without},
    row::{Row, Section, Verdict},
};
use crate::{
    bench::case::Collective, executable, explain::topology_of, launcher::cluster::Cluster, subprocess::Program,
};
use consonance::{CommunicationOptions, Communicator, Error, ProcessGroup, ReduceOp, TfConfigClusterResolver};
use consonance_harness::sample::{keys, sample};
use consonance_kernels::tuning::{Settled, settled};
use consonance_spec::collective;
use serde_json::{Value, json};
use std::{
    error, fs, io, thread,
    time::{Duration, Instant},
};

/// Ranks of a trial: the least number for which the order of contributions matters.
const RANKS: usize = 3;

/// Ranks of the trial that chooses pipelines. More ranks than cores do not choose.
const PAIR: usize = 2;

/// Elements of each call. The sizes take different paths: with the descriptor, staged, and in
/// several windows.
const COUNTS: [usize; 4] = [1, 1000, 20_011, 1 << 17];

/// The timeout of ranks: far longer than a call takes on a machine that works.
const MEETING: Duration = Duration::from_secs(5);

/// The time that all processes of a trial have together.
const LIMIT: Duration = Duration::from_secs(8);

/// The hidden subcommand of a process of the trial. A process that gets no memory dies alone, and
/// the report goes on.
const TRIAL: &str = "doctor-trial";

/// The advice where elements are wrong.
const WRONG: &str = "trust no result of this machine: test its memory, and report it as a defect if that is sound";

/// The results of the ranks of a trial.
struct Found {
    /// The number of elements that differ from the spec.
    wrong: u64,
    /// Whether each rank can read the memory of the ranks in other processes.
    reads: bool,
    /// The pipelines of rank 0, if it is a process: a JSON object.
    pipelines: Value,
}

/// The reason why a trial has no results.
struct TrialError {
    why: String,
    /// The number of the system's error, if the system refused something.
    code: Option<i32>,
}

impl From<Error> for TrialError {
    fn from(error: Error) -> TrialError {
        let causes = std::iter::successors(Some(&error as &dyn error::Error), |error| error.source());
        let code = causes.filter_map(|error| error.downcast_ref::<io::Error>()?.raw_os_error()).last();
        TrialError { why: error.to_string(), code }
    }
}

/// Makes a [`TrialError`] of the system's error in doing something.
fn cannot(doing: &str) -> impl Fn(io::Error) -> TrialError {
    move |error| TrialError { why: format!("cannot {doing}: {error}"), code: error.raw_os_error() }
}

pub(super) fn rows() -> Vec<Row> {
    let (of_threads, _) = timed("threads", threads);
    let (of_processes, reads) = timed("processes", || processes(RANKS));
    // If no processes can make calls, their row says why.
    let pipelines = reads.map(|_| pipelines(processes(PAIR)));
    [Some(of_threads), Some(of_processes), reads.map(peers), pipelines].into_iter().flatten().collect()
}

/// Runs a trial. Returns its row, and [`Found::reads`] if it has results.
fn timed(name: &'static str, trial: fn() -> Result<Found, TrialError>) -> (Row, Option<bool>) {
    let begin = Instant::now();
    let found = trial();
    let seconds = begin.elapsed().as_secs_f64();
    let calls = COUNTS.len();
    let row = |state, finding| Row::new(Section::Trial, name, state, finding);
    match found {
        Ok(Found { wrong: 0, reads, .. }) => {
            let finding = format!("{calls} all_reduces of {RANKS} {name}, all bits right, {:.0} ms", seconds * 1e3);
            (row(Verdict::Good, finding).facts(json!({ "wrong": 0, "seconds": seconds })), Some(reads))
        }
        Ok(Found { wrong, reads, .. }) => {
            let finding = format!("{calls} all_reduces of {RANKS} {name}: {wrong} elements are wrong");
            (row(Verdict::Fails, finding).advice(WRONG).facts(json!({ "wrong": wrong })), Some(reads))
        }
        Err(TrialError { why, code }) => {
            let facts = json!({ "wrong": null, "os_error": code });
            (row(Verdict::Fails, why).advice(without(code)).facts(facts), None)
        }
    }
}

fn peers(reads: bool) -> Row {
    const NAME: &str = "peers' memory";
    let facts = json!({ "readable": reads });
    if reads {
        let finding = "processes can read each other's (process_vm_readv); groups do so for large buffers if each rank \
                       has a core";
        return Row::new(Section::Trial, NAME, Verdict::Good, finding).facts(facts);
    }
    let finding = "processes cannot read each other's (process_vm_readv): large buffers take one more copy, through \
                   shared memory";
    let scope = fs::read_to_string(PTRACE_SCOPE).unwrap_or_default();
    let advice = match scope.trim() {
        "" | "0" => "allow process_vm_readv: in a container by the capability SYS_PTRACE, or by its seccomp profile",
        _ => "sysctl -w kernel.yama.ptrace_scope=0",
    };
    Row::new(Section::Trial, NAME, Verdict::Note, finding).advice(advice).facts(facts)
}

/// Returns the row of the pipelines that a group of two processes takes.
fn pipelines(trial: Result<Found, TrialError>) -> Row {
    const NAME: &str = "pipelines";
    let facts = match trial {
        Ok(Found { wrong: 0, pipelines, .. }) => pipelines,
        Ok(Found { wrong, .. }) => {
            let finding = format!("{PAIR} processes: {wrong} elements are wrong");
            return Row::new(Section::Trial, NAME, Verdict::Fails, finding).advice(WRONG).facts(json!({}));
        }
        Err(TrialError { why, code }) => {
            let facts = json!({ "origin": null, "os_error": code });
            return Row::new(Section::Trial, NAME, Verdict::Note, why).advice(without(code)).facts(facts);
        }
    };
    let finding = match facts["origin"].as_str() {
        Some("measured") => "measured between 2 processes, as each job does after its first large call",
        Some("file") => "of the file that CONSONANCE_TUNING names",
        Some("off") => "the defaults, since CONSONANCE_TUNING is off",
        _ => "the defaults: 2 processes here did not measure, as on one core or beside much other work",
    };
    let of = |key: &str| facts[key].as_str().unwrap_or("unknown").to_owned();
    let finding = format!("{} for data in a core's caches, {} beyond: {finding}", of("near"), of("far"));
    Row::new(Section::Trial, NAME, Verdict::Good, finding).facts(facts)
}

/// Returns the pipelines of this process, and where they come from.
fn own_pipelines() -> Value {
    let Ok(Settled { tuning, file, is_off, trials, .. }) = settled() else { return Value::Null };
    let origin = match (is_off, file) {
        (true, _) => "off",
        (false, Some(_)) => "file",
        (false, None) if trials.is_empty() => "default",
        (false, None) => "measured",
    };
    json!({ "near": tuning.near.name(), "far": tuning.far.name(), "origin": origin })
}

fn threads() -> Result<Found, TrialError> {
    gather(vec![start(None)?])
}

fn processes(ranks: usize) -> Result<Found, TrialError> {
    let cluster = Cluster::local(ranks).map_err(cannot("choose addresses"))?;
    gather((0..ranks).map(|rank| start(Some((&cluster, rank)))).collect::<Result<_, _>>()?)
}

/// Starts a process: this rank of a cluster, or all ranks as threads.
fn start(rank: Option<(&Cluster, usize)>) -> Result<Program, TrialError> {
    let mut command = executable::command().map_err(cannot("find this command"))?;
    command.arg(TRIAL);
    // The variables of this process may describe another cluster.
    command.env_remove("TF_CONFIG").env_remove("CONSONANCE_REPLICAS");
    if let Some((cluster, rank)) = rank {
        command
            .arg("--process")
            .env("TF_CONFIG", cluster.tf_config(rank))
            .envs(cluster.job().map(|job| ("CONSONANCE_JOB", job)));
    }
    Program::start(command).map_err(cannot("start a process"))
}

/// Waits for the processes of a trial, and adds their results up.
fn gather(programs: Vec<Program>) -> Result<Found, TrialError> {
    let deadline = Instant::now() + LIMIT;
    let mut found = Found { wrong: 0, reads: true, pipelines: Value::Null };
    let mut failure = None;
    for program in programs {
        match program.finish(deadline) {
            Err(why) => failure = failure.or(Some(failed(&why))),
            Ok((success, text)) => match answer(&text) {
                Some(Ok(own)) if success => {
                    (found.wrong, found.reads) = (found.wrong + own.wrong, found.reads && own.reads);
                    found.pipelines = if found.pipelines.is_null() { own.pipelines } else { found.pipelines };
                }
                // An error of the system says more than the error that a peer has left.
                Some(Err(error)) if error.code.is_some() || failure.is_none() => failure = Some(error),
                Some(_) => {}
                None => failure = failure.or(Some(failed(&text))),
            },
        }
    }
    failure.map_or(Ok(found), Err)
}

/// Returns the error of a process that wrote `text` instead of results.
fn failed(text: &str) -> TrialError {
    let first: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).take(3).collect();
    let said = if first.is_empty() { "it said nothing".to_owned() } else { first.join(" / ") };
    TrialError { why: format!("a process of the trial failed: {said}"), code: None }
}

/// Reads the results, or the error, in the output of a process. `None` if the output has neither.
fn answer(text: &str) -> Option<Result<Found, TrialError>> {
    let answer: Value = text.lines().rev().find_map(|line| serde_json::from_str(line).ok())?;
    if let Some(why) = answer["error"].as_str() {
        let code = answer["os_error"].as_i64().and_then(|code| i32::try_from(code).ok());
        return Some(Err(TrialError { why: why.to_owned(), code }));
    }
    let (wrong, reads) = (answer["wrong"].as_u64()?, answer["reads"].as_bool()?);
    Some(Ok(Found { wrong, reads, pipelines: answer["pipelines"].clone() }))
}

/// Runs as a process of the trial: as the rank that `TF_CONFIG` names, or as all ranks. Writes the
/// results, and returns the exit status.
pub fn serve(is_rank: bool) -> i32 {
    match if is_rank { rank() } else { all_ranks() } {
        Ok(Found { wrong, reads, pipelines }) => {
            println!("{}", json!({ "wrong": wrong, "reads": reads, "pipelines": pipelines }));
            0
        }
        Err(TrialError { why, code }) => {
            println!("{}", json!({ "error": why, "os_error": code }));
            1
        }
    }
}

fn rank() -> Result<Found, TrialError> {
    let (_group, mut rank) = join()?;
    let topology = topology_of(&mut rank, Collective::AllReduce)?;
    Ok(Found { wrong: reduce(&mut rank)?, reads: topology.reads, pipelines: own_pipelines() })
}

fn all_ranks() -> Result<Found, TrialError> {
    let wrong = thread::scope(|scope| {
        let start = |mut communicator: Communicator| {
            let name = format!("rank-{}", communicator.rank());
            let work = move || {
                communicator.set_timeout(MEETING)?;
                reduce(&mut communicator)
            };
            thread::Builder::new().name(name).spawn_scoped(scope, work).map_err(cannot("start a thread"))
        };
        // If a thread is not started, its rank leaves, and the other ranks fail because of that.
        // The system's refusal says more than their errors.
        let (started, refused): (Vec<_>, Vec<_>) =
            Communicator::threads(RANKS).into_iter().map(start).partition(Result::is_ok);
        let of_rank = |rank: Result<thread::ScopedJoinHandle<'_, consonance::Result<u64>>, TrialError>| {
            Ok(rank?.join().map_err(|_| failed("a rank panicked"))??)
        };
        refused.into_iter().chain(started).map(of_rank).sum::<Result<u64, TrialError>>()
    })?;
    Ok(Found { wrong, reads: false, pipelines: Value::Null })
}

fn join() -> consonance::Result<(ProcessGroup, Communicator)> {
    let options = CommunicationOptions::new().timeout(MEETING)?;
    let builder = ProcessGroup::builder(TfConfigClusterResolver::new()?).options(options).timeout(MEETING)?;
    // By default a group tries this only if there is a core for each rank.
    let mut group = builder.reads_directly(true).join()?;
    let rank = group.communicators().remove(0);
    Ok((group, rank))
}

/// Makes the calls, and counts the elements whose bits are wrong.
fn reduce(rank: &mut Communicator) -> consonance::Result<u64> {
    let mut wrong = 0;
    for (round, count) in COUNTS.into_iter().enumerate() {
        // The rounds use plain numbers, any numbers, and edge cases in turn.
        let given = |rank: usize| sample::<f32>((3 * rank + round) as u64, count);
        let inputs: Vec<Vec<f32>> = (0..rank.size()).map(given).collect();
        let mut data = inputs[rank.rank()].clone();
        rank.all_reduce(ReduceOp::Sum, &mut data)?;
        let expected = collective::all_reduce(ReduceOp::Sum, &inputs).expect("a sum of f32").swap_remove(rank.rank());
        wrong +=
            keys(&data).iter().zip(keys(&expected)).filter(|(found, expected)| **found != *expected).count() as u64;
    }
    Ok(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_as_threads_pass() {
        assert!(matches!(all_ranks(), Ok(Found { wrong: 0, .. })));
    }

    #[test]
    fn wrong_elements_fail_and_an_error_has_advice() {
        let (row, _) = timed("threads", || Ok(Found { wrong: 7, reads: false, pipelines: Value::Null }));
        assert_eq!((row.state, row.advice.is_some()), (Verdict::Fails, true), "{row}");
        assert!(row.finding.contains("7 elements are wrong"), "{row}");
        let (row, reads) = timed("threads", || Err(cannot("start a thread")(io::Error::from_raw_os_error(24))));
        assert_eq!((row.state, reads), (Verdict::Fails, None), "{row}");
        assert!(row.advice.as_deref().is_some_and(|advice| advice.starts_with("ulimit -n ")), "{row}");
    }

    #[test]
    fn a_trial_of_two_processes_without_a_choice_is_no_good_row() {
        let found = |wrong| Ok(Found { wrong, reads: true, pipelines: json!({ "origin": "default" }) });
        assert_eq!([0, 1].map(|wrong| pipelines(found(wrong)).state), [Verdict::Good, Verdict::Fails]);
        let row = pipelines(Err(cannot("start a process")(io::Error::from_raw_os_error(24))));
        assert_eq!((row.state, row.advice.is_some()), (Verdict::Note, true), "{row}");
    }

    #[test]
    fn memory_unreadable_for_peers_is_a_note() {
        assert_eq!((peers(true).state, peers(false).state), (Verdict::Good, Verdict::Note));
        assert!(peers(false).advice.is_some());
    }

    #[test]
    fn processes_report_their_result_on_one_line() {
        let of_threads = answer("x\n{\"wrong\": 2, \"reads\": true}\n");
        assert!(matches!(of_threads, Some(Ok(Found { wrong: 2, reads: true, pipelines: Value::Null }))));
        assert!(matches!(answer("{\"error\": \"e\", \"os_error\": 24}"), Some(Err(TrialError { code: Some(24), .. }))));
        assert!(answer("panicked").is_none() && answer("").is_none());
    }
}
