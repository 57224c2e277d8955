//! The kernels of the table, compiled for a device when they are first used.

use super::{
    context::Context,
    failure::LoadError,
    module::{Function, Module},
};
use crate::cuda::kernels::{self, Kernel};
use std::{
    collections::HashMap,
    fmt,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// The kernels of the [table](crate::cuda::kernels) on a device. The driver compiles a module when
/// one of its kernels is first used.
pub struct Kernels {
    context: Context,
    loaded: Mutex<Loaded>,
}

#[derive(Default)]
struct Loaded {
    /// By the addresses of their texts, which are never freed.
    modules: HashMap<*const u8, Module>,
    functions: HashMap<(*const u8, &'static str), Function>,
    compiled: Vec<Compiled>,
}

// SAFETY: the addresses are only compared.
unsafe impl Send for Loaded {}

/// The time that the driver's compiler took for a module.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// The module's name in the table.
    pub name: &'static str,
    /// The time.
    pub time: Duration,
}

impl Kernels {
    /// Makes the table for a device. Nothing is compiled yet.
    pub fn new(context: &Context) -> Kernels {
        Kernels { context: context.clone(), loaded: Mutex::default() }
    }

    /// Returns the context.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Returns a kernel. Compiles its module if this is the first use.
    ///
    /// # Errors
    /// The driver's, with what its compiler said.
    pub fn function(&self, kernel: Kernel) -> Result<Function, LoadError> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let text = kernel.module.as_ptr();
        if let Some(function) = loaded.functions.get(&(text, kernel.name)) {
            return Ok(function.clone());
        }
        let module = match loaded.modules.get(&text) {
            Some(module) => module.clone(),
            None => {
                let begin = Instant::now();
                let module = Module::load(&self.context, kernel.module)?;
                let name = kernels::modules().into_iter().find(|module| module.ptx.as_ptr() == text);
                let name = name.map_or("a module that is not in the table", |module| module.name);
                loaded.compiled.push(Compiled { name, time: begin.elapsed() });
                loaded.modules.insert(text, module.clone());
                module
            }
        };
        let function = module.function(kernel.name)?;
        loaded.functions.insert((text, kernel.name), function.clone());
        Ok(function)
    }

    /// Returns how long the driver's compiler took for each module that was used, in the order of
    /// their first uses.
    pub fn compiled(&self) -> Vec<Compiled> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner).compiled.clone()
    }
}

impl fmt::Debug for Kernels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kernels({:?})", self.context)
    }
}
