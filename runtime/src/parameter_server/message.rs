//! The messages on links.

use super::failure::Failed;
use crate::{
    Result,
    nest::{NestReader, NestWriter},
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
/// A closure, to a worker.
pub(super) const RUN: u64 = 6;

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
}

/// Begins a request.
pub(super) fn request(kind: u64) -> NestWriter {
    let mut request = NestWriter::default();
    request.number(kind);
    request
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
        to.into_bytes()
    }

    /// Reads what follows the kind.
    pub(super) fn read(from: &mut NestReader<'_>) -> Result<Run> {
        Ok(Run { attempt: Attempt::read(from)?, function: from.count()?, argument: from.raw()?.to_vec() })
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
            }
            Err(failed) => failed.write(&mut to),
        }
        to.into_bytes()
    }

    /// Reads the answer of a worker, in a cluster of so many servers.
    pub(super) fn read(bytes: &[u8], servers: usize) -> Result<Ended> {
        let mut from = NestReader::new(bytes);
        let attempt = Attempt::read(&mut from)?;
        let outcome = if from.flag()? {
            let result = from.raw()?.to_vec();
            let servers = from.numbers_below(servers)?;
            Ok(Done { result, servers })
        } else {
            Err(Failed::read(&mut from)?)
        };
        Ok(Ended { attempt, outcome })
    }
}
