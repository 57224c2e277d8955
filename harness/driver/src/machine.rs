//! The memory of the devices, and the interpreter of PTX that uses it.

use consonance_ptx::{Launch, Memory, Module};
use std::{collections::BTreeMap, sync::Arc};

/// The memory of all devices.
#[derive(Default)]
pub(crate) struct Machine {
    memory: Memory,
    /// The bytes and the device of the allocations that are alive, by their addresses.
    alive: BTreeMap<u64, (usize, usize)>,
}

/// A loaded module.
pub(crate) struct Program(Arc<Module>);

/// A kernel of a module, which may be unloaded while work uses it.
pub(crate) struct Kernel {
    module: Arc<Module>,
    name: String,
}

impl Machine {
    /// Returns how many allocations are alive.
    pub(crate) fn allocations(&self) -> usize {
        self.alive.len()
    }

    /// Returns the bytes of the allocations that are alive.
    pub(crate) fn bytes(&self) -> usize {
        self.alive.values().map(|(bytes, _)| bytes).sum()
    }

    pub(crate) fn allocate(&mut self, device: usize, bytes: usize) -> u64 {
        let address = self.memory.alloc(bytes);
        self.alive.insert(address, (bytes, device));
        address
    }

    /// Returns the address, the bytes and the device of the allocation that has this address.
    pub(crate) fn allocation_at(&self, address: u64) -> Option<(u64, usize, usize)> {
        let (&start, &(bytes, device)) = self.alive.range(..=address).next_back()?;
        (address - start < bytes as u64).then_some((start, bytes, device))
    }

    /// Frees an allocation. Returns whether it was alive.
    pub(crate) fn free(&mut self, address: u64) -> bool {
        self.alive.remove(&address).is_some() && self.memory.free(address).is_ok()
    }

    /// # Errors
    /// The interpreter's, if the bytes are not alive.
    pub(crate) fn write(&mut self, to: u64, bytes: &[u8]) -> Result<(), String> {
        self.memory.write(to, bytes).map_err(|fault| fault.to_string())
    }

    /// # Errors
    /// The interpreter's, if the bytes are not alive, or nothing has written them.
    pub(crate) fn read(&self, from: u64, bytes: usize) -> Result<Vec<u8>, String> {
        let mut read = vec![0; bytes];
        self.memory.read(from, &mut read).map_err(|fault| fault.to_string())?;
        Ok(read)
    }

    /// # Errors
    /// The interpreter's, if the text is no PTX that it knows.
    pub(crate) fn load(text: &str) -> Result<Program, String> {
        Module::parse(text).map(|module| Program(Arc::new(module))).map_err(|error| error.to_string())
    }

    /// Runs a kernel to its end.
    ///
    /// # Errors
    /// The interpreter's fault.
    pub(crate) fn launch(
        &mut self,
        kernel: &Kernel,
        grid: [u32; 3],
        block: [u32; 3],
        parameters: &[u8],
        seed: u64,
    ) -> Result<(), String> {
        let launch = Launch { kernel: &kernel.name, grid, block, shared_bytes: 0, parameters, seed };
        kernel.module.launch(&mut self.memory, &launch).map(drop).map_err(|fault| format!("{}: {fault}", kernel.name))
    }
}

impl Program {
    pub(crate) fn kernel(&self, name: &str) -> Option<Kernel> {
        let kernel = || Kernel { module: self.0.clone(), name: name.to_owned() };
        self.0.parameters(name).is_some().then(kernel)
    }
}

impl Kernel {
    /// Returns the name of the kernel.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the place and the size of each parameter.
    pub(crate) fn parameters(&self) -> Vec<(usize, usize)> {
        let parameters = self.module.parameters(&self.name).unwrap_or_default();
        parameters.iter().map(|parameter| (parameter.offset, parameter.bytes)).collect()
    }
}
