//! Modules and their kernels.

use super::{
    context::{Context, Retired},
    failure::LoadError,
};
use crate::cuda::sys::{CUfunction, CUmodule, function_attribute, jit};
use std::{
    ffi::{CStr, CString, c_int, c_void},
    fmt,
    sync::Arc,
};

/// Upper bound on what is kept of what the driver's compiler says.
const LOG_BYTES: usize = 16 << 10;

/// PTX that the driver has compiled for a device. Clones are the same module. It is unloaded after
/// the work on the context's streams.
#[derive(Clone)]
pub struct Module(Arc<Inner>);

struct Inner {
    context: Context,
    handle: CUmodule,
    log: String,
}

/// A kernel of a module, which it keeps loaded.
#[derive(Clone)]
pub struct Function {
    module: Module,
    handle: CUfunction,
    name: String,
    most_threads: u32,
    registers: u32,
}

impl Module {
    /// Compiles PTX for the context's device.
    ///
    /// # Errors
    /// The driver's, with what its compiler said.
    pub fn load(context: &Context, ptx: &str) -> Result<Module, LoadError> {
        let plain = |failure| LoadError { failure, log: String::new() };
        let image = CString::new(ptx).map_err(|_| plain(context.refuse("a PTX text has a zero byte".to_owned())))?;
        let _entered = context.done(context.enter()).map_err(plain)?;
        let (mut info, mut errors) = (vec![0u8; LOG_BYTES], vec![0u8; LOG_BYTES]);
        let mut options: [c_int; 4] = [jit::INFO_LOG, jit::INFO_LOG_BYTES, jit::ERROR_LOG, jit::ERROR_LOG_BYTES];
        // The driver takes numbers in the place of pointers. The last byte of a log stays a zero.
        let bytes = (LOG_BYTES - 1) as *mut c_void;
        let mut values = [info.as_mut_ptr().cast(), bytes, errors.as_mut_ptr().cast(), bytes];
        let mut handle = CUmodule::NULL;
        // SAFETY: the image ends with a zero, there are as many values as options, and the logs
        // have the room that the options say. All of them outlive the call.
        let loaded = unsafe {
            let image = image.as_ptr().cast();
            context.functions().load_module(&mut handle, image, 4, options.as_mut_ptr(), values.as_mut_ptr())
        };
        let text =
            |log: &[u8]| CStr::from_bytes_until_nul(log).unwrap_or_default().to_string_lossy().trim_end().to_owned();
        context.done(loaded).map_err(|failure| LoadError { failure, log: text(&errors) })?;
        Ok(Module(Arc::new(Inner { context: context.clone(), handle, log: text(&info) })))
    }

    /// Returns a kernel by its name.
    ///
    /// # Errors
    /// The driver's, with the kernel's name.
    pub fn function(&self, name: &str) -> Result<Function, LoadError> {
        let context = &self.0.context;
        let named = |failure| LoadError { failure, log: format!("the kernel is {name:?}") };
        let c_name = CString::new(name).map_err(|_| named(context.refuse("the name has a zero byte".to_owned())))?;
        let _entered = context.done(context.enter()).map_err(named)?;
        let mut handle = CUfunction::NULL;
        // SAFETY: the module is loaded, and the name ends with a zero.
        let found = unsafe { context.functions().module_function(&mut handle, self.0.handle, c_name.as_ptr()) };
        context.done(found).map_err(named)?;
        let attribute = |attribute| {
            let mut value = 0;
            // SAFETY: writes one number; the function is of a loaded module.
            let asked = unsafe { context.functions().function_attribute(&mut value, attribute, handle) };
            context.done(asked).map_err(named).map(|()| value.unsigned_abs())
        };
        let most_threads = attribute(function_attribute::MAX_THREADS_PER_BLOCK)?;
        let registers = attribute(function_attribute::REGISTERS)?;
        Ok(Function { module: self.clone(), handle, name: name.to_owned(), most_threads, registers })
    }

    /// Returns the context.
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    /// Returns what the driver's compiler said to the PTX; usually nothing.
    pub fn log(&self) -> &str {
        &self.0.log
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.context.retire(Retired::Module(self.handle));
    }
}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Module({:?})", self.0.context.device())
    }
}

impl Function {
    /// Returns the kernel's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the maximum number of threads of a block of this kernel on this device.
    pub fn most_threads(&self) -> u32 {
        self.most_threads
    }

    /// Returns the number of registers of a thread of this kernel on this device.
    pub fn registers(&self) -> u32 {
        self.registers
    }

    /// Returns the context.
    pub fn context(&self) -> &Context {
        self.module.context()
    }

    pub(super) fn handle(&self) -> CUfunction {
        self.handle
    }
}

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Function({})", self.name)
    }
}
