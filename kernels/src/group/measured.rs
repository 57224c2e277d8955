//! The choice of a [`Pipeline`]: a group of processes measures all of them, after its first large
//! call.
//!
//! # The protocol
//!
//! The ranks have just made a step of which all know that it is large. So all of them come here, or
//! one fails and the group ends.
//!
//! 1. Each rank tells whether its process has chosen before, and what, and whether it can measure.
//!    If some have chosen, in another group, by a file or by `off`, the others take the choice of
//!    the first of them.
//! 2. Otherwise the ranks move data in each pipeline, in turn, and the turns are repeated. Before
//!    each turn rank 0 tells whether there is time.
//! 3. Rank 0 compares its medians, and tells the choice.
//!
//! The knobs of the group follow from the choice, and every rank takes them at this place in the
//! order of its calls. If the group ends meanwhile, the call fails, and the next generation begins
//! with the knobs of the segment ([`Participant::forget_choice`]).

use super::{end::abort::Fault, participant::Participant, peers::PeerBuffers, plan::Chunking, step::Step};
use crate::{
    memory::{HostBuf, HostBufMut},
    tuning::{self, Choice, Origin, Pipeline, TURNS, Trial, Tuning, Value, fastest, median},
};
use consonance_spec::{DType, Kind, Signature};
use std::{
    hash::{DefaultHasher, Hash, Hasher},
    time::{Duration, Instant},
};

/// The time that a group measures, beyond the turn in progress.
const LIMIT: Duration = Duration::from_millis(30);

/// The parts of the time after which each of the comparisons ends.
const ENDS: [Duration; 3] = [Duration::from_millis(8), Duration::from_millis(24), LIMIT];

/// No rank measures in a call with a shorter timeout than this.
const PATIENCE: Duration = Duration::from_secs(5);

/// The data of medium size that are measured: a quarter of the smallest second-level cache of a
/// server.
const MEDIUM_BYTES: usize = 128 << 10;

/// The data that are measured beyond: as many, up to a limit.
const FAR_BYTES: usize = 1 << 20;
const MOST_BYTES: usize = 2 << 20;

/// With more ranks, only data of one rank are measured.
const FEW_RANKS: usize = 4;

/// A rank as to a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Its process has chosen before.
    Chosen = 1,
    /// It can measure.
    Ready,
    /// It cannot in this call, and perhaps in another one.
    Later,
    /// It cannot.
    Never,
}

/// The next step of all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Take(Choice),
    Measure,
    Later,
    Never,
}

/// Chooses, after a large step of all ranks.
#[cold]
pub(super) fn choose(participant: &mut Participant) -> Result<(), Fault> {
    // The steps below are large, too, and have paths. They are no calls of the user.
    (participant.has_chosen, participant.large_steps) = (true, 0);
    participant.meeting.is_unlogged = true;
    let path = participant.path.take();
    let chosen = choose_with_peers(participant);
    participant.path.set(path);
    participant.meeting.is_unlogged = false;
    chosen
}

fn choose_with_peers(participant: &mut Participant) -> Result<(), Fault> {
    if participant.world().size() == 1 {
        return Ok(());
    }
    let base = participant.member().state.tuning;
    let (before, is_due) = tuning::choice();
    let (mut room, mut session) = (None, None);
    let state = if !is_due {
        State::Chosen
    } else if is_crowded(base) {
        State::Never
    } else if participant.meeting.waiter.timeout() < PATIENCE {
        State::Later
    } else {
        (room, session) = (Room::new(), Session::begin(participant));
        match (&room, &session) {
            (None, _) => State::Never,
            (Some(_), None) => State::Later,
            (Some(_), Some(_)) => State::Ready,
        }
    };
    let all = exchange(participant, Told { state: state as u8, choice: before, far_bytes: far_bytes() }.to_bytes())?;
    let all: Vec<Told> = all.into_iter().map(Told::from_bytes).collect();
    let (choice, origin) = match (verdict(&all), room) {
        (Verdict::Never, _) => return Ok(()),
        (Verdict::Take(choice), _) => (choice, Origin::Peer),
        (Verdict::Measure, Some(room)) => {
            let Told { choice: before, far_bytes, .. } = all[0];
            let measurement = Measurement { participant: &mut *participant, room, began: Instant::now(), base };
            (measurement.run(before, far_bytes)?, Origin::Measured)
        }
        (Verdict::Later | Verdict::Measure, _) => {
            // Each time costs as much as a short call, so the ranks ask ever more seldom.
            participant.has_chosen = false;
            participant.chooses_after = participant.chooses_after.saturating_mul(2);
            return Ok(());
        }
    };
    tuning::choose(choice, origin);
    drop(session);
    participant.tuning = values_of_group(base, choice);
    Ok(())
}

/// Whether the ranks outnumber the cores, as the process that made the segment found.
fn is_crowded(base: &Tuning) -> bool {
    base.crowded() == *base
}

/// Returns the knobs of a group with these in its segment, and this choice.
fn values_of_group(base: &'static Tuning, choice: Choice) -> &'static Tuning {
    let values = choice.of_group(*base);
    tuning::keep(if is_crowded(base) { values.crowded() } else { values })
}

/// Returns the data that this process measures beyond a core's caches.
fn far_bytes() -> usize {
    tuning::current().far_bytes.clamp(FAR_BYTES, MOST_BYTES)
}

/// The words of a rank about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Told {
    state: u8,
    choice: Choice,
    far_bytes: usize,
}

impl Told {
    const BYTES: usize = 1 + Choice::BYTES + size_of::<u64>();

    fn to_bytes(self) -> [u8; Told::BYTES] {
        let mut bytes = [self.state; Told::BYTES];
        let (choice, far_bytes) = bytes[1..].split_at_mut(Choice::BYTES);
        choice.copy_from_slice(&self.choice.to_bytes());
        far_bytes.copy_from_slice(&(self.far_bytes as u64).to_ne_bytes());
        bytes
    }

    /// Reads what a peer tells, which may write any bytes.
    fn from_bytes(bytes: [u8; Told::BYTES]) -> Told {
        let choice = Choice::from_bytes(std::array::from_fn(|index| bytes[1 + index]));
        let far_bytes = u64::from_ne_bytes(std::array::from_fn(|index| bytes[1 + Choice::BYTES + index]));
        let far_bytes = usize::try_from(far_bytes).unwrap_or(MOST_BYTES).clamp(FAR_BYTES, MOST_BYTES);
        Told { state: bytes[0], choice, far_bytes }
    }
}

/// The time in which this rank tries out values. No other group of this process does so then.
struct Session;

impl Session {
    /// Begins it, unless another group tries out values.
    fn begin(participant: &Participant) -> Option<Session> {
        let (segment, area) = participant.member().state.segment()?;
        let mut hasher = DefaultHasher::new();
        (segment.name(), area).hash(&mut hasher);
        if tuning::begin_trial(hasher.finish()) { Some(Session) } else { None }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        tuning::end_trial();
    }
}

/// Returns what all ranks do. It is a pure function.
fn verdict(all: &[Told]) -> Verdict {
    let is = |state: State| move |told: &Told| told.state == state as u8;
    if let Some(told) = all.iter().find(|told| is(State::Chosen)(told)) {
        return Verdict::Take(told.choice);
    }
    if all.iter().all(is(State::Ready)) {
        Verdict::Measure
    } else if all.iter().any(is(State::Never)) {
        Verdict::Never
    } else {
        Verdict::Later
    }
}

/// Returns what each rank tells, in rank order.
fn exchange<const BYTES: usize>(participant: &mut Participant, told: [u8; BYTES]) -> Result<Vec<[u8; BYTES]>, Fault> {
    let signature = signature(Kind::AllGather);
    let (ranks, rank) = (participant.world().size(), participant.world().rank());
    let payloads = Step::new(participant, &signature).exchange(Some(HostBuf::from(&told[..])))?;
    let mut all = vec![told; ranks];
    for (peer, told) in all.iter_mut().enumerate().filter(|(peer, _)| *peer != rank) {
        payloads.copy(peer, 0, &mut HostBufMut::from(&mut told[..]))?;
    }
    Ok(all)
}

fn signature(kind: Kind) -> Signature {
    Signature { dtype: Some(DType::U8), ..Signature::new(kind) }
}

/// The memory between which data move. It goes back to the system at once: the library would keep
/// its own for a while, and by a thread.
struct Room {
    source: Vec<u8>,
    target: Vec<u8>,
}

impl Room {
    /// Returns the memory, if the system has it.
    fn new() -> Option<Room> {
        let part = || {
            let mut part = Vec::new();
            part.try_reserve_exact(MOST_BYTES).ok()?;
            part.resize(MOST_BYTES, 0);
            Some(part)
        };
        Some(Room { source: part()?, target: part()? })
    }
}

/// The way in which data go between the ranks.
#[derive(Clone, Copy)]
enum Pattern {
    /// From rank 1 to all others: rank 0, which takes the times, reads.
    OneWay,
    /// From each to all.
    Everyone,
    /// A block from each to each.
    Blocks,
}

/// A measurement in progress.
struct Measurement<'p> {
    participant: &'p mut Participant,
    room: Room,
    began: Instant,
    /// The knobs of the group before.
    base: &'static Tuning,
}

impl Measurement<'_> {
    /// Returns the choice, from `before` on, which is the same on all ranks, as is `far_bytes`.
    fn run(mut self, before: Choice, far_bytes: usize) -> Result<Choice, Fault> {
        let patterns: &[Pattern] = match self.participant.world().size() {
            ..=FEW_RANKS => &[Pattern::OneWay, Pattern::Everyone],
            _ => &[Pattern::OneWay],
        };
        let with = |near: Pipeline| (Value::Pipeline(near), Choice { near, ..before });
        let best = self.fastest(("near", before), Pipeline::NEAR.map(with), (patterns, MEDIUM_BYTES), ENDS[0])?;
        let with = |far: Pipeline| (Value::Pipeline(far), Choice { far, ..best });
        let best = self.fastest(("far", best), Pipeline::ALL.map(with), (patterns, far_bytes), ENDS[1])?;
        let with = |reads: bool| {
            let choice = Choice { reads, ..best };
            (Value::Bytes(choice.of_process(*tuning::current()).read_bytes), choice)
        };
        self.fastest(("read_bytes", best), [true, false].map(with), (&[Pattern::Blocks], far_bytes), ENDS[2])
    }

    /// Returns the fastest of these choices, or `before`.
    fn fastest<const TRIALS: usize>(
        &mut self,
        (knob, before): (&'static str, Choice),
        trials: [(Value, Choice); TRIALS],
        (patterns, bytes): (&[Pattern], usize),
        end: Duration,
    ) -> Result<Choice, Fault> {
        let mut times: [Vec<f64>; TRIALS] = [const { Vec::new() }; TRIALS];
        'turns: for _ in 0..TURNS {
            for ((_, trial), times) in trials.iter().zip(&mut times) {
                let has_time = self.began.elapsed() < end;
                if self.ask(has_time.into())? == 0 {
                    break 'turns;
                }
                self.participant.tuning = values_of_group(self.base, *trial);
                tuning::try_out(&trial.of_process(*tuning::current()));
                let begin = Instant::now();
                patterns.iter().try_for_each(|&pattern| self.make(pattern, bytes))?;
                times.push(begin.elapsed().as_secs_f64());
            }
        }
        let known = trials.iter().position(|(_, trial)| *trial == before);
        let index = known.and_then(|known| fastest(&times, known));
        if self.participant.world().rank() == 0 {
            note((knob, bytes), trials.iter().map(|(value, _)| *value), &times);
        }
        let told = self.ask(index.map_or(u8::MAX, |index| index as u8))?;
        Ok(trials.get(usize::from(told)).map_or(before, |(_, trial)| *trial))
    }

    /// Moves data in this pattern.
    fn make(&mut self, pattern: Pattern, bytes: usize) -> Result<(), Fault> {
        let Measurement { participant, room, .. } = self;
        let (ranks, rank) = (participant.world().size(), participant.world().rank());
        let peers = (0..ranks).filter(|&peer| peer != rank);
        let source = HostBuf::from(&room.source[..bytes]);
        let mut target = HostBufMut::from(&mut room.target[..bytes]);
        match pattern {
            Pattern::OneWay => {
                let signature = Signature { root: Some(1), ..signature(Kind::Broadcast) };
                let step = Step::new(participant, &signature);
                let chunking = Chunking::one_way(bytes, 1);
                if rank == 1 {
                    return step.published(Some(source), chunking, |_| Ok(()));
                }
                step.published(None, chunking, |peers: &mut PeerBuffers<'_>| peers.copy(1, 0..bytes, &mut target))
            }
            Pattern::Everyone => {
                let signature = signature(Kind::AllGather);
                let step = Step::new(participant, &signature);
                step.published(Some(source), Chunking::whole(bytes), |buffers| {
                    peers.clone().try_for_each(|peer| buffers.copy(peer, 0..bytes, &mut target))
                })
            }
            Pattern::Blocks => {
                let signature = signature(Kind::AllToAll);
                let step = Step::new(participant, &signature);
                let part = bytes / ranks;
                let source = source.slice(0..part * ranks);
                step.published(Some(source), Chunking::blocks(ranks, part * ranks), |buffers| {
                    peers.clone().try_for_each(|peer| {
                        let mut place = target.reborrow().slice(peer * part..(peer + 1) * part);
                        buffers.copy_block(peer, rank * part, &mut place)
                    })
                })
            }
        }
    }

    /// Returns the byte that rank 0 tells, as every rank does.
    fn ask(&mut self, told: u8) -> Result<u8, Fault> {
        Ok(exchange(self.participant, [told])?[0][0])
    }
}

/// Keeps the medians for reports.
fn note((knob, bytes): (&'static str, usize), values: impl Iterator<Item = Value>, times: &[Vec<f64>]) {
    let trial = |(value, times): (Value, &Vec<f64>)| {
        Some(Trial { knob, value, bytes, time: Duration::from_secs_f64(median(times)?) })
    };
    tuning::note(values.zip(times).filter_map(trial));
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_os = "linux")]
    use crate::{
        group::{Endpoint, LARGE_BYTES},
        shm::{GroupId, Segment, Shape},
        tuning::Scope,
    };
    #[cfg(target_os = "linux")]
    use std::{sync::Arc, thread};

    #[test]
    fn all_ranks_do_the_same_and_a_choice_of_before_comes_first() {
        let default = Choice::of(&Tuning::DEFAULT);
        let [one, other] = [Pipeline::Stream, Pipeline::Movsb].map(|near| Choice { near, reads: false, ..default });
        let told = |state: State, choice| Told { state: state as u8, choice, far_bytes: FAR_BYTES };
        let all = |states: [(State, Choice); 3]| verdict(&states.map(|(state, choice)| told(state, choice)));
        use State::{Chosen, Later, Never, Ready};
        assert_eq!(all([(Ready, default), (Ready, default), (Ready, default)]), Verdict::Measure);
        assert_eq!(all([(Ready, default), (Later, default), (Ready, default)]), Verdict::Later);
        assert_eq!(all([(Never, default), (Later, default), (Ready, default)]), Verdict::Never);
        assert_eq!(all([(Never, default), (Chosen, one), (Chosen, other)]), Verdict::Take(one));
        let corrupt = Told::from_bytes([200; Told::BYTES]);
        assert_eq!((corrupt.choice, corrupt.far_bytes), (Choice { reads: true, ..default }, MOST_BYTES));
        assert_eq!(verdict(&[told(Ready, default), corrupt]), Verdict::Later);
        assert_eq!(Told::from_bytes(told(Ready, one).to_bytes()), told(Ready, one));
    }

    /// Gathers the data of all ranks, and checks them.
    #[cfg(target_os = "linux")]
    fn gather(rank: &mut Endpoint, bytes: usize) {
        let signature = signature(Kind::AllGather);
        let own = vec![rank.world().rank() as u8 + 1; bytes];
        let peers: Vec<usize> = rank.world().peers().collect();
        let mut found = vec![0u8; bytes];
        let chunking = Chunking::whole(bytes);
        for peer in peers {
            let work = |buffers: &mut PeerBuffers<'_>| buffers.copy(peer, 0..bytes, &mut found.as_mut_slice().into());
            rank.step(&signature).published(Some(own.as_slice().into()), chunking, work).unwrap();
            assert!(found.iter().all(|&byte| usize::from(byte) == peer + 1), "{bytes} bytes of rank {peer}");
        }
        rank.choose_pipeline().unwrap();
    }

    /// Two processes of two ranks each, whose splits measure at the same time.
    #[test]
    #[cfg(target_os = "linux")]
    fn groups_of_the_same_processes_choose_at_once_and_each_agrees() {
        tuning::settle().unwrap();
        let shape = Shape::new(4, Shape::STAGING_BYTES).unwrap();
        let id = GroupId::from_bytes([3; 16]);
        let made = Segment::create_on(shape, id, 8).unwrap();
        let opened = Segment::open(made.file().try_clone_to_owned().unwrap(), id, shape).unwrap();
        let ranks = [(made, 0..2), (opened, 2..4)]
            .map(|(segment, local)| Endpoint::in_segment(&Arc::new(segment), local, 8, &[], Duration::from_secs(60)));
        let chosen: Vec<[Tuning; 2]> = thread::scope(|scope| {
            let work = |mut rank: Endpoint| {
                let color = rank.world().rank() % 2;
                let members = [color, color + 2];
                let mut half = rank.split(&signature(Kind::Barrier), &members).unwrap().unwrap();
                for bytes in [1000, LARGE_BYTES, 700_000, 100_000] {
                    gather(&mut half, bytes);
                }
                gather(&mut rank, 300_000);
                gather(&mut rank, 500_000);
                [*half.tuning(), *rank.tuning()]
            };
            let threads: Vec<_> = ranks.into_iter().flatten().map(|rank| scope.spawn(move || work(rank))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let of_group = |tuning: Tuning| Tuning::DEFAULT.with(Scope::Group, &tuning);
        assert_eq!(of_group(chosen[0][0]), of_group(chosen[2][0]));
        assert_eq!(of_group(chosen[1][0]), of_group(chosen[3][0]));
        assert!(chosen.iter().all(|[_, whole]| of_group(*whole) == of_group(chosen[0][1])));
        assert!(!tuning::choice().1, "a process has chosen");
    }
}
