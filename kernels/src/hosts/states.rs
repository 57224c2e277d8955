//! The states of the processes of a group on several hosts. A process asks another one of the same
//! host, since the system tells only of its own processes.

use super::greeting::Greeting;
use crate::{
    bootstrap::socket::user,
    digest::digest,
    os::process_state::{ProcessState, process_state},
};
use std::{
    fs, io,
    path::PathBuf,
    sync::{Condvar, Mutex, PoisonError},
    time::Duration,
};

/// The limit on the time for an answer. A process that runs answers at once.
const ANSWER: Duration = Duration::from_millis(300);

/// Returns the digest of the place where the ids of this process are: the running system, its name
/// `host`, and the namespace. 0 if the system does not tell.
pub fn place(host: &str) -> u64 {
    part_of(host, &["pid"])
}

/// Returns the digest of what processes that may share memory have in common: the running system,
/// its name `host`, the network namespace, and the user, whose id is one of a user namespace. 0 if
/// the system does not tell.
pub fn near(host: &str) -> u64 {
    near_of(host, user())
}

fn near_of(host: &str, user: u32) -> u64 {
    part_of(&format!("{host} {user}"), &["net", "user"])
}

fn part_of(host: &str, namespaces: &[&str]) -> u64 {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id");
    let namespace = |name: &&str| fs::read_link(format!("/proc/self/ns/{name}"));
    let namespaces: io::Result<Vec<PathBuf>> = namespaces.iter().map(namespace).collect();
    match (boot, namespaces) {
        (Ok(boot), Ok(namespaces)) => digest(&format!("{host} {boot}{namespaces:?}")),
        _ => 0,
    }
}

/// Returns the place of each process. One that does not know its place has a place of its own.
pub fn places(greetings: &[Greeting]) -> Vec<u64> {
    let own = |greeting: &Greeting| digest(&format!("{} {}", greeting.task, greeting.host));
    greetings.iter().map(|greeting| if greeting.place == 0 { own(greeting) } else { greeting.place }).collect()
}

/// The processes of a group, and the answers about their states.
pub(super) struct States {
    own: usize,
    /// The place and the process id of each process.
    processes: Vec<(u64, u32)>,
    answers: Mutex<Vec<Option<ProcessState>>>,
    answered: Condvar,
}

impl States {
    pub(super) fn new(own: usize, greetings: &[Greeting]) -> States {
        let processes: Vec<_> = greetings.iter().map(|greeting| (greeting.place, greeting.pid)).collect();
        States { own, answers: Mutex::new(vec![None; processes.len()]), processes, answered: Condvar::new() }
    }

    /// Returns the state of a process, if it is one of this place.
    fn seen(&self, process: usize) -> Option<ProcessState> {
        let &(place, pid) = self.processes.get(process)?;
        (place != 0 && place == self.processes[self.own].0).then(|| process_state(pid))
    }

    /// Returns the states of processes. `ask` sends a process the question for the state of another
    /// one. `None` if no process of the same place answers.
    pub(super) fn of(&self, processes: &[usize], ask: impl Fn(usize, usize)) -> Vec<Option<ProcessState>> {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        let mut asked = Vec::new();
        for &process in processes {
            answers[process] = self.seen(process);
            let is_of_its_place = |other: &usize| self.processes[*other].0 == self.processes[process].0;
            // A process that is late, too, does not answer.
            let others: Vec<usize> = (0..self.processes.len())
                .filter(|other| !processes.contains(other) && is_of_its_place(other))
                .collect();
            if answers[process].is_none() && !others.is_empty() {
                asked.push(process);
                others.into_iter().for_each(|other| ask(other, process));
            }
        }
        let is_open = |answers: &mut Vec<Option<_>>| asked.iter().any(|&process| answers[process].is_none());
        let waited = self.answered.wait_timeout_while(answers, ANSWER, is_open);
        let answers = waited.unwrap_or_else(PoisonError::into_inner).0;
        processes.iter().map(|&process| answers[process]).collect()
    }

    /// Returns whether a process answers the question for its own state, which `ask` sends. One
    /// that does not know its place has no answer, and is taken for one that does.
    pub(super) fn answers(&self, process: usize, ask: impl FnOnce()) -> bool {
        if self.processes[process].0 == 0 {
            return true;
        }
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        answers[process] = None;
        ask();
        let is_open = |answers: &mut Vec<Option<_>>| answers[process].is_none();
        let waited = self.answered.wait_timeout_while(answers, ANSWER, is_open);
        waited.unwrap_or_else(PoisonError::into_inner).0[process].is_some()
    }

    /// Returns the answer to a question, as a number. None about processes of other places.
    pub(super) fn answer(&self, process: u64) -> Option<u64> {
        let process = usize::try_from(process).ok()?;
        let state = match self.seen(process)? {
            ProcessState::Running => 0,
            ProcessState::Stopped => 1,
            ProcessState::Gone => 2,
        };
        Some((process as u64) << 8 | state)
    }

    /// Notes an answer of process `by`.
    pub(super) fn note(&self, by: usize, answer: u64) {
        let (process, state) = ((answer >> 8) as usize, answer as u8);
        let state = match state {
            0 => ProcessState::Running,
            1 => ProcessState::Stopped,
            2 => ProcessState::Gone,
            _ => return,
        };
        // Numbers of another process are checked before they are used.
        if self.processes.get(process).is_some_and(|of| of.0 == self.processes[by].0) {
            self.answers.lock().unwrap_or_else(PoisonError::into_inner)[process] = Some(state);
            self.answered.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_processes_of_one_user_and_network_are_near() {
        assert_eq!(near("one"), near_of("one", user()));
        assert_ne!(near("one"), 0);
        let others =
            [near_of("one", user() + 1), near("other"), place("one"), part_of(&format!("one {}", user()), &["net"])];
        assert!(!others.contains(&near("one")));
    }
}
