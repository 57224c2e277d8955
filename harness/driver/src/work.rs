//! The work of a stream.

use crate::{event::Record, machine::Machine, pinned_memory::Pinned};
use std::{
    collections::{BTreeMap, VecDeque},
    slice,
    sync::Arc,
};

/// A stream: its device, its work in order, and how many queries it answers before it begins.
pub(crate) struct Stream {
    pub(crate) device: usize,
    work: VecDeque<Work>,
    queries: u64,
}

/// One piece of work. Addresses of the host are those of pinned memory.
pub(crate) enum Work {
    Write {
        from: usize,
        to: u64,
        bytes: usize,
    },
    Read {
        from: u64,
        to: usize,
        bytes: usize,
        has_wrong_bit: bool,
    },
    Copy {
        from: u64,
        to: u64,
        bytes: usize,
    },
    Fill {
        to: u64,
        byte: u8,
        bytes: usize,
    },
    /// Marks this point.
    Event(Record),
    /// Waits for a point of another stream.
    Wait(Record),
    Launch {
        kernel: Arc<crate::machine::Kernel>,
        blocks: [u32; 3],
        threads: [u32; 3],
        parameters: Vec<u8>,
    },
}

impl Work {
    /// Returns the name of the work and its bytes, if it is a copy between the host and the device,
    /// or a launch.
    pub(crate) fn counted(&self) -> Option<(String, usize)> {
        match self {
            Work::Read { bytes, .. } => Some(("to_host".to_owned(), *bytes)),
            Work::Write { bytes, .. } => Some(("to_device".to_owned(), *bytes)),
            Work::Launch { kernel, .. } => Some((kernel.name().to_owned(), 0)),
            Work::Copy { .. } | Work::Fill { .. } | Work::Event(_) | Work::Wait(_) => None,
        }
    }
}

/// The place that a stream has come to.
pub(crate) enum Progress {
    /// All work has ended.
    Done,
    /// It is too early.
    Early,
    /// The next work waits for this point.
    Waits(Record),
}

/// The means that work needs.
pub(crate) struct Resources<'s> {
    pub(crate) machine: &'s mut Machine,
    pub(crate) pinned: &'s BTreeMap<usize, Pinned>,
    pub(crate) seed: u64,
}

impl Stream {
    pub(crate) fn new(device: usize) -> Stream {
        Stream { device, work: VecDeque::new(), queries: 0 }
    }

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

    /// Answers a query: how far the stream has come. Does all work, if it is time to begin, up to a
    /// wait for another stream, and not past the point `until`.
    ///
    /// # Errors
    /// What is wrong with a piece of work. The work after it is not done.
    pub(crate) fn query(&mut self, until: Option<&Record>, place: &mut Resources<'_>) -> Result<Progress, String> {
        if self.queries > 0 && self.has_work() {
            self.queries -= 1;
            return Ok(Progress::Early);
        }
        while let Some(work) = self.work.front() {
            if until.is_some_and(|point| point.time().is_some()) {
                return Ok(Progress::Early);
            }
            if let Work::Wait(point) = work
                && point.time().is_none()
            {
                return Ok(Progress::Waits(point.clone()));
            }
            if let Err(why) = place.act(work) {
                self.work.clear();
                return Err(why);
            }
            self.work.pop_front();
        }
        Ok(Progress::Done)
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
            Work::Event(point) => {
                point.end();
                Ok(())
            }
            Work::Wait(_) => Ok(()),
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
