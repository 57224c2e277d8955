//! State that the warps of a block share: memory, constants, parameters, counts.

use super::failure::{AccessFailure, Failure};
use crate::{
    fault::FaultKind,
    memory::{Events, Memory, Region, Shadow, Stamp},
    parse::Space,
    program::Program,
};

/// A launch as its warps see it.
pub(crate) struct Machine<'a> {
    pub(crate) program: &'a Program,
    pub(crate) memory: &'a mut Memory,
    pub(crate) constants: &'a [u8],
    pub(crate) parameters: &'a [u8],
    pub(crate) events: Events,
    /// The launch, for the shadows of allocations.
    pub(crate) launch: u64,
    /// The block that runs, counted along x, then y, then z.
    pub(crate) block: u32,
    shared: Region,
    shared_shadow: Shadow,
    /// The number of blocks so far, for the shadow of shared memory.
    blocks: u64,
    /// The allocation of the last access, where the next one probably is.
    guess: usize,
    pub(crate) instructions: u64,
    pub(crate) lane_instructions: u64,
    pub(crate) limit: u64,
}

impl<'a> Machine<'a> {
    pub(crate) fn new(
        program: &'a Program,
        memory: &'a mut Memory,
        constants: &'a [u8],
        parameters: &'a [u8],
    ) -> Machine<'a> {
        let (launch, limit) = (memory.begin_launch(), memory.instruction_limit());
        Machine {
            program,
            memory,
            constants,
            parameters,
            events: Events::new(),
            launch,
            block: 0,
            shared: Region::default(),
            shared_shadow: Shadow::default(),
            blocks: 0,
            guess: 0,
            instructions: 0,
            lane_instructions: 0,
            limit,
        }
    }

    /// Begins a block: its shared memory holds nothing.
    pub(crate) fn begin_block(&mut self, block: u32, dynamic_bytes: u32) {
        self.block = block;
        self.blocks += 1;
        let bytes = self.program.dynamic_shared as usize + dynamic_bytes as usize;
        if self.program.shared.is_empty() && dynamic_bytes == 0 {
            return;
        }
        let mut variables = self.program.shared.clone();
        variables.push((self.program.dynamic_shared, dynamic_bytes));
        self.shared.reset(bytes, &variables);
        self.shared_shadow.begin(self.blocks, bytes);
    }

    /// Counts an instruction.
    pub(crate) fn count(&mut self, step: usize, lanes: u32) -> Result<(), Failure> {
        self.instructions += 1;
        self.lane_instructions += u64::from(lanes.count_ones());
        if self.instructions > self.limit {
            let what = format!("the launch executed more than {} instructions of warps", self.limit);
            return Err(Failure::new(FaultKind::InstructionLimit, step, lanes.trailing_zeros() % 32, what));
        }
        Ok(())
    }

    /// Reads bytes for a lane, from a space that its warp shares with others. `is_read_only` says
    /// that the launch may not write them.
    pub(crate) fn read(
        &mut self,
        (space, address): (Space, u64),
        bytes: usize,
        stamp: Stamp,
        is_read_only: bool,
    ) -> Result<&[u8], AccessFailure> {
        match space {
            Space::Global => {
                let (at, offset) = self.memory.find_near(self.guess, address)?;
                self.guess = at;
                let allocation = self.memory.allocation(at);
                let data = allocation.region.read(offset, bytes)?;
                allocation.shadow.begin(self.launch, allocation.region.bytes());
                allocation.shadow.touch(offset, bytes, stamp, false, &self.events)?;
                if is_read_only {
                    allocation.shadow.touch_read_only(offset, bytes).map_err(AccessFailure::ReadOnly)?;
                }
                Ok(data)
            }
            Space::Shared => {
                let data = self.shared.read(address, bytes)?;
                self.shared_shadow.touch(address, bytes, stamp, false, &self.events)?;
                Ok(data)
            }
            Space::Constant => Ok(part(self.constants, address, bytes)?),
            Space::Parameter => Ok(part(self.parameters, address, bytes)?),
            _ => Err(FaultKind::OutOfBounds.into()),
        }
    }

    /// Returns bytes that a lane writes.
    pub(crate) fn write(
        &mut self,
        (space, address): (Space, u64),
        bytes: usize,
        stamp: Stamp,
    ) -> Result<&mut [u8], AccessFailure> {
        match space {
            Space::Global => {
                let (at, offset) = self.memory.find_near(self.guess, address)?;
                self.guess = at;
                let allocation = self.memory.allocation(at);
                allocation.shadow.begin(self.launch, allocation.region.bytes());
                let data = allocation.region.write(offset, bytes)?;
                if let Some(reader) = allocation.shadow.read_only_reader(offset, bytes) {
                    return Err(AccessFailure::ReadOnly(reader));
                }
                allocation.shadow.touch(offset, bytes, stamp, true, &self.events)?;
                Ok(data)
            }
            Space::Shared => {
                let data = self.shared.write(address, bytes)?;
                self.shared_shadow.touch(address, bytes, stamp, true, &self.events)?;
                Ok(data)
            }
            Space::Constant | Space::Parameter => Err(FaultKind::ReadOnly.into()),
            _ => Err(FaultKind::OutOfBounds.into()),
        }
    }
}

fn part(data: &[u8], offset: u64, bytes: usize) -> Result<&[u8], FaultKind> {
    let start = usize::try_from(offset).map_err(|_| FaultKind::OutOfBounds)?;
    let end = start.checked_add(bytes).ok_or(FaultKind::OutOfBounds)?;
    data.get(start..end).ok_or(FaultKind::OutOfBounds)
}
