//! The protocol as a state machine: received packets go in, packets to send come out. It has no
//! socket and no clock, so that a test can play a whole job in which processes die between any two
//! packets.
//!
//! The documentation of the [module above](super) has the states and the events that change them.

use super::packet::{Group, GroupMember, Hello, Packet, TaskSet};
use std::cmp::Reverse;

/// One process's part in the protocol, from the start of the process to its end.
#[derive(Debug)]
pub struct Formation {
    /// The hello that this process sends now.
    own: Hello,
    /// The number of changes of `own`, from 1.
    revision: u64,
    /// The first revision of this attempt. Every linked process is sent a hello of it or of a later
    /// one.
    attempt_revision: u64,
    /// The other processes, by task. The entry of this process is not used.
    peers: Vec<Peer>,
    /// The proposal that this process has made or accepted, while it is neither committed nor
    /// abandoned.
    proposal: Option<Proposal>,
    /// Messages to send, except hellos.
    outbox: Vec<(usize, Packet)>,
    /// The end of the attempt. `None` during an attempt, and before the first.
    outcome: Option<Outcome>,
    is_active: bool,
}

/// The end of an attempt before its deadline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// This group is formed.
    Formed(Group),
    /// The process of this task could not form the group, for this reason.
    Failed(usize, String),
}

#[derive(Clone, Debug, Default)]
struct Peer {
    is_linked: bool,
    /// Its last hello. `None` if it has sent none, or has left.
    hello: Option<Hello>,
    /// The random number of its process, once it has said hello.
    nonce: u64,
    /// The last of its attempts that a proposal used up. Hellos of this attempt no longer count.
    consumed: u64,
    /// The last revision of `own` that was sent to it.
    told: u64,
    /// The last of its attempts that it has left.
    left: u64,
}

#[derive(Debug)]
struct Proposal {
    group: Group,
    proposer: usize,
    /// The members that have accepted it. Only its proposer counts them.
    accepted: TaskSet,
    /// The revision of `own` that accepts it.
    revision: u64,
}

impl Formation {
    /// Creates the state of a process whose first hello is this one. Its attempt, `seen`, and the
    /// sets of known tasks are still empty.
    pub fn new(hello: Hello) -> Formation {
        let peers = vec![Peer::default(); hello.tasks];
        Formation {
            own: hello,
            revision: 0,
            attempt_revision: 0,
            peers,
            proposal: None,
            outbox: Vec::new(),
            outcome: None,
            is_active: false,
        }
    }

    /// Begins an attempt to form a group.
    pub fn begin(&mut self) {
        self.outcome = None;
        self.is_active = true;
        self.new_attempt();
    }

    /// Ends the attempt, and tells every linked process why.
    pub fn leave(&mut self, why: &str) {
        self.is_active = false;
        self.proposal = None;
        for task in self.linked().iter() {
            self.outbox.push((task, Packet::Leave(self.own.attempt, why.to_owned())));
        }
    }

    /// Notes a new link to a task. An earlier link to the task is gone.
    pub fn linked_to(&mut self, task: usize) {
        self.lost(task);
        self.peers[task] = Peer { is_linked: true, ..Peer::default() };
    }

    /// Notes that the link to a task is gone: its process has ended, or has sent garbage.
    pub fn lost(&mut self, task: usize) {
        // A process may leave a group and end before this process sees that group.
        let Peer { nonce, consumed, left, .. } = self.peers[task];
        self.peers[task] = Peer { nonce, consumed, left, ..Peer::default() };
        self.own.alive.remove(task);
        self.own.linked.remove(task);
        self.revision += 1;
        if self.concerns(task) {
            self.abandon();
        }
    }

    /// Processes a packet from a task. Returns whether the packet is of use. If a proposal is
    /// not, the caller drops its segment.
    pub fn take(&mut self, task: usize, packet: Packet) -> bool {
        match packet {
            Packet::Hello(hello) => self.take_hello(task, hello),
            Packet::Propose(group) => return self.take_proposal(task, group),
            Packet::Commit(id) => {
                let is_it = |proposal: &mut Proposal| proposal.proposer == task && proposal.group.id == id;
                if let Some(proposal) = self.proposal.take_if(is_it) {
                    self.finish(Outcome::Formed(proposal.group));
                }
            }
            Packet::Leave(attempt, why) => {
                self.peers[task].hello = None;
                self.peers[task].left = attempt;
                if !why.is_empty() && self.is_active {
                    self.finish(Outcome::Failed(task, why));
                } else if self.concerns(task) {
                    self.abandon();
                }
            }
        }
        true
    }

    fn take_hello(&mut self, task: usize, hello: Hello) {
        let own = &mut self.own;
        if !own.linked.contains(task) {
            own.linked.insert(task);
            self.revision += 1;
        }
        own.seen = own.seen.max(hello.seen);
        let used = hello.used;
        let peer = &mut self.peers[task];
        peer.nonce = hello.nonce;
        peer.hello = Some(hello);
        let Some(proposal) = &mut self.proposal else {
            // A proposal that did not arrive here has used up this attempt.
            if self.is_active && used >= self.own.attempt {
                self.new_attempt();
            }
            return;
        };
        let (Some(hello), Some(member)) = (&peer.hello, proposal.group.member(task)) else { return };
        if hello.attempt != member.attempt {
            if self.concerns(task) {
                self.abandon();
            }
        } else if proposal.proposer == own.task && hello.accepted == proposal.group.id {
            proposal.accepted.insert(task);
            self.commit_if_all_accepted();
        }
    }

    /// Accepts a proposal if it is for this attempt and there is no other. Returns whether it did.
    fn take_proposal(&mut self, task: usize, group: Group) -> bool {
        let own = &self.own;
        let is_for_us = self.is_active
            && group.generation > own.generation
            && group.member(task).is_some_and(|member| member.nonce == self.peers[task].nonce)
            && group.member(own.task).is_some_and(|me| me.nonce == own.nonce && me.attempt == own.attempt)
            && group.members.iter().all(|member| member.task < own.tasks);
        if !is_for_us {
            return false;
        }
        if let Some(proposal) = &self.proposal {
            // Two proposers wait for each other. This process gives way if the other one is the
            // leader.
            if proposal.proposer == own.task && task == self.leader() {
                self.abandon();
            }
            return false;
        }
        if !group.members.iter().all(|member| member.task == own.task || self.is_linked_to(member.task, member.nonce)) {
            // The proposer knows an older process of a task, or one that has ended. A new attempt
            // tells the proposer so.
            self.abandon();
            return false;
        }
        self.consume(&group);
        let accepted = TaskSet::default();
        self.proposal = Some(Proposal { group, proposer: task, accepted, revision: self.revision });
        true
    }

    /// Returns the group that this process must propose now. `None` unless it is the leader and all
    /// required tasks are present. `is_patient`: waits for the optional tasks, too.
    pub fn plan(&self, is_patient: bool, id: [u8; 16]) -> Option<Group> {
        if !self.is_active || self.proposal.is_some() || self.leader() != self.own.task {
            return None;
        }
        let present = self.present();
        let mut tasks = self.needed();
        if !tasks.without(present).is_empty() {
            return None;
        }
        let survivors = present.iter().filter(|&task| self.hello(task).is_some_and(|hello| hello.generation > 0));
        survivors.for_each(|task| tasks.insert(task));
        tasks.insert(self.own.task);
        if !tasks.iter().all(|task| self.meets(task, tasks)) {
            return None;
        }
        for task in present.without(tasks).iter() {
            if self.meets(task, tasks) {
                tasks.insert(task);
            }
        }
        if is_patient && tasks.count() < self.own.tasks {
            return None;
        }
        let member = |task| {
            let hello = self.hello(task).expect("a task of the group has said hello");
            GroupMember { task, replicas: hello.replicas, nonce: hello.nonce, attempt: hello.attempt }
        };
        Some(Group { generation: self.own.seen + 1, id, members: tasks.iter().map(member).collect() })
    }

    /// Proposes a group that [`Formation::plan`] made.
    pub fn propose(&mut self, group: Group) {
        self.consume(&group);
        let me = self.own.task;
        for member in group.members.iter().filter(|member| member.task != me) {
            self.outbox.push((member.task, Packet::Propose(group.clone())));
        }
        let accepted = [me].into_iter().collect();
        self.proposal = Some(Proposal { group, proposer: me, accepted, revision: self.revision });
        self.commit_if_all_accepted();
    }

    /// Returns the packets to send now. The caller reports each hello that is sent to
    /// [`Formation::told`].
    pub fn packets(&mut self) -> Vec<(usize, Packet)> {
        let mut packets = std::mem::take(&mut self.outbox);
        if self.is_active {
            let due = self.linked().iter().filter(|&task| self.is_due(task));
            let hello = |task: usize| Hello { used: self.peers[task].consumed, ..self.own.clone() };
            packets.extend(due.map(|task| (task, Packet::Hello(hello(task)))));
        }
        packets
    }

    /// Notes that the current hello was sent to a task.
    pub fn told(&mut self, task: usize) {
        self.peers[task].told = self.revision;
    }

    /// Queues a packet again that could not be sent to a task now. A hello need not be queued: it
    /// stays due until it is told.
    pub fn postpone(&mut self, task: usize, packet: Packet) {
        if !matches!(packet, Packet::Hello(_)) {
            self.outbox.push((task, packet));
        }
    }

    /// Returns the hello that this process sends now.
    pub fn own(&self) -> &Hello {
        &self.own
    }

    /// Returns how the attempt ended.
    pub fn outcome(&self) -> Option<&Outcome> {
        self.outcome.as_ref()
    }

    /// Returns the tasks for which this process waits. A task that came and gave up is included
    /// only if there is no other.
    pub fn awaited(&self, is_patient: bool) -> TaskSet {
        if let Some(proposal) = &self.proposal {
            if proposal.proposer != self.own.task {
                return [proposal.proposer].into_iter().collect();
            }
            let members: TaskSet = proposal.group.members.iter().map(|member| member.task).collect();
            return members.without(proposal.accepted);
        }
        let mut wanted = self.needed();
        if is_patient {
            wanted = wanted.or(TaskSet::first(self.own.tasks));
        }
        wanted.remove(self.own.task);
        let absent = wanted.without(self.present());
        let gave_up = |peer: &Peer| peer.is_linked && peer.left > peer.consumed;
        let gave_up = absent.iter().filter(|&task| gave_up(&self.peers[task])).collect();
        match self.leader() {
            _ if !absent.without(gave_up).is_empty() => absent.without(gave_up),
            _ if !absent.is_empty() => absent,
            leader if leader != self.own.task => [leader].into_iter().collect(),
            _ => wanted.iter().filter(|&task| !self.meets(task, wanted)).collect(),
        }
    }

    /// Returns whether another member has left the group that was just formed. Its process may have
    /// ended since.
    pub fn has_left(&self, member: &GroupMember) -> bool {
        let peer = &self.peers[member.task];
        peer.nonce == member.nonce && (peer.left >= peer.consumed || self.is_present(member.task))
    }

    /// Returns whether there is a link to this task's process with this random number.
    pub fn is_linked_to(&self, task: usize, nonce: u64) -> bool {
        self.peers[task].is_linked && self.peers[task].nonce == nonce
    }

    fn linked(&self) -> TaskSet {
        (0..self.peers.len()).filter(|&task| self.peers[task].is_linked).collect()
    }

    /// Returns whether the last hello of a task still counts.
    fn is_present(&self, task: usize) -> bool {
        let peer = &self.peers[task];
        peer.hello.as_ref().is_some_and(|hello| hello.attempt > peer.consumed)
    }

    fn present(&self) -> TaskSet {
        (0..self.peers.len()).filter(|&task| self.is_present(task)).collect()
    }

    /// Returns the last hello of a task, if it still counts.
    fn hello(&self, task: usize) -> Option<&Hello> {
        match task == self.own.task {
            true => Some(&self.own),
            false => self.peers[task].hello.as_ref().filter(|_| self.is_present(task)),
        }
    }

    /// Returns the leader: the lowest task of the highest generation among those that are present.
    fn leader(&self) -> usize {
        let mut tasks = self.present();
        tasks.insert(self.own.task);
        let rank = |&task: &usize| (self.hello(task).map_or(0, |hello| hello.generation), Reverse(task));
        tasks.iter().max_by_key(rank).unwrap_or(self.own.task)
    }

    /// Returns the other tasks that every group needs: the tasks that any present process knows to
    /// be alive, and all tasks as long as there was no group.
    fn needed(&self) -> TaskSet {
        let mut needed = self.own.alive;
        let mut was_there_a_group = self.own.generation > 0;
        for hello in self.present().iter().filter_map(|task| self.hello(task)) {
            needed = needed.or(hello.alive);
            was_there_a_group |= hello.generation > 0;
        }
        if !was_there_a_group {
            needed = needed.or(TaskSet::first(self.own.tasks));
        }
        needed.remove(self.own.task);
        needed
    }

    /// Returns whether a task and every other task of a set have heard from each other.
    fn meets(&self, task: usize, set: TaskSet) -> bool {
        let has_heard = |a: usize, b: usize| self.hello(a).is_some_and(|hello| hello.linked.contains(b));
        set.iter().all(|other| other == task || has_heard(task, other) && has_heard(other, task))
    }

    /// Returns whether a hello to a task is due. Every task is told of an attempt; only the leader
    /// is told of changes within the attempt. A process that has accepted a proposal sends nothing
    /// more to its members, so that any later packet means that the process has left.
    fn is_due(&self, task: usize) -> bool {
        let told = self.peers[task].told;
        match &self.proposal {
            Some(proposal) if proposal.proposer == task => told < proposal.revision,
            Some(proposal) if proposal.group.member(task).is_some() => false,
            None if task == self.leader() => told < self.revision,
            _ => told < self.attempt_revision,
        }
    }

    /// Returns whether there is a proposal that fails without this task: the task is its proposer
    /// or, if this process is the proposer, any member.
    fn concerns(&self, task: usize) -> bool {
        self.proposal.as_ref().is_some_and(|proposal| {
            proposal.proposer == task || proposal.proposer == self.own.task && proposal.group.member(task).is_some()
        })
    }

    /// Uses up the attempts of a group's members. From now on this process knows the other members
    /// to be alive.
    fn consume(&mut self, group: &Group) {
        for member in group.members.iter().filter(|member| member.task != self.own.task) {
            self.peers[member.task].consumed = member.attempt;
            self.own.alive.insert(member.task);
        }
        self.own.seen = self.own.seen.max(group.generation);
        self.own.accepted = group.id;
        self.revision += 1;
    }

    fn commit_if_all_accepted(&mut self) {
        let is_accepted = |proposal: &mut Proposal| proposal.accepted.count() == proposal.group.members.len();
        let Some(proposal) = self.proposal.take_if(is_accepted) else { return };
        let others = proposal.group.members.iter().filter(|member| member.task != self.own.task);
        self.outbox.extend(others.map(|member| (member.task, Packet::Commit(proposal.group.id))));
        self.finish(Outcome::Formed(proposal.group));
    }

    fn finish(&mut self, outcome: Outcome) {
        if let Outcome::Formed(group) = &outcome {
            self.own.generation = group.generation;
            let is_alive = |&task: &usize| self.own.alive.contains(task) && group.member(task).is_some();
            self.own.alive = (0..self.own.tasks).filter(is_alive).collect();
        }
        self.outcome = Some(outcome);
        self.is_active = false;
        self.proposal = None;
    }

    /// Gives up the proposal. The new attempt tells every process so.
    fn abandon(&mut self) {
        self.outbox.retain(|(_, packet)| !matches!(packet, Packet::Propose(_)));
        self.new_attempt();
    }

    fn new_attempt(&mut self) {
        self.proposal = None;
        self.own.accepted = [0; 16];
        self.own.attempt += 1;
        self.revision += 1;
        self.attempt_revision = self.revision;
    }
}

#[cfg(test)]
mod model;
