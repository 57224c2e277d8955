//! A worker: this test binary, started again, which executes commands.

use crate::{
    bootstrap::{Absent, Formed, Group, Meeting, MeetingError, MeetingOptions, Waiting, Watch},
    os::process_state::ProcessState,
    shm::{GroupId, Segment, Shape, SharedFile, deaths},
    sync::atomics::{AtomicU64, Ordering},
};
use rustix::{
    fs::{MemfdFlags, memfd_create},
    process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit},
};
use std::{
    env,
    io::{self, BufRead, BufReader, Write},
    os::fd::{AsRawFd, OwnedFd},
    process::{Child, ChildStdin, Command, Stdio},
    sync::{
        Arc,
        mpsc::{self, Receiver},
    },
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// The time limit of every wait: far more than anything here takes.
pub(super) const LIMIT: Duration = Duration::from_secs(30);

/// The environment variable that makes this binary a worker. It contains the task, the number of
/// tasks, the digest and the layout.
pub(super) const WORKER: &str = "CONSONANCE_TEST_WORKER";

/// The prefix of a worker's lines. It distinguishes them from the test runner's lines.
pub(super) const MARK: &str = "@@ ";

pub(super) fn say(line: &str) {
    // The write fails if the test has ended.
    let _ = writeln!(io::stdout().lock(), "\n{MARK}{line}");
}

pub(super) fn names(tasks: usize) -> Vec<String> {
    (0..tasks).map(|task| format!("worker {task} (host:{task})")).collect()
}

pub(super) fn options(task: usize, tasks: usize, digest: u128) -> MeetingOptions {
    MeetingOptions { digest, layout: 1, task, names: names(tasks), replicas: task + 1 }
}

fn shape(replicas: impl Iterator<Item = usize>) -> Shape {
    Shape::new(replicas.sum(), Shape::STAGING_BYTES).expect("a shape")
}

/// Makes the segment of a group.
pub(super) fn segment(group: &Group) -> io::Result<OwnedFd> {
    let shape = shape(group.members.iter().map(|member| member.replicas));
    let segment = Segment::create(shape, GroupId::from_bytes(group.id)).map_err(io::Error::other)?;
    segment.file().try_clone_to_owned()
}

/// Returns a file with this text.
fn file(text: &str) -> OwnedFd {
    let file = memfd_create("gift", MemfdFlags::CLOEXEC).expect("a file");
    rustix::io::pwrite(&file, text.as_bytes(), 0).expect("a file of memory takes bytes");
    file
}

fn contents(file: &SharedFile) -> String {
    let mut bytes = [0; 32];
    let count = rustix::io::pread(file, &mut bytes, 0).expect("a file of memory has bytes");
    String::from_utf8_lossy(&bytes[..count]).into_owned()
}

/// Opens the segment of a group, which checks that it is the group's.
pub(super) fn open_segment(formed: &Formed) -> Arc<Segment> {
    let shape = shape(formed.members.iter().map(|member| member.replicas));
    let file = formed.segment.try_clone().expect("a descriptor");
    Arc::new(Segment::open(file, GroupId::from_bytes(formed.id), shape).expect("the segment of the group"))
}

/// The worker: it executes the commands that it reads from its standard input.
#[test]
fn worker() {
    let Ok(job) = env::var(WORKER) else { return };
    let job: Vec<u128> = job.split(' ').map(|number| number.parse().expect("a number")).collect();
    let mut options = options(job[0] as usize, job[1] as usize, job[2]);
    options.layout = job[3] as u64;
    let mut meeting = match Meeting::open(options) {
        Ok(meeting) => meeting,
        Err(error) => return say(&format!("error {error:?}")),
    };
    say("open");
    let mut group: Option<(Watch, Arc<Segment>)> = None;
    let (mut ballast, mut gives) = (Vec::new(), false);
    for line in io::stdin().lines() {
        let line = line.expect("a line");
        let words: Vec<&str> = line.split(' ').collect();
        let number = |index: usize| words[index].parse::<u64>().expect("a number");
        match words[0] {
            "form" | "fail" => {
                let create = |group: &Group, _: &[u32]| match words[0] {
                    "form" => segment(group),
                    _ => Err(io::Error::other("no memory")),
                };
                let progress = |waiting: &Waiting| say(&format!("waiting {:?}", waiting.missing));
                let deadline = Instant::now() + Duration::from_millis(number(1));
                match meeting.form(deadline, Duration::from_millis(number(2)), create, progress) {
                    Ok(formed) => {
                        let shared = open_segment(&formed);
                        let me = &formed.members[formed.me];
                        assert_eq!((me.task, me.pid), (job[0] as usize, Some(std::process::id())));
                        let watch = Watch::start(&formed, Some(&shared), |member, gone| {
                            let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time").as_nanos();
                            say(&format!("gone {member} {gone:?} {now}"));
                        });
                        let members = formed.members.iter().map(|m| format!("{}*{}:{:?}", m.task, m.replicas, m.pid));
                        let members: Vec<String> = members.collect();
                        say(&format!("formed {} {:?} {}", formed.generation, formed.id, members.join(" ")));
                        if gives || formed.given.iter().any(Option::is_some) {
                            let given =
                                formed.given.iter().map(|file| file.as_ref().map_or_else(String::new, contents));
                            say(&format!("given {}", given.collect::<Vec<String>>().join(",")));
                        }
                        let watch = watch.expect("a thread");
                        assert!(watch.watches_words(), "words are marked on every Linux");
                        group = Some((watch, shared));
                    }
                    Err(error) => say(&format!("error {error:?}")),
                }
            }
            "give" => {
                gives = true;
                meeting.give(file(words[1]).into());
            }
            // Says of the process whose first rank this is that it has died.
            "lie" => {
                let (_, shared) = group.as_ref().expect("a group");
                deaths::lie(shared, number(1) as usize);
                say("lied");
            }
            // Fills so many MiB of memory.
            "fill" => {
                ballast.push(vec![1u8; (number(1) as usize) << 20]);
                say("filled");
            }
            // "crowd" allows no more descriptors; "clear" allows as many as the system does.
            "crowd" | "clear" => {
                let limits = getrlimit(Resource::Nofile);
                let free = || rustix::io::dup(io::stdin()).expect("a descriptor").as_raw_fd() as u64;
                let current = if words[0] == "crowd" { Some(free()) } else { limits.maximum };
                setrlimit(Resource::Nofile, Rlimit { current, ..limits }).expect("a limit");
            }
            "fork" => {
                // SAFETY: the child calls only functions that are safe after a fork of a process
                // with threads.
                match unsafe { libc::fork() } {
                    0 => {
                        // The fork does not have the watch's thread, and must not end the parent's
                        // thread.
                        drop(group.take());
                        loop {
                            // SAFETY: `pause` has no arguments and accesses no memory.
                            unsafe { libc::pause() };
                        }
                    }
                    pid => say(&format!("child {pid}")),
                }
            }
            "form-in-fork" => {
                // SAFETY: as above; `form` returns before it does anything else.
                match unsafe { libc::fork() } {
                    0 => {
                        let result =
                            meeting.form(Instant::now(), Duration::ZERO, |_, _| unreachable!("no group"), |_| ());
                        let is_refused = matches!(result, Err(MeetingError::Forked { .. }));
                        drop(meeting);
                        // SAFETY: `_exit` takes a number.
                        unsafe { libc::_exit(if is_refused { 7 } else { 8 }) };
                    }
                    pid => {
                        let mut status = 0;
                        // SAFETY: `status` is written while it is borrowed.
                        unsafe { libc::waitpid(pid, &raw mut status, 0) };
                        say(&format!("fork ended {}", libc::WEXITSTATUS(status)));
                    }
                }
            }
            "spawn" => {
                let output = Command::new("sh").args(["-c", "sleep 60 > /dev/null 2>&1 & echo $!"]).output();
                say(&format!("child {}", String::from_utf8_lossy(&output.expect("a shell").stdout).trim()));
            }
            other => panic!("what is {other:?}?"),
        }
    }
}

/// A worker process. It is killed when this value is dropped.
pub(super) struct Worker {
    pub(super) child: Child,
    input: ChildStdin,
    pub(super) lines: Receiver<String>,
}

impl Worker {
    /// Starts a worker, and does not wait for it.
    pub(super) fn start(task: usize, tasks: usize, digest: u128, layout: u64) -> Worker {
        let mut command = Command::new(env::current_exe().expect("this binary"));
        command.args(["bootstrap::tests::worker::worker", "--exact", "--nocapture", "--test-threads=1"]);
        command.env(WORKER, format!("{task} {tasks} {digest} {layout}"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("a process");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        let (tell, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if let Some(line) = line.strip_prefix(MARK) {
                    let _ = tell.send(line.to_owned());
                }
            }
        });
        Worker { input: child.stdin.take().expect("a pipe"), child, lines }
    }

    /// Starts a worker, and waits until it has its socket name.
    pub(super) fn open(task: usize, tasks: usize, digest: u128) -> Worker {
        let worker = Worker::start(task, tasks, digest, 1);
        assert_eq!(worker.line(), "open");
        worker
    }

    pub(super) fn command(&mut self, line: &str) {
        // The write fails if the worker was killed.
        let _ = writeln!(self.input, "{line}");
    }

    pub(super) fn form(&mut self, patience_ms: u64) {
        self.command(&format!("form {} {patience_ms}", LIMIT.as_millis()));
    }

    #[track_caller]
    pub(super) fn line(&self) -> String {
        self.lines.recv_timeout(LIMIT).expect("a line in time")
    }

    /// Returns the rest of the next line that begins with this word, and skips other lines.
    #[track_caller]
    pub(super) fn wait_for(&self, word: &str) -> String {
        loop {
            let line = self.line();
            assert!(!line.starts_with("error") || word == "error", "{line}");
            if let Some(rest) = line.strip_prefix(word) {
                return rest.trim_start().to_owned();
            }
        }
    }

    /// Checks that the worker reports this error.
    #[track_caller]
    pub(super) fn expect_error(&self, error: &MeetingError) {
        assert_eq!(self.wait_for("error"), format!("{error:?}"));
    }

    /// Returns the generation that the worker joins, the tasks of its members, and the line.
    #[track_caller]
    pub(super) fn formed(&self) -> (u64, Vec<usize>, String) {
        let line = self.wait_for("formed");
        let generation = line.split(' ').next().expect("a word").parse().expect("a number");
        let (_, members) = line.split_once("] ").expect("an id");
        let task = |member: &str| member.split('*').next().and_then(|task| task.parse().ok()).expect("a task");
        (generation, members.split(' ').map(task).collect(), line)
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it runs");
    }

    pub(super) fn kill(mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it is a child");
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a task that did not come.
pub(super) fn absent(task: usize, pid: Option<u32>, state: ProcessState) -> Absent {
    Absent { task, name: format!("worker {task} (host:{task})"), pid, state }
}

/// Returns a digest that no other job has.
pub(super) fn job() -> u128 {
    static JOBS: AtomicU64 = AtomicU64::new(1);
    // Relaxed: only the uniqueness of the number matters.
    u128::from(std::process::id()) << 64 | u128::from(JOBS.fetch_add(1, Ordering::Relaxed))
}

pub(super) fn open_all(tasks: usize, digest: u128) -> Vec<Worker> {
    let workers: Vec<Worker> = (0..tasks).map(|task| Worker::start(task, tasks, digest, 1)).collect();
    workers.iter().for_each(|worker| assert_eq!(worker.line(), "open"));
    workers
}

/// Makes all workers form a group, and checks that it is the same on all. Returns its generation
/// and tasks.
#[track_caller]
pub(super) fn form_all<'a>(workers: impl IntoIterator<Item = &'a mut Worker>, patience_ms: u64) -> (u64, Vec<usize>) {
    let mut workers: Vec<&mut Worker> = workers.into_iter().collect();
    workers.iter_mut().for_each(|worker| worker.form(patience_ms));
    let formed: Vec<(u64, Vec<usize>, String)> = workers.iter().map(|worker| worker.formed()).collect();
    assert!(formed.iter().all(|one| *one == formed[0]), "{formed:?}");
    (formed[0].0, formed[0].1.clone())
}
