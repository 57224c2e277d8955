//! An engine of messages on *letters*, which anything may carry: a queue, a socket, a network.
//!
//! Each rank has an [`Inbox`]: the letters by sender and generation of a group, the ranks that have
//! left, and the generations that were aborted. A [`Carrier`] brings letters from one rank's engine
//! to another's inbox. All else is here: generations, losses, subgroups, messages with tags.
//!
//! **After a loss** a rank begins the generation of the members that are left, as far as it knows,
//! and tells the others which ranks are lost. It drops what arrives of generations that it has
//! left. A rank that is told of the loss of a member ends its own generation. So all come to know
//! the same losses, and meet in the generation that follows from these. Nobody listens to a lost
//! rank about other losses. A rank that is told that it is lost itself does not go on.

mod departure;
mod ends;
mod inbox;
mod letter;
mod mail;
mod remaining_ranks;
mod wait;

pub use inbox::Inbox;
pub use letter::Letter;

use super::{Abort, AbortHandle, Engine, Failure, Service};
use crate::{
    Error, Mailbox, Result,
    comm::{call::Call, options::Configuration, report::blame_of},
};
use consonance_kernels::{group::Reason, os::launcher::Blame};
use consonance_spec::{Kind, Signature, World};
use letter::{Content, End, Generation, Last};
use mail::Mail;
use remaining_ranks::{NotBegun, Remaining};
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};
use wait::News;

/// Carries letters to the ranks of a whole group.
///
/// Letters from one rank to another arrive in order, each once, and the last one of a rank is
/// [`Letter::gone`], when its process has ended. A carrier need not report that it cannot carry a
/// letter: the end of the receiver's process is reported to the sender's inbox.
///
/// ```
/// use consonance::{
///     Communicator, ReduceOp, Result, World,
///     raw::{Carrier, Inbox, Letter},
/// };
/// use std::{sync::Arc, thread};
///
/// /// Carries letters between threads.
/// struct Threads(Vec<Arc<Inbox>>);
///
/// impl Carrier for Threads {
///     fn carry(&self, from: usize, to: usize, letter: Letter) {
///         self.0[to].put(from, letter);
///     }
/// }
///
/// let inboxes: Vec<Arc<Inbox>> = (0..3).map(|rank| Arc::new(Inbox::new(rank, 3))).collect();
/// let carrier: Arc<dyn Carrier> = Arc::new(Threads(inboxes.clone()));
/// let sums = thread::scope(|scope| {
///     let ranks = inboxes.iter().enumerate().map(|(rank, inbox)| {
///         let world = World::new(rank, 3).expect("one of three");
///         let mut rank = Communicator::from_engine(inbox.clone().engine(world, carrier.clone()));
///         scope.spawn(move || -> Result<f32> {
///             let mut data = [rank.rank() as f32];
///             rank.all_reduce(ReduceOp::Sum, &mut data)?;
///             Ok(data[0])
///         })
///     });
///     let threads: Vec<_> = ranks.collect();
///     threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Result<Vec<f32>>>()
/// })?;
/// assert_eq!(sums, [3.0; 3]);
/// # Ok::<(), consonance::Error>(())
/// ```
pub trait Carrier: Send + Sync {
    /// Brings a letter of rank `from`, a rank of this process, into the inbox of rank `to`. Never
    /// waits for a process that does not read.
    fn carry(&self, from: usize, to: usize, letter: Letter);

    /// Checks that the ranks `left` of the group of `earlier` ranks may go on without the others,
    /// after a loss. Ranks that have left and said so are in neither list. Others that are taken
    /// for lost may run, cut off by a network that broke: then at most one side may go on. By
    /// default each may.
    ///
    /// # Errors
    /// The error of [`Engine::remaining`] if they may not. The group is then as before.
    fn may_go_on(&self, _earlier: &[usize], _left: &[usize]) -> Result<()> {
        Ok(())
    }

    /// Tells a rank that this process begins a group without it. A process that hears of the end of
    /// this one must have heard of this before. By default nobody needs to know.
    fn leave_behind(&self, _rank: usize) {}

    /// Moves letters on the thread of a rank that waits for one, as long as that is likely to be
    /// sooner than a sleep, at most until `is_done`. By default returns at once: letters arrive by
    /// themselves.
    fn wait_awake(&self, _is_done: &dyn Fn() -> bool) {}

    /// Notes that an error names a rank, and why. A carrier between workers of a launch tells the
    /// launcher. By default this does nothing.
    fn blame(&self, _rank: usize, _why: Blame) {}

    /// Describes the process of a rank in errors: its task, host and process id. By default there
    /// is no description.
    fn describe(&self, _rank: usize) -> Option<String> {
        None
    }

    /// Describes the processes of ranks that are silent, with their states. May wait for answers of
    /// other processes, less than a second. Not called on a thread that puts letters into inboxes.
    fn describe_silent(&self, ranks: &[usize]) -> Vec<Option<String>> {
        ranks.iter().map(|&rank| self.describe(rank)).collect()
    }
}

impl Inbox {
    /// Makes the engine of the rank of this inbox. `world` has this rank, and the number of ranks
    /// of the whole group.
    pub fn engine(self: Arc<Inbox>, world: World, carrier: Arc<dyn Carrier>) -> Box<dyn Engine> {
        self.carried_by(&carrier);
        let members = (0..world.size()).collect();
        Box::new(Messages::of(world, 0, members, self, carrier))
    }

    /// Makes the engine of `own`, the rank of this inbox, in the group of this number, of these
    /// ranks of the whole group, of which `formed` are those of the last group before. No two
    /// groups of an inbox have the same number, and that of the whole one is 0. `None` if this rank
    /// is no member.
    pub(crate) fn engine_in(
        self: Arc<Inbox>,
        own: usize,
        number: u64,
        members: Vec<usize>,
        formed: Vec<usize>,
        carrier: Arc<dyn Carrier>,
    ) -> Option<Box<dyn Engine>> {
        self.carried_by(&carrier);
        let rank = members.iter().position(|&member| member == own)?;
        let world = World::new(rank, members.len())?;
        let mut messages = Messages::of(world, number, members, self, carrier);
        messages.formed = formed;
        Some(Box::new(messages))
    }
}

/// One rank of a group.
struct Messages {
    group: Arc<Group>,
    timeout: Duration,
    /// The deadline of the current call.
    deadline: Instant,
    /// The number of groups that were split from this one.
    splits: u64,
    /// The ranks of the last group that has formed, as far as this rank knows. A majority is one of
    /// these: of groups that were only begun, any side has one at last.
    formed: Vec<usize>,
    /// Whether the next group may form without a majority.
    waives_majority: bool,
}

/// The state of a group that its rank shares with its abort handles.
struct Group {
    world: World,
    /// The generations of the groups that this one was split from, the whole group first, then its
    /// own.
    line: Vec<Generation>,
    /// The ranks in the whole group.
    members: Vec<usize>,
    inbox: Arc<Inbox>,
    carrier: Arc<dyn Carrier>,
    /// The rank that the error of this rank's last call names. If this rank then aborts the group,
    /// the others that have not come as far are told of that rank.
    blamed: Mutex<Option<usize>>,
}

impl Group {
    /// This rank in the whole group.
    fn own(&self) -> usize {
        self.members[self.world.rank()]
    }

    fn generation(&self) -> Generation {
        *self.line.last().expect("a group has a generation")
    }

    /// Makes the error of a call whose group was aborted.
    fn ended(&self, call: &str, end: End) -> Error {
        self.carrier.blame(end.member, blame_of(end.reason));
        if end.reason == Reason::Death {
            self.inbox.name_death(end.member, &self.line);
        }
        match end.reason {
            Reason::Death if end.member != self.own() => {
                let of = self.carrier.describe(end.member).map_or_else(String::new, |process| format!(" ({process})"));
                let (call, reason, calls) = (call.to_owned(), format!("was lost{of}"), Vec::new());
                Error::Aborted { call, replica: end.rank, reason, lost: self.is_lost(end.member), calls }
            }
            Reason::Leave | Reason::Death => {
                let last = match end.member == self.own() {
                    true => "the others take it for lost",
                    false => "it makes no more calls of this group",
                };
                let last = self.said(last, end.member);
                Error::Left { call: call.to_owned(), replica: end.rank, last, lost: self.is_lost(end.member) }
            }
            reason => Error::aborted(call, end.rank, reason),
        }
    }

    /// Returns whether a rank that has left this group has left the whole group. A rank that leaves
    /// a split may stay in that.
    fn is_lost(&self, member: usize) -> bool {
        self.line.len() == 1 || self.inbox.has_left(member, self.line[0].group)
    }

    /// Adds the process of a rank of the whole group to what is said of it.
    fn said(&self, said: &str, member: usize) -> String {
        match self.carrier.describe(member) {
            Some(process) => format!("{said}; {process}"),
            None => said.to_owned(),
        }
    }

    /// Returns the end by which a rank of this group has left.
    fn left(&self, rank: usize) -> End {
        let member = self.members[rank];
        End { rank, member, reason: self.inbox.reason_of(member, self.generation().group), turn: None }
    }

    /// Aborts this generation on all ranks; all later ones, too, if a rank has left. On each rank
    /// the first abort wins. If this rank knows of one, it passes that on: no rank hears of the
    /// consequences of a loss first.
    fn end(&self, end: End) {
        let of = self.generation();
        let new = || (if end.is_of_left() { u64::MAX } else { of.number }, end);
        let (number, end) = self.inbox.ends_of(of).first().copied().unwrap_or_else(new);
        let content = || Content::End { of: Generation { number, ..of }, end };
        self.inbox.put(self.own(), Letter(content()));
        for &member in self.members.iter().filter(|&&member| member != self.own()) {
            self.tell(member, content());
        }
    }

    /// Notes the rank that an error of this rank names.
    fn note(&self, blamed: Option<usize>) {
        *self.blamed.lock().unwrap_or_else(PoisonError::into_inner) = blamed;
    }

    /// Sends a letter to a rank of the whole group.
    fn tell(&self, member: usize, content: Content) {
        self.carrier.carry(self.own(), member, Letter(content));
    }
}

impl Abort for Group {
    fn abort(&self, culprit: Option<usize>, turn: Option<u64>, reason: Reason) {
        let blamed = || *self.blamed.lock().unwrap_or_else(PoisonError::into_inner);
        let rank = culprit.or_else(blamed).filter(|&rank| rank < self.members.len()).unwrap_or(self.world.rank());
        if reason == Reason::Deadline {
            self.carrier.blame(self.members[rank], Blame::Missing);
        }
        self.end(End { rank, member: self.members[rank], reason, turn });
    }

    fn is_aborted(&self) -> bool {
        self.inbox.end_of(&self.line).is_some()
    }

    fn ended_after(&self, turn: u64) -> bool {
        self.inbox.end_of(&self.line).and_then(|end| end.turn).is_some_and(|end| end > turn)
    }
}

impl Messages {
    fn of(world: World, number: u64, members: Vec<usize>, inbox: Arc<Inbox>, carrier: Arc<dyn Carrier>) -> Messages {
        let line = vec![Generation::of_all(number)];
        Messages::new(Group { world, line, members, inbox, carrier, blamed: Mutex::default() }, None)
    }

    /// Enters a group: a whole one, or a part `of` the last split.
    fn new(group: Group, of: Option<Last>) -> Messages {
        let formed = group.members.clone();
        group.inbox.enter(group.generation(), formed.clone(), of);
        let timeout = Duration::from_secs(300);
        Messages {
            group: Arc::new(group),
            timeout,
            deadline: Instant::now() + timeout,
            splits: 0,
            formed,
            waives_majority: false,
        }
    }

    /// Waits for the next message of rank `from` of this group.
    fn wait_for(&self, from: usize, call: &str) -> Result<Vec<u8>> {
        let group = &*self.group;
        match group.inbox.take(group.members[from], &group.line, self.deadline) {
            News::Message(bytes) => Ok(bytes),
            News::Ended(end) => {
                group.inbox.tell(group.generation());
                let mut error = group.ended(call, end);
                if let (Error::Aborted { calls, .. }, Reason::Deadline) = (&mut error, end.reason) {
                    let processes = group.carrier.describe_silent(&[end.member]);
                    calls.extend(processes.into_iter().flatten().map(|process| (end.rank, process)));
                }
                Err(error)
            }
            News::Left => {
                group.end(group.left(from));
                Err(group.ended(call, group.left(from)))
            }
            News::Late => {
                group.carrier.blame(group.members[from], Blame::Missing);
                group.end(End { reason: Reason::Deadline, ..group.left(from) });
                let silent = "it sent no message of this call";
                let process = self.describe_silent(&[from]).pop().flatten();
                let said = process.map_or(silent.to_owned(), |process| format!("{silent}; {process}"));
                let missing = vec![(from, said)];
                Err(Error::Timeout { call: call.to_owned(), waited: self.timeout, missing })
            }
        }
    }
}

/// Returns the buffer as one in host memory, which it is by [`Engine::reaches`].
fn on_host<B>(buf: Option<B>) -> B {
    buf.expect("a buffer in host memory")
}

impl Engine for Messages {
    fn world(&self) -> World {
        self.group.world
    }

    fn service(&self) -> Service {
        Service::Letters
    }

    fn begin_call(&mut self) {
        self.group.inbox.begin_call(self.group.generation());
        self.group.note(None);
        self.deadline = Instant::now() + self.timeout;
    }

    fn probe(&mut self, from: &[usize], until: Instant) -> Option<usize> {
        let group = &*self.group;
        let ranks: Vec<usize> = from.iter().map(|&from| group.members[from]).collect();
        group.inbox.probe(&ranks, &group.line, until).map(|place| from[place])
    }

    fn execute(&mut self, call: Call<'_>, _: &Signature, name: Kind) -> Result<(), Failure> {
        match call {
            Call::Send { data, to } => {
                if let Some(end) = self.group.inbox.end_of(&self.group.line) {
                    self.group.inbox.tell(self.group.generation());
                    return Err(self.group.ended(name.name(), end).into());
                }
                let (of, bytes) = (self.group.generation(), on_host(data.host()).as_bytes().to_vec());
                self.group.tell(self.group.members[to], Content::Message { of, bytes });
                Ok(())
            }
            Call::Recv { data, from } => {
                let bytes = self.wait_for(from, name.name())?;
                if bytes.len() != data.bytes() {
                    self.group.abort(None, None, Reason::Failure);
                    let what = format!("{name}: {} bytes of rank {from}, expected {}", bytes.len(), data.bytes());
                    return Err(Error::system(what, std::io::ErrorKind::InvalidData).into());
                }
                on_host(data.host()).copy_from_bytes(&bytes);
                Ok(())
            }
            call => unreachable!("{call:?} is made of messages"),
        }
    }

    fn receive(&mut self, from: usize, name: Kind) -> Result<Vec<u8>, Failure> {
        Ok(self.wait_for(from, name.name())?)
    }

    fn configure(&mut self, configuration: &Configuration) {
        self.timeout = configuration.timeout;
    }

    fn abort_handle(&self) -> AbortHandle {
        let group: Arc<dyn Abort> = self.group.clone();
        group.into()
    }

    fn next_generation(&mut self) -> Result<()> {
        let Group { world, ref line, ref members, ref inbox, ref carrier, .. } = *self.group;
        let mut line = line.clone();
        let last = line.last_mut().expect("a group has a generation");
        *last = inbox.begin_next(last.group);
        let (members, inbox, carrier) = (members.clone(), inbox.clone(), carrier.clone());
        (self.group, self.splits) =
            (Arc::new(Group { world, line, members, inbox, carrier, blamed: Mutex::default() }), 0);
        Ok(())
    }

    fn formed(&mut self) {
        self.formed.clone_from(&self.group.members);
    }

    fn waive_majority(&mut self) {
        self.waives_majority = true;
    }

    fn remaining(&mut self) -> Result<()> {
        let waives = std::mem::take(&mut self.waives_majority);
        let Group { ref line, ref inbox, ref carrier, .. } = *self.group;
        let (own, mut line) = (self.group.own(), line.clone());
        let (group, formed) = (self.group.generation().group, self.formed.iter().copied());
        let earlier: Vec<usize> = formed.filter(|&rank| inbox.reason_of(rank, group) != Reason::Leave).collect();
        let last = line.last_mut().expect("a group has a generation");
        // More losses may come while a majority is waited for.
        let begun = loop {
            let left: Vec<usize> = earlier.iter().copied().filter(|&rank| !inbox.has_left(rank, group)).collect();
            if !inbox.has_left(own, group) && !waives {
                carrier.may_go_on(&earlier, &left)?;
            }
            match inbox.begin_remaining(last.group, (!waives).then_some(&*left)) {
                Err(NotBegun::MoreLost) => {}
                begun => break begun,
            }
        };
        let Ok(Remaining { generation, members, earlier, lost }) = begun else {
            let problem = "the other replicas take this one for lost: it does not come back".to_owned();
            return Err(Error::WrongContext { call: "MultiWorkerMirroredStrategy::reform", problem });
        };
        let passed = Last { of: std::mem::replace(last, generation), splits: self.splits };
        // Ranks that begin another generation may have split the last one differently often.
        let splits = if passed.of == generation { self.splits } else { 0 };
        lost.iter().for_each(|&(rank, _)| carrier.leave_behind(rank));
        // The others may not have heard of the same losses, and those taken for lost of theirs.
        for &member in earlier.iter().filter(|&&member| member != own && passed.of != generation) {
            let content = Content::Lost { last: passed, ranks: lost.clone() };
            carrier.carry(own, member, Letter(content));
        }
        let rank = members.iter().position(|&member| member == own).expect("this rank is left");
        let world = World::new(rank, members.len()).expect("one of the members");
        let (inbox, carrier) = (inbox.clone(), carrier.clone());
        (self.group, self.splits) =
            (Arc::new(Group { world, line, members, inbox, carrier, blamed: Mutex::default() }), splits);
        Ok(())
    }

    fn describe_silent(&self, ranks: &[usize]) -> Vec<Option<String>> {
        let members: Vec<usize> = ranks.iter().map(|&rank| self.group.members[rank]).collect();
        self.group.carrier.describe_silent(&members)
    }

    fn blame(&self, rank: usize) {
        self.group.note(Some(rank));
        self.group.carrier.blame(self.group.members[rank], Blame::Differs);
    }

    fn mailbox(&mut self) -> Result<Mailbox> {
        Ok(Mailbox::new(Arc::new(Mail(self.group.clone())), self.timeout))
    }

    fn subgroup(&mut self, members: &[usize]) -> Result<Option<Box<dyn Engine>>, Failure> {
        self.splits += 1;
        let group = &*self.group;
        let Some(rank) = members.iter().position(|&member| member == group.world.rank()) else { return Ok(None) };
        // The number is the same on all ranks of the group. Groups that are split off at once
        // differ in their first member.
        let split = group.generation().split(self.splits, group.members[members[0]]);
        let part = Group {
            world: World::new(rank, members.len()).expect("one of the members"),
            line: group.line.iter().copied().chain([split]).collect(),
            members: members.iter().map(|&member| group.members[member]).collect(),
            inbox: group.inbox.clone(),
            carrier: group.carrier.clone(),
            blamed: Mutex::default(),
        };
        let of = Last { of: group.generation(), splits: self.splits };
        Ok(Some(Box::new(Messages::new(part, Some(of)))))
    }
}

#[cfg(test)]
mod tests;
