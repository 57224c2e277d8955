//! An engine of messages with a deviation, to find out what the runtime does then.

use consonance::{
    Mailbox, Result, World,
    raw::{AbortHandle, Call, Configuration, Engine, Failure, Kind, Service, Signature},
};
use std::time::Instant;

/// A deviation of an engine. By default there is none.
pub trait Deviation: Send {
    /// Called before the engine sends a message. A result replaces that of the engine, which then
    /// sends nothing.
    fn replace_send(&mut self) -> Option<Result<(), Failure>> {
        None
    }

    /// Returns what the engine says that it carries in place of its own word.
    fn service(&self, own: Service) -> Service {
        own
    }

    /// Returns the abort handle that the engine gives in place of its own.
    fn abort_handle(&self, own: AbortHandle) -> AbortHandle {
        own
    }

    /// Called before the engine begins its next generation.
    fn begin_generation(&mut self) {}
}

/// An engine that passes all calls on to another one, but for its deviation.
pub struct Wrapped<D> {
    /// The engine.
    pub engine: Box<dyn Engine>,
    /// The deviation.
    pub deviation: D,
}

/// An engine that says that it carries messages only: no call uses what [letters](Service::Letters)
/// can do besides.
pub struct Plain;

impl Deviation for Plain {
    fn service(&self, _: Service) -> Service {
        Service::Messages
    }
}

impl<D: Deviation> Engine for Wrapped<D> {
    fn world(&self) -> World {
        self.engine.world()
    }

    fn service(&self) -> Service {
        self.deviation.service(self.engine.service())
    }

    fn begin_call(&mut self) {
        self.engine.begin_call();
    }

    fn probe(&mut self, from: &[usize], until: Instant) -> Option<usize> {
        self.engine.probe(from, until)
    }

    fn receive(&mut self, from: usize, name: Kind) -> Result<Vec<u8>, Failure> {
        self.engine.receive(from, name)
    }

    fn execute(&mut self, call: Call<'_>, signature: &Signature, name: Kind) -> Result<(), Failure> {
        let replaced = if let Call::Send { .. } = call { self.deviation.replace_send() } else { None };
        replaced.unwrap_or_else(|| self.engine.execute(call, signature, name))
    }

    fn configure(&mut self, configuration: &Configuration) {
        self.engine.configure(configuration);
    }

    fn abort_handle(&self) -> AbortHandle {
        self.deviation.abort_handle(self.engine.abort_handle())
    }

    fn subgroup(&mut self, members: &[usize]) -> Result<Option<Box<dyn Engine>>, Failure> {
        self.engine.subgroup(members)
    }

    fn mailbox(&mut self) -> Result<Mailbox> {
        self.engine.mailbox()
    }

    fn blame(&self, rank: usize) {
        self.engine.blame(rank);
    }

    fn next_generation(&mut self) -> Result<()> {
        self.deviation.begin_generation();
        self.engine.next_generation()
    }
}
