//! Global memory: allocations at addresses of their own.

use super::{
    region::{Refusal, Region},
    shadow::Shadow,
};
use crate::fault::{Fault, FaultKind};
use std::sync::Arc;

/// The first address of global memory. What is below is in no space, or in the windows of others.
const FIRST: u64 = 0x10_0000_0000;

/// The alignment of an allocation, as the driver's. At least as many bytes between two allocations
/// belong to none, so that no overrun reaches the next one.
const ALIGN: u64 = 256;

/// The instructions of warps that a launch may execute: about a minute.
const DEFAULT_LIMIT: u64 = 1 << 30;

/// The global memory of a device: the live allocations, with what was written into them.
///
/// ```
/// use consonance_ptx::{FaultKind, Memory};
/// let mut memory = Memory::new();
/// let address = memory.alloc(8);
/// memory.write(address, &[1, 2, 3, 4])?;
/// let mut data = [0; 4];
/// memory.read(address, &mut data)?;
/// assert_eq!(data, [1, 2, 3, 4]);
/// assert_eq!(memory.read(address + 2, &mut data).unwrap_err().kind, FaultKind::Uninitialised);
/// assert_eq!(memory.read(address + 5, &mut data).unwrap_err().kind, FaultKind::OutOfBounds);
/// # Ok::<(), consonance_ptx::Fault>(())
/// ```
pub struct Memory {
    /// In the order of their addresses, with those that were freed.
    allocations: Vec<Allocation>,
    /// The number of launches so far.
    launches: u64,
    /// The instructions of warps that a launch may execute.
    limit: u64,
    /// The addresses of modules' variables.
    modules: Vec<(Arc<()>, Vec<u64>)>,
}

pub(crate) struct Allocation {
    start: u64,
    bytes: u64,
    is_live: bool,
    pub(crate) region: Region,
    pub(crate) shadow: Shadow,
}

impl Memory {
    /// Returns memory without allocations.
    pub fn new() -> Memory {
        Memory { allocations: Vec::new(), launches: 0, limit: DEFAULT_LIMIT, modules: Vec::new() }
    }

    /// Sets how many instructions of warps a launch may execute. One more is a fault of kind
    /// [`FaultKind::InstructionLimit`], so that an endless loop ends. It is 2^30 at first.
    pub fn set_instruction_limit(&mut self, limit: u64) {
        self.limit = limit;
    }

    /// Allocates `bytes` and returns their address, a multiple of 256. They hold nothing yet: a
    /// read before a write is a fault. No address is used twice.
    pub fn alloc(&mut self, bytes: usize) -> u64 {
        let end = self.allocations.last().map_or(FIRST, |last| last.start + last.bytes + ALIGN);
        let start = end.next_multiple_of(ALIGN);
        let (region, shadow) = (Region::new(bytes), Shadow::default());
        self.allocations.push(Allocation { start, bytes: bytes as u64, is_live: true, region, shadow });
        start
    }

    /// Frees the allocation that begins at `address`.
    ///
    /// # Errors
    /// [`FaultKind::Freed`] if this was done before, [`FaultKind::OutOfBounds`] if none begins
    /// there.
    pub fn free(&mut self, address: u64) -> Result<(), Fault> {
        let refused = |kind| Fault::of_host(kind, Some(address), "`free` needs the address of a live allocation");
        let found = self.allocations.binary_search_by_key(&address, |allocation| allocation.start);
        let allocation = &mut self.allocations[found.map_err(|_| refused(FaultKind::OutOfBounds))?];
        if !allocation.is_live {
            return Err(refused(FaultKind::Freed));
        }
        allocation.is_live = false;
        (allocation.region, allocation.shadow) = (Region::default(), Shadow::default());
        Ok(())
    }

    /// Writes bytes of the host.
    ///
    /// # Errors
    /// [`FaultKind::OutOfBounds`] or [`FaultKind::Freed`] unless all bytes are in one live
    /// allocation.
    pub fn write(&mut self, address: u64, data: &[u8]) -> Result<(), Fault> {
        let (at, offset) = self.find(address).map_err(|kind| host_fault(kind, address, data.len()))?;
        let region = &mut self.allocations[at].region;
        let bytes = region.write(offset, data.len());
        bytes.map_err(|refusal| host_fault(refusal.into(), address, data.len()))?.copy_from_slice(data);
        Ok(())
    }

    /// Reads bytes for the host.
    ///
    /// # Errors
    /// As [`write`](Self::write), and [`FaultKind::Uninitialised`] if a byte was never written.
    pub fn read(&self, address: u64, data: &mut [u8]) -> Result<(), Fault> {
        let (at, offset) = self.find(address).map_err(|kind| host_fault(kind, address, data.len()))?;
        let bytes = self.allocations[at].region.read(offset, data.len());
        data.copy_from_slice(bytes.map_err(|refusal| host_fault(refusal.into(), address, data.len()))?);
        Ok(())
    }

    /// Returns the place of the live allocation at or before an address, and the offset in it.
    pub(crate) fn find(&self, address: u64) -> Result<(usize, u64), FaultKind> {
        let after = self.allocations.partition_point(|allocation| allocation.start <= address);
        let at = after.checked_sub(1).ok_or(FaultKind::OutOfBounds)?;
        let allocation = &self.allocations[at];
        match allocation.is_live {
            true => Ok((at, address - allocation.start)),
            false if address - allocation.start < allocation.bytes.max(1) => Err(FaultKind::Freed),
            false => Err(FaultKind::OutOfBounds),
        }
    }

    /// As [`find`](Self::find), but tries the allocation at `guess` first.
    pub(crate) fn find_near(&self, guess: usize, address: u64) -> Result<(usize, u64), FaultKind> {
        if let Some(allocation) = self.allocations.get(guess) {
            let offset = address.wrapping_sub(allocation.start);
            if allocation.is_live && offset < allocation.bytes {
                return Ok((guess, offset));
            }
        }
        self.find(address)
    }

    /// Returns the allocation at a place that [`find`](Self::find) returned.
    pub(crate) fn allocation(&mut self, at: usize) -> &mut Allocation {
        &mut self.allocations[at]
    }

    /// Returns the instructions of warps that a launch may execute.
    pub(crate) fn instruction_limit(&self) -> u64 {
        self.limit
    }

    /// Begins a launch: accesses of earlier ones race with none of it.
    pub(crate) fn begin_launch(&mut self) -> u64 {
        self.launches += 1;
        self.launches
    }

    /// Returns the addresses of a module's variables, which `make` allocates for the first launch.
    pub(crate) fn variables_of(
        &mut self,
        module: &Arc<()>,
        make: impl FnOnce(&mut Memory) -> Result<Vec<u64>, Fault>,
    ) -> Result<Vec<u64>, Fault> {
        if let Some((_, addresses)) = self.modules.iter().find(|(known, _)| Arc::ptr_eq(known, module)) {
            return Ok(addresses.clone());
        }
        let addresses = make(self)?;
        self.modules.push((module.clone(), addresses.clone()));
        Ok(addresses)
    }
}

impl Default for Memory {
    fn default() -> Memory {
        Memory::new()
    }
}

impl From<Refusal> for FaultKind {
    fn from(refusal: Refusal) -> FaultKind {
        match refusal {
            Refusal::OutOfBounds => FaultKind::OutOfBounds,
            Refusal::Uninitialised => FaultKind::Uninitialised,
        }
    }
}

fn host_fault(kind: FaultKind, address: u64, bytes: usize) -> Fault {
    Fault::of_host(kind, Some(address), format!("the host accesses {bytes} bytes"))
}
