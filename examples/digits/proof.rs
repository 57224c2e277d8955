//! The proof: the same training gives the same bits when its gradients travel in other ways.

use crate::{data::Digits, plan::Plan, progress, train::train};
use consonance::{
    Builder, CommunicationOptions, Device, Implementation, MirroredStrategy, MultiWorkerMirroredStrategy, Result,
    Strategy,
};
use indicatif::HumanBytes;
use std::num::NonZeroUsize;

/// The path of gradients. Nothing here may change a bit of the result.
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct Travel<'a> {
    pub(crate) between: Between<'a>,
    /// The number of grains; `None` for one on each replica.
    pub(crate) grains: Option<usize>,
    pub(crate) bytes_per_pack: usize,
    pub(crate) implementation: Implementation,
    pub(crate) pin: bool,
    /// Whether a thread reduces the gradients while the replica computes. `None` lets the strategy
    /// choose.
    pub(crate) overlap: Option<bool>,
}

/// The replicas between which gradients travel.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Between<'a> {
    /// This many threads of this process, which share memory.
    Threads(usize),
    /// A thread of this process for each of these devices.
    Devices(&'a [Device]),
    /// This many threads of this process, which send each other messages.
    Messages(usize),
    /// The replicas of all workers, through shared memory. Those of this worker are on `devices`,
    /// if there are some; else `replicas` is their number, and `None` takes the launcher's.
    Workers { replicas: Option<NonZeroUsize>, devices: &'a [Device], staging_bytes: usize },
}

impl Travel<'_> {
    /// Makes a strategy whose gradients travel in this way.
    pub(crate) fn strategy(&self) -> Result<Strategy> {
        let options = CommunicationOptions::new();
        let mut options = options.bytes_per_pack(self.bytes_per_pack).implementation(self.implementation);
        if let Some(overlap) = self.overlap {
            options = options.background_threads(overlap);
        }
        match self.between {
            Between::Threads(replicas) => {
                let devices = (0..replicas).map(|replica| format!("cpu:{replica}"));
                let builder = self.with_grains(MirroredStrategy::builder(devices));
                Ok(builder.options(options).pin_threads(self.pin).build()?.into())
            }
            Between::Devices(devices) => {
                let builder = self.with_grains(MirroredStrategy::builder(devices.iter().copied()));
                Ok(builder.options(options).pin_threads(self.pin).build()?.into())
            }
            Between::Messages(replicas) => {
                let devices = (0..replicas).map(|replica| format!("cpu:{replica}"));
                let builder = self.with_grains(MirroredStrategy::builder(devices));
                let builder = builder.options(options).pin_threads(self.pin);
                Ok(builder.engines(|devices, _| Ok(consonance_messages::threads(devices.len()))).build()?.into())
            }
            Between::Workers { replicas, devices, staging_bytes } => {
                let mut builder = MultiWorkerMirroredStrategy::from_environment()?.options(options);
                if let Some(replicas) = replicas {
                    builder = builder.replicas(replicas.get());
                }
                if !devices.is_empty() {
                    builder = builder.devices(devices.iter().copied());
                }
                if let Some(grains) = self.grains {
                    builder = builder.grains(grains);
                }
                let builder = builder.meeting(move |group| Ok(group.staging_bytes(staging_bytes)));
                Ok(builder.pin_threads(self.pin).build()?.into())
            }
        }
    }

    fn with_grains(&self, builder: Builder<MirroredStrategy>) -> Builder<MirroredStrategy> {
        match self.grains {
            Some(grains) => builder.grains(grains),
            None => builder,
        }
    }

    /// Returns other ways for the same number of replicas.
    fn variations(self) -> Vec<Self> {
        let (one_shot, two_shot) = (Implementation::OneShot, Implementation::TwoShot);
        let mut variations = vec![
            Travel { bytes_per_pack: 1, ..self },
            Travel { bytes_per_pack: 4 << 10, ..self },
            Travel { bytes_per_pack: 0, ..self },
            Travel { implementation: one_shot, ..self },
            Travel { implementation: two_shot, ..self },
            Travel { pin: !self.pin, ..self },
            Travel { overlap: Some(true), ..self },
            Travel { overlap: Some(false), ..self },
            Travel { bytes_per_pack: 1, implementation: one_shot, pin: !self.pin, overlap: Some(true), ..self },
            Travel { bytes_per_pack: 0, implementation: two_shot, pin: !self.pin, ..self },
        ];
        if let Between::Workers { replicas, devices, .. } = self.between {
            for staging_bytes in [256 << 10, 4 << 20] {
                variations.push(Travel { between: Between::Workers { replicas, devices, staging_bytes }, ..self });
            }
        }
        variations
    }
}

/// Returns the names of the first device and of the last.
fn names(devices: &[Device]) -> String {
    match devices {
        [first, .., last] => format!("{first} to {last}"),
        _ => devices.iter().map(Device::to_string).collect(),
    }
}

fn overlap_in_words(overlap: Option<bool>) -> &'static str {
    match overlap {
        None => "auto",
        Some(true) => "on",
        Some(false) => "off",
    }
}

/// Trains again with gradients that travel in other ways, and compares the bits of the weights with
/// `digest`, the digest of the weights that `strategy` trained in the way `first`. The chief prints
/// the results. It also trains alone, with threads of its own.
pub(crate) fn prove(first: Travel<'_>, strategy: Strategy, digest: u64, digits: &Digits, plan: &Plan) -> Result<bool> {
    let (replicas, is_chief) = (strategy.num_replicas_in_sync(), strategy.is_chief());
    let local = strategy.local_replicas().len();
    // The next strategy takes its place among the workers.
    drop(strategy);
    let mut variations = first.variations();
    if matches!(first.between, Between::Workers { .. } | Between::Devices(_)) && is_chief {
        variations.push(Travel { between: Between::Threads(replicas), ..first });
    }
    if is_chief {
        variations.push(Travel { between: Between::Messages(replicas), ..first });
    }
    if let (Some(grains), true) = (first.grains, is_chief) {
        // Other numbers of replicas, and at last one for each grain, as without grains.
        let others = [1, 2, 3, 5, 8].into_iter().filter(|&other| other < grains && other != replicas);
        variations.extend(others.map(|replicas| Travel { between: Between::Threads(replicas), ..first }));
        variations.push(Travel { between: Between::Threads(grains), grains: None, ..first });
    }
    let progress = progress(plan, variations.len(), is_chief);
    let say = |line: &str| {
        if is_chief {
            progress.suspend(|| crate::say(line));
        }
    };
    say("\nThe same training again, with gradients that travel otherwise:\n");
    say("replicas                     buckets         algorithm   threads   overlap   digest of the weights");
    let row = |travel: &Travel<'_>, digest: u64, verdict: &str| {
        let between = match travel.between {
            Between::Threads(replicas) => format!("{replicas} in one process"),
            Between::Devices(devices) => format!("{} on {}", devices.len(), names(devices)),
            Between::Messages(replicas) => format!("{replicas} that send messages"),
            Between::Workers { staging_bytes, .. } => {
                format!("{} × {local}, staged by {}", replicas / local, HumanBytes(staging_bytes as u64))
            }
        };
        let buckets = match travel.bytes_per_pack {
            0 => "one for all".to_owned(),
            1 => "one a tensor".to_owned(),
            bytes => HumanBytes(bytes as u64).to_string(),
        };
        let algorithm = format!("{:?}", travel.implementation);
        let threads = if travel.pin { "pinned" } else { "free" };
        let overlap = overlap_in_words(travel.overlap);
        say(&format!(
            "{between:<27}  {buckets:<14}  {algorithm:<10}  {threads:<8}  {overlap:<8}  {digest:016x}   {verdict}"
        ));
    };
    row(&first, digest, "the training above");
    let mut all_same = true;
    for travel in &variations {
        let found = train(&travel.strategy()?, digits, plan, None, |_| progress.inc(1))?;
        all_same &= found == digest;
        row(travel, found, if found == digest { "same" } else { "DIFFERENT" });
    }
    progress.finish_and_clear();
    say(if all_same { "\nEvery bit of every weight is the same." } else { "\nThe promise is broken: bits differ." });
    Ok(all_same)
}
