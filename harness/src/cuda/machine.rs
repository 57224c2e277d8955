//! What runs launches.

use consonance_kernels::cuda::kernels::Launch;

/// Memory of a device, and the kernels on it. An error is the fault in words.
pub trait Machine {
    /// Allocates `bytes`, and returns an address that is a multiple of 256. The memory holds
    /// nothing yet.
    fn alloc(&mut self, bytes: usize) -> Result<u64, String>;

    /// Writes bytes to memory.
    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), String>;

    /// Reads bytes from memory.
    fn read(&mut self, address: u64, bytes: usize) -> Result<Vec<u8>, String>;

    /// Runs a launch to its end.
    fn run(&mut self, launch: &Launch) -> Result<(), String>;
}
