//! A module: parsed and translated once, run often.

use crate::{
    fault::{Fault, FaultKind},
    memory::Memory,
    parse::{ParseError, Parser},
    program::{Parameter, Program},
    run::{self, Launch, Stats},
    translate::{Translation, translate},
};
use std::sync::Arc;

/// The kernels of a text of PTX.
///
/// ```
/// use consonance_ptx::{Launch, Memory, Module};
/// let module = Module::parse(
///     ".version 7.0
///      .target sm_75
///      .address_size 64
///      .visible .entry double_all(.param .u64 data) {
///          .reg .b32 %r<3>;
///          .reg .b64 %rd<4>;
///          ld.param.u64 %rd1, [data];
///          mov.u32 %r1, %tid.x;
///          mul.wide.u32 %rd2, %r1, 4;
///          add.s64 %rd3, %rd1, %rd2;
///          ld.global.u32 %r2, [%rd3];
///          shl.b32 %r2, %r2, 1;
///          st.global.u32 [%rd3], %r2;
///          ret;
///      }",
/// )?;
/// let mut memory = Memory::new();
/// let data = memory.alloc(8);
/// memory.write(data, &[1, 0, 0, 0, 2, 0, 0, 0])?;
/// let parameters = data.to_le_bytes();
/// let (grid, block) = ([1; 3], [2, 1, 1]);
/// let launch = Launch { kernel: "double_all", grid, block, shared_bytes: 0, parameters: &parameters, seed: 0 };
/// module.launch(&mut memory, &launch)?;
/// let mut result = [0; 8];
/// memory.read(data, &mut result)?;
/// assert_eq!(result, [2, 0, 0, 0, 4, 0, 0, 0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Module {
    text: String,
    translation: Translation,
    /// The identity by which memories know this module.
    identity: Arc<()>,
}

impl Module {
    /// Parses and translates a module.
    ///
    /// # Errors
    /// Names the line and its text if the text is no PTX, or has an instruction, a modifier or a
    /// directive that this crate does not know.
    pub fn parse(text: &str) -> Result<Module, ParseError> {
        let translation = Parser::module(text).and_then(|syntax| translate(&syntax));
        let translation = translation.map_err(|error| error.with_text(text))?;
        Ok(Module { text: text.to_owned(), translation, identity: Arc::new(()) })
    }

    /// Returns the names of the kernels, in the order of the text.
    pub fn kernels(&self) -> impl Iterator<Item = &str> {
        self.translation.kernels.iter().map(|kernel| kernel.name.as_str())
    }

    /// Returns the parameters of a kernel: where each is in the block of parameters, and its size
    /// and alignment in bytes. The block ends where the last parameter does.
    pub fn parameters(&self, kernel: &str) -> Option<&[Parameter]> {
        self.kernel(kernel).map(|kernel| kernel.parameters.as_slice())
    }

    /// Runs a kernel to its end. The module's own variables are allocated in a memory for the
    /// first launch there, and keep what launches write.
    ///
    /// # Errors
    /// The first access or instruction that is at fault ends the launch. What was written before
    /// stays.
    pub fn launch(&self, memory: &mut Memory, launch: &Launch<'_>) -> Result<Stats, Fault> {
        let Some(program) = self.kernel(launch.kernel) else {
            let what = format!("the module has no kernel `{}`", launch.kernel);
            return Err(Fault::of_host(FaultKind::InvalidLaunch, None, what));
        };
        let globals = memory.variables_of(&self.identity, |memory| self.allocate(memory))?;
        run::launch(program, &self.translation.constants, &globals, memory, launch, &self.text)
    }

    fn kernel(&self, name: &str) -> Option<&Program> {
        self.translation.kernels.iter().find(|kernel| kernel.name == name)
    }

    /// Allocates the module's variables with their initial values.
    fn allocate(&self, memory: &mut Memory) -> Result<Vec<u64>, Fault> {
        let globals = &self.translation.globals;
        let addresses: Vec<u64> = globals.iter().map(|global| memory.alloc(global.data.len())).collect();
        for (global, address) in globals.iter().zip(&addresses) {
            let mut data = global.data.clone();
            for (at, other, offset) in &global.addresses {
                data[*at..at + 8].copy_from_slice(&addresses[*other].wrapping_add_signed(*offset).to_le_bytes());
            }
            memory.write(*address, &data)?;
        }
        Ok(addresses)
    }
}
