//! `consonance soak --servers`: chiefs whose workers and servers are killed, stopped and replaced.
//! Each effect of a closure happens once, also where closures take elements. Between recoveries a
//! worker takes each of its elements once, from the first one on. In windows all bits are those of
//! the same program, undisturbed.
//!
//! The parent plays the chief of a [`Job`] by a thread, and starts the workers and servers
//! ([`ServerRole`]). When the chief begins a phase, it carries out the faults of the phase. After
//! the loss of a server the chief recovers from the checkpoint of the phase before, and repeats the
//! phase.

mod job;
mod program;

use super::{Failure, grains::Folder};
use crate::{
    executable,
    launcher::{
        cluster::Cluster,
        task::{Role, Task},
        worker::end_with,
    },
    subprocess::OwnedChild,
};
use consonance::{Error, ParameterServerStrategy, Result as Outcome, TfConfigClusterResolver};
use job::{Fault, Job};
use program::{Program, State, limited};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    fmt, io,
    path::Path,
    process::{self, Stdio},
    sync::mpsc::{self, Receiver, RecvTimeoutError, Sender},
    thread,
    time::{Duration, Instant},
};

/// A soak with parameter servers.
#[derive(Clone, Copy, Debug)]
pub struct ServerSoak {
    /// The seed of everything random.
    pub seed: u64,
    /// The number of the first job.
    pub first: u64,
    /// The duration: no job begins after it.
    pub time: Duration,
    /// The number of jobs after which the soak ends earlier.
    pub most: u64,
}

/// The jobs so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Jobs {
    /// The number of jobs that are done.
    pub count: u64,
    /// The number of their closures, without those that are repeated.
    pub closures: u64,
    /// The number of workers that were killed.
    pub kills: u64,
    /// The number of processes that were stopped.
    pub stops: u64,
    /// The number of servers that were killed.
    pub servers: u64,
    /// The number of recoveries from a checkpoint.
    pub recoveries: u64,
}

/// A worker or a server of a job.
#[derive(Clone, Debug)]
pub struct ServerRole {
    /// The seed of everything random.
    pub seed: u64,
    /// The number of the job.
    pub job: u64,
    /// The id of the process that started this one.
    pub parent: String,
}

/// The processes of a job.
struct Processes<'j> {
    job: &'j Job,
    cluster: &'j Cluster,
    names: (u64, u64),
    /// The workers, and then the servers. A server that is not replaced has none.
    all: Vec<Option<OwnedChild>>,
}

impl fmt::Display for Jobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Jobs { count, closures, kills, stops, servers, recoveries } = self;
        write!(
            f,
            "{count} jobs, {closures} closures: {kills} kills of workers, {stops} stops, {servers} kills of servers, {recoveries} recoveries"
        )
    }
}

impl ServerSoak {
    /// Runs jobs. Calls `tell` after each.
    ///
    /// # Errors
    /// The first failure. No process is left.
    pub fn run(&self, mut tell: impl FnMut(&Jobs)) -> Result<Jobs, Failure> {
        let (mut done, mut number) = (Jobs::default(), self.first);
        let failure = |number: u64, job: &Job, what: String| {
            let again = format!("--servers --seed {} --round {number} --jobs 1", self.seed);
            Failure { what: format!("job {number}: {what}, in {job:?}"), again, calls: String::new() }
        };
        let begin = Instant::now();
        while done.count < self.most && (done.count == 0 || begin.elapsed() < self.time) {
            let job = Job::draw(self.seed, number);
            let folder = Folder::new().map_err(|error| failure(number, &job, error.to_string()))?;
            let run = disturbed(&job, (self.seed, number), &folder.0.join(number.to_string()), &mut done);
            run.map_err(|what| failure(number, &job, what))?;
            (done.count, number) = (done.count + 1, number + 1);
            tell(&done);
        }
        Ok(done)
    }
}

/// Runs a job with its faults, and checks the end.
fn disturbed(job: &Job, names: (u64, u64), checkpoint: &Path, done: &mut Jobs) -> Result<(), String> {
    let cluster = Cluster::local(1 + job.workers + job.servers).map_err(|error| error.to_string())?;
    let mut processes = Processes { job, cluster: &cluster, names, all: Vec::new() };
    for place in 0..job.workers + job.servers {
        let process = processes.start(place).map_err(|error| error.to_string())?;
        processes.all.push(Some(process));
    }
    let (phases, begun) = mpsc::channel();
    let resolver = TfConfigClusterResolver::from_text(&processes.config(0)).map_err(|error| error.to_string())?;
    let (state, recovered) = thread::scope(|scope| {
        // Processes end with the thread that starts them, so that this one starts replacements.
        let chief = scope.spawn(move || chief(job, resolver, checkpoint, phases));
        let faults = processes.disturb(&begun, done);
        let state = chief.join().map_err(|_| "the chief panics".to_owned())?.map_err(|error| error.to_string())?;
        faults.map_err(|error| format!("a process cannot be replaced: {error}"))?;
        Ok::<_, String>(state)
    })?;
    let closures = job.phases.iter().map(|phase| phase.closures).sum();
    let recoveries = recovered.iter().sum();
    state.check(job, closures, recoveries)?;
    if job.window.is_some() {
        let expected = undisturbed(job, &recovered, &checkpoint.with_extension("undisturbed"))
            .map_err(|error| error.to_string())?;
        if state != expected {
            return Err(format!("the variables are {state:?}, and undisturbed {expected:?}"));
        }
    }
    (done.closures, done.recoveries) = (done.closures + closures, done.recoveries + recoveries);
    Ok(())
}

/// Plays the chief. Says when each phase begins. Returns the variables at the end, and the number
/// of recoveries in each phase and after them.
fn chief(
    job: &Job,
    resolver: TfConfigClusterResolver,
    checkpoint: &Path,
    phases: Sender<usize>,
) -> Outcome<(State, Vec<u64>)> {
    let program = Program::declare(job, limited(ParameterServerStrategy::builder(resolver)?))?;
    let (mut recovered, mut first) = (vec![0; job.phases.len() + 1], 0);
    program.save(checkpoint)?;
    for (number, phase) in job.phases.iter().enumerate() {
        // Without the parent there are no faults.
        let _ = phases.send(number);
        let numbers = first..first + phase.closures;
        program.until_done(checkpoint, &mut recovered[number], || {
            program.run(numbers.clone())?;
            program.save(checkpoint)
        })?;
        first = numbers.end;
    }
    drop(phases);
    let state = program.until_done(checkpoint, &mut recovered[job.phases.len()], || program.state())?;
    Ok((state, recovered))
}

/// Returns the variables at the end of a job without faults, played by threads. A phase in which
/// there were recoveries begins with new ones, which take elements from the first one on.
fn undisturbed(job: &Job, recovered: &[u64], checkpoint: &Path) -> Outcome<State> {
    let declare =
        || Program::declare(job, limited(ParameterServerStrategy::builder_of_threads(job.workers, job.servers)));
    let (mut program, mut first) = (declare()?, 0);
    for (phase, &recoveries) in job.phases.iter().zip(recovered) {
        if recoveries > 0 {
            program.save(checkpoint)?;
            program = declare()?;
            program.restore(checkpoint)?;
        }
        program.run(first..first + phase.closures)?;
        first += phase.closures;
    }
    program.state()
}

impl Processes<'_> {
    /// Returns the `TF_CONFIG` of the process at this index of the cluster: the chief is first.
    fn config(&self, index: usize) -> String {
        let role = match index.checked_sub(1) {
            None => Role::Chief,
            Some(worker) if worker < self.job.workers => Role::Worker(worker),
            Some(place) => Role::Server(place - self.job.workers),
        };
        self.cluster.tf_config_of_role(Task { index, role }, self.job.workers)
    }

    fn start(&self, place: usize) -> io::Result<OwnedChild> {
        let mut command = executable::command()?;
        let (seed, number) = self.names;
        command.args(["soak-servers", &seed.to_string(), &number.to_string(), &process::id().to_string()]);
        command.env("TF_CONFIG", self.config(1 + place)).stdin(Stdio::null()).stdout(Stdio::null());
        command.spawn().map(OwnedChild)
    }

    /// Carries out the faults of the phases that begin, until the last one has ended.
    fn disturb(&mut self, begun: &Receiver<usize>, done: &mut Jobs) -> io::Result<()> {
        while let Ok(phase) = begun.recv() {
            for &(after, fault) in &self.job.phases[phase].faults {
                wait(after);
                match fault {
                    Fault::KillWorker(worker) => {
                        done.kills += 1;
                        self.replace(worker)?;
                    }
                    Fault::KillServer { server, is_replaced } => {
                        let place = self.job.workers + server;
                        let others = self.all[self.job.workers..].iter().flatten().count();
                        done.servers += u64::from(self.all[place].is_some());
                        if is_replaced || others < 2 {
                            self.replace(place)?;
                        } else {
                            self.all[place] = None;
                        }
                    }
                    Fault::StopWorker(worker, time) => done.stops += self.stop(worker, time),
                    Fault::StopServer(server, time) => done.stops += self.stop(self.job.workers + server, time),
                }
            }
        }
        Ok(())
    }

    /// Kills the process at a place, and starts another one.
    fn replace(&mut self, place: usize) -> io::Result<()> {
        drop(self.all[place].take());
        self.all[place] = Some(self.start(place)?);
        Ok(())
    }

    /// Stops the process at a place for a time, if there is one. Returns the number of stops.
    fn stop(&self, place: usize, time: Duration) -> u64 {
        let Some(OwnedChild(child)) = &self.all[place] else { return 0 };
        // Both fail if the process has ended.
        let _ = kill_process(Pid::from_child(child), Signal::STOP);
        wait(time);
        let _ = kill_process(Pid::from_child(child), Signal::CONT);
        1
    }
}

/// Waits for a time.
fn wait(time: Duration) {
    let (_nobody, never) = mpsc::channel::<()>();
    assert_eq!(never.recv_timeout(time), Err(RecvTimeoutError::Timeout), "nobody sends");
}

impl ServerRole {
    /// Serves until the chief ends, and returns the exit status.
    pub fn run(self) -> i32 {
        let served = end_with(&self.parent).map_err(Error::other).and_then(|()| {
            let builder = ParameterServerStrategy::builder(TfConfigClusterResolver::new()?)?;
            Program::declare(&Job::draw(self.seed, self.job), limited(builder))?.serve()
        });
        match served {
            Ok(()) => 0,
            Err(error) => {
                eprintln!("consonance soak --servers: {error}");
                1
            }
        }
    }
}
