//! The ways to round a result that no number of the format is equal to.

/// A rounding mode of PTX.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rounding {
    /// `.rn`: to the nearest number, ties to the one whose last bit is 0.
    NearestEven,
    /// `.rz`: towards zero.
    Zero,
    /// `.rm`: towards minus infinity.
    Down,
    /// `.rp`: towards plus infinity.
    Up,
}

impl Rounding {
    /// Returns whether a magnitude is rounded up, whose last bit is `is_odd` and whose rest,
    /// compared with half of that bit, is `rest`: 0 none, 1 less than half, 2 half, 3 more.
    pub(crate) fn rounds_up(self, is_negative: bool, is_odd: bool, rest: u8) -> bool {
        match self {
            Rounding::NearestEven => rest == 3 || rest == 2 && is_odd,
            Rounding::Zero => false,
            Rounding::Down => is_negative && rest > 0,
            Rounding::Up => !is_negative && rest > 0,
        }
    }

    /// Returns the mode of a modifier of a float result: `rn`, `rz`, `rm`, `rp`.
    pub(crate) fn of_modifier(name: &str) -> Option<Rounding> {
        match name {
            "rn" => Some(Rounding::NearestEven),
            "rz" => Some(Rounding::Zero),
            "rm" => Some(Rounding::Down),
            "rp" => Some(Rounding::Up),
            _ => None,
        }
    }

    /// Returns the mode of a modifier of an integral result: `rni`, `rzi`, `rmi`, `rpi`.
    pub(crate) fn of_integral_modifier(name: &str) -> Option<Rounding> {
        name.strip_suffix('i').and_then(Rounding::of_modifier)
    }
}
