//! The meeting of processes on several hosts.

use super::{
    connection::{self, ANSWER, STRANGERS, Timed, dial, is_closed},
    gate::{Arrivals, Gate, Visitor},
    greeting::{Greeting, Heard},
    keep_alive::keep_alive,
    not_met::NotMet,
};
use crate::bootstrap::{Waiting, packet::MAX_TASKS};
use std::{
    io::{self, ErrorKind, Read, Write},
    net::{TcpListener, TcpStream, ToSocketAddrs},
    sync::mpsc::{self, Receiver, RecvTimeoutError, Sender},
    time::{Duration, Instant},
};

/// The time between two looks for new connections and for words on the links, and between two
/// attempts to connect.
pub(super) const TICK: Duration = Duration::from_millis(10);

/// The word of a process that all others have greeted.
pub(super) const READY: u8 = b'R';

/// The place of this process in a job on several hosts.
#[derive(Clone, Debug)]
pub struct Host {
    /// The greeting of this process.
    pub greeting: Greeting,
    /// The names of the tasks, for errors.
    pub names: Vec<String>,
    /// The addresses of the tasks, `host:port`.
    pub addresses: Vec<String>,
}

/// The processes that have met. Each list has one place a task; that of this process has no link.
#[derive(Debug)]
pub struct Met {
    /// The index of this process's task.
    pub own: usize,
    /// The greetings of all.
    pub greetings: Vec<Greeting>,
    pub(super) links: Vec<Option<TcpStream>>,
}

/// The news of a thread that connects to a task or hears a greeting.
enum Event {
    /// A link with a process of the job. This process has called it, or was called.
    Link { stream: TcpStream, greeting: Greeting, called: bool },
    /// A process of the job of another build.
    OtherBuild(usize),
    /// The last attempt to reach a task has failed, and how.
    Failed(usize, String),
    /// A connection that has not become a link.
    Stranger,
}

/// A link of the meeting.
pub(super) struct Link {
    pub(super) stream: TcpStream,
    pub(super) greeting: Greeting,
    /// Whether this process has said that it is ready, and the other one.
    pub(super) said: bool,
    pub(super) heard: bool,
}

/// Waits for all processes of the job, until the deadline. `tell` reports the missing ones, after 2
/// seconds and then every 10 seconds.
///
/// # Errors
/// The tasks that did not come, each with the last that was seen of it; an address at which this
/// process cannot listen; a process of another build, with another wire, or that counts other
/// tasks. Of two processes of one task, the second one does not come.
pub fn meet(host: &Host, deadline: Instant, tell: impl FnMut(&Waiting)) -> Result<Met, NotMet> {
    let listener = listen(host, deadline)?;
    meet_at(host, listener, deadline, tell)
}

/// Does what [`meet`] does, for a process that listens already: others know its address.
///
/// # Errors
/// As [`meet`].
pub fn meet_at(
    host: &Host,
    listener: TcpListener,
    deadline: Instant,
    tell: impl FnMut(&Waiting),
) -> Result<Met, NotMet> {
    let own = &host.names[host.greeting.task];
    let set = listener.set_nonblocking(true);
    set.map_err(|error| NotMet::because(format!("{own}: {error}")))?;
    Meeting::new(host.clone(), Some(Arrivals::Listener(listener))).run(deadline, tell)
}

/// Does what [`meet`] does, for a process that takes part in several meetings, at its gate. The
/// process of the last task calls all others, and needs none.
///
/// # Errors
/// As [`meet`], and the other process as missing if another thread of this one waits for it.
pub fn meet_at_gate(
    host: &Host,
    gate: Option<&Gate>,
    deadline: Instant,
    tell: impl FnMut(&Waiting),
) -> Result<Met, NotMet> {
    let problem = || "another thread of this process waits for the same one".to_owned();
    let held = || NotMet { problem: problem(), missing: vec![usize::from(host.greeting.task == 0)] };
    let expect = |gate: &Gate| gate.expect(host.greeting.digest).map(Arrivals::Gate).ok_or_else(held);
    Meeting::new(host.clone(), gate.map(expect).transpose()?).run(deadline, tell)
}

/// Listens at the address of this process's task.
pub(super) fn listen(host: &Host, deadline: Instant) -> Result<TcpListener, NotMet> {
    let own = host.greeting.task;
    let others = host.addresses.iter().enumerate().filter(|(task, _)| *task != own).map(|(_, address)| &**address);
    connection::listen(&host.addresses[own], others, deadline)
        .map_err(|problem| NotMet::because(format!("{} {problem}", host.names[own])))
}

/// The state of the meeting about another task.
#[derive(Default)]
pub(super) struct Task {
    pub(super) link: Option<Link>,
    /// Whether a thread tries to connect.
    is_called: bool,
    /// The time of the next attempt, after a failed one.
    next: Option<Instant>,
    /// Whether a process of the task has come. It may have given up since, as others do at about
    /// the same time.
    has_come: bool,
    /// The last that was seen of the task.
    seen: Option<String>,
}

pub(super) struct Meeting {
    pub(super) host: Host,
    /// `None` while another process has the address, or if this process calls all others.
    pub(super) arrivals: Option<Arrivals>,
    pub(super) tasks: Vec<Task>,
    /// The number of connections that have not greeted yet.
    strangers: usize,
    events: (Sender<Event>, Receiver<Event>),
}

impl Meeting {
    pub(super) fn new(host: Host, arrivals: Option<Arrivals>) -> Meeting {
        let tasks = host.names.iter().map(|_| Task::default()).collect();
        Meeting { host, arrivals, tasks, strangers: 0, events: mpsc::channel() }
    }

    fn own(&self) -> usize {
        self.host.greeting.task
    }

    pub(super) fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let own = self.own();
        (0..self.tasks.len()).filter(move |&task| task != own)
    }

    fn run(mut self, deadline: Instant, mut tell: impl FnMut(&Waiting)) -> Result<Met, NotMet> {
        let begin = Instant::now();
        let mut report = Duration::from_secs(2);
        loop {
            self.step()?;
            if self.is_ready() {
                self.say_ready();
            }
            if self.others().all(|task| self.tasks[task].link.as_ref().is_some_and(|link| link.said && link.heard)) {
                return Ok(self.met());
            }
            let waited = begin.elapsed();
            if Instant::now() >= deadline {
                return Err(self.late(waited));
            }
            if waited >= report {
                report += Duration::from_secs(10);
                tell(&Waiting { waited, missing: self.missing(), elsewhere: Vec::new() });
            }
            self.wait()?;
        }
    }

    /// Calls others, is called by them, and hears those that are linked.
    pub(super) fn step(&mut self) -> Result<(), NotMet> {
        self.call()?;
        self.accept()?;
        self.listen_to_links();
        Ok(())
    }

    /// Waits for news of a thread, not for long.
    pub(super) fn wait(&mut self) -> Result<(), NotMet> {
        match self.events.1.recv_timeout(TICK) {
            Ok(event) => self.take(event),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Ok(()),
        }
    }

    /// Begins an attempt to connect to each task before this one that has no link.
    fn call(&mut self) -> Result<(), NotMet> {
        for task in 0..self.own() {
            let Task { ref link, is_called, next, .. } = self.tasks[task];
            if link.is_some() || is_called || next.is_some_and(|next| next > Instant::now()) {
                continue;
            }
            let (events, address) = (self.events.0.clone(), self.host.addresses[task].clone());
            let own = self.host.greeting.clone();
            spawn(move || {
                _ = events.send(match connect(&address, task, &own) {
                    Ok(event) => event,
                    Err(error) => Event::Failed(task, error),
                });
            })?;
            self.tasks[task].is_called = true;
        }
        Ok(())
    }

    /// Hears the connections of others.
    fn accept(&mut self) -> Result<(), NotMet> {
        while self.strangers < STRANGERS {
            let Some(visitor) = self.arrivals.as_ref().and_then(Arrivals::next) else { return Ok(()) };
            let (events, own) = (self.events.0.clone(), self.host.greeting.clone());
            spawn(move || _ = events.send(greet(visitor, &own).unwrap_or(Event::Stranger)))?;
            self.strangers += 1;
        }
        Ok(())
    }

    fn take(&mut self, event: Event) -> Result<(), NotMet> {
        match event {
            Event::Link { stream, greeting, called } => {
                match called {
                    true => self.tasks[greeting.task].is_called = false,
                    false => self.strangers -= 1,
                }
                // The later task calls.
                match called == (greeting.task < self.own()) {
                    true => self.link(stream, greeting),
                    false => Ok(()),
                }
            }
            Event::OtherBuild(task) => {
                let name = self.host.names.get(task).cloned().unwrap_or_else(|| format!("task {task}"));
                Err(NotMet::because(format!(
                    "{name} runs another build of the program, or on another kind of processor"
                )))
            }
            Event::Failed(task, seen) => {
                let state = &mut self.tasks[task];
                (state.is_called, state.next) = (false, Some(Instant::now() + 5 * TICK));
                state.seen = Some(seen);
                Ok(())
            }
            Event::Stranger => {
                self.strangers -= 1;
                Ok(())
            }
        }
    }

    /// Takes a link with a process of the job.
    fn link(&mut self, stream: TcpStream, greeting: Greeting) -> Result<(), NotMet> {
        let (task, own) = (greeting.task, &self.host.greeting);
        let name = |task: usize| self.host.names.get(task).cloned().unwrap_or_else(|| format!("task {task}"));
        let whose = format!("{} (process {} on {})", name(task), greeting.pid, greeting.host);
        if !(1..=MAX_TASKS).contains(&greeting.replicas) {
            return Err(NotMet::because(format!("{whose} counts {} replicas", greeting.replicas)));
        }
        if greeting.tasks != own.tasks || task >= own.tasks {
            return Err(NotMet::because(format!(
                "{whose} counts {} processes: expected {}",
                greeting.tasks, own.tasks
            )));
        }
        if task == own.task {
            return Ok(());
        }
        if greeting.wire != own.wire {
            let problem = format!(
                "{whose} has the wire {}, and {} on {} has {}: install the same version on both, or name its file in CONSONANCE_UCX",
                greeting.wire,
                name(own.task),
                own.host,
                own.wire
            );
            return Err(NotMet::because(problem));
        }
        // A second process of the task is refused. It takes the close for the end of this one.
        if self.tasks[task].link.as_ref().is_some_and(|old| !is_closed(&old.stream)) {
            return Ok(());
        }
        let set = stream.set_nonblocking(true).and_then(|()| stream.set_nodelay(true));
        if set.and_then(|()| keep_alive(&stream)).is_ok() {
            self.tasks[task].has_come = true;
            self.tasks[task].link = Some(Link { stream, greeting, said: false, heard: false });
        }
        Ok(())
    }

    /// Hears the others. If one ends after this process has said that it is ready, all meet anew:
    /// another one may take this process for ready.
    fn listen_to_links(&mut self) {
        let (mut has_said, mut ended) = (false, false);
        for task in self.others() {
            let Task { link: slot, seen, next, .. } = &mut self.tasks[task];
            let Some(link) = slot else { continue };
            has_said |= link.said;
            let mut word = [0];
            let is_here = match link.heard {
                // The network reads the words that follow.
                true => !is_closed(&link.stream),
                false => match link.stream.read(&mut word) {
                    Ok(1) if word == [READY] => {
                        link.heard = true;
                        true
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => true,
                    _ => false,
                },
            };
            if !is_here {
                (*slot, *seen) = (None, Some("its process has ended, or has given up".to_owned()));
                *next = Some(Instant::now() + 5 * TICK);
                ended = true;
            }
        }
        if ended && has_said {
            for task in &mut self.tasks {
                task.link = None;
            }
        }
    }

    /// Whether this process has links with all others.
    fn is_ready(&self) -> bool {
        self.others().all(|task| self.tasks[task].link.is_some())
    }

    /// Says on the links that this process is ready.
    pub(super) fn say_ready(&mut self) {
        for link in self.tasks.iter_mut().filter_map(|task| task.link.as_mut()).filter(|link| !link.said) {
            link.said = matches!(link.stream.write(&[READY]), Ok(1));
        }
    }

    /// Returns the tasks of which no process has come; if there are none, those that are not ready.
    fn missing(&self) -> Vec<usize> {
        let absent: Vec<usize> = self.others().filter(|&task| !self.tasks[task].has_come).collect();
        let is_ready = |task: &usize| self.tasks[*task].link.as_ref().is_some_and(|link| link.heard);
        if absent.is_empty() { self.others().filter(|task| !is_ready(task)).collect() } else { absent }
    }

    /// Makes the error at the deadline.
    pub(super) fn late(&self, waited: Duration) -> NotMet {
        let missing = self.missing();
        let own = &self.host.addresses[self.own()];
        let seen = missing.iter().map(|&task| {
            let Task { link, seen, .. } = &self.tasks[task];
            let seen = match (link, seen) {
                (Some(link), _) => {
                    format!("process {} on {} waits for others", link.greeting.pid, link.greeting.host)
                }
                (None, Some(seen)) => seen.clone(),
                (None, None) => format!("it has not connected to this process at {own}"),
            };
            format!("{}: {seen}", self.host.names[task])
        });
        let problem = format!("waited {} s; missing: {}", waited.as_secs(), seen.collect::<Vec<_>>().join("; "));
        NotMet { problem, missing }
    }

    pub(super) fn met(self) -> Met {
        let own = self.own();
        let mut greetings = Vec::with_capacity(self.tasks.len());
        let mut links = Vec::with_capacity(self.tasks.len());
        for (index, task) in self.tasks.into_iter().enumerate() {
            match task.link {
                Some(Link { stream, greeting, .. }) if index != own => {
                    greetings.push(greeting);
                    links.push(Some(stream));
                }
                _ => {
                    greetings.push(self.host.greeting.clone());
                    links.push(None);
                }
            }
        }
        Met { own, greetings, links }
    }
}

/// Connects to a task and exchanges greetings with it.
///
/// # Errors
/// What was seen, in words.
fn connect(address: &str, task: usize, own: &Greeting) -> Result<Event, String> {
    let all = address.to_socket_addrs().map_err(|error| format!("its address {address} is unknown: {error}"))?;
    let mut last = format!("its address {address} is unknown");
    for address in all {
        let stream = match dial(address) {
            Ok(stream) => stream,
            Err(seen) => {
                last = seen;
                continue;
            }
        };
        match greet(Visitor { stream, said: Vec::new() }, own) {
            Ok(Event::Link { greeting, .. }) if greeting.task != task => {
                last = format!("task {} of the job answers at {address}", greeting.task);
            }
            Ok(Event::Stranger) => last = format!("a process that is not of this job answers at {address}"),
            Ok(Event::Link { stream, greeting, .. }) => return Ok(Event::Link { stream, greeting, called: true }),
            Ok(event) => return Ok(event),
            Err(error) if matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset) => {
                last = format!("the process at {address} closed the connection: it does not expect this one now");
            }
            Err(error) => last = format!("{address} accepted and did not greet: {error}"),
        }
    }
    Err(last)
}

/// Exchanges greetings. Both sides say theirs first, so that both can tell what is wrong.
fn greet(Visitor { stream, said }: Visitor, own: &Greeting) -> io::Result<Event> {
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(ANSWER))?;
    own.write(&stream)?;
    let rest = Timed { stream: &stream, until: Instant::now() + ANSWER };
    let heard = Greeting::read(said.chain(rest), own.digest)?;
    Ok(match heard {
        Heard::Greeting(greeting) => Event::Link { stream, greeting, called: false },
        Heard::OtherBuild(task) => Event::OtherBuild(task),
        Heard::Nonsense => Event::Stranger,
    })
}

fn spawn(work: impl FnOnce() + Send + 'static) -> Result<(), NotMet> {
    connection::spawn(work).map_err(NotMet::because)
}
