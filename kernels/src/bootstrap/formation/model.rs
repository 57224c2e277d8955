//! A simulation of whole jobs, with every packet in a queue: processes start, die and give up
//! between any two packets.

use super::*;
use std::collections::VecDeque;

/// A pseudorandom stream of choices.
struct Choices(u64);

impl Choices {
    fn below(&mut self, count: usize) -> usize {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) as usize % count
    }

    /// Returns true with probability `1 / count`.
    fn once_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }
}

/// A connection, from the process that connects (end 0) to the one that accepts (end 1).
struct Connection {
    tasks: [usize; 2],
    /// The packets in transit to each end. `None`: the other end is closed.
    queues: [VecDeque<Option<Packet>>; 2],
    is_open: [bool; 2],
    is_accepted: bool,
}

struct Process {
    formation: Formation,
    links: Vec<Option<usize>>,
    /// The group that the process is in; `None` after it begins again.
    group: Option<Group>,
    generation_before: u64,
    is_patient: bool,
}

struct Job {
    processes: Vec<Option<Process>>,
    connections: Vec<Connection>,
    choices: Choices,
    is_wild: bool,
    /// The current process sends nothing more, and dies at the end of the step.
    is_dying: bool,
    nonces: u64,
    /// The number of groups that have been formed.
    formed: usize,
}

impl Job {
    fn new(tasks: usize, seed: u64) -> Job {
        let processes = (0..tasks).map(|_| None).collect();
        Job {
            processes,
            connections: Vec::new(),
            choices: Choices(seed),
            is_wild: true,
            is_dying: false,
            nonces: 0,
            formed: 0,
        }
    }

    fn tasks(&self) -> usize {
        self.processes.len()
    }

    fn start(&mut self, task: usize) {
        self.nonces += 1;
        let hello = Hello {
            nonce: self.nonces,
            attempt: 0,
            generation: 0,
            seen: 0,
            used: 0,
            accepted: [0; 16],
            task,
            tasks: self.tasks(),
            replicas: 1,
            alive: TaskSet::default(),
            linked: TaskSet::default(),
        };
        let links = vec![None; self.tasks()];
        let formation = Formation::new(hello);
        self.processes[task] = Some(Process { formation, links, group: None, generation_before: 0, is_patient: true });
    }

    fn kill(&mut self, task: usize) {
        self.processes[task] = None;
        for connection in &mut self.connections {
            for end in 0..2 {
                if connection.tasks[end] == task && connection.is_open[end] {
                    connection.close(end);
                }
            }
        }
    }

    fn process(&mut self, task: usize) -> &mut Process {
        self.processes[task].as_mut().expect("a process that runs")
    }

    /// The process of a task begins to form a group, and connects to the tasks below its own.
    fn begin(&mut self, task: usize) {
        let process = self.process(task);
        process.group = None;
        process.is_patient = true;
        process.formation.begin();
        self.connect(task);
        self.flush(task);
    }

    fn connect(&mut self, task: usize) {
        for below in 0..task {
            if self.processes[below].is_some() && self.process(task).links[below].is_none() {
                let index = self.connections.len();
                self.connections.push(Connection {
                    tasks: [task, below],
                    queues: Default::default(),
                    is_open: [true, true],
                    is_accepted: false,
                });
                let process = self.process(task);
                process.links[below] = Some(index);
                process.formation.linked_to(below);
            }
        }
    }

    /// Sends a process's packets. In the wild phase the process may die before it has sent all of
    /// them.
    fn flush(&mut self, task: usize) {
        for (to, packet) in self.process(task).formation.packets() {
            if self.is_wild && self.choices.once_in(100) {
                self.is_dying = true;
            }
            if self.is_dying {
                return;
            }
            let is_hello = matches!(packet, Packet::Hello(_));
            let index = self.process(task).links[to].expect("a link to whom something is to be said");
            let connection = &mut self.connections[index];
            let end = usize::from(connection.tasks[1] == to);
            if connection.is_open[end] {
                connection.queues[end].push_back(Some(packet));
                // Sometimes the queue is full and does not take the hello. Then the hello stays
                // due.
                if is_hello && !self.choices.once_in(10) {
                    self.process(task).formation.told(to);
                } else if is_hello {
                    self.connections[index].queues[end].pop_back();
                }
            }
        }
    }

    /// Delivers the first packet of a queue.
    fn deliver(&mut self, index: usize, end: usize) {
        let connection = &mut self.connections[index];
        let Some(packet) = connection.queues[end].pop_front() else { return };
        let [to, from] = [connection.tasks[end], connection.tasks[1 - end]];
        if !connection.is_accepted && end == 1 {
            connection.is_accepted = true;
            if packet.is_none() {
                connection.is_open[end] = false;
                return;
            }
            if let Some(old) = self.process(to).links[from].replace(index) {
                let end = usize::from(self.connections[old].tasks[1] == to);
                self.connections[old].close(end);
            }
            self.process(to).formation.linked_to(from);
        }
        match packet {
            Some(packet) => drop(self.process(to).formation.take(from, packet)),
            None => {
                self.connections[index].is_open[end] = false;
                self.process(to).links[from] = None;
                self.process(to).formation.lost(from);
            }
        }
    }

    /// Continues a process after it has received something: it proposes, answers, or joins.
    fn go_on(&mut self, task: usize) {
        self.nonces += 1;
        let id = u128::from(self.nonces).to_le_bytes();
        let process = self.process(task);
        if !process.formation.is_active && process.formation.outcome.is_none() {
            return;
        }
        if let Some(group) = process.formation.plan(process.is_patient, id) {
            process.formation.propose(group);
        }
        if process.group.is_none()
            && let Some(Outcome::Formed(group)) = process.formation.outcome().cloned()
        {
            assert!(group.generation > process.generation_before, "generations grow");
            process.generation_before = group.generation;
            process.formation.outcome = None;
            process.group = Some(group.clone());
            self.flush(task);
            // Members sent these packets before they joined.
            for member in group.members.iter().filter(|member| member.task != task) {
                if let Some(index) = self.process(task).links[member.task] {
                    let end = usize::from(self.connections[index].tasks[1] == task);
                    while !self.connections[index].queues[end].is_empty() {
                        self.deliver(index, end);
                    }
                }
                if self.process(task).formation.has_left(member) {
                    assert!(
                        !self.is_in(member, &group),
                        "task {task} says that {member:?} has left {group:?}: {:?}",
                        self.process(task).formation.peers[member.task]
                    );
                }
            }
            for other in self.processes.iter().flatten().filter_map(|process| process.group.as_ref()) {
                assert!(other.generation != group.generation || *other == group, "two groups of one generation");
            }
            self.formed += usize::from(group.members[0].task == task);
            self.check();
        } else {
            self.flush(task);
        }
    }

    /// Returns whether a member is in a group, or may still join it.
    fn is_in(&self, member: &GroupMember, group: &Group) -> bool {
        self.processes[member.task].as_ref().is_some_and(|process| {
            let accepts = process.formation.proposal.as_ref().is_some_and(|proposal| proposal.group == *group);
            process.formation.own.nonce == member.nonce && (process.group.as_ref() == Some(group) || accepts)
        })
    }

    fn check(&self) {
        // The groups in which no member is missing.
        let groups = self.processes.iter().flatten().filter_map(|process| process.group.as_ref());
        let mut whole: Vec<&Group> =
            groups.filter(|group| group.members.iter().all(|member| self.is_in(member, group))).collect();
        whole.dedup();
        assert!(whole.len() <= 1, "two groups at once: {whole:?}");
        // A packet from a member of the process's group means that the member has left.
        for (task, process) in self.processes.iter().enumerate() {
            let Some((process, group)) = process.as_ref().and_then(|process| Some((process, process.group.as_ref()?)))
            else {
                continue;
            };
            for member in group.members.iter().filter(|member| member.task != task) {
                let Some(index) = process.links[member.task] else { continue };
                let connection = &self.connections[index];
                let queue = &connection.queues[usize::from(connection.tasks[1] == task)];
                let is_same = process.formation.is_linked_to(member.task, member.nonce);
                assert!(
                    !is_same || queue.is_empty() || !self.is_in(member, group),
                    "task {task} hears from {} in a group: {queue:?}",
                    member.task
                );
            }
        }
    }

    /// Performs one random event.
    fn step(&mut self) {
        let task = self.choices.below(self.tasks());
        let waits = |process: &Process| process.formation.is_active;
        match &self.processes[task] {
            None if self.is_wild && self.choices.once_in(8) => self.start(task),
            None => {}
            Some(_) if self.is_wild && self.choices.once_in(60) => self.kill(task),
            Some(process) if waits(process) && self.is_wild && self.choices.once_in(60) => {
                self.process(task).formation.leave("");
                self.flush(task);
            }
            Some(process) if waits(process) && self.is_wild && self.choices.once_in(10) => {
                self.process(task).is_patient = false;
                self.go_on(task);
            }
            // In a complete group no process has a reason to begin again.
            Some(process) if !waits(process) && self.choices.once_in(4) => {
                let is_whole = process
                    .group
                    .as_ref()
                    .is_some_and(|group| group.members.iter().all(|member| self.is_in(member, group)));
                if self.is_wild || !is_whole {
                    self.begin(task);
                }
            }
            Some(process) if waits(process) => {
                self.connect(task);
                self.flush(task);
                let ready: Vec<(usize, usize)> = (0..self.connections.len())
                    .flat_map(|index| [(index, 0), (index, 1)])
                    .filter(|&(index, end)| {
                        let connection = &self.connections[index];
                        // A listener accepts connections in the order of their arrival.
                        let is_first = (self.connections[..index].iter())
                            .all(|other| other.tasks != connection.tasks || other.is_accepted || !other.is_open[1]);
                        connection.tasks[end] == task
                            && connection.is_open[end]
                            && !connection.queues[end].is_empty()
                            && (is_first || connection.is_accepted)
                    })
                    .collect();
                if !ready.is_empty() {
                    let (index, end) = ready[self.choices.below(ready.len())];
                    self.deliver(index, end);
                }
                self.go_on(task);
            }
            Some(_) => {}
        }
        if std::mem::take(&mut self.is_dying) {
            self.kill(task);
        }
        self.check();
    }
}

impl Connection {
    fn close(&mut self, end: usize) {
        self.is_open[end] = false;
        self.queues[end].clear();
        self.queues[1 - end].push_back(None);
    }
}

/// Plays a job, then lets it come to rest. Returns the number of groups that it formed.
fn play(seed: u64) -> usize {
    let mut job = Job::new(1 + seed as usize % 5, seed << 32);
    for task in 0..job.tasks() {
        job.start(task);
    }
    for _ in 0..400 {
        job.step();
    }
    job.is_wild = false;
    for task in 0..job.tasks() {
        if job.processes[task].is_none() {
            job.start(task);
        }
    }
    let all = |job: &Job| {
        let groups = job.processes.iter().flatten().filter_map(|process| process.group.as_ref());
        groups.filter(|group| group.members.iter().all(|member| job.is_in(member, group))).count() == job.tasks()
    };
    let mut steps = 0;
    while !all(&job) {
        // A group without the late processes would go on. Here its members form a new group, which
        // lets them in.
        if steps % 2000 == 1999 {
            for task in 0..job.tasks() {
                if !job.process(task).formation.is_active {
                    job.begin(task);
                }
            }
        }
        job.step();
        steps += 1;
        assert!(steps < 100_000, "seed {seed}: the job does not come to rest");
    }
    job.formed
}

#[test]
fn a_job_has_one_group_and_comes_to_rest() {
    let formed: usize = (0..1000)
        .map(|seed| {
            std::panic::catch_unwind(|| play(seed)).unwrap_or_else(|_| panic!("the job of seed {seed} went wrong"))
        })
        .sum();
    // With few groups the jobs would be too wild to test anything.
    assert!(formed > 2000, "{formed} groups in 1000 jobs");
}

/// A member receives the last packets of the leader at once: the commit, perhaps `Leave`, and the
/// end.
#[test]
fn a_leader_leaving_and_ending_before_the_commit_is_seen_has_left() {
    for leaves in [true, false] {
        let mut job = Job::new(2, 0);
        job.is_wild = false;
        (0..2).for_each(|task| job.start(task));
        while job.process(0).group.is_none() {
            job.step();
        }
        if leaves {
            job.process(0).formation.leave("");
            job.flush(0);
        }
        job.kill(0);
        let index = job.process(1).links[0].expect("a link");
        while !job.connections[index].queues[0].is_empty() {
            job.deliver(index, 0);
        }
        let formation = &job.process(1).formation;
        let Some(Outcome::Formed(group)) = formation.outcome() else { panic!("no group") };
        assert_eq!(formation.has_left(&group.members[0]), leaves);
    }
}
