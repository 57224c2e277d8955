//! Starts this test program again, once for each process of a job, and exchanges lines with each of
//! them.

use crate::fields;
use consonance::{CommunicationOptions, Communicator, Error, ProcessGroup, Result, TfConfigClusterResolver};
use nix::{
    sys::{
        prctl,
        resource::{UsageWho, getrusage},
        signal,
        time::TimeVal,
    },
    time::{ClockId, clock_gettime},
    unistd::Pid,
};
use std::{
    env, fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpListener,
    ops::Range,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, ExitStatus, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, AtomicUsize, Ordering},
        mpsc::{self, Receiver, RecvTimeoutError},
    },
    thread,
    time::{Duration, Instant},
};

pub(crate) use signal::Signal;

/// Longer than any step here takes: a wait of this length has found a hang.
pub(crate) const LONG: Duration = Duration::from_secs(40);

/// The prefix of the lines that a process reports. The test harness writes other lines.
const MARK: &str = "> ";

/// The part of a process: a function of the words after its name.
pub(crate) type Part = fn(&[&str]) -> Result<()>;

/// The processes of one job. Dropped, they are killed.
pub(crate) struct Job {
    name: String,
    /// The folder for temporary files of its processes, if not the default.
    temp: Option<PathBuf>,
    /// The number of servers. Then task 0 is a chief, workers are next, and servers last.
    servers: Option<usize>,
    /// The addresses of its tasks, if they meet over UCX as those of several hosts do.
    addresses: Option<Vec<String>>,
    processes: Vec<Option<Process>>,
}

/// A process that was started.
pub(crate) struct Process {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
    /// All its output, to show on a failure.
    output: Arc<Mutex<String>>,
}

/// The ways in which processes with parameter servers meet.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Way {
    /// In memory of their host.
    Memory,
    /// At their addresses, over UCX, as those of several hosts do.
    Ucx,
}

impl Way {
    /// Returns the ways that this machine has.
    pub(crate) fn all() -> Vec<Way> {
        match consonance::raw::Wire::open(None) {
            Ok(_) => vec![Way::Memory, Way::Ucx],
            Err(absent) => {
                println!("skipped: processes with a network: {absent}");
                vec![Way::Memory]
            }
        }
    }
}

/// Returns an address of this host that is free, with none of the ports that the system chooses by
/// itself, and that no other test here has.
fn free_address() -> String {
    static PORTS: AtomicU32 = AtomicU32::new(0);
    loop {
        let port = 10_000 + (64 * std::process::id() + PORTS.fetch_add(1, Ordering::Relaxed)) % 20_000;
        let address = format!("127.0.0.1:{port}");
        if TcpListener::bind(&address).is_ok() {
            return address;
        }
    }
}

impl Job {
    /// Makes a job of `tasks` tasks; none of them is started.
    pub(crate) fn new(tasks: usize) -> Job {
        static JOBS: AtomicUsize = AtomicUsize::new(0);
        let name = format!("{}-{}", std::process::id(), JOBS.fetch_add(1, Ordering::Relaxed));
        Job { name, temp: None, servers: None, addresses: None, processes: (0..tasks).map(|_| None).collect() }
    }

    /// Makes a job of a chief, workers and servers, in this order; none of them is started.
    pub(crate) fn with_servers(workers: usize, servers: usize) -> Job {
        Job { servers: Some(servers), ..Job::new(1 + workers + servers) }
    }

    /// Lets the processes meet in this way.
    pub(crate) fn meeting(self, way: Way) -> Job {
        let addresses = match way {
            Way::Memory => None,
            Way::Ucx => Some(self.processes.iter().map(|_| free_address()).collect()),
        };
        Job { addresses, ..self }
    }

    /// Sets a separate folder for temporary files.
    pub(crate) fn with_temp(self, temp: &Path) -> Job {
        Job { temp: Some(temp.to_owned()), ..self }
    }

    /// Starts a job whose processes all play the same part.
    pub(crate) fn start(tasks: usize, part: &str) -> Job {
        let mut job = Job::new(tasks);
        (0..tasks).for_each(|task| job.launch(task, part));
        job
    }

    /// Starts the process of a task and replaces the last one, if any. `part` is a name and words
    /// for it.
    pub(crate) fn launch(&mut self, task: usize, part: &str) {
        let all = self.processes.len();
        let jobs = match self.servers {
            None => vec![("worker", 0..all)],
            Some(servers) => vec![("chief", 0..1), ("worker", 1..all - servers), ("ps", all - servers..all)],
        };
        let address = |task: usize| match &self.addresses {
            Some(addresses) => addresses[task].clone(),
            None => format!("localhost:{}", task + 1),
        };
        let addresses = |tasks: &Range<usize>| {
            tasks.clone().map(|task| format!("\"{}\"", address(task))).collect::<Vec<_>>().join(", ")
        };
        let tasks: Vec<String> =
            jobs.iter().map(|(job, tasks)| format!(r#""{job}": [{}]"#, addresses(tasks))).collect();
        let (job, of_job) = jobs.iter().find(|(_, tasks)| tasks.contains(&task)).expect("a task");
        let (tasks, index) = (tasks.join(", "), task - of_job.start);
        let cluster = format!(r#"{{"cluster": {{{tasks}}}, "task": {{"type": "{job}", "index": {index}}}}}"#);
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", "process", "--nocapture", "--test-threads=1"]);
        command.env("PART", part).env("TF_CONFIG", cluster).env("CONSONANCE_JOB", &self.name);
        command.envs(self.addresses.iter().map(|_| ("CONSONANCE_WIRE", "ucx")));
        command.envs(self.temp.iter().map(|temp| ("TMPDIR", temp)));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Once the shell that started the tests has ended, the system continues the stopped
        // processes of its process group. So processes that a test stops must be in another process
        // group.
        command.process_group(0);
        self.processes[task] = Some(Process::new(command.spawn().unwrap()));
    }

    /// Returns the `CONSONANCE_JOB` of its processes.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the process of a task.
    #[track_caller]
    pub(crate) fn of(&mut self, task: usize) -> &mut Process {
        self.processes[task].as_mut().expect("a process that was started")
    }

    /// Returns all processes that were started.
    pub(crate) fn all(&mut self) -> impl Iterator<Item = &mut Process> {
        self.processes.iter_mut().flatten()
    }

    /// Returns all processes but one.
    pub(crate) fn others(&mut self, than: usize) -> impl Iterator<Item = &mut Process> {
        self.processes.iter_mut().enumerate().filter(move |(task, _)| *task != than).filter_map(|(_, one)| one.as_mut())
    }

    /// Waits until every process has ended, and checks its status.
    #[track_caller]
    pub(crate) fn end(mut self) {
        self.all().for_each(Process::end);
    }
}

impl Process {
    fn new(mut child: Child) -> Process {
        let (tell, lines) = mpsc::channel();
        let output = Arc::new(Mutex::new(String::new()));
        let mut errors = child.stderr.take().expect("a pipe");
        let (out, all) = (BufReader::new(child.stdout.take().expect("a pipe")), output.clone());
        thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                *all.lock().unwrap() += &format!("{line}\n");
                if let Some((_, line)) = line.split_once(MARK) {
                    let _ = tell.send(line.to_owned());
                }
            }
        });
        let all = output.clone();
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = errors.read(&mut bytes) {
                *all.lock().unwrap() += &String::from_utf8_lossy(&bytes[..count]);
            }
        });
        Process { input: child.stdin.take().expect("a pipe"), child, lines, output }
    }

    /// Returns the next line that it reports.
    #[track_caller]
    pub(crate) fn line(&mut self) -> String {
        match self.lines.recv_timeout(LONG) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => {
                panic!("process {} says nothing:\n{}\n{}", self.child.id(), self.output(), self.threads())
            }
            Err(RecvTimeoutError::Disconnected) => {
                let status = self.child.wait();
                // Do not wait without a bound for the rest of its standard error.
                thread::sleep(Duration::from_millis(50));
                panic!("process {} ended with {status:?}:\n{}", self.child.id(), self.output())
            }
        }
    }

    /// Returns the state of each of its threads: its state, its wait channel, and its system call.
    fn threads(&self) -> String {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.child.id())).into_iter().flatten().flatten();
        let about = |task: fs::DirEntry| {
            let read = |name: &str| fs::read_to_string(task.path().join(name)).unwrap_or_default().trim().to_owned();
            let stat = read("stat");
            let state = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().next()).unwrap_or("?");
            format!("{}: {state}, in {:?}, call {:?}", read("comm"), read("wchan"), read("syscall"))
        };
        tasks.map(about).collect::<Vec<_>>().join("\n")
    }

    /// Returns the rest of the next line, which must begin with this word.
    #[track_caller]
    pub(crate) fn expect(&mut self, word: &str) -> String {
        let line = self.line();
        let rest = line.strip_prefix(word).unwrap_or_else(|| panic!("{line:?} is not {word:?}:\n{}", self.output()));
        rest.trim_start().to_owned()
    }

    /// Sends a line to it.
    pub(crate) fn tell(&mut self, line: &str) {
        // A killed process does not read it.
        let _ = writeln!(self.input, "{line}");
    }

    pub(crate) fn signal(&self, signal: Signal) {
        signal::kill(self.pid(), signal).unwrap();
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32)
    }

    /// Waits until it has ended.
    #[track_caller]
    pub(crate) fn wait(&mut self) -> ExitStatus {
        let begin = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(begin.elapsed() < LONG, "process {} does not end:\n{}", self.child.id(), self.output());
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits until it has ended, and checks its status.
    #[track_caller]
    pub(crate) fn end(&mut self) {
        let status = self.wait();
        assert!(status.success(), "{status}:\n{}", self.output());
    }

    pub(crate) fn output(&self) -> String {
        self.output.lock().unwrap().clone()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Plays the part that this process was started for, if it was.
pub(crate) fn play(parts: &[(&str, Part)]) {
    let Ok(part) = env::var("PART") else { return };
    prctl::set_pdeathsig(Signal::SIGKILL).unwrap();
    let words: Vec<&str> = part.split(' ').collect();
    let (_, part) = parts.iter().find(|(name, _)| *name == words[0]).expect("a part");
    if let Err(error) = part(&words[1..]) {
        say(&format!("failed {}", fields(&error)));
        std::process::exit(3);
    }
}

/// Reports a line to the test.
pub(crate) fn say(line: &str) {
    println!("\n{MARK}{}", line.replace('\n', " "));
}

/// Waits for a line from the test.
pub(crate) fn hear() -> String {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

/// Returns the time since the machine's start, the same in all processes.
pub(crate) fn now() -> Duration {
    clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap().into()
}

/// Returns the CPU time of this process.
pub(crate) fn cpu() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_SELF).unwrap();
    let time = |time: TimeVal| Duration::from_micros((time.tv_sec() * 1_000_000 + time.tv_usec()) as u64);
    time(usage.user_time()) + time(usage.system_time())
}

/// Joins the other processes of the job. `timeout` is that of each call.
pub(crate) fn join(replicas: usize, timeout: Duration) -> Result<ProcessGroup> {
    builder(replicas, timeout)?.join()
}

/// Returns the builder of the job's group.
pub(crate) fn builder(replicas: usize, timeout: Duration) -> Result<consonance::ProcessGroupBuilder> {
    let options = CommunicationOptions::new().timeout(timeout)?;
    let builder = ProcessGroup::builder(TfConfigClusterResolver::new()?).replicas(replicas).options(options);
    // Read directly even if ranks outnumber cores, so that processes are killed and stopped while
    // peers read their memory.
    builder.reads_directly(true).timeout(LONG / 2)
}

/// Runs `body` on all ranks of this process, each on its own thread.
pub(crate) fn on_each<R: Send>(group: &mut ProcessGroup, body: impl Fn(&mut Communicator) -> R + Sync) -> Vec<R> {
    let body = &body;
    thread::scope(|scope| {
        let ranks = group.communicators().into_iter().map(|mut rank| scope.spawn(move || body(&mut rank)));
        ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// Parses a number.
pub(crate) fn number(word: &str) -> u64 {
    word.parse().unwrap_or_else(|_| panic!("{word:?} is no number"))
}

/// Formats the error's variant and its fields, for tests to compare. Fields that only describe are
/// last.
pub(crate) fn fields(error: &Error) -> String {
    match error {
        Error::InvalidCall { call, argument, replica, expected, found } => {
            format!("InvalidCall call={call} argument={argument} replica={replica:?} found={found} expected={expected}")
        }
        Error::WrongContext { call, problem } => format!("WrongContext call={call} problem={problem}"),
        Error::Mismatch { call, replica, argument, expected, found } => {
            format!("Mismatch call={call} argument={argument} replica={replica} expected={expected} found={found}")
        }
        Error::Left { call, replica, last, lost } => {
            format!("Left call={call} replica={replica} lost={lost} last={}", last_call(last))
        }
        Error::Timeout { call, waited, missing } => {
            format!("Timeout call={call} waited={waited:?} missing={}", last_calls(missing))
        }
        Error::Aborted { call, replica, reason, lost, calls } => {
            let (is_inherited, reason, process) = fields::reason(reason);
            let whose = format!("replica={replica} inherited={is_inherited} lost={lost}");
            format!("Aborted call={call} reason={reason:?} {whose} process={process} calls={}", last_calls(calls))
        }
        // The problem has the missing tasks, too.
        Error::Meeting { call, task, problem, .. } => format!("Meeting call={call} task={task} problem={problem}"),
        Error::Panic { replica, message } => format!("Panic replica={replica} message={message}"),
        Error::Replica { replica, source } => format!("Replica replica={replica} source={}", fields(source)),
        Error::UnknownReduceOp { call, replica, source } => {
            format!("UnknownReduceOp call={call:?} replica={replica:?} text={}", source.0)
        }
        Error::System { what, source } => {
            format!("System code={:?} kind={:?} what={what}", source.raw_os_error(), source.kind())
        }
        error => format!("Other {error}"),
    }
}

/// Formats the last calls of replicas.
fn last_calls(calls: &[(usize, String)]) -> String {
    let calls: Vec<String> = calls.iter().map(|(replica, last)| format!("{replica}: {}", last_call(last))).collect();
    format!("[{}]", calls.join(", "))
}

/// Formats number, signature and bytes of a last call, and the process.
fn last_call(last: &str) -> String {
    let call = match fields::last_call(last) {
        Some((number, signature, bytes)) => format!("{number} {signature} {bytes}"),
        None => "none".to_owned(),
    };
    let process = last.split_once(';').map_or("", |(_, process)| process);
    format!("{call}{process}")
}
