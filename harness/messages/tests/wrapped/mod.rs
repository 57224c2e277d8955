//! An engine of messages with a deviation, to find out what its runtime does then.

use consonance::{
    Result, World,
    raw::{AbortHandle, Call, Configuration, Engine, Failure, Kind, Service, Signature},
};
use std::time::Instant;

/// A deviation of an engine. By default there is none.
pub(crate) trait Deviation: Send {
    /// Called before the engine sends a message. A result replaces that of the engine, which then
    /// sends nothing.
    fn replace_send(&mut self) -> Option<Result<(), Failure>> {
        None
    }

    /// Returns the abort handle that the engine gives in place of its own.
    fn abort_handle(&self, own: AbortHandle) -> AbortHandle {
        own
    }

    /// Called before the engine begins its next generation.
    fn begin_generation(&mut self) {}
}

/// An engine that passes all calls on to another one, but for its deviation.
pub(crate) struct Wrapped<D> {
    pub(crate) engine: Box<dyn Engine>,
    pub(crate) deviation: D,
}

impl<D: Deviation> Engine for Wrapped<D> {
    fn world(&self) -> World {
        self.engine.world()
    }

    fn service(&self) -> Service {
        self.engine.service()
    }

    fn begin_call(&mut self) {
        self.engine.begin_call();
    }

    fn probe(&mut self, from: &[usize], until: Instant) -> Option<usize> {
        self.engine.probe(from, until)
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

    fn next_generation(&mut self) -> Result<()> {
        self.deviation.begin_generation();
        self.engine.next_generation()
    }
}
