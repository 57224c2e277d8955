//! The messages that have arrived for a rank.

use super::{
    Carrier,
    letter::{Content, End, Generation, Letter, Tagged},
    remaining::{NotBegun, Remaining},
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
struct Place {
    generation: Generation,
    /// The members of this generation, by their ranks in the whole group.
    members: Vec<usize>,
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
    places: HashMap<u64, Place>,
    /// The last generation that has ended, and how: by the first generation of the same members.
    ended: HashMap<Generation, Ended>,
    /// The number of ends so far.
    ends: u64,
    /// The generations of whose end a call of this rank was told.
    told: HashSet<Generation>,
    /// The generations of which this rank needs no news of an abort, only of a loss.
    heard: HashSet<Generation>,
    /// The ranks that have left a group, or are lost to it.
    left: HashSet<(usize, u64)>,
    /// The ranks that have left a group and said so.
    departed: HashSet<(usize, u64)>,
    /// The ranks that have left all groups.
    gone: HashSet<usize>,
}

/// The end of a generation and of all before.
#[derive(Clone, Copy)]
struct Ended {
    number: u64,
    end: End,
    /// The place of the first of these two among all ends.
    order: u64,
    /// The abort that a loss, which ends all generations, has replaced. The lost rank may have
    /// ended because of it, so a rank is told of the abort first.
    replaced: Option<(u64, End)>,
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
            Content::End { of: Generation { group, .. }, end: End { reason: Reason::Leave, .. } }
            | Content::Lost { group, .. }
                if from != contents.own && contents.left.contains(&(from, group)) => {}
            Content::End { of, end } => {
                contents.end(of, end);
                if end.reason == Reason::Leave {
                    // Also in the group of the ranks that are left without others.
                    contents.lose(of.group, &[end.member]);
                }
            }
            Content::Lost { group, ranks } => contents.lose(group, &ranks),
            Content::Leave { group } => {
                contents.left.insert((from, group));
                contents.departed.insert((from, group));
                if from == contents.own {
                    contents.places.remove(&group);
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

    /// Returns whether a rank has said that it makes no more calls in the group of this number.
    pub(super) fn has_departed(&self, rank: usize, group: u64) -> bool {
        self.lock().departed.contains(&(rank, group))
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
        self.lock().end_of(line)
    }

    /// Returns how this generation has ended, with the last generation of the same members that
    /// has: an abort, a loss, or both in this order.
    pub(super) fn ends_of(&self, of: Generation) -> Vec<(u64, End)> {
        let ended = self.lock().ended.get(&of.first()).copied();
        let ends = ended.into_iter().flat_map(|ended| ended.replaced.into_iter().chain([(ended.number, ended.end)]));
        ends.filter(|(last, _)| *last >= of.number).collect()
    }

    /// Notes that a call is told how this generation has ended.
    pub(super) fn tell(&self, of: Generation) {
        self.lock().told.insert(of);
    }

    /// Notes that this rank begins a call. If an earlier one was told of an end, this one is told
    /// of a loss.
    pub(super) fn begin_call(&self, of: Generation) {
        let mut contents = self.lock();
        if contents.told.contains(&of) {
            contents.heard.insert(of);
        }
    }

    /// Returns the members of a group that this rank is in, by their ranks in the whole group.
    pub(crate) fn members(&self, group: u64) -> Vec<usize> {
        self.lock().place(group).members.clone()
    }

    /// Begins the first generation of a group.
    pub(super) fn enter(&self, generation: Generation, members: Vec<usize>) {
        self.lock().places.insert(generation.group, Place { generation, members });
    }

    /// Begins the first generation of the same members that was not aborted, and returns it; the
    /// current one if a rank has left, which ends all. Forgets what has arrived of those before.
    pub(super) fn begin_next(&self, group: u64) -> Generation {
        let mut contents = self.lock();
        let last = contents.place(group).generation;
        let generation = contents.next_of(last);
        // Only a loss keeps a group in its generation.
        contents.heard.insert(last);
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
        let Place { generation, members: earlier } = contents.places.remove(&group).expect(ENTERED);
        let (lost, members): (Vec<usize>, Vec<usize>) =
            earlier.iter().partition(|&&rank| contents.has_left(rank, group));
        let first = if lost.is_empty() { generation } else { generation.without(lost.len(), &members) };
        let generation = contents.next_of(first);
        contents.left.extend(lost.into_iter().map(|rank| (rank, group)));
        let lost = contents.left.iter().filter(|(_, of)| *of == group).map(|(rank, _)| *rank).collect();
        contents.places.insert(group, Place { generation, members: members.clone() });
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
            let has_ended = contents.end_of(line).is_some();
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
            if let Some(end) = contents.end_of(line) {
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
    fn place(&self, group: u64) -> &Place {
        self.places.get(&group).expect(ENTERED)
    }

    /// Returns the first generation from this one on, of the same members, that was not aborted.
    fn next_of(&self, of: Generation) -> Generation {
        let next = self.ended.get(&of.first()).and_then(|ended| ended.number.checked_add(1));
        Generation { number: next.map_or(of.number, |next| next.max(of.number)), ..of }
    }

    /// Whether this rank never comes to a generation, or not again.
    fn is_past(&self, of: &Generation) -> bool {
        match self.places.get(&of.group) {
            Some(place) => of.is_past(&place.generation),
            None => self.left.contains(&(self.own, of.group)),
        }
    }

    /// Forgets what has arrived of generations that this rank has left.
    fn forget_past(&mut self) {
        let mut messages = std::mem::take(&mut self.messages);
        let (mut tagged, mut unlike) = (std::mem::take(&mut self.tagged), std::mem::take(&mut self.unlike));
        messages.iter_mut().for_each(|messages| messages.retain(|of, _| !self.is_past(of)));
        tagged.retain(|(_, of, _)| !self.is_past(of));
        unlike.retain(|(_, of, ..)| !self.is_past(of));
        let (mut told, mut heard) = (std::mem::take(&mut self.told), std::mem::take(&mut self.heard));
        told.retain(|of| !self.is_past(of));
        heard.retain(|of| !self.is_past(of));
        (self.messages, self.tagged, self.unlike) = (messages, tagged, unlike);
        (self.told, self.heard) = (told, heard);
    }

    /// Notes the end of a generation. The first one wins, but for a loss, which ends all.
    fn end(&mut self, of: Generation, end: End) {
        let last = self.ended.get(&of.first()).copied();
        if last.is_some_and(|last| last.number >= of.number) {
            return;
        }
        let (mut order, mut replaced) = (self.ends, None);
        if let Some(last) = last.filter(|_| of.number == u64::MAX) {
            (order, replaced) = (last.order, Some((last.number, last.end)));
        }
        self.ends += 1;
        self.ended.insert(of.first(), Ended { number: of.number, end, order, replaced });
    }

    /// Notes that ranks are lost to a group. The generation of this rank ends if they are in it:
    /// others go on without them.
    fn lose(&mut self, group: u64, ranks: &[usize]) {
        self.left.extend(ranks.iter().map(|&rank| (rank, group)));
        let Some(Place { generation, members }) = self.places.get(&group) else { return };
        if let Some(rank) = members.iter().position(|member| ranks.contains(member)) {
            let end = End { rank, member: members[rank], reason: Reason::Leave, turn: None };
            self.end(Generation { number: u64::MAX, ..*generation }, end);
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
        if let Some(end) = self.end_of(&receive.line) {
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

    fn has_left(&self, rank: usize, group: u64) -> bool {
        self.gone.contains(&rank) || self.left.contains(&(rank, group))
    }

    fn end_of(&self, line: &[Generation]) -> Option<End> {
        let (own, whole) = line.split_last()?;
        // A rank that leaves the whole group stays in the groups that were split off.
        let inherited = whole.iter().filter_map(|of| self.told_of(of)).find(|(_, end)| end.reason != Reason::Leave);
        match (self.told_of(own), inherited) {
            // The part ended first: not because of the whole group.
            (Some((order, end)), Some((later, _))) if order < later && !self.heard.contains(own) => Some(end),
            (_, Some((_, end))) | (Some((_, end)), None) => Some(end),
            (None, None) => None,
        }
    }

    /// Returns the end of a generation of which this rank is told, and its place among all ends.
    fn told_of(&self, of: &Generation) -> Option<(u64, End)> {
        let ended = self.ended.get(&of.first()).filter(|ended| ended.number >= of.number)?;
        let first = ended.replaced.filter(|(last, _)| *last >= of.number && !self.heard.contains(of));
        Some((ended.order, first.map_or(ended.end, |(_, end)| end)))
    }
}

impl fmt::Debug for Inbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inbox").finish_non_exhaustive()
    }
}
