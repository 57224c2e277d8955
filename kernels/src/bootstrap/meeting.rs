//! The sockets around [`Formation`]: a process listens, and the others of its job find it.

use super::{
    error::{Absent, MeetingError, system},
    formation::{Formation, Outcome},
    formed_group::{Formed, Gone, Member},
    options::{MeetingOptions, Notice, Waiting, holder, name, random},
    other_jobs::elsewhere,
    packet::{Group, Hello, MAX_BYTES, MAX_TASKS, Packet, ReadError, TaskSet},
    socket::{self, Link, Received},
};
use crate::shm::SharedFile;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};
use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    process,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

/// The time that a process that has just ended may still hold its socket name.
const HANDOVER: Duration = Duration::from_millis(200);

/// The interval between attempts to connect to missing tasks: the first, and the longest.
const RETRY: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(20)];

/// The time after which a waiting process first reports progress, and the interval after that.
const PROGRESS: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(10)];

/// Limit on the searches, in an attempt, for the task of a process of another build. Each asks for
/// the holder of every task's name, so that strangers could hold this process past its deadline.
const SEARCHES: usize = 16;

/// A process's membership of a job. The other processes find it until it is dropped.
#[derive(Debug)]
pub struct Meeting {
    pub(super) options: MeetingOptions,
    pub(super) listener: OwnedFd,
    /// A hint for processes of other jobs, if the system has a descriptor for it.
    _notice: Option<OwnedFd>,
    pub(super) links: Vec<Option<Arc<Link>>>,
    /// For each task, the process whose link was lost last.
    lost: Vec<Option<u32>>,
    /// Connections over which no hello has come, in the order of arrival.
    pub(super) strangers: Vec<Link>,
    pub(super) formation: Formation,
    /// The number of further searches for processes of another build in this attempt.
    pub(super) searches: usize,
    pub(super) buffer: Vec<u8>,
    /// The segment of the group that is being formed.
    segment: Option<OwnedFd>,
    /// The file that this process gives to all others.
    gift: Option<SharedFile>,
    /// For each task, the file that its process has given over its link.
    pub(super) given: Vec<Option<SharedFile>>,
    /// The process that opened the meeting. A fork has the sockets, too, but is not the member.
    owner: u32,
}

/// A polled descriptor.
#[derive(Clone, Copy)]
enum Source {
    Listener,
    Stranger(usize),
    Socket(usize),
    Life(usize),
}

impl Meeting {
    /// Listens at the socket name of a task. From now on other processes can connect, but receive
    /// nothing until [`Meeting::form`].
    ///
    /// # Errors
    /// [`MeetingError::Taken`] if another process has the name, [`MeetingError::OtherUser`] if that
    /// process is of another user; [`MeetingError::Options`]; [`MeetingError::System`].
    pub fn open(options: MeetingOptions) -> Result<Meeting, MeetingError> {
        options.check()?;
        let (task, tasks, replicas) = (options.task, options.names.len(), options.replicas);
        let begin = Instant::now();
        let listener = loop {
            match socket::listen(&name(&options, task)) {
                Ok(listener) => break listener,
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                    let holder = holder(&options, task)?;
                    if begin.elapsed() > HANDOVER {
                        let pid = holder.and_then(|peer| peer.pid);
                        return Err(MeetingError::Taken { name: options.names[task].clone(), pid });
                    }
                    thread::sleep(RETRY[0]);
                }
                Err(source) => return Err(system("listen for the other processes", source)),
            }
        };
        let nonce = u64::from_ne_bytes(random()?).max(1);
        let hello = Hello {
            nonce,
            attempt: 0,
            generation: 0,
            seen: 0,
            used: 0,
            accepted: [0; 16],
            task,
            tasks,
            replicas,
            alive: TaskSet::default(),
            linked: TaskSet::default(),
        };
        Ok(Meeting {
            listener,
            _notice: socket::show(&Notice::of(&options, task).name(socket::user())).ok(),
            links: vec![None; tasks],
            lost: vec![None; tasks],
            strangers: Vec::new(),
            formation: Formation::new(hello),
            searches: SEARCHES,
            buffer: vec![0; MAX_BYTES],
            segment: None,
            gift: None,
            given: (0..tasks).map(|_| None).collect(),
            owner: process::id(),
            options,
        })
    }

    /// Gives a file to all processes with which this one forms groups from now on: each has a
    /// descriptor of it in [`Formed::given`].
    pub fn give(&mut self, file: SharedFile) {
        self.gift = Some(file);
    }

    /// Forms a group with the other processes that call this method.
    ///
    /// The first group of a job has all tasks. A later group has all living members of the group
    /// before. It also has every other task whose process comes within `wait_for_replacements`, or
    /// before the last of these members.
    ///
    /// One of the members, the leader, calls `create`, which makes the segment of the group, with
    /// the members' process ids, 0 for one in another PID namespace. The leader may call it more
    /// than once if other processes end meanwhile. `progress` is called after two seconds and then
    /// every ten seconds, with the tasks for which this process waits.
    ///
    /// The members of this process's last group are told that it has left that group.
    ///
    /// # Errors
    /// At the deadline [`MeetingError::Missing`], [`MeetingError::Alive`] or
    /// [`MeetingError::Without`]; before it [`MeetingError::OtherBuild`],
    /// [`MeetingError::OtherUser`], [`MeetingError::Failed`] if the leader's `create` failed,
    /// [`MeetingError::TooManyRanks`], [`MeetingError::Forked`], [`MeetingError::System`]. After
    /// any of these except [`MeetingError::Forked`] this method can be called again.
    pub fn form(
        &mut self,
        deadline: Instant,
        wait_for_replacements: Duration,
        mut create: impl FnMut(&Group, &[u32]) -> io::Result<OwnedFd>,
        mut progress: impl FnMut(&Waiting),
    ) -> Result<Formed, MeetingError> {
        if process::id() != self.owner {
            return Err(MeetingError::Forked { opened_by: self.owner });
        }
        self.searches = SEARCHES;
        // Earlier packets belong to earlier attempts.
        let result = self.listen(Duration::ZERO).and_then(|()| {
            self.formation.begin();
            self.gather(deadline, wait_for_replacements, &mut create, &mut progress)
        });
        self.segment = None;
        if let Err(error) = &result {
            // Send the reason only if no process can form a group. Peers see a missing task.
            let why = match error {
                MeetingError::System { .. } | MeetingError::TooManyRanks { .. } => error.to_string(),
                _ => String::new(),
            };
            self.formation.leave(&why);
            self.say();
        }
        result
    }

    /// Tells the members of the last group that this process has left it. The process can form the
    /// next group with them.
    pub fn leave(&mut self) {
        // A fork must not send packets for the process.
        if process::id() == self.owner {
            self.formation.leave("");
            self.say();
        }
    }

    fn gather(
        &mut self,
        deadline: Instant,
        wait_for_replacements: Duration,
        create: &mut dyn FnMut(&Group, &[u32]) -> io::Result<OwnedFd>,
        progress: &mut dyn FnMut(&Waiting),
    ) -> Result<Formed, MeetingError> {
        let begin = Instant::now();
        let (mut next_try, mut pause) = (begin, RETRY[0]);
        let mut next_progress = begin + PROGRESS[0];
        let mut timeout = Duration::ZERO;
        loop {
            let now = Instant::now();
            if now >= next_try {
                self.connect()?;
                next_try = now + pause;
                pause = RETRY[1].min(2 * pause);
            }
            let mut is_behind = self.say();
            self.listen(timeout)?;
            let is_patient = begin.elapsed() < wait_for_replacements;
            if let Some(group) = self.formation.plan(is_patient, random()?) {
                if group.ranks() > MAX_TASKS {
                    return Err(MeetingError::TooManyRanks { found: group.ranks(), most: MAX_TASKS });
                }
                // This process has no link to itself.
                let pid = |task: usize| self.links[task].as_ref().map_or(Some(self.owner), |link| link.pid);
                let processes: Vec<u32> = group.members.iter().map(|of| pid(of.task).unwrap_or(0)).collect();
                let made = create(&group, &processes);
                self.segment = Some(made.map_err(|source| system("make what the group shares", source))?);
                self.formation.propose(group);
            }
            is_behind |= self.say();
            match self.formation.outcome() {
                Some(Outcome::Formed(group)) => return self.formed(group.clone()),
                Some(Outcome::Failed(task, why)) => {
                    return Err(MeetingError::Failed { name: self.options.names[*task].clone(), why: why.clone() });
                }
                None => {}
            }
            let now = Instant::now();
            if now >= deadline {
                return Err(self.diagnose(now - begin, self.formation.awaited(is_patient)));
            }
            if now >= next_progress {
                let (awaited, waited) = (self.formation.awaited(is_patient), now - begin);
                // Processes that start at about the same time need no such hint.
                let elsewhere = if waited < PROGRESS[1] { Vec::new() } else { elsewhere(&self.options, awaited) };
                progress(&Waiting { waited, missing: awaited.iter().collect(), elsewhere });
                next_progress = now + PROGRESS[1];
            }
            let is_looking = is_behind || self.links[..self.options.task].iter().any(Option::is_none);
            let patience_ends = begin.checked_add(wait_for_replacements).filter(|_| is_patient);
            let next = [Some(deadline), Some(next_progress), patience_ends, is_looking.then_some(next_try)];
            let next = next.into_iter().flatten().min().unwrap_or(deadline);
            timeout = next.saturating_duration_since(now);
        }
    }

    /// Connects to the tasks below this one that have no link.
    fn connect(&mut self) -> Result<(), MeetingError> {
        for task in 0..self.options.task {
            if self.links[task].is_some() {
                continue;
            }
            let connected = socket::connect(&name(&self.options, task));
            let Some(socket) = connected.map_err(|error| self.cannot("connect to", task, error))? else { continue };
            let peer = socket::peer(&socket).map_err(|error| self.cannot("ask for the user of", task, error))?;
            if peer.uid != socket::user() {
                let name = self.options.names[task].clone();
                return Err(MeetingError::OtherUser { name, pid: peer.pid, uid: peer.uid });
            }
            // An error means that the process has ended.
            let Ok(link) = Link::new(socket, peer) else { continue };
            self.links[task] = Some(Arc::new(link));
            self.formation.linked_to(task);
        }
        Ok(())
    }

    /// Sends all due packets. Returns true if some could not be sent and must be tried again.
    fn say(&mut self) -> bool {
        let mut is_behind = false;
        for (task, packet) in self.formation.packets() {
            let Some(link) = &self.links[task] else { continue };
            let file = match &packet {
                Packet::Hello(_) => self.gift.as_ref().map(AsFd::as_fd),
                Packet::Propose(_) => self.segment.as_ref().map(AsFd::as_fd),
                Packet::Commit(_) | Packet::Leave(..) => None,
            };
            match socket::send(&link.socket, &self.bytes(&packet), file) {
                Ok(true) if matches!(packet, Packet::Hello(_)) => self.formation.told(task),
                Ok(true) => {}
                Ok(false) => {
                    is_behind = true;
                    self.formation.postpone(task, packet);
                }
                // The other end is closed. `read` finds this, too, after the earlier packets.
                Err(_) => {}
            }
        }
        is_behind
    }

    /// Waits until a descriptor is ready, and handles all that are.
    fn listen(&mut self, timeout: Duration) -> Result<(), MeetingError> {
        let mut sources = vec![Source::Listener];
        let mut polled = vec![PollFd::new(&self.listener, PollFlags::IN)];
        for (index, stranger) in self.strangers.iter().enumerate() {
            sources.push(Source::Stranger(index));
            polled.push(PollFd::new(&stranger.socket, PollFlags::IN));
        }
        for (task, link) in self.links.iter().enumerate() {
            let Some(link) = link else { continue };
            for (descriptor, source) in link.descriptors().zip([Source::Socket(task), Source::Life(task)]) {
                sources.push(source);
                polled.push(PollFd::from_borrowed_fd(descriptor, PollFlags::IN));
            }
        }
        // A timeout that is too long for the system counts as none.
        match poll(&mut polled, Timespec::try_from(timeout).ok().as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(system("wait for the other processes", error.into())),
        }
        let ready: Vec<Source> =
            (sources.into_iter().zip(&polled)).filter(|(_, fd)| !fd.revents().is_empty()).map(|(s, _)| s).collect();
        drop(polled);
        let mut heard = Vec::new();
        for source in ready {
            match source {
                Source::Listener => self.accept()?,
                Source::Stranger(index) => heard.push(index),
                Source::Socket(task) => self.read(task)?,
                Source::Life(task) => {
                    self.read(task)?;
                    self.lose(task);
                }
            }
        }
        // Remove the last first, so that the indices of the others stay valid. Then greet them in
        // the order of arrival.
        let strangers: Vec<Link> = heard.into_iter().rev().map(|index| self.strangers.remove(index)).collect();
        strangers.into_iter().rev().try_for_each(|stranger| self.greet(stranger))
    }

    /// Reads all packets on the link to a task. A packet that is not a valid packet ends the link.
    pub(super) fn read(&mut self, task: usize) -> Result<(), MeetingError> {
        while let Some(link) = self.links[task].clone() {
            let (count, mut descriptors) = match socket::receive(&link.socket, &mut self.buffer) {
                Received::Bytes(count, descriptors) => (count, descriptors),
                Received::Nothing => break,
                // This process is at fault; the link still works.
                Received::NoDescriptor => return Err(no_descriptor()),
                Received::TooLarge | Received::Closed => {
                    self.lose(task);
                    break;
                }
            };
            let packet = match self.packet(count) {
                Ok(Packet::Hello(hello)) if !self.options.has_size_of(&hello) => {
                    self.lose(task);
                    return self.refuse(&link, self.options.other_size(link.pid, &hello));
                }
                Ok(Packet::Hello(hello)) if hello.task != task => Err(ReadError::Garbage),
                Ok(packet) if !has_descriptors_of(&packet, descriptors.len()) => Err(ReadError::Garbage),
                packet => packet,
            };
            match packet {
                Ok(packet @ Packet::Hello(_)) => {
                    self.given[task] = descriptors.pop().map(SharedFile::from);
                    self.formation.take(task, packet);
                }
                Ok(packet) => {
                    if self.formation.take(task, packet)
                        && let Some(segment) = descriptors.pop()
                    {
                        self.segment = Some(segment);
                    }
                }
                Err(ReadError::Garbage) => self.lose(task),
                Err(ReadError::OtherBuild) => {
                    self.lose(task);
                    let name = self.options.names[task].clone();
                    return self.refuse(&link, MeetingError::OtherBuild { name, pid: link.pid });
                }
            }
        }
        Ok(())
    }

    fn lose(&mut self, task: usize) {
        if let Some(link) = self.links[task].take() {
            self.lost[task] = link.pid;
            self.given[task] = None;
            self.formation.lost(task);
        }
    }

    pub(super) fn bytes(&self, packet: &Packet) -> Vec<u8> {
        packet.write(self.options.digest, self.options.layout)
    }

    /// Decodes the packet in the first `count` bytes of the buffer.
    pub(super) fn packet(&self, count: usize) -> Result<Packet, ReadError> {
        Packet::read(&self.buffer[..count], self.options.digest, self.options.layout)
    }

    /// Returns the group that this process has joined, with its links to the members.
    fn formed(&mut self, group: Group) -> Result<Formed, MeetingError> {
        // All packets that members sent before they joined have arrived by now, and are of no use.
        // A later packet means that its sender has left: see `Formation::is_due`.
        for member in &group.members {
            self.read(member.task)?;
        }
        let given = group.members.iter().map(|member| self.given[member.task].take()).collect();
        let (mut members, mut links, mut me) = (Vec::new(), Vec::new(), 0);
        for (index, member) in group.members.iter().enumerate() {
            let link = self.links[member.task].as_ref();
            let link = link.filter(|_| self.formation.is_linked_to(member.task, member.nonce));
            let pid = link.map_or(self.lost[member.task], |link| link.pid);
            if member.task == self.options.task {
                me = index;
                members.push(Member { task: member.task, pid: Some(self.owner), replicas: member.replicas });
                continue;
            }
            members.push(Member { task: member.task, pid, replicas: member.replicas });
            links.push(match link {
                _ if self.formation.has_left(member) => (index, Err(Gone::Left)),
                None => (index, Err(Gone::Ended)),
                Some(link) => (index, Ok(Arc::clone(link))),
            });
        }
        let segment = self.segment.take().expect("a group that is formed has its segment");
        Ok(Formed { generation: group.generation, id: group.id, me, members, segment, given, links })
    }

    /// Returns the error at the deadline, which says which of the awaited tasks have a process.
    fn diagnose(&self, waited: Duration, awaited: TaskSet) -> MeetingError {
        let absent = awaited.iter().map(|task| {
            let name = self.options.names[task].clone();
            match &self.links[task] {
                Some(link) => Absent::new(task, name, link.pid, true),
                None => {
                    let holder = holder(&self.options, task).ok().flatten();
                    Absent::new(task, name, holder.and_then(|peer| peer.pid), holder.is_some())
                }
            }
        });
        let is_new = self.formation.own().generation == 0;
        MeetingError::at_deadline(waited, absent.collect(), is_new, || elsewhere(&self.options, awaited))
    }

    fn cannot(&self, what: &str, task: usize, source: io::Error) -> MeetingError {
        system(&format!("{what} {}", self.options.names[task]), source)
    }
}

/// Whether a packet may have so many descriptors: a hello has one if its sender gives a file, a
/// proposal has the segment.
fn has_descriptors_of(packet: &Packet, count: usize) -> bool {
    match packet {
        Packet::Hello(_) => count <= 1,
        Packet::Propose(_) => count == 1,
        Packet::Commit(_) | Packet::Leave(..) => count == 0,
    }
}

pub(super) fn no_descriptor() -> MeetingError {
    system("receive what the group shares", Errno::MFILE.into())
}

impl Drop for Meeting {
    fn drop(&mut self) {
        self.leave();
    }
}
