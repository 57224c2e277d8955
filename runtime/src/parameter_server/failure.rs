//! Failures of closures, on their way to the chief.

use crate::{
    Error, Result,
    nest::{NestReader, NestWriter},
    value::nest::sent::malformed,
};

/// The failure of a closure, on its way to the chief.
#[derive(Clone, Debug)]
pub(super) enum Failed {
    /// The closure's error.
    Error(Error),
    /// The message of its panic.
    Panic(String),
    /// A server was lost. The message names it.
    Lost(String),
}

/// The calls of this library in closures. Their errors keep their fields on the way to the chief.
const CALLS: [&str; 13] = [
    "WorkerContext::read",
    "WorkerContext::read_rows",
    "WorkerContext::lookup",
    "WorkerContext::assign",
    "WorkerContext::assign_add",
    "WorkerContext::assign_sub",
    "WorkerContext::scatter_update",
    "WorkerContext::scatter_add",
    "WorkerContext::scatter_sub",
    "WorkerContext::update",
    "WorkerContext::update_rows",
    "WorkerContext::next",
    "WorkerContext::value",
];

impl Failed {
    pub(super) fn write(&self, to: &mut NestWriter) {
        let mut texts = |kind: u64, texts: &[&str]| {
            to.number(kind);
            texts.iter().for_each(|text| to.text(text));
        };
        match self {
            Failed::Error(Error::InvalidCall { call, argument, replica: None, expected, found }) => {
                texts(0, &[call, argument, expected, found]);
            }
            Failed::Error(error) => texts(1, &[&error.to_string()]),
            Failed::Panic(message) => texts(2, &[message]),
            Failed::Lost(message) => texts(3, &[message]),
        }
    }

    pub(super) fn read(from: &mut NestReader<'_>) -> Result<Failed> {
        let kind = from.number()?;
        let mut text = || from.text().map(str::to_owned);
        Ok(match kind {
            0 => {
                let (call, argument, expected, found) = (text()?, text()?, text()?, text()?);
                let call = CALLS.into_iter().find(|&known| known == call).unwrap_or("a call in the closure");
                Failed::Error(Error::InvalidCall { call, argument, replica: None, expected, found })
            }
            1 => Failed::Error(Error::other(text()?)),
            2 => Failed::Panic(text()?),
            3 => Failed::Lost(text()?),
            _ => return Err(malformed("there is no such failure")),
        })
    }
}
