//! The report about links: the roles of a process with parameter servers, and of its peers.

use super::process_states;
use consonance_kernels::shm::{Inspection, LinkTitle};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// A process, by its role and its id. It has no id before it has come.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Task {
    /// The length of the role, so that `worker 2` is before `worker 10`.
    length: usize,
    role: String,
    process: Option<u32>,
}

/// The links of a process that plays a role.
#[derive(Debug)]
pub(super) struct Links {
    own: Task,
    /// The peers, and what the links to each carry.
    peers: BTreeMap<Task, Vec<String>>,
}

impl Task {
    fn new(role: &str, process: Option<u32>) -> Task {
        Task { length: role.len(), role: role.to_owned(), process }
    }

    fn text(&self) -> String {
        match self.process {
            Some(process) => format!("{}, process {process}{}", self.role, process_states::words(process)),
            None => format!("{}, in no process", self.role),
        }
    }

    fn json(&self) -> Value {
        json!({ "role": self.role, "process": self.process, "state": self.process.map(process_states::name) })
    }
}

impl Links {
    /// Returns the links of process `pid`, a list for each role that it plays.
    pub(super) fn of(pid: u32, inspections: &[Inspection]) -> Vec<Links> {
        let mut all: Vec<Links> = Vec::new();
        for (inspection, LinkTitle { roles, carries }) in
            inspections.iter().filter_map(|inspection| Some((inspection, inspection.title.as_ref()?)))
        {
            let ends: Vec<Task> =
                inspection.ranks.iter().zip(roles).map(|(rank, role)| Task::new(role, rank.process)).collect();
            let [first, second] = &ends[..] else { continue };
            let (own, peer) = if second.process == Some(pid) { (second, first) } else { (first, second) };
            let links = match all.iter().position(|links| links.own == *own) {
                Some(place) => &mut all[place],
                None => {
                    all.push(Links { own: own.clone(), peers: BTreeMap::new() });
                    all.last_mut().expect("it was added")
                }
            };
            links.peers.entry(peer.clone()).or_default().push(carries.clone());
        }
        all.iter_mut().flat_map(|links| links.peers.values_mut()).for_each(|carried| carried.sort_unstable());
        all
    }

    /// Returns the report: the process, and a line for each peer.
    pub(super) fn text(&self) -> String {
        let mut text = format!("{}, has links to\n", self.own.text());
        for (peer, carried) in &self.peers {
            text += &format!("  {}: {}\n", peer.text(), carried.join(", "));
        }
        text
    }

    pub(super) fn json(&self) -> Value {
        let mut json = self.own.json();
        let peer = |(peer, carried): (&Task, &Vec<String>)| {
            let mut json = peer.json();
            json["carries"] = carried.clone().into();
            json
        };
        json["links"] = self.peers.iter().map(peer).collect();
        json
    }
}
