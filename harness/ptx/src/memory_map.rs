//! The windows of the state spaces among generic addresses.
//!
//! Each window is 4 GiB, far below global memory, and begins at offset 0 of its space. What is in
//! no window and in no allocation is out of bounds: null pointers are.

use crate::parse::Space;

/// The generic address of offset 0 of shared memory.
const SHARED: u64 = 0x1_0000_0000;
/// The same for local memory.
const LOCAL: u64 = 0x2_0000_0000;
/// The same for constants.
const CONSTANT: u64 = 0x3_0000_0000;
/// The same for parameters.
const PARAMETER: u64 = 0x4_0000_0000;

/// The size of a window.
const WINDOW: u64 = 0x1_0000_0000;

/// The address in the space of parameters from which on they are those of calls, not the kernel's.
pub(crate) const CALL_PARAMETERS: u64 = 0x1_0000;

/// The bytes between two variables of shared memory.
pub(crate) const GAP: u32 = 16;

/// Returns what is added to an address of a space to make it generic.
pub(crate) fn window(space: Space) -> u64 {
    match space {
        Space::Shared => SHARED,
        Space::Local => LOCAL,
        Space::Constant => CONSTANT,
        Space::Parameter => PARAMETER,
        Space::Global | Space::Generic | Space::Register => 0,
    }
}

/// Returns the space of a generic address, and the address in this space.
pub(crate) fn space_of(address: u64) -> (Space, u64) {
    let spaces = [Space::Shared, Space::Local, Space::Constant, Space::Parameter];
    let inside = |space: &Space| address.wrapping_sub(window(*space)) < WINDOW;
    match spaces.into_iter().find(inside) {
        Some(space) => (space, address - window(space)),
        None => (Space::Global, address),
    }
}
