//! Jobs on the interpreter of the PTX that ships.

use super::{
    Case,
    job::{After, GUARD, Job},
};
use crate::compare::Verdict;
use consonance_kernels::cuda::kernels::{Launch, modules};
use consonance_ptx::{Launch as Run, Memory, Module};
use std::sync::{Arc, LazyLock};

/// The modules, each with the text that ships.
type Modules = Arc<Vec<(&'static str, Module)>>;

/// An interpreter with memory of its own.
pub struct Interpreter {
    memory: Memory,
    modules: Modules,
    seed: u64,
    launches: u64,
}

static SHIPPED: LazyLock<Modules> =
    LazyLock::new(|| parsed(|_, text| Some(text.to_owned())).expect("the PTX that ships is read"));

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
        Ok(Interpreter { memory: Memory::new(), modules: parsed(edit)?, seed: 1, launches: 0 })
    }

    /// Returns a machine with the same modules and empty memory.
    pub fn fresh(&self, seed: u64) -> Interpreter {
        Interpreter { memory: Memory::new(), modules: Arc::clone(&self.modules), seed, launches: 0 }
    }

    /// Judges a case.
    ///
    /// # Errors
    /// The difference from the spec or from the host, or the fault of a kernel, with the case.
    pub fn judge(&mut self, case: &Case) -> Verdict {
        case.job(usize::MAX).and_then(|job| self.run(&job)).map_err(|wrong| format!("{wrong}\nin {case:?}"))
    }

    fn run(&mut self, job: &Job) -> Verdict {
        let mut addresses = Vec::new();
        for buffer in &job.buffers {
            let start = self.memory.alloc(buffer.shift + buffer.bytes);
            let address = start + buffer.shift as u64;
            self.write(start, &vec![GUARD; buffer.shift])?;
            if let Some(bytes) = &buffer.before {
                self.write(address, bytes)?;
            }
            addresses.push(address);
        }
        for step in &job.steps {
            for launch in step.launches(&addresses).map_err(|error| error.to_string())? {
                self.launch(&launch.at_most(job.blocks))?;
            }
        }
        for (buffer, &address) in job.buffers.iter().zip(&addresses) {
            let guard = self.read(address - buffer.shift as u64, buffer.shift)?;
            if guard.iter().any(|&byte| byte != GUARD) {
                return Err("wrote before the first element".to_owned());
            }
            // A byte that nothing has written is a fault.
            if !matches!(buffer.after, After::Any) {
                buffer.judge(&self.read(address, buffer.bytes)?)?;
            }
        }
        Ok(())
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Verdict {
        self.memory.write(address, bytes).map_err(|fault| fault.to_string())
    }

    fn read(&self, address: u64, bytes: usize) -> Result<Vec<u8>, String> {
        let mut data = vec![0; bytes];
        self.memory.read(address, &mut data).map_err(|fault| fault.to_string())?;
        Ok(data)
    }

    fn launch(&mut self, launch: &Launch) -> Verdict {
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

fn parsed(edit: impl Fn(&str, &str) -> Option<String>) -> Result<Modules, String> {
    let read = |text: String, name: &str| Module::parse(&text).map_err(|error| format!("{name}: {error}"));
    let all = modules().into_iter().filter_map(|module| {
        let text = edit(module.name, module.ptx)?;
        Some(read(text, module.name).map(|parsed| (module.ptx, parsed)))
    });
    all.collect::<Result<Vec<_>, String>>().map(Arc::new)
}
