//! The types of registers, operands and variables.

use crate::number::{BF16, F16, F32, F64, Format};

/// A fundamental type of PTX.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scalar {
    /// A predicate.
    Predicate,
    /// Untyped bits.
    Bits(u32),
    /// An integer without sign.
    Unsigned(u32),
    /// An integer in two's complement.
    Signed(u32),
    /// A float.
    Float(Format),
    /// Two floats in 32 bits.
    Pair(Format),
    /// Two integers of 16 bits in 32 bits.
    IntegerPair { is_signed: bool },
}

impl Scalar {
    /// Returns the type of a name without its dot.
    pub(crate) fn of_name(name: &str) -> Option<Scalar> {
        Some(match name {
            "pred" => Scalar::Predicate,
            "b8" => Scalar::Bits(8),
            "b16" => Scalar::Bits(16),
            "b32" => Scalar::Bits(32),
            "b64" => Scalar::Bits(64),
            "u8" => Scalar::Unsigned(8),
            "u16" => Scalar::Unsigned(16),
            "u32" => Scalar::Unsigned(32),
            "u64" => Scalar::Unsigned(64),
            "s8" => Scalar::Signed(8),
            "s16" => Scalar::Signed(16),
            "s32" => Scalar::Signed(32),
            "s64" => Scalar::Signed(64),
            "f16" => Scalar::Float(F16),
            "bf16" => Scalar::Float(BF16),
            "f32" => Scalar::Float(F32),
            "f64" => Scalar::Float(F64),
            "f16x2" => Scalar::Pair(F16),
            "bf16x2" => Scalar::Pair(BF16),
            "u16x2" => Scalar::IntegerPair { is_signed: false },
            "s16x2" => Scalar::IntegerPair { is_signed: true },
            _ => return None,
        })
    }

    /// Returns the bits of a value; 1 of a predicate.
    pub(crate) fn bits(self) -> u32 {
        match self {
            Scalar::Predicate => 1,
            Scalar::Bits(bits) | Scalar::Unsigned(bits) | Scalar::Signed(bits) => bits,
            Scalar::Float(format) => format.bits,
            Scalar::Pair(_) | Scalar::IntegerPair { .. } => 32,
        }
    }

    /// Returns the bytes of a value in memory.
    pub(crate) fn bytes(self) -> u32 {
        self.bits().div_ceil(8)
    }

    /// Returns whether values are integers with a sign.
    pub(crate) fn is_signed(self) -> bool {
        matches!(self, Scalar::Signed(_))
    }

    /// Returns whether values are integers, or bits.
    pub(crate) fn is_integer(self) -> bool {
        matches!(self, Scalar::Bits(_) | Scalar::Unsigned(_) | Scalar::Signed(_))
    }
}
