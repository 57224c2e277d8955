//! The instruction sets that kernels are compiled for. One is chosen when the program runs.

use std::{fmt, sync::LazyLock};

/// An instruction set.
///
/// ```
/// use consonance_kernels::cpu::isa::Isa;
/// assert!(Isa::available().any(|isa| isa == Isa::best()));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Isa {
    /// The instruction set that the build targets: SSE2 on `x86_64`, NEON on `aarch64`.
    Baseline,
    /// AVX2 and F16C, on `x86_64`.
    Avx2,
    /// AVX-512 F, BW, DQ and VL, on `x86_64`.
    Avx512,
}

impl Isa {
    /// Every instruction set, from the narrowest to the widest.
    pub const ALL: [Isa; 3] = [Isa::Baseline, Isa::Avx2, Isa::Avx512];

    /// Returns the widest instruction set of this machine.
    pub fn best() -> Isa {
        static BEST: LazyLock<Isa> = LazyLock::new(|| Isa::available().last().unwrap_or(Isa::Baseline));
        *BEST
    }

    /// Returns the instruction sets of this machine, from the narrowest to the widest.
    pub fn available() -> impl Iterator<Item = Isa> {
        Isa::ALL.into_iter().filter(|isa| isa.is_available())
    }

    /// Returns whether this machine has the instruction set.
    pub fn is_available(self) -> bool {
        match self {
            Isa::Baseline => true,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c"),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => {
                Isa::Avx2.is_available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
            }
            #[cfg(not(target_arch = "x86_64"))]
            Isa::Avx2 | Isa::Avx512 => false,
        }
    }

    /// Returns the name that reports show: `"baseline"`, `"avx2"`, `"avx512"`.
    pub const fn name(self) -> &'static str {
        match self {
            Isa::Baseline => "baseline",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
