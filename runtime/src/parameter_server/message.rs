//! The messages on links.

use super::failure::Failed;
use crate::{
    Result,
    nest::{NestReader, NestWriter},
    value::nest::sent::malformed,
};

/// Requests to a server.
pub(super) const STAGE: u64 = 0;
pub(super) const COMMIT: u64 = 1;
pub(super) const FORGET: u64 = 2;
pub(super) const APPLY: u64 = 3;
pub(super) const READ: u64 = 4;
/// The end of the chief, to servers and workers.
pub(super) const END: u64 = 5;
/// The declarations of a program, of both ends of a link when they meet.
pub(super) const PROGRAM: u64 = 7;
/// The begin of a generation, to servers and workers.
pub(super) const BEGIN: u64 = 8;
/// A closure, to a worker.
pub(super) const RUN: u64 = 6;

/// Returns the name of a request to a server.
pub(super) fn name(kind: u64) -> &'static str {
    match kind {
        STAGE => "stage",
        COMMIT => "commit",
        FORGET => "forget",
        APPLY => "apply",
        READ => "read",
        _ => "",
    }
}

/// An attempt to run a closure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Attempt {
    /// The number of the closure.
    pub(super) number: u64,
    /// The number among all attempts.
    pub(super) id: u64,
}

/// The order of the chief to a worker to run a closure.
pub(super) struct Run {
    pub(super) attempt: Attempt,
    pub(super) function: usize,
    /// The bytes of the argument.
    pub(super) argument: Vec<u8>,
    /// The position of the worker in each data set, if the closure may take elements.
    pub(super) positions: Option<Vec<usize>>,
}

/// The answer of a worker.
pub(super) struct Ended {
    pub(super) attempt: Attempt,
    pub(super) outcome: std::result::Result<Done, Failed>,
}

/// The result of a closure that did not fail.
#[derive(Debug)]
pub(super) struct Done {
    /// The bytes of the result.
    pub(super) result: Vec<u8>,
    /// The servers that have its effects.
    pub(super) servers: Vec<usize>,
    /// The number of elements that it has taken of each data set.
    pub(super) taken: Vec<usize>,
}

/// Begins a request.
pub(super) fn request(kind: u64) -> NestWriter {
    let mut request = NestWriter::default();
    request.number(kind);
    request
}

/// Reads a number for each data set.
fn of_each(from: &mut NestReader<'_>, datasets: usize) -> Result<Vec<usize>> {
    let numbers = from.numbers_below(usize::MAX)?;
    if numbers.len() == datasets { Ok(numbers) } else { Err(malformed("the data sets are not those of the program")) }
}

impl Attempt {
    pub(super) fn write(self, to: &mut NestWriter) {
        to.number(self.number);
        to.number(self.id);
    }

    pub(super) fn read(from: &mut NestReader<'_>) -> Result<Attempt> {
        Ok(Attempt { number: from.number()?, id: from.number()? })
    }
}

impl Run {
    pub(super) fn write(&self) -> Vec<u8> {
        let mut to = request(RUN);
        self.attempt.write(&mut to);
        to.number(self.function as u64);
        to.raw(&self.argument);
        to.number(u64::from(self.positions.is_some()));
        self.positions.iter().for_each(|positions| to.numbers(positions));
        to.into_bytes()
    }

    /// Reads what follows the kind, in a program of so many data sets.
    pub(super) fn read(from: &mut NestReader<'_>, datasets: usize) -> Result<Run> {
        let (attempt, function, argument) = (Attempt::read(from)?, from.count()?, from.raw()?.to_vec());
        let positions = if from.flag()? { Some(of_each(from, datasets)?) } else { None };
        Ok(Run { attempt, function, argument, positions })
    }
}

impl Ended {
    pub(super) fn write(&self) -> Vec<u8> {
        let mut to = NestWriter::default();
        self.attempt.write(&mut to);
        to.number(u64::from(self.outcome.is_ok()));
        match &self.outcome {
            Ok(done) => {
                to.raw(&done.result);
                to.numbers(&done.servers);
                to.numbers(&done.taken);
            }
            Err(failed) => failed.write(&mut to),
        }
        to.into_bytes()
    }

    /// Reads the answer of a worker, in a program of so many servers and data sets.
    pub(super) fn read(bytes: &[u8], servers: usize, datasets: usize) -> Result<Ended> {
        let mut from = NestReader::new(bytes);
        let attempt = Attempt::read(&mut from)?;
        let outcome = if from.flag()? {
            let result = from.raw()?.to_vec();
            let servers = from.numbers_below(servers)?;
            Ok(Done { result, servers, taken: of_each(&mut from, datasets)? })
        } else {
            Err(Failed::read(&mut from)?)
        };
        Ok(Ended { attempt, outcome })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;

    #[test]
    fn positions_are_those_of_the_data_sets_of_the_program() {
        let attempt = Attempt { number: 7, id: 9 };
        let run = Run { attempt, function: 1, argument: vec![3], positions: Some(vec![4, 5]) }.write();
        let read = |datasets| Run::read(&mut NestReader::new(&run[size_of::<u64>()..]), datasets);
        let found = read(2).unwrap();
        assert_eq!((found.attempt, found.function, found.argument), (attempt, 1, vec![3]));
        assert_eq!(found.positions, Some(vec![4, 5]));
        let outcome = Ok(Done { result: vec![6], servers: vec![1], taken: vec![2, 0] });
        let ended = Ended { attempt, outcome }.write();
        let done = Ended::read(&ended, 2, 2).unwrap().outcome.expect("it has not failed");
        assert_eq!((done.result, done.servers, done.taken), (vec![6], vec![1], vec![2, 0]));
        // An answer that ends early is malformed.
        for end in 0..ended.len() {
            assert!(Ended::read(&ended[..end], 2, 2).is_err());
        }
        for datasets in [0, 1, 3] {
            assert!(matches!(read(datasets).err(), Some(Error::System { .. })));
            assert!(matches!(Ended::read(&ended, 2, datasets).err(), Some(Error::System { .. })));
        }
    }
}
