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
    sync::atomics::available_parallelism,
    tuning::{self, Choice, Origin, Pipeline, TURNS, Trial, Tuning, Value, fastest, median},
};
use consonance_spec::{DType, Kind, Signature};
use std::time::{Duration, Instant};

/// The time that a group measures, beyond the turn in progress.
const LIMIT: Duration = Duration::from_millis(30);

/// The parts of the time after which each of the comparisons ends.
const ENDS: [Duration; 3] = [Duration::from_millis(8), Duration::from_millis(24), LIMIT];

/// No rank measures in a call with a shorter timeout than this.
const PATIENCE: Duration = Duration::from_secs(5);

/// The data of medium size that are measured, if a core's caches hold them.
const MEDIUM_BYTES: usize = 256 << 10;

/// The data that are measured beyond.
const FAR_BYTES: usize = 1 << 20;

/// With more ranks, only data of one rank are measured.
const FEW_RANKS: usize = 4;

/// The bytes that a rank tells of itself.
const TOLD: usize = 1 + Choice::BYTES;

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
    // The steps below are large, too.
    (participant.has_chosen, participant.is_large) = (true, false);
    if participant.world().size() == 1 {
        return Ok(());
    }
    let base = participant.member().state.tuning;
    let (mut room, mut session) = (None, None);
    let state = if !tuning::is_due() {
        State::Chosen
    } else if available_parallelism().map_or(0, usize::from) < participant.world().size() {
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
    let mut told = [state as u8; TOLD];
    told[1..].copy_from_slice(&Choice::of(tuning::current()).to_bytes());
    let all = exchange(participant, told)?;
    let choice = match verdict(&all) {
        Verdict::Never => return Ok(()),
        Verdict::Later => {
            participant.has_chosen = false;
            return Ok(());
        }
        Verdict::Take(choice) => choice,
        Verdict::Measure => {
            let room = room.expect("a rank that is ready has room");
            Measurement { participant: &mut *participant, room, began: Instant::now(), base }.run()?
        }
    };
    drop(session);
    let origin = if verdict(&all) == Verdict::Measure { Origin::Measured } else { Origin::Peer };
    tuning::choose(choice, origin);
    participant.tuning = tuning::keep(choice.near.of_group(*base));
    Ok(())
}

/// The time in which values are tried out in this process. No other group of it measures then.
struct Session;

impl Session {
    /// Begins it, unless another group is about to measure.
    fn begin(participant: &Participant) -> Option<Session> {
        let name = participant.member().segment().name();
        let key = u64::from_ne_bytes(std::array::from_fn(|index| name[index])) | 1;
        tuning::begin_trial(key).then_some(Session)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        tuning::end_trial();
    }
}

/// Returns what all ranks do. It is a pure function.
fn verdict(all: &[[u8; TOLD]]) -> Verdict {
    let is = |state: State| move |told: &&[u8; TOLD]| told[0] == state as u8;
    if let Some(told) = all.iter().find(is(State::Chosen)) {
        return Verdict::Take(Choice::from_bytes(std::array::from_fn(|index| told[1 + index])));
    }
    if all.iter().all(|told| is(State::Ready)(&told)) {
        Verdict::Measure
    } else if all.iter().any(|told| is(State::Never)(&told)) {
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
            part.try_reserve_exact(FAR_BYTES).ok()?;
            part.resize(FAR_BYTES, 0);
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
    /// Returns the choice, which is the same on all ranks.
    fn run(mut self) -> Result<Choice, Fault> {
        let before = Choice::of(tuning::current());
        let medium = MEDIUM_BYTES.min(tuning::current().far_bytes / 2).max(1);
        let patterns: &[Pattern] = match self.participant.world().size() {
            ..=FEW_RANKS => &[Pattern::OneWay, Pattern::Everyone],
            _ => &[Pattern::OneWay],
        };
        let with = |near: Pipeline| (Value::Pipeline(near), Choice { near, ..before });
        let best = self.fastest(("near", before), Pipeline::ALL.map(with), (patterns, medium), ENDS[0])?;
        let with = |far: Pipeline| (Value::Pipeline(far), Choice { far, ..best });
        let best = self.fastest(("far", best), Pipeline::ALL.map(with), (patterns, FAR_BYTES), ENDS[1])?;
        let with = |reads: bool| {
            let choice = Choice { reads, ..best };
            (Value::Bytes(choice.of_process(*tuning::current()).read_bytes), choice)
        };
        self.fastest(("read_bytes", best), [true, false].map(with), (&[Pattern::Blocks], FAR_BYTES), ENDS[2])
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
                self.participant.tuning = tuning::keep(trial.near.of_group(*self.base));
                tuning::try_out(&trial.of_process(*tuning::current()));
                let begin = Instant::now();
                patterns.iter().try_for_each(|&pattern| self.make(pattern, bytes))?;
                times.push(begin.elapsed().as_secs_f64());
            }
        }
        let known = trials.iter().position(|(_, trial)| *trial == before);
        let index = known.and_then(|known| fastest(&times, known));
        if self.participant.world().rank() == 0 {
            note(knob, trials.iter().map(|(value, _)| *value), &times);
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
fn note(knob: &'static str, values: impl Iterator<Item = Value>, times: &[Vec<f64>]) {
    let trial =
        |(value, times): (Value, &Vec<f64>)| Some(Trial { knob, value, time: Duration::from_secs_f64(median(times)?) });
    tuning::note(values.zip(times).filter_map(trial));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(state: State, choice: Choice) -> [u8; TOLD] {
        let mut told = [state as u8; TOLD];
        told[1..].copy_from_slice(&choice.to_bytes());
        told
    }

    #[test]
    fn all_ranks_do_the_same_and_a_choice_of_before_comes_first() {
        let default = Choice::of(&Tuning::DEFAULT);
        let [one, other] = [Pipeline::Stream, Pipeline::Movsb].map(|near| Choice { near, reads: false, ..default });
        let all = |states: [(State, Choice); 3]| verdict(&states.map(|(state, choice)| told(state, choice)));
        use State::{Chosen, Later, Never, Ready};
        assert_eq!(all([(Ready, default), (Ready, default), (Ready, default)]), Verdict::Measure);
        assert_eq!(all([(Ready, default), (Later, default), (Ready, default)]), Verdict::Later);
        assert_eq!(all([(Never, default), (Later, default), (Ready, default)]), Verdict::Never);
        assert_eq!(all([(Never, default), (Chosen, one), (Chosen, other)]), Verdict::Take(one));
        let corrupt = [told(Ready, default), [200; TOLD]];
        assert_eq!(verdict(&corrupt), Verdict::Later);
    }
}
