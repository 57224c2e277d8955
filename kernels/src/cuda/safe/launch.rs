//! What a launch is checked for before the driver sees it.

use super::context::Shared;

/// The numbers of blocks and of the threads of a block. Kernels use one dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// The number of blocks.
    pub blocks: u32,
    /// The number of threads of each block.
    pub threads: u32,
}

/// What a kernel does with the bytes at an address that it is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// What the kernel calls them: `"input 2"`.
    pub name: &'static str,
    /// Their place among arguments of the same name.
    pub index: usize,
    /// The address of the first byte.
    pub address: u64,
    /// The number of bytes.
    pub bytes: u64,
    /// The power of two of which the address is a multiple.
    pub alignment: u64,
}

/// The argument of a kernel: a block of numbers and addresses, as the kernel declares it.
///
/// # Safety
/// A launch with this argument accesses only the bytes that [`accesses`](Argument::accesses) lists,
/// besides memory of its own. The bytes of the value are the kernel's only parameter.
pub unsafe trait Argument: Copy {
    /// Returns the bytes that the kernel accesses.
    fn accesses(&self) -> Vec<Access>;
}

/// The largest number of blocks of a launch, on every device.
const MOST_BLOCKS: u32 = (1 << 31) - 1;

/// Checks that the grid is one, for a kernel that takes at most `most_threads` threads a block.
///
/// # Errors
/// The number that is wrong.
pub(super) fn check_grid(grid: Grid, most_threads: u32) -> Result<(), String> {
    let Grid { blocks, threads } = grid;
    if blocks == 0 || blocks > MOST_BLOCKS {
        return Err(format!("{blocks} blocks; expected 1 to {MOST_BLOCKS}"));
    }
    if threads == 0 || threads > most_threads {
        return Err(format!("{threads} threads a block; expected 1 to {most_threads}"));
    }
    Ok(())
}

/// Checks that the bytes lie in memory that is alive.
///
/// # Errors
/// The access, and what there is at its address.
pub(super) fn check_access(access: &Access, shared: &Shared) -> Result<(), String> {
    let Access { name, index, address, bytes, alignment } = *access;
    if bytes == 0 {
        return Ok(());
    }
    if address % alignment != 0 {
        return Err(format!("{name} {index}: the address {address:#x} is no multiple of {alignment}"));
    }
    let Some((start, size)) = shared.memory_before(address) else {
        return Err(format!("{name} {index}: the context has no memory at {address:#x}"));
    };
    let offset = address - start;
    let left = (size as u64).saturating_sub(offset);
    if bytes > left {
        return Err(format!(
            "{name} {index}: expected {bytes} bytes at {address:#x}; the memory of {size} bytes at {start:#x} has {left} \
             there"
        ));
    }
    Ok(())
}
