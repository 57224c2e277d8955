//! The element types: one row per type, with everything that is known of the type.
//!
//! Nothing else in the workspace lists the types. All other code reads the columns through
//! [`for_each_dtype!`](crate::for_each_dtype).

use std::fmt;

/// Calls `$callback!` with one row `{ type: f32, variant: F32, name: "f32", class: Float }` for
/// each element type.
///
/// A callback names the columns up to the last one that it needs. `$($more:tt)*` takes the other
/// columns, so a new column changes no callback. Tokens after the callback's name are passed before
/// the rows:
///
/// ```
/// macro_rules! count {
///     ($({ type: $type:ty, $($more:tt)* })*) => { [$(size_of::<$type>()),*].len() };
/// }
/// assert_eq!(consonance_spec::for_each_dtype!(count), 13);
/// ```
#[macro_export]
macro_rules! for_each_dtype {
    ($callback:ident $($before:tt)*) => {
        $callback! {
            $($before)*
            { type: bool, variant: Bool, name: "bool", class: Bool }
            { type: i8, variant: I8, name: "i8", class: Signed }
            { type: i16, variant: I16, name: "i16", class: Signed }
            { type: i32, variant: I32, name: "i32", class: Signed }
            { type: i64, variant: I64, name: "i64", class: Signed }
            { type: u8, variant: U8, name: "u8", class: Unsigned }
            { type: u16, variant: U16, name: "u16", class: Unsigned }
            { type: u32, variant: U32, name: "u32", class: Unsigned }
            { type: u64, variant: U64, name: "u64", class: Unsigned }
            { type: $crate::f16, variant: F16, name: "f16", class: Float }
            { type: $crate::bf16, variant: Bf16, name: "bf16", class: Float }
            { type: f32, variant: F32, name: "f32", class: Float }
            { type: f64, variant: F64, name: "f64", class: Float }
        }
    };
}

/// The arithmetic of an element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Truth values, with bitwise operations and an order.
    Bool,
    /// Signed integers, which wrap.
    Signed,
    /// Unsigned integers, which wrap.
    Unsigned,
    /// IEEE 754 and bfloat16 numbers.
    Float,
}

mod sealed {
    pub trait Sealed {}
}

/// A Rust type that tensors may have as elements: one for each [`DType`].
pub trait Element:
    Copy + Default + PartialEq + fmt::Debug + fmt::Display + Send + Sync + sealed::Sealed + 'static
{
    /// The element type as a value.
    const DTYPE: DType;
}

macro_rules! define {
    ($({ type: $type:ty, variant: $variant:ident, name: $name:literal, class: $class:ident $($more:tt)* })*) => {
        /// An element type as a value.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum DType {
            $(#[doc = concat!("`", $name, "`")] $variant,)*
        }

        impl DType {
            /// Every element type, in the order of the rows.
            pub const ALL: &'static [DType] = &[$(DType::$variant),*];

            /// Returns the size of an element in bytes.
            pub const fn size(self) -> usize {
                match self { $(DType::$variant => size_of::<$type>()),* }
            }

            /// Returns the name that users read and write: `"f32"`, `"bf16"`, `"u8"`, `"bool"`.
            pub const fn name(self) -> &'static str {
                match self { $(DType::$variant => $name),* }
            }

            /// Returns the arithmetic of the type.
            pub const fn class(self) -> Class {
                match self { $(DType::$variant => Class::$class),* }
            }
        }

        $(
            impl sealed::Sealed for $type {}
            impl Element for $type {
                const DTYPE: DType = DType::$variant;
            }
        )*
    };
}

for_each_dtype!(define);

impl DType {
    /// Returns the element type of a mean: the same type for floats, `f32` for integers of 8 or 16
    /// bits, `f64` for integers of 32 or 64 bits. `None` for `bool`.
    pub const fn mean(self) -> Option<DType> {
        match (self.class(), self.size()) {
            (Class::Float, _) => Some(self),
            (Class::Bool, _) => None,
            (Class::Signed | Class::Unsigned, 1 | 2) => Some(DType::F32),
            (Class::Signed | Class::Unsigned, _) => Some(DType::F64),
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
