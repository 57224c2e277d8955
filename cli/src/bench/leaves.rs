//! All-reduces to which a rank brings several leaves, and the loop that a program without
//! accumulators has in their place.
//!
//! The leaves are dealt to the ranks by [`partition::block`]. A rank has its leaves but the last
//! once, and the last one in each set of buffers. The accumulator is the same in all calls, as in a
//! training. Ranks meet at the gate before the timed part.

use super::{
    Memory,
    case::Case,
    prepared_case::{Meeting, Prepared, Run, Steps, room},
    tile::{Segment, Tiles},
};
use consonance::{Accumulator, Communicator};
use consonance_harness::calls::Elements;
use consonance_spec::partition;
use std::{error::Error, fmt, str::FromStr, time::Instant};

/// The timed part of a step on leaves. Each step is checked whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timed {
    /// The call with the last leaf.
    Call,
    /// The adds of all leaves but the last.
    Adds,
    /// The adds and the call.
    Step,
    /// A loop for each leaf but one, which adds it to the sum of those before: no call follows.
    Loop,
}

impl Timed {
    const ALL: [Timed; 4] = [Timed::Call, Timed::Adds, Timed::Step, Timed::Loop];

    /// Returns the parts that a bench of so many leaves measures. Ranks with one leaf add none.
    pub(super) fn parts(leaves: usize, ranks: usize) -> &'static [Timed] {
        if leaves > ranks { &Timed::ALL } else { &[Timed::Call] }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Timed::Call => "call",
            Timed::Adds => "adds",
            Timed::Step => "adds+call",
            Timed::Loop => "loop",
        }
    }
}

/// The work of a rank with leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Leaves {
    pub(super) timed: Timed,
    /// The number of leaves of all ranks.
    pub(super) of: usize,
    pub(super) memory: Memory,
}

impl fmt::Display for Leaves {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.timed.name(), self.of, self.memory.name())
    }
}

impl FromStr for Leaves {
    type Err = String;

    fn from_str(text: &str) -> Result<Leaves, String> {
        let unknown = || format!("expected a part, a number and a memory, found {text:?}");
        let [timed, of, memory] = text.split(' ').collect::<Vec<_>>()[..] else { return Err(unknown()) };
        let timed = Timed::ALL.into_iter().find(|each| each.name() == timed).ok_or_else(unknown)?;
        Ok(Leaves { timed, of: of.parse().map_err(|_| unknown())?, memory: memory.parse()? })
    }
}

/// The buffers of a rank with leaves.
pub(super) struct LeafBuffers {
    timed: Timed,
    in_place: bool,
    tiles: Tiles<f32>,
    sum: Accumulator<f32>,
    /// The leaves but the last.
    added: Vec<Elements<f32>>,
    /// For each set, the last leaf, and the place of the result if the call is not in place.
    sets: Vec<(Elements<f32>, Elements<f32>)>,
    /// The contents of the last leaf before, and of the result after.
    last: [Segment; 1],
    result: [Segment; 1],
    nothing: [Segment; 1],
}

impl LeafBuffers {
    /// Makes the buffers of `case`.
    ///
    /// # Errors
    /// If there is no memory.
    pub(super) fn new(
        case: Case,
        communicator: &mut Communicator,
        Leaves { timed, of, memory }: Leaves,
        sets: usize,
    ) -> Result<LeafBuffers, Box<dyn Error>> {
        let run = partition::block(of, case.ranks, communicator.rank());
        let sum = communicator.accumulator(case.op, case.count, run.clone(), of)?;
        let room = |count| room::<f32>(communicator, memory, count);
        let apart = if case.in_place || timed == Timed::Loop { 0 } else { case.count };
        let sets = (0..sets).map(|_| Ok((room(case.count)?, room(apart)?))).collect::<Result<_, Box<dyn Error>>>()?;
        let mut added = (1..run.len()).map(|_| room(case.count)).collect::<Result<Vec<_>, _>>()?;
        // The loop ends with the sum of this rank's leaves, a call with that of all.
        let summed = if timed == Timed::Loop { run.clone() } else { 0..of };
        let tiles = Tiles::new(&Case { ranks: summed.len(), ..case });
        let segment = |tile| [Segment { tile, shift: 0, count: case.count }];
        let first = run.start - summed.start;
        for (leaf, tile) in added.iter_mut().zip(first..) {
            tiles.fill(leaf, &segment(tile), 0);
        }
        let (last, result) = (segment(first + added.len()), segment(summed.len()));
        let nothing = [Segment { tile: summed.len() + 1, shift: 0, count: apart }];
        Ok(LeafBuffers { timed, in_place: case.in_place, tiles, sum, added, sets, last, result, nothing })
    }

    fn step(&mut self, set: usize, communicator: &mut Communicator, meet: Meeting<'_>) -> Result<f64, Box<dyn Error>> {
        let LeafBuffers { timed, sum, added, .. } = self;
        let (last, recv) = &mut self.sets[set];
        let mut add = || added.iter().try_for_each(|leaf| sum.add(leaf));
        if *timed == Timed::Call {
            add()?;
        }
        meet(communicator)?;
        let begin = Instant::now();
        match timed {
            Timed::Call => {}
            Timed::Adds | Timed::Step => add()?,
            Timed::Loop => {
                for leaf in &*added {
                    last.iter_mut().zip(leaf.iter()).for_each(|(sum, leaf)| *sum += leaf);
                }
                return Ok(begin.elapsed().as_secs_f64());
            }
        }
        let adds = begin.elapsed().as_secs_f64();
        match self.in_place {
            true => communicator.all_reduce_accumulated(sum, last)?,
            false => communicator.all_reduce_accumulated_into(sum, last, recv)?,
        }
        Ok(if *timed == Timed::Adds { adds } else { begin.elapsed().as_secs_f64() })
    }
}

impl Prepared for LeafBuffers {
    fn run(
        &mut self,
        communicator: &mut Communicator,
        meet: Meeting<'_>,
        batches: usize,
        _turn: usize,
        run: &mut Run,
    ) -> Result<(), Box<dyn Error>> {
        let warm_up = usize::from(batches > 1);
        for batch in 0..batches + warm_up {
            for (last, recv) in &mut self.sets {
                self.tiles.fill(last, &self.last, 0);
                self.tiles.fill(recv, &self.nothing, 0);
            }
            let (before, calls) = (run.cpu(), run.seconds.len());
            for set in 0..self.sets.len() {
                let seconds = self.step(set, communicator, meet)?;
                run.seconds.push(seconds);
            }
            if batch < warm_up {
                run.seconds.truncate(calls);
            } else {
                run.cpu_seconds += run.cpu() - before;
            }
            let is_apart = !self.in_place && self.timed != Timed::Loop;
            for (last, recv) in &self.sets {
                run.wrong += self.tiles.wrong(if is_apart { recv } else { last }, &self.result, 0);
            }
        }
        Ok(())
    }

    fn steps(
        &mut self,
        _communicator: &mut Communicator,
        _meet: Meeting<'_>,
        _steps: Steps,
        _run: &mut Run,
    ) -> Result<(), Box<dyn Error>> {
        Err("leaves are measured apart".into())
    }

    fn once(&mut self, communicator: &mut Communicator) -> Result<(), Box<dyn Error>> {
        self.step(0, communicator, &mut |_| Ok(())).map(drop)
    }
}
