//! A worker: it runs closures, whose effects it keeps until they end.

use super::{
    chief::Terms,
    context::WorkerContext,
    failure::Failed,
    generation::Generation,
    link::Link,
    message::{self, Done, Ended, Run},
    program::Program,
    tables::Tables,
    worker_state::{Kept, Own},
};
use crate::{
    Error, Result,
    nest::NestReader,
    panics,
    profile::{ClosureRecord, Event, Name, Span, is_on},
    value::nest::sent::malformed,
};
use std::{cell::RefCell, collections::VecDeque, time::Instant};

/// The orders of the chief to a worker.
#[derive(Debug)]
pub(super) struct Orders {
    link: Link,
    /// Those that were received and not obeyed.
    waiting: VecDeque<(u64, Vec<u8>)>,
}

impl Orders {
    pub(super) fn over(link: Link) -> Orders {
        Orders { link, waiting: VecDeque::new() }
    }

    pub(super) fn link(&self) -> &Link {
        &self.link
    }

    /// Returns the next order, however long it takes.
    fn next(&mut self) -> Result<(u64, Vec<u8>)> {
        self.waiting.pop_front().map_or_else(|| self.link.request(), Ok)
    }

    /// Returns whether a generation goes on, as far as orders have come: neither has another one
    /// begun, nor has the chief ended.
    pub(super) fn go_on(&mut self) -> bool {
        loop {
            match self.link.request_until(Instant::now()) {
                Err(Error::Timeout { .. }) => return true,
                // The next order is this error.
                Err(_) => return false,
                Ok(order) => {
                    let goes_on = matches!(NestReader::new(&order.1).number(), Ok(message::RUN));
                    if !goes_on {
                        // Closures of this generation are lost.
                        self.waiting.clear();
                    }
                    self.waiting.push_back(order);
                    if !goes_on {
                        return false;
                    }
                }
            }
        }
    }
}

/// Runs the closures that come from the chief, until it ends, or says that a generation of links
/// begins. Without `tables` none has begun.
///
/// # Errors
/// That of the link, which names the chief.
pub(super) fn work(
    orders: &mut Orders,
    worker: usize,
    program: &Program,
    (tables, kept): (Option<&Tables>, &Kept),
    terms: &Terms,
) -> Result<Option<Generation>> {
    let mut reply = Ok(());
    loop {
        // The chief may have ended while a closure ran: then its word is still there.
        let (number, request) = match orders.next() {
            Ok(next) => next,
            Err(error) => return Err(reply.err().unwrap_or(error)),
        };
        let mut reader = NestReader::new(&request);
        match reader.number()? {
            message::END => return Ok(None),
            message::BEGIN => return Generation::read(&mut reader, program.parts.len()).map(Some),
            message::RUN => {
                // The chief was lost, or has lost a server, before this worker met all servers.
                let Some(tables) = tables else { continue };
                let mut run = Run::read(&mut reader, program.known.datasets.len())?;
                let own = Own::new(kept, run.positions.take());
                let effects = RefCell::default();
                let context =
                    WorkerContext { worker, known: &program.known, updates: terms.updates, tables, effects, own };
                let span = is_on().then(|| {
                    let function = program.functions.get(run.function).map_or("", |function| &function.name);
                    let closure =
                        ClosureRecord { function: Name::of(function), number: run.attempt.number, failed: false };
                    (Span::begin(worker, program.known.workers, Event::Closure(closure)), closure)
                });
                let outcome = attempt(&run, program, &context);
                if let Some((span, closure)) = span {
                    span.end(Event::Closure(ClosureRecord { failed: outcome.is_err(), ..closure }));
                }
                reply = orders.link.reply(number, &Ended { attempt: run.attempt, outcome }.write());
            }
            _ => return Err(malformed("there is no such request")),
        }
    }
}

/// Runs a closure, and brings its effects to the servers.
fn attempt(run: &Run, program: &Program, context: &WorkerContext<'_>) -> std::result::Result<Done, Failed> {
    let failed = |error: Error| match error.is_loss() {
        true => Failed::Lost(error.to_string()),
        false => Failed::Error(error),
    };
    let function = program.functions.get(run.function);
    let function = function.ok_or_else(|| failed(malformed("there is no such function")))?;
    let result = panics::catch(|| (function.run)(context, &run.argument)).map_err(Failed::Panic)?.map_err(failed)?;
    let servers = stage(run, context).map_err(failed)?;
    Ok(Done { result, servers, taken: context.own.taken() })
}

/// Brings the effects of a closure to the servers. Returns those that have some.
fn stage(run: &Run, context: &WorkerContext<'_>) -> Result<Vec<usize>> {
    let effects = context.effects.borrow();
    if effects.is_empty() {
        return Ok(Vec::new());
    }
    let mut begun = message::request(message::STAGE);
    run.attempt.write(&mut begun);
    let requests = context.tables.requests(&begun, effects.iter())?;
    let stage = |(server, request): (usize, Vec<u8>)| context.tables.call(server, &request).map(|_| server);
    requests.into_iter().map(stage).collect()
}
