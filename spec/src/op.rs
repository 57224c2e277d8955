//! The operations that combine contributions, and the element types that each is defined on.

use crate::dtype::{Class, DType};
use std::{fmt, str::FromStr};

macro_rules! ops {
    ($($(#[$doc:meta])* $op:ident { name: $name:literal, has_identity: $has_identity:literal },)*) => {
        /// An operation that combines contributions.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum ReduceOp { $($(#[$doc])* $op,)* }

        impl ReduceOp {
            /// Every operation.
            pub const ALL: [ReduceOp; [$($name),*].len()] = [$(ReduceOp::$op),*];

            /// Returns the name that users read and write: `"sum"`, `"mean"`, …
            pub const fn name(self) -> &'static str {
                match self { $(ReduceOp::$op => $name),* }
            }

            /// Returns whether there is a result of no contributions, which changes no other
            /// contribution. Without it a reduction along an axis refuses a replica that has no
            /// elements.
            pub const fn has_identity(self) -> bool {
                match self { $(ReduceOp::$op => $has_identity),* }
            }
        }
    };
}

ops! {
    /// Addition; integers wrap.
    Sum { name: "sum", has_identity: true },
    /// Addition, then one division by the number of contributions, in the accumulation type.
    Mean { name: "mean", has_identity: true },
    /// Multiplication; integers wrap.
    Product { name: "product", has_identity: true },
    /// The minimum. NaN if any contribution is NaN; -0 is less than +0.
    Min { name: "min", has_identity: true },
    /// The maximum. NaN if any contribution is NaN; +0 is greater than -0.
    Max { name: "max", has_identity: true },
    /// Bitwise and, for integers and bool.
    And { name: "and", has_identity: true },
    /// Bitwise or, for integers and bool.
    Or { name: "or", has_identity: true },
    /// Bitwise exclusive or, for integers and bool.
    Xor { name: "xor", has_identity: true },
}

impl ReduceOp {
    /// Returns the element type of the result for contributions of `dtype`; `None` if the operation
    /// is not defined on it.
    ///
    /// Numbers have sum, mean, product, min and max. Integers also have the bitwise operations.
    /// Bool has min, max and the bitwise operations. Only the mean of integers changes the type
    /// ([`DType::mean`]).
    #[inline]
    pub const fn result(self, dtype: DType) -> Option<DType> {
        match (self, dtype.class()) {
            (ReduceOp::Mean, _) => dtype.mean(),
            (ReduceOp::Sum | ReduceOp::Product, Class::Bool) => None,
            (ReduceOp::And | ReduceOp::Or | ReduceOp::Xor, Class::Float) => None,
            (ReduceOp::Sum | ReduceOp::Product, Class::Signed | Class::Unsigned | Class::Float)
            | (ReduceOp::Min | ReduceOp::Max, Class::Bool | Class::Signed | Class::Unsigned | Class::Float)
            | (ReduceOp::And | ReduceOp::Or | ReduceOp::Xor, Class::Bool | Class::Signed | Class::Unsigned) => {
                Some(dtype)
            }
        }
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The error for a text that is not the name of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownReduceOp(pub String);

impl fmt::Display for UnknownReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not a reduce op; expected one of", self.0)?;
        for (i, op) in ReduceOp::ALL.iter().enumerate() {
            write!(f, "{} {op}", if i == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

impl std::error::Error for UnknownReduceOp {}

/// Parses an operation's name, ignoring case as TensorFlow does: `"SUM"`, `"mean"`.
impl FromStr for ReduceOp {
    type Err = UnknownReduceOp;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        ReduceOp::ALL
            .into_iter()
            .find(|op| op.name().eq_ignore_ascii_case(text))
            .ok_or_else(|| UnknownReduceOp(text.to_owned()))
    }
}

impl TryFrom<&str> for ReduceOp {
    type Error = UnknownReduceOp;

    fn try_from(text: &str) -> Result<Self, Self::Error> {
        text.parse()
    }
}
