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
        // A static has one address, by which a driver can remember what it has loaded.
        $(pub(super) static $module: &str = ptx!($name);)*

        /// The modules that do not belong to one element type.
        static OTHERS: &[Module] = &[$(Module { name: $name, ptx: $module }),*];
    };
}

modules! {
    FOLD_BITS = "fold_bits";
    FOLD_TOTAL = "fold_total";
    ALONG_BITS = "along_bits";
    ALONG_TOTAL = "along_total";
    ROWS = "rows";
    MOVE = "move";
    CONVERT = "convert";
}

macro_rules! by_dtype {
    ($({ type: $type:ty, variant: $variant:ident, name: $name:tt $($more:tt)* })*) => {
        /// The modules that reduce several sources, by the type of the elements.
        static FOLDS: [Module; DType::ALL.len()] = [$(by_dtype!(FOLD_BITS "fold_" $name)),*];

        /// The modules that reduce tensors along an axis, by the type of the elements.
        static ALONGS: [Module; DType::ALL.len()] = [$(by_dtype!(ALONG_BITS "along_" $name)),*];
    };
    // All operations on bool are bitwise.
    ($bits:ident $prefix:literal "bool") => { Module { name: concat!($prefix, "bits"), ptx: $bits } };
    ($bits:ident $prefix:literal $name:literal) => {
        Module { name: concat!($prefix, $name), ptx: ptx!($prefix, $name) }
    };
}

for_each_dtype!(by_dtype);

/// Returns the module that reduces several sources of this type.
pub(super) fn fold(dtype: DType) -> &'static str {
    FOLDS[dtype as usize].ptx
}

/// Returns the module that reduces tensors of this type along an axis.
pub(super) fn along(dtype: DType) -> &'static str {
    ALONGS[dtype as usize].ptx
}

/// Returns the name of a kernel: the prefix, then the name of the type.
macro_rules! named {
    ([$prefix:literal $dtype:ident] $({ type: $type:ty, variant: $variant:ident, name: $name:literal $($more:tt)* })*) => {
        match $dtype { $(DType::$variant => concat!($prefix, $name)),* }
    };
}
pub(super) use named;

/// Returns every module, once.
pub fn modules() -> Vec<Module> {
    let is_other = |module: &&Module| OTHERS.iter().any(|other| other.name == module.name);
    OTHERS.iter().chain(FOLDS.iter().chain(&ALONGS).filter(|module| !is_other(module))).copied().collect()
}
