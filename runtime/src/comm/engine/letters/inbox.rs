//! The messages that have arrived for a rank.

use super::{
    Carrier,
    ends::Ends,
    letter::{Content, End, Generation, Last, Letter, Tagged},
    remaining_ranks::{NotBegun, Remaining},
    wait::{News, Outcome, Receive},
};
use consonance_kernels::group::{Envelope, Reason};
use std::{
    collections::{HashMap, HashSet, VecDeque},
    fmt,
    sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, Weak},
    time::Instant,
};

/// The place of the rank of an inbox in a group.
struct Membership {
    generation: Generation,
    /// The members of this generation, by their ranks in the whole group.
    members: Vec<usize>,
    /// The splits that led to the group, that of the whole one first.
    splits: Vec<Last>,
}

const UNBROKEN: &str = "nobody panics holding an inbox";
const ENTERED: &str = "an engine has entered its group";

/// The letters that have arrived for a rank of a whole group, by sender and generation, the ranks
/// that have left, and the generations that were aborted. A [`Carrier`](super::Carrier) puts
/// letters into it, and [`engine`](Inbox::engine) makes the engine that reads them.
pub struct Inbox {
    contents: Mutex<Contents>,
    change: Condvar,
    carrier: OnceLock<Weak<dyn Carrier>>,
}

#[derive(Default)]
struct Contents {
    /// The rank of this inbox in the whole group.
    own: usize,
    /// The messages of each rank, by generation.
    messages: Vec<HashMap<Generation, VecDeque<Vec<u8>>>>,
    /// The messages with tags that no receive has taken, in the order of their arrival.
    tagged: Vec<(usize, Generation, Tagged)>,
    /// The receives of messages with tags, in the order in which they began.
    open: Vec<Receive>,
    /// Answers to messages that did not fit, of which no request was told.
    unlike: Vec<(usize, Generation, Envelope, Envelope)>,
    /// The number of changes that a thread may wait for.
    changes: u64,
    /// The place of this rank in each group that it has not left.
    places: HashMap<u64, Membership>,
    ends: Ends,
    /// The ranks that have left a group and said so ([`Reason::Leave`]), or are lost to it
    /// ([`Reason::Death`]).
    left: HashMap<(usize, u64), Reason>,
    /// The number of splits of each generation that another rank does not come back to.
    splits: HashMap<(usize, Generation), u64>,
    /// The ranks that have left all groups.
    gone: HashSet<usize>,
    /// The ranks that errors have named as lost, each with the number of the whole group.
    named: HashSet<(usize, u64)>,
}

impl Inbox {
    /// Makes the inbox of rank `own` of a group of this size.
    pub fn new(own: usize, size: usize) -> Inbox {
        let messages = (0..size).map(|_| HashMap::new()).collect();
        let contents = Contents { own, messages, ..Contents::default() };
        Inbox { contents: Mutex::new(contents), change: Condvar::new(), carrier: OnceLock::new() }
    }

    /// Notes the carrier of letters to and from this rank.
    pub(super) fn carried_by(&self, carrier: &Arc<dyn Carrier>) {
        // An inbox has one engine of a whole group, so one carrier.
        let _ = self.carrier.set(Arc::downgrade(carrier));
    }

    /// Lets the carrier move letters on this thread until there is a change after the first `seen`.
    /// It may return before.
    fn wait_awake(&self, seen: u64) {
        if let Some(carrier) = self.carrier.get().and_then(Weak::upgrade) {
            carrier.wait_awake(&|| self.lock().changes != seen);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock().expect(UNBROKEN)
    }

    /// Stores a letter of rank `from` of the whole group. Waits for nothing.
    pub fn put(&self, from: usize, letter: Letter) {
        let mut contents = self.lock();
        match letter.0 {
            Content::Message { of, .. } | Content::Tagged { of, .. } | Content::Unlike { of, .. }
                if contents.is_past(&of) => {}
            Content::Message { of, bytes } => contents.messages[from].entry(of).or_default().push_back(bytes),
            Content::Tagged { of, message } => contents.tagged.push((from, of, message)),
            Content::Unlike { of, sent, expected } => contents.unlike.push((from, of, sent, expected)),
            // A rank that is lost itself does not say which others are.
            Content::End { of: Generation { group, .. }, end }
                if end.is_of_left() && contents.is_lost_to(from, group) => {}
            Content::Lost { last, .. } if contents.is_lost_to(from, last.of.group) => contents.pass(from, last),
            Content::End { of, end } => {
                contents.ends.note(of, end);
                if end.is_of_left() {
                    // Also in the group of the ranks that are left without others.
                    contents.lose(of.group, &[(end.member, end.reason)]);
                }
            }
            Content::Lost { last, ranks } => {
                contents.pass(from, last);
                contents.lose(last.of.group, &ranks);
            }
            Content::Leave { last } => {
                contents.pass(from, last);
                contents.left.insert((from, last.of.group), Reason::Leave);
                if from == contents.own {
                    contents.places.remove(&last.of.group);
                    contents.forget_past();
                }
            }
            Content::Gone => _ = contents.gone.insert(from),
        }
        self.settle(self.changed(contents));
    }

    /// Wakes the threads that wait for a change.
    fn changed<'i>(&self, mut contents: MutexGuard<'i, Contents>) -> MutexGuard<'i, Contents> {
        contents.changes += 1;
        self.change.notify_all();
        contents
    }

    /// Begins a receive.
    pub(super) fn open(&self, receive: Receive) {
        let mut contents = self.lock();
        contents.open.push(receive);
        self.settle(contents);
    }

    /// Ends the receives that need not wait.
    fn settle(&self, mut contents: MutexGuard<'_, Contents>) {
        let (open, mut ends) = (std::mem::take(&mut contents.open), Vec::new());
        for receive in open {
            match contents.outcome(&receive) {
                Some(outcome) => ends.push((receive, outcome)),
                None => contents.open.push(receive),
            }
        }
        drop(contents);
        if !ends.is_empty() {
            ends.into_iter().for_each(|(receive, outcome)| (receive.finish)(outcome));
            drop(self.changed(self.lock()));
        }
    }

    /// Wakes the threads that wait for a change.
    pub(super) fn wake(&self) {
        drop(self.changed(self.lock()));
    }

    /// Returns whether a receive of this generation is open.
    pub(super) fn has_open(&self, of: Generation) -> bool {
        self.lock().open.iter().any(|receive| receive.line.last() == Some(&of))
    }

    /// Returns the first answer of rank `from` of which no request was told: the message, and the
    /// one that the receive expected.
    pub(super) fn take_unlike(&self, from: usize, of: Generation) -> Option<(Envelope, Envelope)> {
        let mut contents = self.lock();
        let place = contents.unlike.iter().position(|&(by, at, ..)| (by, at) == (from, of))?;
        let (_, _, sent, expected) = contents.unlike.remove(place);
        Some((sent, expected))
    }

    /// Returns whether the rank of this inbox makes no more calls in this generation.
    pub(super) fn has_closed(&self, of: Generation) -> bool {
        self.lock().has_closed(&of)
    }

    /// Returns the reason for which a rank makes no more calls in the group of this number: it has
    /// said so, or was lost.
    pub(crate) fn reason_of(&self, rank: usize, group: u64) -> Reason {
        self.lock().reason_of(rank, group)
    }

    /// Notes that an error names a lost rank, in a group of this line or a part of it.
    pub(super) fn name_death(&self, rank: usize, line: &[Generation]) {
        self.lock().named.extend(line.first().map(|whole| (rank, whole.group)));
    }

    /// Returns those of the members of a group that an error here or in a part of it has named as
    /// lost, and that have not left it. A peer needs no news of any other: it may have the data of
    /// that one.
    pub(super) fn named_deaths(&self, members: &[usize], line: &[Generation]) -> Vec<(usize, Reason)> {
        let (Some(whole), Some(own)) = (line.first(), line.last()) else { return Vec::new() };
        let contents = self.lock();
        let is_named = |rank: usize| contents.gone.contains(&rank) && contents.named.contains(&(rank, whole.group));
        let is_dead = |&&rank: &&usize| is_named(rank) && !contents.left.contains_key(&(rank, own.group));
        members.iter().filter(is_dead).map(|&rank| (rank, Reason::Death)).collect()
    }

    /// Returns whether a rank makes no more calls in the group of this number.
    pub(super) fn has_left(&self, rank: usize, group: u64) -> bool {
        self.lock().has_left(rank, group)
    }

    /// Waits until `done`, at most until `until`, and ends late receives meanwhile. Returns whether
    /// it is done.
    pub(super) fn wait_until(&self, until: Option<Instant>, done: &dyn Fn() -> bool) -> bool {
        loop {
            let seen = self.lock().changes;
            if done() {
                return true;
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                return false;
            }
            self.rest(seen, until);
        }
    }

    /// Returns the number of changes so far.
    pub(super) fn changes(&self) -> u64 {
        self.lock().changes
    }

    /// Waits for a change after the first `seen`, at most until `until` or until a receive is late,
    /// which it ends.
    pub(super) fn rest(&self, seen: u64, until: Option<Instant>) {
        self.wait_awake(seen);
        let contents = self.lock();
        let first = contents.open.iter().map(|receive| receive.deadline).chain(until).min();
        let is_same = |contents: &mut Contents| contents.changes == seen;
        let contents = match first.map(|first| first.saturating_duration_since(Instant::now())) {
            Some(rest) => self.change.wait_timeout_while(contents, rest, is_same).expect(UNBROKEN).0,
            None => self.change.wait_while(contents, is_same).expect(UNBROKEN),
        };
        self.settle(contents);
    }

    /// Returns the abort of a group, or of one that it was split from. `line` has their
    /// generations.
    pub(super) fn end_of(&self, line: &[Generation]) -> Option<End> {
        self.lock().ends.of_line(line)
    }

    /// Returns how this generation has ended, with the last generation of the same members that
    /// has: an abort, a loss, or both in this order.
    pub(super) fn ends_of(&self, of: Generation) -> Vec<(u64, End)> {
        self.lock().ends.of(of)
    }

    /// Notes that a call is told how this generation has ended.
    pub(super) fn tell(&self, of: Generation) {
        self.lock().ends.tell(of);
    }

    /// Notes that this rank begins a call. If an earlier one was told of an end, this one is told
    /// of a loss.
    pub(super) fn begin_call(&self, of: Generation) {
        self.lock().ends.begin_call(of);
    }

    /// Returns the members of a group that this rank is in, by their ranks in the whole group.
    pub(crate) fn members(&self, group: u64) -> Vec<usize> {
        self.lock().place(group).members.clone()
    }

    /// Begins the first generation of a group. A part is `of` the last split so far.
    pub(super) fn enter(&self, generation: Generation, members: Vec<usize>, of: Option<Last>) {
        let mut contents = self.lock();
        let mut splits = of.map_or_else(Vec::new, |last| contents.place(last.of.group).splits.clone());
        splits.extend(of);
        contents.places.insert(generation.group, Membership { generation, members, splits });
    }

    /// Begins the first generation of the same members that was not aborted, and returns it; the
    /// current one if a rank has left, which ends all. Forgets what has arrived of those before.
    pub(super) fn begin_next(&self, group: u64) -> Generation {
        let mut contents = self.lock();
        let last = contents.place(group).generation;
        let generation = contents.ends.next_of(last);
        // Only a loss keeps a group in its generation.
        contents.ends.hear(last);
        contents.places.get_mut(&group).expect(ENTERED).generation = generation;
        contents.forget_past();
        // Receives of earlier generations end.
        self.settle(contents);
        generation
    }

    /// Begins the first generation of the ranks of a group that are left, as far as this rank
    /// knows. It follows from these ranks, not from the order of their losses. Forgets what has
    /// arrived of the generations before.
    ///
    /// # Errors
    /// If others take this rank for lost, or if more are lost than all but the `checked` ones.
    pub(super) fn begin_remaining(&self, group: u64, checked: Option<&[usize]>) -> Result<Remaining, NotBegun> {
        let mut contents = self.lock();
        if contents.has_left(contents.own, group) {
            return Err(NotBegun::Lost);
        }
        if checked.is_some_and(|checked| checked.iter().any(|&rank| contents.has_left(rank, group))) {
            return Err(NotBegun::MoreLost);
        }
        let Membership { generation, members: earlier, splits } = contents.places.remove(&group).expect(ENTERED);
        let (lost, members): (Vec<usize>, Vec<usize>) =
            earlier.iter().partition(|&&rank| contents.has_left(rank, group));
        let first = if lost.is_empty() { generation } else { generation.without(lost.len(), &members) };
        let generation = contents.ends.next_of(first);
        for rank in lost {
            let why = contents.reason_of(rank, group);
            contents.left.insert((rank, group), why);
        }
        let of_group = contents.left.iter().filter(|((_, of), _)| *of == group);
        let lost = of_group.map(|(&(rank, _), &why)| (rank, why)).collect();
        contents.places.insert(group, Membership { generation, members: members.clone(), splits });
        contents.forget_past();
        self.settle(contents);
        Ok(Remaining { generation, members, earlier, lost })
    }

    /// Returns the number of messages that no receive has taken, and of the receives that wait.
    #[cfg(test)]
    pub(super) fn count(&self) -> (usize, usize) {
        let contents = self.lock();
        let messages = contents.messages.iter().flat_map(HashMap::values).map(VecDeque::len).sum::<usize>();
        (messages + contents.tagged.len() + contents.unlike.len(), contents.open.len())
    }

    /// Waits until [`take`](Inbox::take) would not wait for one of the ranks `from`, at most until
    /// `until`. Returns the position of that rank.
    pub(super) fn probe(&self, from: &[usize], line: &[Generation], until: Instant) -> Option<usize> {
        let own = *line.last().expect("a group has a generation");
        let mut contents = self.lock();
        loop {
            let has_ended = contents.ends.of_line(line).is_some();
            let is_ready =
                |&rank: &usize| has_ended || contents.has_message(rank, own) || contents.has_left(rank, own.group);
            if let Some(place) = from.iter().position(is_ready) {
                return Some(place);
            }
            contents = self.wait(contents, until)?;
        }
    }

    /// Waits for a letter. Returns `None` if the deadline has passed.
    fn wait<'i>(&'i self, contents: MutexGuard<'i, Contents>, deadline: Instant) -> Option<MutexGuard<'i, Contents>> {
        let rest = || deadline.checked_duration_since(Instant::now()).filter(|rest| !rest.is_zero());
        // Letters for other receives may come all the time.
        rest()?;
        let seen = contents.changes;
        drop(contents);
        self.wait_awake(seen);
        let contents = self.lock();
        if contents.changes != seen {
            return Some(contents);
        }
        let rest = rest()?;
        Some(self.change.wait_timeout(contents, rest).expect(UNBROKEN).0)
    }

    /// Waits for something of rank `from` in the last group of `line`, at most until the deadline,
    /// and returns it.
    pub(super) fn take(&self, from: usize, line: &[Generation], deadline: Instant) -> News {
        let own = *line.last().expect("a group has a generation");
        let mut contents = self.lock();
        loop {
            // A message that arrived before the abort is still delivered.
            if let Some(bytes) = contents.messages[from].get_mut(&own).and_then(VecDeque::pop_front) {
                return News::Message(bytes);
            }
            if let Some(end) = contents.ends.of_line(line) {
                return News::Ended(end);
            }
            if contents.has_left(from, own.group) {
                return News::Left;
            }
            contents = match self.wait(contents, deadline) {
                Some(contents) => contents,
                None => return News::Late,
            };
        }
    }
}

impl Contents {
    fn place(&self, group: u64) -> &Membership {
        self.places.get(&group).expect(ENTERED)
    }

    /// Whether this rank never comes to a generation, or not again.
    fn is_past(&self, of: &Generation) -> bool {
        match self.places.get(&of.group) {
            Some(place) => of.is_past(&place.generation),
            None => self.left.contains_key(&(self.own, of.group)),
        }
    }

    /// Forgets what has arrived of generations that this rank has left.
    fn forget_past(&mut self) {
        let mut messages = std::mem::take(&mut self.messages);
        let (mut tagged, mut unlike) = (std::mem::take(&mut self.tagged), std::mem::take(&mut self.unlike));
        messages.iter_mut().for_each(|messages| messages.retain(|of, _| !self.is_past(of)));
        tagged.retain(|(_, of, _)| !self.is_past(of));
        unlike.retain(|(_, of, ..)| !self.is_past(of));
        let mut splits = std::mem::take(&mut self.splits);
        let is_of_part =
            |of: &Generation| self.places.values().any(|place| place.splits.iter().any(|split| split.of == *of));
        splits.retain(|(_, of), _| !self.is_past(of) || is_of_part(of));
        self.splits = splits;
        let mut ends = std::mem::take(&mut self.ends);
        ends.forget(|of| self.is_past(of));
        (self.messages, self.tagged, self.unlike) = (messages, tagged, unlike);
        self.ends = ends;
    }

    /// Notes that ranks are lost to a group. The generation of this rank ends if they are in it:
    /// others go on without them.
    fn lose(&mut self, group: u64, ranks: &[(usize, Reason)]) {
        ranks.iter().for_each(|&(rank, why)| _ = self.left.entry((rank, group)).or_insert(why));
        let Some(Membership { generation, members, .. }) = self.places.get(&group) else { return };
        if let Some(rank) = members.iter().position(|member| ranks.iter().any(|(rank, _)| rank == member)) {
            let reason = self.reason_of(members[rank], group);
            let end = End { rank, member: members[rank], reason, turn: None };
            self.ends.note(Generation { number: u64::MAX, ..*generation }, end);
        }
    }

    /// Returns how a receive ends, if it need not wait.
    fn outcome(&mut self, receive: &Receive) -> Option<Outcome> {
        let own = *receive.line.last().expect("a group has a generation");
        let takes = |(from, of, message): &(usize, Generation, Tagged)| {
            *of == own && message.envelope.tag == receive.tag && receive.from.contains(from)
        };
        if self.has_closed(&own) {
            return Some(Outcome::Closed);
        }
        if let Some(place) = self.tagged.iter().position(takes) {
            let (from, _, message) = self.tagged.remove(place);
            return Some(Outcome::Message(from, message));
        }
        if let Some(end) = self.ends.of_line(&receive.line) {
            return Some(Outcome::Ended(end));
        }
        let others = || receive.from.iter().filter(|&&rank| rank != self.own);
        match others().next() {
            Some(&first) if others().all(|&rank| self.has_left(rank, own.group)) => Some(Outcome::Left(first)),
            _ => (Instant::now() >= receive.deadline).then_some(Outcome::Late),
        }
    }

    /// Whether this rank makes no more calls in a generation.
    fn has_closed(&self, of: &Generation) -> bool {
        self.places.get(&of.group).is_none_or(|place| of.is_past(&place.generation))
    }

    fn has_message(&self, from: usize, of: Generation) -> bool {
        self.messages[from].get(&of).is_some_and(|messages| !messages.is_empty())
    }

    /// Whether another rank is lost to a group, or has left it.
    fn is_lost_to(&self, rank: usize, group: u64) -> bool {
        rank != self.own && self.left.contains_key(&(rank, group))
    }

    fn reason_of(&self, rank: usize, group: u64) -> Reason {
        let unsaid = if self.never_enters(rank, group) { Reason::Leave } else { Reason::Death };
        self.left.get(&(rank, group)).copied().unwrap_or(unsaid)
    }

    fn has_left(&self, rank: usize, group: u64) -> bool {
        self.gone.contains(&rank) || self.left.contains_key(&(rank, group)) || self.never_enters(rank, group)
    }

    /// Notes the last of what another rank does in a generation.
    fn pass(&mut self, rank: usize, last: Last) {
        if rank != self.own {
            self.splits.insert((rank, last.of), last.splits);
        }
    }

    /// Whether another rank has gone on from a generation before the split that led to a group.
    fn never_enters(&self, rank: usize, group: u64) -> bool {
        let splits = self.places.get(&group).map_or(&[][..], |place| &place.splits);
        splits.iter().any(|split| self.splits.get(&(rank, split.of)).is_some_and(|last| *last < split.splits))
    }
}

impl fmt::Debug for Inbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inbox").finish_non_exhaustive()
    }
}
