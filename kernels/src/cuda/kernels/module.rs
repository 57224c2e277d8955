//! The PTX modules, which `kernels/cuda/compile` writes.

use consonance_spec::{DType, for_each_dtype};

macro_rules! ptx {
    ($($name:expr),*) => { include_str!(concat!("../../../cuda/ptx/", $($name,)* ".ptx")) };
}

/// A PTX module with its name.
#[derive(Clone, Copy)]
pub struct Module {
    /// The name of the file, without its extension.
    pub name: &'static str,
    /// The PTX text.
    pub ptx: &'static str,
}

macro_rules! modules {
    ($($module:ident = $name:literal;)*) => {
        $(pub(super) const $module: &str = ptx!($name);)*

        /// The modules that do not belong to one element type.
        const OTHERS: &[Module] = &[$(Module { name: $name, ptx: $module }),*];
    };
}

modules! {
    FOLD_BITS = "fold_bits";
}

macro_rules! by_dtype {
    ($({ type: $type:ty, variant: $variant:ident, name: $name:tt $($more:tt)* })*) => {
        /// Returns the module of reductions of elements of this type.
        pub(super) fn fold(dtype: DType) -> &'static str {
            match dtype { $(DType::$variant => by_dtype!(@fold $name)),* }
        }

        /// The modules of each element type.
        const BY_DTYPE: &[Module] = &[$(
            Module { name: concat!("fold_", $name), ptx: by_dtype!(@fold $name) },
        )*];
    };
    // All operations on bool are bitwise.
    (@fold "bool") => { FOLD_BITS };
    (@fold $name:literal) => { ptx!("fold_", $name) };
}

for_each_dtype!(by_dtype);

/// Returns every module, once.
pub fn modules() -> Vec<Module> {
    let of_types =
        BY_DTYPE.iter().filter(|module| OTHERS.iter().all(|other| other.ptx.as_ptr() != module.ptx.as_ptr()));
    OTHERS.iter().chain(of_types).copied().collect()
}
