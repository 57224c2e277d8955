//! A process of a soak with grains: it trains through a leg, on threads alone or with others.
//!
//! It reports the beginning of the step in which it is to be killed. It does not go on after that
//! step, so that the kill comes in it, or between it and the next one. At the end it reports the
//! digest of its state.

use super::{
    super::worker::{Told, report_panics, tell},
    schedule::{Leg, Schedule, grains},
    training::State,
};
use crate::launcher::worker::end_with;
use consonance::{
    ClusterSpec, CommunicationOptions, Error, MirroredStrategy, MultiWorkerMirroredStrategy, Result,
    SimpleClusterResolver, Strategy,
};
use std::{path::PathBuf, thread, time::Duration};

/// The deadline of a call, enough on a busy machine.
const DEADLINE: Duration = Duration::from_secs(20);

/// The time that processes wait for each other to form a group.
const MEETS: Duration = Duration::from_secs(30);

/// The chief saves its state after each step whose number is a multiple of this, and after a leg.
const SAVES: u64 = 5;

/// A process.
#[derive(Clone, Debug)]
pub struct GrainWorker {
    /// The seed of everything random.
    pub seed: u64,
    /// The number of the schedule.
    pub schedule: u64,
    /// The number of the leg.
    pub leg: usize,
    /// The index of this process.
    pub index: usize,
    /// The number of processes that had this index in this leg before.
    pub life: usize,
    /// The file of the state.
    pub checkpoint: PathBuf,
    /// The id of the process that started this one.
    pub parent: String,
}

impl GrainWorker {
    /// Trains to the end of the leg, and returns the exit status.
    pub fn run(self) -> i32 {
        report_panics();
        let mut step = 0;
        let digest = match end_with(&self.parent) {
            Ok(()) => self.train(&mut step),
            Err(error) => Err(Error::other(error)),
        };
        match digest {
            Ok(digest) => tell(&Told::End(digest)),
            Err(error) => tell(&Told::Wrong(step, error.to_string())),
        }
        0
    }

    fn train(&self, begun: &mut u64) -> Result<u64> {
        let schedule = Schedule::draw(self.seed, self.schedule);
        let leg = schedule.legs.get(self.leg).ok_or_else(|| Error::other("no such leg"))?;
        let mut state = State::new()?;
        if self.checkpoint.exists() {
            state.restore(&self.checkpoint)?;
        }
        let (doom, mut is_reported) = (leg.doom(self.index, self.life).map(|(step, _)| step), false);
        let workers = (leg.processes > 1).then(|| self.join(leg)).transpose()?;
        let threads = if workers.is_none() { Some(self.threads(leg)?) } else { None };
        let strategy: &Strategy = match (&workers, &threads) {
            (Some(workers), _) => workers,
            (None, Some(threads)) => threads,
            (None, None) => unreachable!("one of both is made above"),
        };
        loop {
            let trained = state.catch_up(strategy).and_then(|()| {
                while state.step < leg.steps.end {
                    *begun = state.step;
                    match doom {
                        Some(step) if is_reported && state.step > step => park(),
                        Some(step) if !is_reported && state.step >= step => {
                            is_reported = true;
                            tell(&Told::Round(state.step, 0));
                        }
                        _ => {}
                    }
                    state.step(strategy, schedule.kind)?;
                    if strategy.is_chief() && (state.step.is_multiple_of(SAVES) || state.step == leg.steps.end) {
                        state.save(&self.checkpoint)?;
                    }
                }
                Ok(())
            });
            match (trained, &workers) {
                (Ok(()), _) => return state.digest(),
                (Err(error), Some(workers)) if error.is_loss() && !leg.losses.is_empty() => {
                    workers.reform(if leg.replaces { MEETS } else { Duration::ZERO })?;
                }
                (Err(error), _) => return Err(error),
            }
        }
    }

    fn threads(&self, leg: &Leg) -> Result<MirroredStrategy> {
        let builder = MirroredStrategy::builder((0..leg.replicas).map(|replica| format!("cpu:{replica}")));
        builder.options(options(leg)?).grains(grains(self.seed)).seed(self.seed).build()
    }

    fn join(&self, leg: &Leg) -> Result<MultiWorkerMirroredStrategy> {
        let addresses = (1..=leg.processes).map(|port| format!("localhost:{port}"));
        let task = SimpleClusterResolver::new(ClusterSpec::new().job("worker", addresses)?);
        let builder = MultiWorkerMirroredStrategy::builder(task.with_task("worker", self.index)?);
        let builder = builder.replicas(leg.replicas).options(options(leg)?);
        let builder = builder.grains(grains(self.seed)).seed(self.seed);
        builder.meeting(|group| Ok(group.timeout(MEETS)?.on_wait(|_| {}))).build()
    }
}

fn options(leg: &Leg) -> Result<CommunicationOptions> {
    CommunicationOptions::new().bytes_per_pack(leg.bytes_per_pack).timeout(DEADLINE)
}

/// Waits for the kill.
fn park() -> ! {
    loop {
        thread::park();
    }
}
