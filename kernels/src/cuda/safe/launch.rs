//! Checks of a launch before the driver sees it.

use super::{
    address::Found,
    context::{Context, Shared},
};
use crate::cuda::kernels::Launch;

/// A kernel's access to the bytes at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The caller's name of them: `"source"`.
    pub name: &'static str,
    /// Their place among those of the same name.
    pub index: usize,
    /// The address of the first byte.
    pub address: u64,
    /// The number of bytes.
    pub bytes: u64,
    /// The number of which the address is a multiple.
    pub alignment: u64,
}

/// The largest number of blocks of a launch, on every device.
const MOST_BLOCKS: u32 = (1 << 31) - 1;

/// Checks the geometry of a launch, for a kernel that takes at most `most_threads` threads a block.
///
/// # Errors
/// The number that is wrong.
pub(super) fn check_geometry(launch: &Launch, most_threads: u32) -> Result<(), String> {
    let Launch { grid, block, .. } = *launch;
    if grid == 0 || grid > MOST_BLOCKS {
        return Err(format!("{grid} blocks; expected 1 to {MOST_BLOCKS}"));
    }
    if block == 0 || block > most_threads {
        return Err(format!("{block} threads a block; expected 1 to {most_threads}"));
    }
    Ok(())
}

/// Checks that the bytes lie in memory that is alive.
///
/// # Errors
/// The access, and what there is at its address.
pub(super) fn check_access(access: &Access, context: &Context, shared: &Shared) -> Result<(), String> {
    let Access { name, index, address, bytes, alignment } = *access;
    if bytes == 0 {
        return Ok(());
    }
    if !address.is_multiple_of(alignment) {
        return Err(format!("{name} {index}: the address {address:#x} is no multiple of {alignment}"));
    }
    context.find(shared, address, bytes).map_err(|found| match found {
        Found::Nothing => format!("{name} {index}: the context has no memory at {address:#x}"),
        found => format!("{name} {index}: expected {bytes} bytes at {address:#x}, found {found}"),
    })
}
