//! The accesses to each byte during a launch, to find races.
//!
//! Accesses of a launch are *events*: a warp that executed a load or store between two barriers. A
//! *stamp* is an event and a lane of its warp. Each word of memory keeps the stamp of its last
//! write, and of the reads after it those that matter: the latest; the latest by another lane of
//! that warp; the latest by another warp of that block; the latest by another block. A later write
//! that races with any read also races with one of these. Words that threads touch in parts have
//! these for each byte.

/// The properties that the 32 lanes of an event have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) block: u32,
    pub(crate) warp: u32,
    /// The barriers of the block that the warp has passed.
    pub(crate) barriers: u32,
    /// The barriers of the warp that it has passed.
    pub(crate) warp_barriers: u32,
    /// The step that accesses.
    pub(crate) step: u32,
}

/// The events of a launch, from 1.
pub(crate) struct Events {
    events: Vec<Event>,
}

/// An event and a lane; 0 is none.
pub(crate) type Stamp = u32;

/// Events up to this number have stamps.
const MOST_EVENTS: usize = (u32::MAX / 32) as usize - 1;

impl Events {
    pub(crate) fn new() -> Events {
        Events { events: vec![Event { block: u32::MAX, warp: 0, barriers: 0, warp_barriers: 0, step: 0 }] }
    }

    /// Adds an event and returns the stamp of its lane 0. None if there are too many.
    pub(crate) fn add(&mut self, event: Event) -> Option<Stamp> {
        if self.events.len() >= MOST_EVENTS {
            return None;
        }
        self.events.push(event);
        Some((self.events.len() as u32 - 1) * 32)
    }

    pub(crate) fn of(&self, stamp: Stamp) -> Event {
        self.events[(stamp / 32) as usize]
    }

    /// Returns whether nothing orders two accesses.
    fn are_unordered(&self, one: Stamp, other: Stamp) -> bool {
        let (a, b) = (self.of(one), self.of(other));
        if a.block != b.block {
            return true;
        }
        if a.warp == b.warp && one % 32 == other % 32 {
            return false;
        }
        a.barriers == b.barriers && (a.warp != b.warp || a.warp_barriers == b.warp_barriers)
    }
}

/// The accesses of a word, or of a byte.
#[derive(Clone, Copy, Default)]
struct Cell {
    write: Stamp,
    latest: Stamp,
    other_lane: Stamp,
    other_warp: Stamp,
    other_block: Stamp,
}

/// The mark of a word that has cells for its bytes: `latest` is their place.
const SPLIT: Stamp = u32::MAX;

impl Cell {
    fn read(&mut self, stamp: Stamp, events: &Events) -> Result<(), Stamp> {
        if self.write != 0 && events.are_unordered(self.write, stamp) {
            return Err(self.write);
        }
        if self.latest == stamp {
            return Ok(());
        }
        if self.latest != 0 {
            let (before, now) = (events.of(self.latest), events.of(stamp));
            if before.block != now.block {
                self.other_block = self.latest;
            } else if before.warp != now.warp {
                self.other_warp = self.latest;
            } else if self.latest % 32 != stamp % 32 {
                self.other_lane = self.latest;
            }
        }
        self.latest = stamp;
        Ok(())
    }

    fn write(&mut self, stamp: Stamp, events: &Events) -> Result<(), Stamp> {
        if self.write | self.latest != 0 {
            let before = [self.write, self.latest, self.other_lane, self.other_warp, self.other_block];
            let race = before.into_iter().find(|before| *before != 0 && events.are_unordered(*before, stamp));
            if let Some(before) = race {
                return Err(before);
            }
        }
        *self = Cell { write: stamp, ..Cell::default() };
        Ok(())
    }

    fn touch(&mut self, stamp: Stamp, is_write: bool, events: &Events) -> Result<(), Stamp> {
        if is_write { self.write(stamp, events) } else { self.read(stamp, events) }
    }
}

/// The accesses of a region.
#[derive(Default)]
pub(crate) struct Shadow {
    cells: Vec<Cell>,
    split: Vec<[Cell; 4]>,
    /// The bytes that `ld.global.nc` read, for which the launch may not write them. Empty until the
    /// first such load.
    read_only: Vec<bool>,
    /// The launch of the accesses.
    launch: u64,
}

impl Shadow {
    /// Forgets all accesses unless they are of this launch.
    pub(crate) fn begin(&mut self, launch: u64, bytes: usize) {
        if self.launch != launch || self.cells.is_empty() {
            self.launch = launch;
            self.cells.clear();
            self.cells.resize(bytes.div_ceil(4), Cell::default());
            self.split.clear();
            self.read_only.clear();
        }
    }

    /// Notes that bytes inside the region are read by a load for memory that nothing writes.
    /// Returns the stamp of a write in this launch.
    pub(crate) fn touch_read_only(&mut self, offset: u64, bytes: usize) -> Result<(), Stamp> {
        let range = offset as usize..offset as usize + bytes;
        self.read_only.resize(self.cells.len() * 4, false);
        self.read_only[range.clone()].fill(true);
        match range.map(|byte| self.cell(byte).write).find(|write| *write != 0) {
            Some(write) => Err(write),
            None => Ok(()),
        }
    }

    /// Returns the stamp of a read of bytes that a load such as [`touch_read_only`] made read-only.
    ///
    /// [`touch_read_only`]: Self::touch_read_only
    pub(crate) fn read_only_reader(&self, offset: u64, bytes: usize) -> Option<Stamp> {
        if self.read_only.is_empty() {
            return None;
        }
        let mut range = offset as usize..offset as usize + bytes;
        range.find(|byte| self.read_only[*byte]).map(|byte| self.cell(byte).latest)
    }

    fn cell(&self, byte: usize) -> &Cell {
        let cell = &self.cells[byte / 4];
        if cell.write == SPLIT { &self.split[cell.latest as usize][byte % 4] } else { cell }
    }

    /// Notes an access of bytes inside the region. Returns the stamp of an access that races.
    pub(crate) fn touch(
        &mut self,
        offset: u64,
        bytes: usize,
        stamp: Stamp,
        is_write: bool,
        events: &Events,
    ) -> Result<(), Stamp> {
        let offset = offset as usize;
        if bytes.is_multiple_of(4) && offset.is_multiple_of(4) {
            for word in offset / 4..(offset + bytes) / 4 {
                let cell = &mut self.cells[word];
                if cell.write == SPLIT {
                    for byte in &mut self.split[cell.latest as usize] {
                        byte.touch(stamp, is_write, events)?;
                    }
                } else {
                    cell.touch(stamp, is_write, events)?;
                }
            }
            return Ok(());
        }
        for byte in offset..offset + bytes {
            let cell = &mut self.cells[byte / 4];
            if cell.write != SPLIT {
                self.split.push([*cell; 4]);
                *cell = Cell { write: SPLIT, latest: self.split.len() as u32 - 1, ..Cell::default() };
            }
            self.split[cell.latest as usize][byte % 4].touch(stamp, is_write, events)?;
        }
        Ok(())
    }
}
