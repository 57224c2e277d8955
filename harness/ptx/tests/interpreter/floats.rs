//! Float arithmetic. Directed modes are compared with the neighbours of the nearest result, which
//! the host computes; what lies between is told by arithmetic without error.

use crate::bench::{matches, table};

pub(crate) const NAN32: u64 = 0x7fff_ffff;

/// Zeros, subnormals, the smallest normal, ones and their neighbours, ties, large, infinite, NaNs.
pub(crate) const SINGLES: [u64; 22] = [
    0,
    0x8000_0000,
    1,
    0x8000_0001,
    0x007f_ffff,
    0x0080_0000,
    0x8080_0000,
    0x3f80_0000,
    0xbf80_0000,
    0x3f80_0001,
    0x3f7f_ffff,
    0x4040_0000,
    0x3eaa_aaab,
    0xbdcc_cccd,
    0x4b80_0001,
    0x3380_0000,
    0x7f7f_ffff,
    0xff7f_ffff,
    0x7f80_0000,
    0xff80_0000,
    0x7fc0_0000,
    0xffa0_0001,
];

const DOUBLES: [u64; 14] = [
    0,
    1 << 63,
    0x3ff0_0000_0000_0000,
    0xbff0_0000_0000_0001,
    0x4008_0000_0000_0000,
    0x3fd5_5555_5555_5555,
    0x3ca0_0000_0000_0000,
    0x7fef_ffff_ffff_ffff,
    0xffef_ffff_ffff_ffff,
    0x7ff0_0000_0000_0000,
    0xfff0_0000_0000_0000,
    0x43d0_0000_0000_0001,
    0xc3cf_ffff_ffff_ffff,
    0x3fb9_9999_9999_999a,
];

fn f(bits: u64) -> f32 {
    f32::from_bits(bits as u32)
}

fn bits(value: f32) -> u64 {
    if value.is_nan() { NAN32 } else { value.to_bits().into() }
}

/// Returns the nearest result moved to the side that a mode asks for. `above` is how the exact
/// result compares with the nearest.
fn directed(nearest: f32, above: std::cmp::Ordering, mode: &str) -> f32 {
    use std::cmp::Ordering::{Equal, Greater, Less};
    let is_negative = nearest.is_sign_negative();
    match (mode, above) {
        ("rn", _) | (_, Equal) => nearest,
        ("rp", Greater) => nearest.next_up(),
        ("rm", Less) => nearest.next_down(),
        ("rz", Greater) if is_negative => nearest.next_up(),
        ("rz", Less) if !is_negative => nearest.next_down(),
        _ => nearest,
    }
}

/// Returns how an exact value compares with a rounded one, which may be infinite.
fn compare(exact: f64, rounded: f32) -> std::cmp::Ordering {
    exact.partial_cmp(&f64::from(rounded)).unwrap_or(std::cmp::Ordering::Equal)
}

#[test]
fn sums_in_every_mode() {
    for mode in ["rn", "rz", "rm", "rp"] {
        let expected = |a: f32, b: f32| {
            let nearest = a + b;
            // The sum of two f32 is exact in f64, or its error is, which then decides.
            let (x, y) = (f64::from(a), f64::from(b));
            let sum = x + y;
            let rest = (x - (sum - (sum - x))) + (y - (sum - x));
            if !nearest.is_nan() && a.is_finite() && b.is_finite() {
                if sum == 0.0 && (a != 0.0 || a.to_bits() != b.to_bits()) {
                    return if mode == "rm" { -0.0 } else { 0.0 };
                }
                let above = compare(sum, nearest).then(rest.partial_cmp(&0.0).expect("finite"));
                return directed(nearest, above, mode);
            }
            nearest
        };
        let code = |op: &str| format!("{op}.{mode}.f32 %result, %x0, %x1;");
        matches(&code("add"), &[32, 32, 32], &SINGLES, |[a, b]| bits(expected(f(a), f(b))));
        matches(&code("sub"), &[32, 32, 32], &SINGLES, |[a, b]| bits(expected(f(a), -f(b))));
    }
    matches("add.f32 %result, %x0, %x1;", &[32, 32, 32], &SINGLES, |[a, b]| bits(f(a) + f(b)));
}

#[test]
fn products_in_every_mode() {
    for mode in ["rn", "rz", "rm", "rp"] {
        let code = format!("mul.{mode}.f32 %result, %x0, %x1;");
        matches(&code, &[32, 32, 32], &SINGLES, |[a, b]| {
            let (a, b) = (f(a), f(b));
            let nearest = a * b;
            let is_finite = a.is_finite() && b.is_finite();
            bits(if is_finite {
                directed(nearest, compare(f64::from(a) * f64::from(b), nearest), mode)
            } else {
                nearest
            })
        });
    }
}

#[test]
fn quotients_in_every_mode() {
    for mode in ["rn", "rz", "rm", "rp"] {
        let code = format!("div.{mode}.f32 %result, %x0, %x1;");
        let expected = |a: f32, b: f32| {
            let nearest = a / b;
            if !a.is_finite() || !b.is_finite() || b == 0.0 {
                return nearest;
            }
            // q × b is exact in f64, so that it tells on which side of a it is.
            let side = f64::from(a).partial_cmp(&(f64::from(nearest) * f64::from(b))).expect("numbers");
            directed(nearest, if b < 0.0 { side.reverse() } else { side }, mode)
        };
        matches(&code, &[32, 32, 32], &SINGLES, |[a, b]| bits(expected(f(a), f(b))));
        let code = format!("rcp.{mode}.f32 %result, %x0;");
        matches(&code, &[32, 32], &SINGLES, |[a]| bits(expected(1.0, f(a))));
    }
}

#[test]
fn fused_products_round_once() {
    matches("fma.rn.f32 %result, %x0, %x1, %x2;", &[32, 32, 32, 32], &SINGLES, |[a, b, c]| {
        bits(f(a).mul_add(f(b), f(c)))
    });
    matches("mad.rn.f32 %result, %x0, %x1, %x2;", &[32, 32, 32, 32], &SINGLES[..8], |[a, b, c]| {
        bits(f(a).mul_add(f(b), f(c)))
    });
    // (1 + 2^-23)(1 - 2^-23) - 1 is -2^-46: a product rounded first would lose it.
    table(
        "fma.rn.f32 %result, %x0, %x1, %x2;",
        &[32, 32, 32, 32],
        &[([0x3f80_0001, 0x3f7f_fffe, 0xbf80_0000], 0xa880_0000)],
    );
    table(
        "fma.rz.f32 %result, %x0, %x1, %x2;",
        &[32, 32, 32, 32],
        &[
            // 1 + 2^-60, 1 - 2^-60.
            ([0x2180_0000, 0x3f80_0000, 0x3f80_0000], 0x3f80_0000),
            ([0xa180_0000, 0x3f80_0000, 0x3f80_0000], 0x3f7f_ffff),
        ],
    );
    table(
        "fma.rp.f32 %result, %x0, %x1, %x2;",
        &[32, 32, 32, 32],
        &[
            ([0x2180_0000, 0x3f80_0000, 0x3f80_0000], 0x3f80_0001),
            ([0xa180_0000, 0x3f80_0000, 0x3f80_0000], 0x3f80_0000),
            ([1, 1, 0], 1),
        ],
    );
    table(
        "fma.rm.f32 %result, %x0, %x1, %x2;",
        &[32, 32, 32, 32],
        &[
            ([1, 1, 0], 0),
            ([0x3f80_0000, 0x3f80_0000, 0xbf80_0000], 0x8000_0000),
            ([0x7f7f_ffff, 0x7f7f_ffff, 0], 0x7f7f_ffff),
            ([0x7f80_0000, 0, 0], NAN32),
            ([0x7f80_0000, 0x3f80_0000, 0xff80_0000], NAN32),
        ],
    );
}

#[test]
fn doubles() {
    let d = f64::from_bits;
    // The NaN of an invalid operation is the interpreter's own choice.
    let bits = |value: f64| if value.is_nan() { 0xfff8_0000_0000_0000 } else { value.to_bits() };
    matches("add.rn.f64 %result, %x0, %x1;", &[64, 64, 64], &DOUBLES, |[a, b]| bits(d(a) + d(b)));
    matches("sub.f64 %result, %x0, %x1;", &[64, 64, 64], &DOUBLES, |[a, b]| bits(d(a) - d(b)));
    matches("mul.rn.f64 %result, %x0, %x1;", &[64, 64, 64], &DOUBLES, |[a, b]| bits(d(a) * d(b)));
    matches("div.rn.f64 %result, %x0, %x1;", &[64, 64, 64], &DOUBLES, |[a, b]| bits(d(a) / d(b)));
    matches("sqrt.rn.f64 %result, %x0;", &[64, 64], &DOUBLES, |[a]| bits(d(a).sqrt()));
    matches("fma.rn.f64 %result, %x0, %x1, %x2;", &[64, 64, 64, 64], &DOUBLES[..8], |[a, b, c]| {
        bits(d(a).mul_add(d(b), d(c)))
    });
    matches("mul.rz.f64 %result, %x0, %x1;", &[64, 64, 64], &DOUBLES, |[a, b]| {
        let nearest = d(a) * d(b);
        let rest = d(a).mul_add(d(b), -nearest);
        let is_finite = d(a).is_finite() && d(b).is_finite();
        match nearest {
            _ if nearest.is_infinite() && is_finite => bits(f64::MAX.copysign(nearest)),
            _ if !is_finite || rest == 0.0 || (rest > 0.0) == (nearest > 0.0) => bits(nearest),
            _ => nearest.to_bits() - 1,
        }
    });
    matches("add.rp.f64 %result, %x0, %x1;", &[64, 64, 64], &DOUBLES[2..7], |[a, b]| {
        let (a, b) = (d(a), d(b));
        let nearest = a + b;
        let rest = (a - (nearest - (nearest - a))) + (b - (nearest - a));
        bits(if rest > 0.0 { nearest.next_up() } else { nearest })
    });
    // The payload of a NaN is kept; `neg` and `abs` change the sign alone.
    table("add.rn.f64 %result, %x0, %x1;", &[64, 64, 64], &[([0x7ff0_0000_0000_0005, 0], 0x7ff8_0000_0000_0005)]);
    table("neg.f64 %result, %x0;", &[64, 64], &[([0x7ff0_0000_0000_0005], 0xfff0_0000_0000_0005), ([0], 1 << 63)]);
    table("abs.f64 %result, %x0;", &[64, 64], &[([0xfff0_0000_0000_0005], 0x7ff0_0000_0000_0005)]);
}

#[test]
fn roots_in_every_mode() {
    for mode in ["rn", "rz", "rm", "rp"] {
        matches(&format!("sqrt.{mode}.f32 %result, %x0;"), &[32, 32], &SINGLES, |[a]| {
            let nearest = f(a).sqrt();
            if !nearest.is_finite() || nearest == 0.0 {
                return bits(nearest);
            }
            let square = f64::from(nearest) * f64::from(nearest);
            bits(directed(nearest, f64::from(f(a)).partial_cmp(&square).expect("numbers"), mode))
        });
    }
}

#[test]
fn smaller_and_larger() {
    let code = |op: &str| format!("{op}.f32 %result, %x0, %x1;");
    table(
        &code("min"),
        &[32, 32, 32],
        &[
            ([0, 0x8000_0000], 0x8000_0000),
            ([0x8000_0000, 0], 0x8000_0000),
            ([0x7fc0_0000, 0x3f80_0000], 0x3f80_0000),
            ([0x3f80_0000, 0xffc0_0000], 0x3f80_0000),
            ([0x7fc0_0001, 0xffc0_0000], NAN32),
            ([0xff80_0000, 0x3f80_0000], 0xff80_0000),
            ([1, 0x8000_0001], 0x8000_0001),
        ],
    );
    table(
        &code("max"),
        &[32, 32, 32],
        &[
            ([0, 0x8000_0000], 0),
            ([0x8000_0000, 0], 0),
            ([0x7fc0_0000, 0x3f80_0000], 0x3f80_0000),
            ([0x7fc0_0001, 0xffc0_0000], NAN32),
            ([0xff80_0000, 0xbf80_0000], 0xbf80_0000),
        ],
    );
    table(
        "max.NaN.f32 %result, %x0, %x1;",
        &[32, 32, 32],
        &[([0x7fc0_0000, 0x3f80_0000], NAN32), ([0x3f80_0000, 0xffc0_0001], NAN32), ([0x3f80_0000, 0], 0x3f80_0000)],
    );
    table("min.ftz.f32 %result, %x0, %x1;", &[32, 32, 32], &[([0x8000_0001, 0x3f80_0000], 0x8000_0000)]);
    table("min.f64 %result, %x0, %x1;", &[64, 64, 64], &[([1 << 63, 0], 1 << 63), ([0x7ff8_0000_0000_0000, 5], 5)]);
    table(
        "max.f16 %result, %x0, %x1;",
        &[16, 16, 16],
        &[([0x7e00, 0x3c00], 0x3c00), ([0x8000, 0], 0), ([0x7e00, 0x7e01], 0x7fff)],
    );
    table("min.bf16x2 %result, %x0, %x1;", &[32, 32, 32], &[([0x3f80_4000, 0xbf80_3f80], 0xbf80_3f80)]);
}

#[test]
fn signs() {
    matches("neg.f32 %result, %x0;", &[32, 32], &SINGLES, |[a]| a ^ 0x8000_0000);
    matches("abs.f32 %result, %x0;", &[32, 32], &SINGLES, |[a]| a & 0x7fff_ffff);
    matches("copysign.f32 %result, %x0, %x1;", &[32, 32, 32], &SINGLES, |[a, b]| a & 0x8000_0000 | b & 0x7fff_ffff);
    table("neg.f16x2 %result, %x0;", &[32, 32], &[([0x3c00_bc00], 0xbc00_3c00)]);
}

#[test]
fn flushes_and_clamps() {
    // Subnormal operands, then a subnormal result.
    table(
        "add.rn.ftz.f32 %result, %x0, %x1;",
        &[32, 32, 32],
        &[
            ([1, 1], 0),
            ([0x8000_0001, 0x8000_0001], 0x8000_0000),
            ([0x0080_0001, 0x8080_0000], 0),
            ([0x3f80_0000, 1], 0x3f80_0000),
        ],
    );
    table("mul.rn.ftz.f32 %result, %x0, %x1;", &[32, 32, 32], &[([0x8080_0000, 0x3f00_0000], 0x8000_0000)]);
    table(
        "add.rn.sat.f32 %result, %x0, %x1;",
        &[32, 32, 32],
        &[
            ([0x3f80_0000, 0x3f80_0000], 0x3f80_0000),
            ([0xbf80_0000, 0], 0),
            ([0x7fc0_0000, 0], 0),
            ([0x3e80_0000, 0x3e80_0000], 0x3f00_0000),
        ],
    );
}

#[test]
fn half_precision() {
    let code = |op: &str, ty: &str| format!("{op}.{ty} %result, %x0, %x1;");
    table(
        &code("add", "f16"),
        &[16, 16, 16],
        &[
            ([0x3c00, 0x3c00], 0x4000),
            // 2048 + 1 is a tie: to even; 2050 + 1 goes up.
            ([0x6800, 0x3c00], 0x6800),
            ([0x6801, 0x3c00], 0x6802),
            ([0x7bff, 0x7bff], 0x7c00),
            ([0x7c00, 0xfc00], 0x7fff),
            ([1, 1], 2),
            ([0x8000, 0x8000], 0x8000),
        ],
    );
    table(
        &code("mul", "f16"),
        &[16, 16, 16],
        &[([0x0400, 0x3800], 0x0200), ([0x0001, 0x3800], 0), ([0x0003, 0x3800], 2)],
    );
    table(&code("add", "bf16"), &[16, 16, 16], &[([0x3f80, 0x3f80], 0x4000), ([0x4380, 0x3f80], 0x4380)]);
    table(&code("add.rn", "f16x2"), &[32, 32, 32], &[([0x3c00_6800, 0x3c00_3c00], 0x4000_6800)]);
    table(
        "fma.rn.bf16x2 %result, %x0, %x1, %x2;",
        &[32, 32, 32, 32],
        &[([0x4000_3f80, 0x4040_3f80, 0x3f80_0000], 0x40e0_3f80)],
    );
    table(
        "fma.rn.relu.f16 %result, %x0, %x1, %x2;",
        &[16, 16, 16, 16],
        &[([0xbc00, 0x3c00, 0], 0), ([0x3c00, 0x3c00, 0], 0x3c00)],
    );
}

#[test]
fn classes() {
    let class = |test: &str, holds: &dyn Fn(f32) -> bool| {
        matches(&format!("testp.{test}.f32 %result, %x0;"), &[32, 1], &SINGLES, |[a]| u64::from(holds(f(a))));
    };
    class("finite", &|a| a.is_finite());
    class("infinite", &|a| a.is_infinite());
    class("number", &|a| !a.is_nan());
    class("notanumber", &|a| a.is_nan());
    class("normal", &|a| a.is_normal());
    class("subnormal", &|a| a.is_subnormal());
}
