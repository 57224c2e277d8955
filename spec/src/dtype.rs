//! The element types: one row a type, with all that is known of it.
//!
//! Nothing else in the workspace lists them; every other place reads the columns through
//! [`for_each_dtype!`](crate::for_each_dtype).

use std::fmt;

/// Calls `$callback!` with one row `(type, Variant, "name", Class)` for each element type.
///
/// Text after the callback's name comes before the rows:
///
/// ```
/// macro_rules! count {
///     ($(($type:ty, $variant:ident, $name:literal, $class:ident))*) => { [$($name),*].len() };
/// }
/// assert_eq!(consonance_spec::for_each_dtype!(count), 13);
/// ```
#[macro_export]
macro_rules! for_each_dtype {
    ($callback:ident $($before:tt)*) => {
        $callback! {
            $($before)*
            (bool, Bool, "bool", Bool)
            (i8, I8, "i8", Signed)
            (i16, I16, "i16", Signed)
            (i32, I32, "i32", Signed)
            (i64, I64, "i64", Signed)
            (u8, U8, "u8", Unsigned)
            (u16, U16, "u16", Unsigned)
            (u32, U32, "u32", Unsigned)
            (u64, U64, "u64", Unsigned)
            ($crate::f16, F16, "f16", Float)
            ($crate::bf16, Bf16, "bf16", Float)
            (f32, F32, "f32", Float)
            (f64, F64, "f64", Float)
        }
    };
}

/// What arithmetic an element type has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Truth values: bitwise operations and order.
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

/// A Rust type that is the element type of tensors: the row's Rust column as a trait, implemented
/// for the rows alone.
pub trait Element:
    Copy + Default + PartialEq + fmt::Debug + fmt::Display + Send + Sync + sealed::Sealed + 'static
{
    /// The row.
    const DTYPE: DType;
}

macro_rules! define {
    ($(($type:ty, $variant:ident, $name:literal, $class:ident))*) => {
        /// An element type as a value.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum DType {
            $(#[doc = concat!("`", stringify!($type), "`")] $variant,)*
        }

        impl DType {
            /// Every element type, in the order of the rows.
            pub const ALL: &'static [DType] = &[$(DType::$variant),*];

            /// Bytes of one element.
            pub const fn size(self) -> usize {
                match self { $(DType::$variant => size_of::<$type>()),* }
            }

            /// The name that users read and write: `"f32"`, `"bf16"`, `"u8"`, `"bool"`.
            pub const fn name(self) -> &'static str {
                match self { $(DType::$variant => $name),* }
            }

            /// What arithmetic the type has.
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
    /// The type of a mean of such elements: a float as it is, an integer of 8 or 16 bits as `f32`,
    /// of 32 or 64 bits as `f64`; `None` for `bool`.
    pub const fn mean(self) -> Option<DType> {
        match (self.class(), self.size()) {
            (Class::Float, _) => Some(self),
            (Class::Bool, _) => None,
            (_, 1 | 2) => Some(DType::F32),
            _ => Some(DType::F64),
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
