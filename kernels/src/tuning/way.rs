//! The ways to copy bytes.

use std::fmt;

/// A way to copy bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// Loads and aligned stores of the widest registers of this machine.
    Vector,
    /// The same with registers of 16 bytes.
    Baseline,
    /// The same with registers of 32 bytes, if the machine has them.
    Avx2,
    /// The same with registers of 64 bytes, if the machine has them.
    Avx512,
    /// The kernel of reductions, which prefetches the lines that it reads and writes.
    Ahead,
    /// The instruction `rep movsb`, where the architecture has it.
    Movsb,
    /// Non-temporal stores, which do not read the lines that they fill.
    Stream,
}

impl Way {
    /// Every way, in the order of their words.
    pub const ALL: [Way; 7] = [Way::Vector, Way::Baseline, Way::Avx2, Way::Avx512, Way::Ahead, Way::Movsb, Way::Stream];

    /// Returns the name in files and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Way::Vector => "vector",
            Way::Baseline => "baseline",
            Way::Avx2 => "avx2",
            Way::Avx512 => "avx512",
            Way::Ahead => "ahead",
            Way::Movsb => "movsb",
            Way::Stream => "stream",
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
