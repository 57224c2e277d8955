//! The process of a worker, as the chief knows it.

use super::{
    link::Handle,
    message::{Attempt, Run},
    schedule::Begun,
};
use std::time::Instant;

/// The process of a worker. Without a link there is none.
#[derive(Debug, Default)]
pub(super) struct WorkerProcess {
    link: Option<Handle>,
    /// Whether it waits for an order.
    pub(super) is_free: bool,
    /// Whether it has answered an order in this generation, so that nothing is on its way to it
    /// while it is free.
    has_answered: bool,
    /// The attempt that it runs, and the time at which that is given up.
    run: Option<(Attempt, Instant)>,
    /// An order that its thread is to send.
    order: Option<Vec<u8>>,
}

/// The next thing that the thread of a worker does.
pub(super) enum Duty {
    Send(Vec<u8>),
    /// The thread waits for an answer, until this time if the worker runs a closure.
    Wait(Option<Instant>),
}

impl WorkerProcess {
    /// Makes the state of a process that has got no order.
    pub(super) fn at(link: Handle) -> WorkerProcess {
        WorkerProcess { link: Some(link), ..WorkerProcess::default() }
    }

    /// Begins an attempt. A short order goes to a process that listens at once, which does not
    /// wait. The thread of the worker sends all others.
    pub(super) fn begin(&mut self, begun: Begun, until: Instant) {
        let Begun { attempt, closure, argument, positions } = begun;
        let order = Run { attempt, function: closure.function, argument, positions }.write();
        self.is_free = false;
        self.run = Some((attempt, until));
        match &self.link {
            // The thread of the worker sees by itself that it is lost.
            Some(link) if self.has_answered && Handle::is_short(&order) => drop(link.tell(&order)),
            _ => {
                self.order = Some(order);
                self.interrupt();
            }
        }
    }

    /// Returns what the thread of the worker does next.
    pub(super) fn duty(&mut self) -> Duty {
        self.order.take().map_or(Duty::Wait(self.run.map(|(_, until)| until)), Duty::Send)
    }

    /// Returns the attempt that the process runs, if that is to be given up now. Afterwards the
    /// process has until `later` to end with it.
    pub(super) fn take_late(&mut self, now: Instant, later: Instant) -> Option<Attempt> {
        let (attempt, until) = self.run.as_mut().filter(|(_, until)| *until <= now)?;
        *until = later;
        Some(*attempt)
    }

    /// The process has answered an attempt. Returns whether it is that which it was to run: a
    /// process may answer one of a generation before.
    pub(super) fn answers(&mut self, attempt: Attempt) -> bool {
        let is_current = self.run.take_if(|(run, _)| *run == attempt).is_some();
        self.has_answered |= is_current;
        is_current
    }

    /// Lets the thread of the worker ask again what it does next.
    pub(super) fn interrupt(&self) {
        self.link.iter().for_each(Handle::interrupt);
    }

    /// Tells the process that the chief ends.
    pub(super) fn end(&self) {
        self.link.iter().for_each(Handle::end);
    }
}
