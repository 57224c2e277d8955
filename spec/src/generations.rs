//! The generations of a group: which ranks are in one, how it ends, and what of it reaches the
//! next.
//!
//! A group ends as [`ending`](crate::ending) says. It can begin its next *generation*:
//!
//! * A group whose processes all live is *renewed*: the ranks stay the same. [`Group`] says what
//!   each rank is told.
//! * A group that has lost a process is never renewed. The processes that are left, and those that
//!   replace the lost ones, *form* another generation, with ranks that are numbered anew:
//!   [`formed`]. Between hosts a network may break and seem to be a loss: [`may_go_on`].
//!
//! Each rank is told of the abort of its generation, and afterwards of the loss, if both came in
//! this order: a process may be lost because of the abort, and then it is not the lost rank that is
//! at fault. A rank that begins the next generation is told of the loss at once, because the loss
//! has ended that one.
//!
//! A group that is split off has one generation, in which it ends with the groups that it was split
//! from. [`ends_of_part`] says of which ends its ranks are told.
//!
//! Nothing of a generation reaches a later one: no data, no call, no abort by a handle of it.

use std::cmp::Ordering;

/// The end of a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// This rank aborted it.
    Aborted(usize),
    /// This rank was late for another one, whose deadline passed.
    Late(usize),
    /// The process of this rank is lost. All later generations have ended with this one.
    Lost(usize),
}

/// Something that happens in a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event<V> {
    /// A rank makes a call with a value.
    Calls(usize, V),
    /// A rank begins the next generation.
    Renews(usize),
    /// A rank's handle of a generation, which the rank has been in, aborts it.
    Aborts {
        /// The rank.
        rank: usize,
        /// The generation of the handle.
        generation: u64,
    },
    /// The deadline of a rank that waits passes.
    GivesUp(usize),
    /// The process of a rank is lost.
    IsLost(usize),
}

/// The answer to a rank that made a call or began the next generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told<V> {
    /// The values of all ranks in this call, in rank order.
    Result(Vec<V>),
    /// All ranks are in the next generation.
    Renewed,
    /// The generation has not ended, and goes on.
    Unchanged,
    /// The generation of this rank has ended.
    Ended(End),
    /// These ranks have not come before this rank's deadline.
    Late(Vec<usize>),
}

/// A group of ranks whose processes are the same from generation to generation.
///
/// ```
/// use consonance_spec::generations::{End, Event, Group, Told};
/// let mut group = Group::new(2);
/// assert_eq!(group.happens(Event::Calls(0, "old")), [None, None]);
/// // The other rank aborts: the call fails, and its value is gone.
/// assert_eq!(group.happens(Event::Aborts { rank: 1, generation: 0 }), [Some(Told::Ended(End::Aborted(1))), None]);
/// assert_eq!(group.happens(Event::Renews(0)), [None, None]);
/// assert_eq!(group.happens(Event::Renews(1)), [Some(Told::Renewed), Some(Told::Renewed)]);
/// // The handle of an earlier generation does nothing.
/// assert_eq!(group.happens(Event::Aborts { rank: 1, generation: 0 }), [None, None]);
/// group.happens(Event::Calls(1, "b"));
/// assert_eq!(group.happens(Event::Calls(0, "a")), vec![Some(Told::Result(vec!["a", "b"])); 2]);
/// ```
#[derive(Clone, Debug)]
pub struct Group<V> {
    ranks: Vec<Rank<V>>,
    /// The last generation that ended before a loss, and how. All before it have ended, too.
    aborted: Option<(u64, End)>,
    /// The first loss.
    lost: Option<End>,
}

#[derive(Clone, Debug)]
struct Rank<V> {
    generation: u64,
    /// Whether it was told that this generation has ended.
    is_told: bool,
    waits: Option<Wait<V>>,
}

#[derive(Clone, Debug)]
enum Wait<V> {
    /// In a call, with its value.
    Call(V),
    /// For the others to come to its generation.
    Renewal,
}

impl<V: Clone> Group<V> {
    /// Makes a group in generation 0.
    pub fn new(ranks: usize) -> Group<V> {
        Group { ranks: vec![Rank { generation: 0, is_told: false, waits: None }; ranks], aborted: None, lost: None }
    }

    /// Returns the number of ranks.
    pub fn ranks(&self) -> usize {
        self.ranks.len()
    }

    /// Returns the generation of a rank.
    pub fn generation(&self, rank: usize) -> u64 {
        self.ranks[rank].generation
    }

    /// Returns whether a rank waits for others.
    pub fn waits(&self, rank: usize) -> bool {
        self.ranks[rank].waits.is_some()
    }

    /// Returns whether this generation has ended.
    pub fn has_ended(&self, generation: u64) -> bool {
        self.lost.is_some() || self.aborted.is_some_and(|(last, _)| last >= generation)
    }

    /// Returns how the generation of a rank ended, as the rank is told. The abort of a later
    /// generation takes the place of its own, so a rank that stays behind is told of the last one.
    /// A loss takes the place of an abort of which the rank was told.
    pub fn end(&self, rank: usize) -> Option<End> {
        let Rank { generation, is_told, .. } = self.ranks[rank];
        let abort = self.aborted.filter(|(last, _)| *last >= generation).map(|(_, end)| end);
        if is_told { self.lost.or(abort) } else { abort.or(self.lost) }
    }

    /// Returns what each rank is told because of an event; `None` for one that is told nothing.
    ///
    /// # Panics
    /// If a rank makes a call or begins a generation while it waits, or gives up while it does not.
    pub fn happens(&mut self, event: Event<V>) -> Vec<Option<Told<V>>> {
        let mut told = vec![None; self.ranks.len()];
        match event {
            Event::Calls(rank, value) => match self.end(rank) {
                None => self.begin(rank, Wait::Call(value)),
                Some(end) => told[rank] = Some(Told::Ended(end)),
            },
            Event::Renews(rank) => match (self.lost, self.aborted) {
                (Some(loss), _) => told[rank] = Some(Told::Ended(loss)),
                // The first generation that has not ended.
                (None, Some((last, _))) if last >= self.generation(rank) => {
                    (self.ranks[rank].generation, self.ranks[rank].is_told) = (last + 1, false);
                    self.begin(rank, Wait::Renewal);
                }
                _ => told[rank] = Some(Told::Unchanged),
            },
            Event::Aborts { rank, generation } => self.ends(generation, End::Aborted(rank)),
            Event::GivesUp(rank) => {
                let late = self.late(rank);
                let first = late.iter().find(|&&late| late > rank).unwrap_or(&late[0]);
                self.ranks[rank].waits = None;
                self.ends(self.generation(rank), End::Late(*first));
                told[rank] = Some(Told::Late(late));
            }
            Event::IsLost(rank) => self.lost = self.lost.or(Some(End::Lost(rank))),
        }
        let now: Vec<Option<Told<V>>> = (0..self.ranks.len()).map(|rank| self.told(rank)).collect();
        for (rank, now) in now.into_iter().enumerate().filter(|(_, now)| now.is_some()) {
            self.ranks[rank].waits = None;
            told[rank] = now;
        }
        for (rank, told) in self.ranks.iter_mut().zip(&told) {
            rank.is_told |= matches!(told, Some(Told::Ended(_) | Told::Late(_)));
        }
        told
    }

    fn begin(&mut self, rank: usize, wait: Wait<V>) {
        let before = self.ranks[rank].waits.replace(wait);
        assert!(before.is_none(), "rank {rank} waits");
    }

    /// The first end of a generation stays.
    fn ends(&mut self, generation: u64, end: End) {
        if !self.has_ended(generation) {
            self.aborted = Some((generation, end));
        }
    }

    /// Returns the ranks for which a rank waits.
    fn late(&self, rank: usize) -> Vec<usize> {
        let own = self.generation(rank);
        let has_come = |other: &Rank<V>| match (&self.ranks[rank].waits, &other.waits) {
            (None, _) => panic!("rank {rank} does not wait"),
            (Some(Wait::Call(_)), wait) => other.generation == own && matches!(wait, Some(Wait::Call(_))),
            (Some(Wait::Renewal), _) => other.generation >= own,
        };
        (0..self.ranks.len()).filter(|&other| !has_come(&self.ranks[other])).collect()
    }

    /// Returns what a rank that waits is told now.
    fn told(&self, rank: usize) -> Option<Told<V>> {
        let wait = self.ranks[rank].waits.as_ref()?;
        // A complete call stays complete, even if the generation has ended since.
        if !self.late(rank).is_empty() {
            return self.end(rank).map(Told::Ended);
        }
        let value = |rank: &Rank<V>| match &rank.waits {
            Some(Wait::Call(value)) => Some(value.clone()),
            Some(Wait::Renewal) | None => None,
        };
        Some(match wait {
            Wait::Call(_) => Told::Result(self.ranks.iter().filter_map(value).collect()),
            Wait::Renewal => Told::Renewed,
        })
    }
}

/// An end of a group that was split off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartEnd {
    /// Its own abort.
    Own(End),
    /// The end of the group that it was split from.
    Inherited(End),
}

/// Returns the ends of which a rank of a part, a group that was split off, is told, each in a
/// later call than the one before; it is told of the last again and again. `ends` are all that came
/// before its first call, in their order, in the generation of the split.
///
/// An abort of the part comes first if the other group had not ended: that end may be a
/// consequence. Otherwise the end of the other group is the reason for the abort of the part.
///
/// ```
/// use consonance_spec::generations::{End::{Aborted, Lost}, PartEnd::{Inherited, Own}, ends_of_part};
/// let (abort, loss) = (Own(Aborted(1)), Inherited(Lost(0)));
/// assert_eq!(ends_of_part(&[abort, loss]), [abort, loss]);
/// assert_eq!(ends_of_part(&[loss, abort]), [loss]);
/// ```
pub fn ends_of_part(ends: &[PartEnd]) -> Vec<PartEnd> {
    let own = ends.first().filter(|end| matches!(end, PartEnd::Own(_)));
    let mut inherited = ends.iter().filter(|end| matches!(end, PartEnd::Inherited(_)));
    let first = inherited.next();
    // A loss takes the place of an abort. Nothing takes the place of a loss.
    let loss = match first {
        Some(PartEnd::Inherited(End::Lost(_))) => None,
        _ => inherited.find(|end| matches!(end, PartEnd::Inherited(End::Lost(_)))),
    };
    own.into_iter().chain(first).chain(loss).copied().collect()
}

/// The process of a task, where a generation is formed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Process {
    /// There is none: it is not started, or it is lost and not replaced.
    Absent,
    /// It runs, and has not asked for the next generation.
    Runs,
    /// It asks for the next generation: as a member of the last one, or newly started.
    Asks,
}

/// Returns the tasks of the next generation, in the order of their new ranks; `None` if none is
/// formed now. `last` is the number of the last generation, 0 if there was none. `waits_for_all`:
/// the processes still wait for replacements of those that are lost.
///
/// No generation is formed without a process that runs: it is late, and the others are told so at
/// their deadline.
///
/// ```
/// use consonance_spec::generations::{Process::{Absent, Asks, Runs}, formed};
/// assert_eq!(formed(0, &[Asks, Absent, Asks], false), None);
/// assert_eq!(formed(1, &[Asks, Absent, Asks], false), Some(vec![0, 2]));
/// assert_eq!(formed(1, &[Asks, Absent, Asks], true), None);
/// assert_eq!(formed(1, &[Asks, Runs, Asks], false), None);
/// ```
pub fn formed(last: u64, tasks: &[Process], waits_for_all: bool) -> Option<Vec<usize>> {
    let is_complete = tasks.iter().all(|&task| task == Process::Asks);
    let must_be_complete = last == 0 || waits_for_all;
    if tasks.contains(&Process::Runs) || must_be_complete && !is_complete {
        return None;
    }
    let members: Vec<usize> = (0..tasks.len()).filter(|&task| tasks[task] == Process::Asks).collect();
    Some(members).filter(|members| !members.is_empty())
}

/// A process of the last generation on several hosts, as another one sees it after a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is on the same side, and goes on, too.
    Here,
    /// It has ended.
    Ended,
    /// It has ended, and had begun a group without the process that asks.
    LeftBehind,
    /// Nothing is heard of it: it has ended, or a network that broke cuts it off.
    Silent,
}

/// Returns whether a side of a network that broke may form the next generation. `fates` has the
/// processes of the last one in the order of their ranks: of the last one that has formed, as far
/// as the process knows that asks. One that was begun, and lost a process before all had met, does
/// not count.
///
/// Of the processes not known to have ended, the side needs more than half, or half and the first
/// one. So of any two sides at most one goes on, also if they know of different ends. A process
/// that has ended may have counted for the other side before: whoever hears of an end must have
/// heard before of the groups that the process had begun, and does not go on if one was without it.
///
/// A process that replaces a lost one is none of the last generation: it counts for no side before
/// the generation that it joins has formed, and goes on with no other one alone.
///
/// ```
/// use consonance_spec::generations::{Fate::{Ended, Here, LeftBehind, Silent}, may_go_on};
/// assert!(may_go_on(&[Here, Silent, Here]));
/// assert!(!may_go_on(&[Silent, Here, Silent]));
/// assert!(may_go_on(&[Here, Silent]) && !may_go_on(&[Silent, Here]));
/// assert!(may_go_on(&[Ended, Here]) && !may_go_on(&[LeftBehind, Here]));
/// assert!(!may_go_on(&[Ended, Ended]));
/// ```
pub fn may_go_on(fates: &[Fate]) -> bool {
    let count = |fate| fates.iter().filter(|&&other| other == fate).count();
    let has_first = fates.iter().find(|&&fate| fate != Fate::Ended) == Some(&Fate::Here);
    match count(Fate::Here).cmp(&count(Fate::Silent)) {
        _ if count(Fate::LeftBehind) > 0 => false,
        Ordering::Greater => true,
        Ordering::Equal => has_first,
        Ordering::Less => false,
    }
}
