//! The processes of a group that met at addresses, and how those that are left agree.
//!
//! **Numbers.** A reform may succeed on one process and fail on another one, which knows of a loss
//! first. So each tells the numbers that it knows, and the next ones follow from the largest.

use super::Majority;
use crate::{
    Communicator, Error, Result,
    comm::{engine::hosts::Hosts, options::Configuration},
};
use std::{io, ops::Range, sync::Arc};

/// The limit on the numbers of groups and of generations. No process forms so many.
const MOST_NUMBERS: u64 = 1 << 32;

/// The network of a group, and the means to form it again.
pub(super) struct Links {
    pub(super) hosts: Arc<Hosts>,
    pub(super) control: Communicator,
    /// The number of the next group of ranks on this network.
    pub(super) next: u64,
    /// Whether new processes can meet these, at addresses that all know and over a wire that takes
    /// them.
    pub(super) takes_replacements: bool,
    /// Whether this process has left the network for one with new processes.
    pub(super) has_moved_on: bool,
}

impl Links {
    /// Returns the processes of the control group, in order.
    pub(super) fn left(&self) -> Vec<usize> {
        self.hosts.in_control()
    }

    /// Forms the control group of those that are left, from a generation of this process. Returns
    /// the number of the next one.
    ///
    /// # Errors
    /// Those of a collective, which name ranks of the control group, and of numbers without sense.
    pub(super) fn agree(&mut self, generation: u64, majority: Majority, configuration: Configuration) -> Result<u64> {
        self.control.configure(configuration);
        if majority == Majority::Waived {
            self.control.waive_majority();
        }
        self.control.reform()?;
        let all = self.gather([self.next, generation])?;
        let left = self.left();
        let numbers = largest(&all).map_err(|(place, [group, generation])| {
            let name = left.get(place).map_or("a process", |&process| &self.hosts.processes()[process].name);
            let problem = format!("{name} is at group {group} and in generation {generation}");
            Error::system("form the group again", io::Error::other(problem))
        });
        let [next, last] = numbers?;
        self.next = next;
        Ok(last + 1)
    }

    /// Returns the numbers of all processes of the control group.
    ///
    /// # Errors
    /// Those of a collective.
    pub(super) fn gather(&mut self, own: [u64; 2]) -> Result<Vec<[u64; 2]>> {
        let mut all = vec![[0; 2]; self.control.size()];
        self.control.all_gather_into(&own, all.as_flattened_mut())?;
        Ok(all)
    }
}

/// Returns the largest of each kind of number.
///
/// # Errors
/// The first place whose numbers are above the limit, and these.
fn largest(all: &[[u64; 2]]) -> Result<[u64; 2], (usize, [u64; 2])> {
    match all.iter().position(|numbers| numbers.iter().any(|&number| number > MOST_NUMBERS)) {
        Some(place) => Err((place, all[place])),
        None => Ok(all.iter().fold([0; 2], |[a, b], &[c, d]| [a.max(c), b.max(d)])),
    }
}

/// Names replicas in an error that names ranks of the control group. `ranks` are those of the
/// process of such a rank.
pub(super) fn in_replicas(mut error: Error, of: &'static str, ranks: impl Fn(usize) -> Range<usize>) -> Error {
    let all = |named: Vec<(usize, String)>| -> Vec<(usize, String)> {
        let each = |(rank, said): (usize, String)| ranks(rank).map(move |replica| (replica, said.clone()));
        named.into_iter().flat_map(each).collect()
    };
    match &mut error {
        Error::Meeting { call, .. } | Error::WrongContext { call, .. } => *call = of,
        Error::Timeout { call, missing, .. } => {
            *call = of.to_owned();
            *missing = all(std::mem::take(missing));
        }
        Error::Aborted { call, replica, calls, .. } => {
            *call = of.to_owned();
            *replica = ranks(*replica).start;
            *calls = all(std::mem::take(calls));
        }
        Error::Left { call, replica, .. } | Error::Mismatch { call, replica, .. } => {
            *call = of.to_owned();
            *replica = ranks(*replica).start;
        }
        _ => {}
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_after_different_reforms_agree_on_the_largest_numbers() {
        assert_eq!(largest(&[[3, 5], [4, 4], [2, 2]]), Ok([4, 5]));
    }

    #[test]
    fn a_process_with_numbers_without_sense_is_named() {
        for wrong in [[u64::MAX, 1], [1, u64::MAX], [MOST_NUMBERS + 1, 1]] {
            assert_eq!(largest(&[[1, 1], wrong, [1, 1]]), Err((1, wrong)));
        }
    }

    #[test]
    fn errors_of_the_control_group_name_all_replicas_of_its_processes() {
        let ranks = |rank: usize| [1..3, 3..4][rank].clone();
        let late = Error::Timeout {
            call: "a collective".to_owned(),
            waited: std::time::Duration::from_secs(1),
            missing: vec![(0, "a".to_owned()), (1, "b".to_owned())],
        };
        assert_eq!(
            in_replicas(late, "reform", ranks).to_string(),
            "reform: deadline of 1s passed; replica 1 is missing: a; replica 2 is missing: a; replica 3 is missing: b"
        );
        let left = Error::Left { call: String::new(), replica: 1, last: "it has ended".to_owned(), lost: true };
        assert_eq!(
            in_replicas(left, "reform", ranks).to_string(),
            "reform: replica 3 left without making this call; it has ended"
        );
    }
}
