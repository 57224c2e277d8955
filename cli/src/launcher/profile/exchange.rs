//! The exchange of a launch with those of other hosts, for one timeline.

use super::{
    Gathered, Others, Profile, Profiled,
    collector::{Collector, Handed},
    sender::{Known, Sender},
};
use crate::{
    launcher::{Event, Launch, StartError, cluster::Node, next, nodes},
    timeline::Clock,
};
use consonance_kernels::{digest::digest, hosts::listen_anywhere};
use signal_hook::consts::SIGCHLD;
use std::{
    collections::BTreeMap,
    sync::mpsc::{self, Receiver},
    time::Instant,
};

/// An exchange: host 0 collects, and the others send.
pub(in crate::launcher) struct Exchange<'l> {
    launch: &'l Launch,
    host: usize,
    end: End,
    /// Tells the launcher of a hand-over.
    tell: mpsc::Sender<Event>,
    /// The end of the workers.
    ended: Instant,
}

enum End {
    Collects(Collector),
    Sends(Sender),
}

impl<'l> Exchange<'l> {
    /// Meets the launches of the other hosts, and compares the clocks. `None` if there are none.
    ///
    /// # Errors
    /// Launches that do not come, or a failure of the launcher.
    pub(in crate::launcher) fn begin(
        launch: &'l Launch,
        profile: &Profile,
        tell: mpsc::Sender<Event>,
    ) -> Result<Option<Exchange<'l>>, StartError> {
        let Some(node) = launch.node.as_ref().filter(|_| profile.hosts > 1) else { return Ok(None) };
        let cannot = |source| StartError::Launcher { doing: "exchange times with other hosts", source };
        let listener = listen_anywhere().map_err(cannot)?;
        let host_0 = nodes::meet_for_profile(node, &listener, launch.timeout);
        let host_0 =
            host_0.map_err(|why| StartError::Nodes { why: format!("{why}; --profile needs all hosts to have it") })?;
        let digest = digest_of(node);
        let end = match node.node {
            0 => {
                let (sizes, tell) = ((profile.hosts, launch.workers.get()), tell.clone());
                let tell = move || _ = tell.send(Event::HandedOver);
                End::Collects(Collector::begin(listener, digest, sizes, &profile.folder, tell).map_err(cannot)?)
            }
            host => End::Sends(Sender::begin(host_0, digest, host)),
        };
        Ok(Some(Exchange { launch, host: node.node, end, tell, ended: Instant::now() }))
    }

    /// Begins to hand over what the workers of this launch have written, after they have ended.
    pub(in crate::launcher) fn hand_over(&mut self, profile: &Profile) {
        self.ended = Instant::now();
        let End::Sends(sender) = &self.end else { return };
        // A folder that cannot be read now is an error when the profile is written.
        let of = |worker| profile.files(worker).unwrap_or_default().into_iter().map(move |path| (worker, path));
        let files = profile.workers.iter().flat_map(|worker| of(worker.index)).collect();
        let tell = self.tell.clone();
        sender.hand_over(files, move || _ = tell.send(Event::HandedOver));
    }

    /// Waits for the end of the exchange, or for a signal, and writes the profile.
    pub(in crate::launcher) fn finish(
        self,
        profile: &mut Profile,
        events: &Receiver<Event>,
    ) -> Result<Profiled, String> {
        while let Some(until) = self.waits_until() {
            match next(events, Some(until)) {
                Some(Event::Signal(SIGCHLD) | Event::Refused(_) | Event::Drained | Event::HandedOver) | None => {}
                Some(Event::Signal(_)) => break,
            }
        }
        let gathered = self.gathered(profile);
        profile.write_with(gathered)
    }

    fn waits_until(&self) -> Option<Instant> {
        match &self.end {
            End::Collects(collector) => collector.waits_until(self.ended),
            End::Sends(sender) => sender.waits_until(self.ended),
        }
    }

    fn gathered(&self, profile: &Profile) -> Gathered {
        match &self.end {
            End::Collects(collector) => {
                let (handed, missing) = collector.end();
                let mut clocks = BTreeMap::from([(0, Clock::of_host_0())]);
                let mut files = Vec::new();
                for (host, Handed { clock, files: of_host }) in handed {
                    clocks.insert(host, clock);
                    files.extend(of_host.into_iter().map(|(worker, path)| (self.launch.task(worker), path)));
                }
                files.sort_by_key(|(worker, _)| worker.index);
                let others = if missing.is_empty() { Others::Merged } else { Others::Missing { hosts: missing } };
                Gathered { clocks, zero: Some(collector.zero()), files, others }
            }
            End::Sends(sender) => {
                let known = sender.known();
                let clocks = BTreeMap::from([(self.host, known.clock())]);
                let Known { zero, taken, .. } = known;
                let others = match taken.unwrap_or_else(|| Err("it takes too long".to_owned())) {
                    Ok(()) => Others::HandedOver,
                    Err(why) => Others::Apart { path: profile.path.clone(), why },
                };
                Gathered { clocks, zero, files: Vec::new(), others }
            }
        }
    }
}

/// Returns the digest of the launches: those of another job are strangers.
fn digest_of(node: &Node) -> u128 {
    digest(&format!("profile of launches {}", node.job.as_deref().unwrap_or_default())).into()
}
