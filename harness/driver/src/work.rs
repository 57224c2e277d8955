//! The work of a stream.

use crate::{event::Event, machine::Machine, pinned_memory::Pinned};
use std::{
    collections::{BTreeMap, VecDeque},
    slice,
    sync::Arc,
    time::Instant,
};

/// A stream: its work in order, and how many queries it answers before it begins.
#[derive(Default)]
pub(crate) struct Stream {
    work: VecDeque<Work>,
    queries: u64,
}

/// One piece of work. Addresses of the host are those of pinned memory.
pub(crate) enum Work {
    Write { from: usize, to: u64, bytes: usize },
    Read { from: u64, to: usize, bytes: usize, has_wrong_bit: bool },
    Copy { from: u64, to: u64, bytes: usize },
    Fill { to: u64, byte: u8, bytes: usize },
    Event { event: u64 },
    Launch { kernel: Arc<crate::machine::Kernel>, blocks: [u32; 3], threads: [u32; 3], parameters: Vec<u8> },
}

/// The means that work needs.
pub(crate) struct Resources<'s> {
    pub(crate) machine: &'s mut Machine,
    pub(crate) pinned: &'s BTreeMap<usize, Pinned>,
    pub(crate) events: &'s mut BTreeMap<u64, Event>,
    pub(crate) seed: u64,
}

impl Stream {
    /// Adds work. A stream that has none before it answers `delay` queries before it begins.
    pub(crate) fn enqueue(&mut self, work: Work, delay: u64) {
        if self.work.is_empty() {
            self.queries = delay;
        }
        self.work.push_back(work);
    }

    pub(crate) fn has_work(&self) -> bool {
        !self.work.is_empty()
    }

    /// Answers a query: whether all work has ended. Does all work, if it is time to begin.
    ///
    /// # Errors
    /// What is wrong with a piece of work. The work after it is not done.
    pub(crate) fn query(&mut self, place: &mut Resources<'_>) -> Result<bool, String> {
        if self.work.is_empty() {
            return Ok(true);
        }
        if self.queries > 0 {
            self.queries -= 1;
            return Ok(false);
        }
        while let Some(work) = self.work.pop_front() {
            if let Err(why) = place.act(&work) {
                self.work.clear();
                return Err(why);
            }
        }
        Ok(true)
    }
}

impl Resources<'_> {
    fn act(&mut self, work: &Work) -> Result<(), String> {
        match work {
            &Work::Write { from, to, bytes } => {
                self.check_pinned(from, bytes)?;
                // SAFETY: the pinned memory is alive and has these bytes. The program that enqueued
                // the copy leaves them alone until it has ended.
                let bytes = unsafe { slice::from_raw_parts(from as *const u8, bytes) };
                self.machine.write(to, bytes)
            }
            &Work::Read { from, to, bytes, has_wrong_bit } => {
                self.check_pinned(to, bytes)?;
                let mut read = self.machine.read(from, bytes)?;
                if let Some(byte) = read.get_mut(bytes / 2).filter(|_| has_wrong_bit) {
                    *byte ^= 1;
                }
                // SAFETY: as above.
                unsafe { slice::from_raw_parts_mut(to as *mut u8, bytes) }.copy_from_slice(&read);
                Ok(())
            }
            &Work::Copy { from, to, bytes } => {
                let read = self.machine.read(from, bytes)?;
                self.machine.write(to, &read)
            }
            &Work::Fill { to, byte, bytes } => self.machine.write(to, &vec![byte; bytes]),
            Work::Event { event } => {
                // The event may be destroyed by now.
                if let Some(event) = self.events.get_mut(event) {
                    event.end(Instant::now());
                }
                Ok(())
            }
            Work::Launch { kernel, blocks, threads, parameters } => {
                self.machine.launch(kernel, *blocks, *threads, parameters, self.seed)
            }
        }
    }

    fn check_pinned(&self, address: usize, bytes: usize) -> Result<(), String> {
        let before = self.pinned.range(..=address).next_back();
        match before.filter(|(start, pinned)| address - *start + bytes <= pinned.bytes()) {
            Some(_) => Ok(()),
            None => Err(format!("{bytes} bytes at {address:#x} are no pinned memory that is alive")),
        }
    }
}
