//! Groups of processes: how they form, and form again after a loss. Processes of one host share
//! memory; those of several hosts have a network.

use super::{
    Majority,
    group_builder::ProcessGroupBuilder,
    links::Links,
    roster::{Job, Roster, Way},
};
use crate::{
    ClusterResolver, Communicator, Error, Result, UniqueId,
    comm::{options, report::Processes},
};
use consonance_kernels::{
    bootstrap::{Formed, Gone, Group, Meeting, MeetingError, MeetingOptions, Waiting, Watch},
    group::{Endpoint, Reason},
    os::{
        launcher::{Blame, Culprit, Joining, tell_blame},
        process_state::{ProcessState, process_state},
        thread_pool::cores_of,
    },
    shm::{GroupId, Segment, SegmentError, Shape},
};
use std::{
    fmt, io,
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

const CALL: &str = "ProcessGroup";

/// The number of the first generation.
pub(super) const FIRST: u64 = 1;

/// The group of the processes of a cluster. Each process has one or more ranks.
///
/// The group has a [`Communicator`] for each rank of this process. They work until a process is
/// gone. Then every call fails with an [`Error::Aborted`] that names it, and the remaining
/// processes call [`reform`](ProcessGroup::reform).
///
/// The processes of one host find each other by the addresses in the cluster, but listen on no
/// port. Clusters of the same user that run at the same time on this host must have different
/// addresses. The processes share anonymous memory: nothing remains in the file system, however
/// they end. This needs Linux.
///
/// If the address of a process is on another host, each process listens at its own address, and
/// connects to the others at theirs. Processes that know one address alone, by a
/// [launcher](ProcessGroup::from_env) or by an [id](UniqueId::across_hosts), listen at a free port,
/// and learn the addresses of the others there.
///
/// Their data travel over UCX (`libucp.so.0`), which is loaded then, or over the MPI of their
/// launcher, and between processes of one host through memory that they share.
/// [`guide::workers`](crate::guide::workers) has the variables that choose a
/// library and a network interface. Such a group has at most 256 processes. It trusts its network:
/// whoever can connect to an address can disturb it.
///
/// In this example two threads take the role of two processes:
///
/// ```
/// use consonance::{ClusterSpec, ProcessGroup, ReduceOp, Result, SimpleClusterResolver};
/// fn process(index: usize) -> Result<[f32; 2]> {
///     let cluster = ClusterSpec::new().job("worker", ["localhost:4711", "localhost:4712"])?;
///     let resolver = SimpleClusterResolver::new(cluster).with_task("worker", index)?;
///     let mut group = ProcessGroup::builder(resolver).join()?;
///     assert_eq!(group.members().last(), Some(("worker[1] (localhost:4712)", 1..2)));
///     let mut communicator = group.communicators().remove(0);
///     let mut data = [index as f32, 1.0];
///     communicator.all_reduce(ReduceOp::Sum, &mut data)?;
///     Ok(data)
/// }
/// let sums = std::thread::scope(|scope| {
///     let processes = [0, 1].map(|index| scope.spawn(move || process(index)));
///     processes.map(|process| process.join().unwrap())
/// });
/// for sum in sums {
///     assert_eq!(sum?, [1.0, 2.0]);
/// }
/// # Ok::<(), consonance::Error>(())
/// ```
pub struct ProcessGroup {
    pub(super) options: ProcessGroupBuilder,
    pub(super) place: Roster,
    pub(super) means: Means,
    pub(super) generation: Arc<Generation>,
    pub(super) communicators: Vec<Communicator>,
}

/// The means of processes to meet again.
pub(super) enum Means {
    /// On one host.
    Host(Arc<Mutex<Meeting>>),
    /// On several.
    Hosts(Box<Links>),
}

/// One generation of the group, from its formation to the loss of a member.
pub(super) struct Generation {
    pub(super) number: u64,
    pub(super) members: Vec<Member>,
    /// The position of this process among the members.
    pub(super) own: usize,
    /// The watch and the meeting of processes of one host end with the last communicator. After
    /// that this process is gone for the others.
    pub(super) _kept: Option<(Watch, Arc<Mutex<Meeting>>)>,
}

pub(super) struct Member {
    pub(super) task: String,
    /// Its id on this host.
    pub(super) process: Option<u32>,
    pub(super) ranks: Range<usize>,
}

impl ProcessGroup {
    /// Returns a builder that joins the processes of a cluster.
    pub fn builder(resolver: impl ClusterResolver + 'static) -> ProcessGroupBuilder {
        ProcessGroupBuilder::new(Arc::new(resolver))
    }

    /// Returns a builder that joins the `size` processes of this host that pass the same `id`, each
    /// with its own `rank` from 0. One process makes the id, and passes it to the others by any
    /// means. The processes of a group may be any processes of one user. A process may be in many
    /// groups at a time, each with an id of its own. Threads may take the role of processes.
    ///
    /// [`join`](ProcessGroupBuilder::join) fails at once if the id was made on another host, in
    /// another network namespace, by another user or by another build; the error names the rank. An
    /// id [across hosts](UniqueId::across_hosts) joins processes of several hosts, over UCX.
    ///
    /// ```
    /// use consonance::{ProcessGroup, ReduceOp, Result, UniqueId};
    /// fn process(id: UniqueId, rank: usize) -> Result<u32> {
    ///     let mut group = ProcessGroup::with_id(&id, rank, 2).join()?;
    ///     let mut communicator = group.communicators().remove(0);
    ///     let mut data = [rank as u32 + 1];
    ///     communicator.all_reduce(ReduceOp::Sum, &mut data)?;
    ///     Ok(data[0])
    /// }
    /// let id = UniqueId::new()?;
    /// let sums = std::thread::scope(|scope| {
    ///     let processes = [0, 1].map(|rank| scope.spawn(move || process(id, rank)));
    ///     processes.map(|process| process.join().unwrap())
    /// });
    /// for sum in sums {
    ///     assert_eq!(sum?, 3);
    /// }
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn with_id(id: &UniqueId, rank: usize, size: usize) -> ProcessGroupBuilder {
        ProcessGroupBuilder::of(Job::Id { id: Box::new(*id), rank, size, is_private: true })
    }

    /// Returns the position of this process, and the number of processes.
    pub(crate) fn place(&self) -> (usize, usize) {
        (self.generation.own, self.generation.members.len())
    }

    /// Takes the communicators of this process's ranks, in rank order. The list is empty if they
    /// were already taken in this generation.
    pub fn communicators(&mut self) -> Vec<Communicator> {
        std::mem::take(&mut self.communicators)
    }

    /// Returns the number of the group's generation, counted from 1.
    pub fn generation(&self) -> u64 {
        self.generation.number
    }

    /// Returns the ranks of this process.
    pub fn ranks(&self) -> Range<usize> {
        self.generation.members[self.generation.own].ranks.clone()
    }

    /// Returns the number of ranks of all processes.
    pub fn size(&self) -> usize {
        self.generation.members.last().map_or(0, |last| last.ranks.end)
    }

    /// Returns the processes in rank order: the task of each with its address, such as `worker[1]
    /// (localhost:4712)`, and its ranks.
    pub fn members(&self) -> impl Iterator<Item = (&str, Range<usize>)> {
        self.generation.members.iter().map(|member| (member.task.as_str(), member.ranks.clone()))
    }

    /// Forms the next generation of the group from all remaining processes. Each of them makes this
    /// call. The communicators of the last generation end, and
    /// [`communicators`](ProcessGroup::communicators) returns those of the new one. Its ranks are
    /// numbered anew, by task.
    ///
    /// A lost process may be started again and joins as at first. The others wait for such
    /// processes for at most `wait_for_replacements`, and no longer than until the cluster is
    /// complete. On several hosts it takes UCX and a cluster with the addresses of all processes.
    ///
    /// A network between hosts may break and seem to be a loss on both sides. Then the side goes on
    /// that has more than half of the processes not known to have ended, or half of them and the
    /// first.
    ///
    /// # Errors
    /// [`Error::Meeting`] if a running process does not come before the timeout: the error names
    /// it, and no group is formed without it. On several hosts that is an [`Error::Timeout`], and
    /// [`Error::Meeting`] is for a side of a broken network that may not go on;
    /// [`Error::InvalidCall`] for a wait of processes of several hosts that take no replacements.
    /// Otherwise as [`join`](ProcessGroupBuilder::join). The call can be repeated after an error.
    pub fn reform(&mut self, wait_for_replacements: Duration) -> Result<()> {
        self.form_again("ProcessGroup::reform", wait_for_replacements, Majority::Needed)
    }

    /// Continues on a side of a broken network that [`reform`](Self::reform) refuses, because the
    /// other side may go on. Each process of this side makes this call. Make it only if you know
    /// that the other side does not: else two groups run.
    ///
    /// # Errors
    /// As [`reform`](Self::reform).
    pub fn reform_without_majority(&mut self) -> Result<()> {
        self.form_again("ProcessGroup::reform_without_majority", Duration::ZERO, Majority::Waived)
    }

    pub(crate) fn form_again(
        &mut self,
        call: &'static str,
        wait_for_replacements: Duration,
        majority: Majority,
    ) -> Result<()> {
        let Means::Host(meeting) = &self.means else {
            return self.reform_hosts(call, wait_for_replacements, majority);
        };
        for communicator in self.communicators.drain(..) {
            communicator.abort();
        }
        (self.generation, self.communicators) = self.options.form(call, meeting, &self.place, wait_for_replacements)?;
        Ok(())
    }

    /// Leaves the group, and returns the settings to join it anew.
    fn leave(self) -> ProcessGroupBuilder {
        // All but the settings end here.
        self.options
    }
}

impl ProcessGroupBuilder {
    /// Waits for all processes of the cluster and joins them. Processes may start in any order. A
    /// replacement of a lost process waits until the others [`reform`](ProcessGroup::reform).
    ///
    /// # Errors
    /// * [`Error::InvalidCall`] if this process is not a `chief` or `worker` of the cluster, or for
    ///   more than 256 processes on several hosts.
    /// * [`Error::Meeting`] on several hosts if there is no UCX (the error says where it was looked
    ///   for, and how to install it), or if this process cannot listen at its address.
    /// * [`Error::InvalidCall`] if the id of the group was made elsewhere, the rank is not below
    ///   the size, or the size is above 1024.
    /// * [`Error::Meeting`] if processes are missing at the deadline (the error names them), if
    ///   another process already runs this task, or if a process of another user or another build
    ///   of the program has taken a task.
    /// * [`Error::System`] if the system has no memory.
    pub fn join(self) -> Result<ProcessGroup> {
        let place = self.job.place(self.locality)?;
        if self.replicas == 0 {
            return Err(Error::invalid(CALL, "replicas", "at least one", "0"));
        }
        Shape::new(self.replicas, self.staging_bytes).map_err(|error| no_segment(CALL, error))?;
        let joining = Joining::begin(place.own, place.tasks.len(), self.job.is_private());
        let joined = match place.way {
            Way::Addresses(_) | Way::Table { .. } => {
                let joined = self.join_hosts(CALL, &place);
                joined.map(|(generation, communicators, links)| {
                    (generation, communicators, Means::Hosts(Box::new(links)))
                })
            }
            Way::Host => self.meet_here(&place),
        };
        match joined {
            Ok((generation, communicators, means)) => {
                joining.succeed();
                if let Job::Id { id, .. } = &self.job {
                    id.end_service();
                }
                Ok(ProcessGroup { options: self, place, means, generation, communicators })
            }
            Err(error) => {
                if let Error::Meeting { missing, .. } = &error
                    && let Some(&task) = missing.first()
                {
                    joining.miss(task);
                }
                Err(error)
            }
        }
    }

    /// [Joins](Self::join), and calls `meet` with the communicators and the place of this process.
    /// The replacement of a lost process comes again if `meet` meets another loss: the others form
    /// the group again, and wait for it as for one just started.
    pub(crate) fn join_and<T>(
        self,
        meet: impl Fn(Vec<Communicator>, (usize, usize)) -> Result<T>,
    ) -> Result<(ProcessGroup, T)> {
        let mut group = self.join()?;
        // Each process can be lost once. More losses mean that a peer corrupts shared memory or
        // says what is false.
        let mut losses = group.place().1;
        loop {
            match meet(group.communicators(), group.place()) {
                Err(error) if error.is_loss() && group.generation() > FIRST && losses > 0 => losses -= 1,
                met => return met.map(|met| (group, met)),
            }
            group = group.leave().join()?;
        }
    }

    /// Meets the other processes of this host.
    fn meet_here(&self, place: &Roster) -> Result<(Arc<Generation>, Vec<Communicator>, Means)> {
        let meeting = Meeting::open(MeetingOptions {
            digest: place.digest,
            layout: Segment::LAYOUT,
            task: place.own,
            names: place.tasks.clone(),
            replicas: self.replicas,
        });
        let meeting = Arc::new(Mutex::new(meeting.map_err(|error| not_met(CALL, place.own_task(), error))?));
        let (generation, communicators) = self.form(CALL, &meeting, place, Duration::ZERO)?;
        Ok((generation, communicators, Means::Host(meeting)))
    }

    /// Forms a group with the other processes. If this process fails after the group was formed, it
    /// leaves, and the others lose a member.
    fn form(
        &self,
        call: &'static str,
        meeting: &Arc<Mutex<Meeting>>,
        place: &Roster,
        wait_for_replacements: Duration,
    ) -> Result<(Arc<Generation>, Vec<Communicator>)> {
        options::settle(call)?;
        let tasks = &place.tasks;
        let staging_bytes = self.staging_bytes;
        let create = |group: &Group, processes: &[u32]| {
            let ranks = group.members.iter().map(|member| member.replicas).sum();
            let segment = Shape::new(ranks, staging_bytes)
                .and_then(|shape| Segment::create_on(shape, GroupId::from_bytes(group.id), cores_of(processes)));
            segment.map_err(io::Error::other)?.file().try_clone_to_owned()
        };
        let tell = |waiting: &Waiting| (self.on_wait)(&place.waits(waiting, self.timeout));
        let mut own = meeting.lock().unwrap_or_else(PoisonError::into_inner);
        let formed = catch_unwind(AssertUnwindSafe(|| {
            own.form(Instant::now() + self.timeout, wait_for_replacements, create, tell)
        }));
        let group = match formed {
            Ok(Ok(formed)) => self.enter(call, &formed, meeting, tasks),
            // `Meeting::form` has told the others.
            Ok(Err(error)) => return Err(not_met(call, place.own_task(), error)),
            Err(panic) => {
                own.leave();
                resume_unwind(panic)
            }
        };
        if group.is_err() {
            // The others have formed a group with this process, which cannot enter it.
            own.leave();
        }
        group
    }

    /// Enters a group that was formed: opens the shared memory, and makes the communicators.
    fn enter(
        &self,
        call: &'static str,
        formed: &Formed,
        meeting: &Arc<Mutex<Meeting>>,
        tasks: &[String],
    ) -> Result<(Arc<Generation>, Vec<Communicator>)> {
        let mut next = 0;
        let members = formed.members.iter().map(|member| {
            let ranks = next..next + member.replicas;
            next = ranks.end;
            Member { task: tasks[member.task].clone(), process: member.pid, ranks }
        });
        let members: Vec<Member> = members.collect();
        let shape = Shape::new(next, self.staging_bytes).map_err(|error| no_segment(call, error))?;
        let file = formed.segment.try_clone().map_err(|error| Error::system("keep the shared memory", error))?;
        let segment =
            Segment::open(file, GroupId::from_bytes(formed.id), shape).map_err(|error| no_segment(call, error))?;
        let processes: Vec<u32> = members.iter().map(|member| member.process.unwrap_or(0)).collect();
        let configuration = self.options.configuration();
        let local = members[formed.me].ranks.clone();
        let cores = cores_of(&processes);
        let process_of = |(member, &process): (&Member, &u32)| std::iter::repeat_n(process, member.ranks.len());
        let mut readable: Vec<u32> = members.iter().zip(&processes).flat_map(process_of).collect();
        if !self.reads_directly.unwrap_or(next <= cores) {
            readable.clear();
        }
        let segment = Arc::new(segment);
        let endpoints = Endpoint::in_segment(&segment, local, cores, &readable, configuration.timeout);

        let (aborter, ranks) =
            (endpoints[0].aborter(), members.iter().map(|member| member.ranks.clone()).collect::<Vec<_>>());
        let on_gone = move |member: usize, gone| {
            let reason = match gone {
                Gone::Ended => Reason::Death,
                Gone::Left => Reason::Departure,
            };
            aborter.lose(ranks[member].clone(), reason);
        };
        let watch = Watch::start(formed, Some(&segment), on_gone);
        let watch = watch.map_err(|error| Error::system("watch the other processes", error))?;
        let (number, own) = (formed.generation, formed.me);
        let generation = Arc::new(Generation { number, members, own, _kept: Some((watch, meeting.clone())) });
        let communicator = |seat| Communicator::in_processes(seat, configuration, generation.clone());
        let communicators = endpoints.into_iter().map(communicator).collect();
        Ok((generation, communicators))
    }
}

impl Processes for Generation {
    fn describe(&self, rank: usize) -> String {
        let Some(member) = self.members.iter().find(|member| member.ranks.contains(&rank)) else {
            return "no process has it".to_owned();
        };
        described(&member.task, member.process)
    }

    fn blame(&self, rank: usize, why: Blame) {
        let member = self.members.iter().find(|member| member.ranks.contains(&rank));
        if let Some(process) = member.and_then(|member| member.process) {
            tell_blame(Culprit::Process(process), why);
        }
    }
}

/// Describes the process of a task: its identity and its state.
pub(super) fn described(task: &str, process: Option<u32>) -> String {
    match process.map(|process| (process, process_state(process))) {
        None => task.to_owned(),
        Some((process, ProcessState::Running)) => format!("{task}, process {process}"),
        Some((process, ProcessState::Stopped)) => format!("{task}, process {process}, is stopped"),
        Some((process, ProcessState::Gone)) => format!("{task}, process {process}, has ended"),
    }
}

impl fmt::Debug for ProcessGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let members: Vec<_> = self.members().collect();
        f.debug_struct("ProcessGroup").field("generation", &self.generation()).field("members", &members).finish()
    }
}

pub(super) fn not_met(call: &'static str, task: &str, error: MeetingError) -> Error {
    let missing = error.absent().iter().map(|absent| absent.task).collect();
    Error::Meeting { call, task: task.to_owned(), problem: error.to_string(), missing }
}

pub(super) fn no_segment(call: &'static str, error: SegmentError) -> Error {
    match error {
        SegmentError::Shape { what, expected, found } => Error::invalid(call, what, expected, found),
        SegmentError::System { what, source } => Error::system(what, source),
        error => Error::system(format!("{call}: open the shared memory"), io::Error::other(error)),
    }
}
