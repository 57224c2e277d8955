//! The machine that interprets the PTX that ships.

use super::Machine;
use consonance_kernels::cuda::kernels::{Launch, modules};
use consonance_ptx::{Launch as Run, Memory, Module};
use std::sync::{Arc, LazyLock};

/// An interpreter with memory of its own.
pub struct Interpreter {
    memory: Memory,
    /// The modules, each with the text that ships.
    modules: Arc<Vec<(&'static str, Module)>>,
    seed: u64,
    launches: u64,
}

static SHIPPED: LazyLock<Arc<Vec<(&'static str, Module)>>> =
    LazyLock::new(|| Arc::new(parsed(|_, text| text.to_owned()).expect("the PTX that ships is read")));

impl Interpreter {
    /// Returns a machine whose blocks and warps take turns as `seed` says.
    pub fn new(seed: u64) -> Interpreter {
        Interpreter { memory: Memory::new(), modules: Arc::clone(&SHIPPED), seed, launches: 0 }
    }

    /// Returns a machine that runs an edited module: `edit` gets the name and the text of each, and
    /// returns the text, or `None` where it leaves the module out.
    ///
    /// # Errors
    /// If an edited text is not read.
    pub fn edited(edit: impl Fn(&str, &str) -> Option<String>) -> Result<Interpreter, String> {
        let edited = parsed_some(edit)?;
        Ok(Interpreter { memory: Memory::new(), modules: Arc::new(edited), seed: 1, launches: 0 })
    }

    /// Returns a machine with the same modules and empty memory.
    pub fn fresh(&self, seed: u64) -> Interpreter {
        Interpreter { memory: Memory::new(), modules: Arc::clone(&self.modules), seed, launches: 0 }
    }
}

fn parsed(edit: impl Fn(&str, &str) -> String) -> Result<Vec<(&'static str, Module)>, String> {
    parsed_some(|name, text| Some(edit(name, text)))
}

fn parsed_some(edit: impl Fn(&str, &str) -> Option<String>) -> Result<Vec<(&'static str, Module)>, String> {
    let read = |text: String, name: &str| Module::parse(&text).map_err(|error| format!("{name}: {error}"));
    let all = modules().into_iter().filter_map(|module| {
        let text = edit(module.name, module.ptx)?;
        Some(read(text, module.name).map(|parsed| (module.ptx, parsed)))
    });
    all.collect()
}

impl Machine for Interpreter {
    fn alloc(&mut self, bytes: usize) -> Result<u64, String> {
        Ok(self.memory.alloc(bytes))
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), String> {
        self.memory.write(address, bytes).map_err(|fault| fault.to_string())
    }

    fn read(&mut self, address: u64, bytes: usize) -> Result<Vec<u8>, String> {
        let mut data = vec![0; bytes];
        self.memory.read(address, &mut data).map_err(|fault| fault.to_string())?;
        Ok(data)
    }

    fn run(&mut self, launch: &Launch) -> Result<(), String> {
        let module = self.modules.iter().find(|(text, _)| *text == launch.kernel.module);
        let (_, module) = module.ok_or_else(|| format!("no module of {:?}", launch.kernel))?;
        self.launches += 1;
        let run = Run {
            kernel: launch.kernel.name,
            grid: [launch.grid, 1, 1],
            block: [launch.block, 1, 1],
            shared_bytes: launch.shared_bytes,
            parameters: &launch.parameters,
            seed: self.seed.wrapping_add(self.launches),
        };
        module.launch(&mut self.memory, &run).map_err(|fault| format!("{:?}: {fault}", launch.kernel))?;
        Ok(())
    }
}
