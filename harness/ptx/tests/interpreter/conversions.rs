//! `cvt`.

use crate::{
    bench::{matches, table},
    floats::{NAN32, SINGLES},
};

fn f(bits: u64) -> f32 {
    f32::from_bits(bits as u32)
}

#[test]
fn between_integers() {
    table("cvt.u64.u32 %result, %x0;", &[32, 64], &[([0xffff_ffff], 0xffff_ffff)]);
    table("cvt.s64.s32 %result, %x0;", &[32, 64], &[([0xffff_ffff], u64::MAX), ([0x7fff_ffff], 0x7fff_ffff)]);
    table("cvt.u32.u64 %result, %x0;", &[64, 32], &[([0x1_2345_6789], 0x2345_6789)]);
    table("cvt.u16.u32 %result, %x0;", &[32, 16], &[([0x1_2345], 0x2345)]);
    // Registers wider than the types: the source is cut, the result is extended.
    table("cvt.s32.s8 %result, %x0;", &[32, 32], &[([0x1280], 0xffff_ff80), ([0x127f], 0x7f)]);
    table("cvt.u32.u8 %result, %x0;", &[32, 32], &[([0x1280], 0x80)]);
    table("cvt.s8.s32 %result, %x0;", &[32, 32], &[([0x180], 0xffff_ff80)]);
    table("cvt.u8.u32 %result, %x0;", &[32, 16], &[([0x180], 0x80)]);
    table("cvt.s64.s16 %result, %x0;", &[16, 64], &[([0x8000], 0xffff_ffff_ffff_8000)]);
    table("cvt.sat.u8.s32 %result, %x0;", &[32, 32], &[([0xffff_ffff], 0), ([300], 255), ([7], 7)]);
    table("cvt.sat.s8.s32 %result, %x0;", &[32, 32], &[([0xffff_ff00], 0xffff_ff80), ([300], 127)]);
    table("cvt.sat.u32.s64 %result, %x0;", &[64, 32], &[([u64::MAX], 0), ([1 << 40], 0xffff_ffff)]);
    table("cvt.sat.s32.u32 %result, %x0;", &[32, 32], &[([0xffff_ffff], 0x7fff_ffff)]);
}

#[test]
fn from_float_to_integer() {
    let code = |modes: &str| format!("cvt.{modes} %result, %x0;");
    matches(&code("rzi.s32.f32"), &[32, 32], &SINGLES, |[a]| (f(a) as i32) as u32 as u64);
    matches(&code("rzi.u32.f32"), &[32, 32], &SINGLES, |[a]| (f(a) as u32).into());
    matches(&code("rni.s32.f32"), &[32, 32], &SINGLES, |[a]| (f(a).round_ties_even() as i32) as u32 as u64);
    matches(&code("rmi.s32.f32"), &[32, 32], &SINGLES, |[a]| (f(a).floor() as i32) as u32 as u64);
    matches(&code("rpi.s32.f32"), &[32, 32], &SINGLES, |[a]| (f(a).ceil() as i32) as u32 as u64);
    // 2.5, 3.5, -2.5, -0.5.
    table(
        &code("rni.s32.f32"),
        &[32, 32],
        &[([0x4020_0000], 2), ([0x4060_0000], 4), ([0xc020_0000], 0xffff_fffe), ([0xbf00_0000], 0)],
    );
    table(&code("rzi.u8.f32"), &[32, 32], &[([0x4380_0000], 255), ([0xbf80_0000], 0), ([0x7fc0_0000], 0)]);
    table(&code("rzi.s8.f32"), &[32, 32], &[([0xc380_0000], 0xffff_ff80)]);
    table(
        &code("rzi.s64.f32"),
        &[32, 64],
        &[([0x7f80_0000], i64::MAX as u64), ([0xff80_0000], 1 << 63), ([0x7fc0_0000], 1 << 63)],
    );
    table(
        &code("rzi.u64.f32"),
        &[32, 64],
        &[([0x7f80_0000], u64::MAX), ([0x7fc0_0000], 1 << 63), ([0x5f00_0000], 1 << 63)],
    );
    table(
        &code("rzi.s32.f64"),
        &[64, 32],
        &[([0xc1e0_0000_0020_0000], 0x8000_0000), ([0x7ff8_0000_0000_0000], 0x8000_0000)],
    );
    table(&code("rzi.s64.f64"), &[64, 64], &[([0x43df_ffff_ffff_ffff], 0x7fff_ffff_ffff_fc00)]);
    table(&code("rzi.s32.f16"), &[16, 32], &[([0xfbff], 0xffff_0020), ([0x7c00], 0x7fff_ffff)]);
    table(&code("rzi.ftz.u32.f32"), &[32, 32], &[([1], 0)]);
    table(&code("rpi.u32.f32"), &[32, 32], &[([1], 1)]);
    table(&code("rpi.ftz.u32.f32"), &[32, 32], &[([1], 0)]);
}

#[test]
fn from_integer_to_float() {
    let code = |modes: &str| format!("cvt.{modes} %result, %x0;");
    let edges = [0, 1, 0xff_ffff, 0x100_0001, 0x100_0003, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff];
    matches(&code("rn.f32.u32"), &[32, 32], &edges, |[a]| (a as f32).to_bits().into());
    matches(&code("rn.f32.s32"), &[32, 32], &edges, |[a]| (a as u32 as i32 as f32).to_bits().into());
    matches(&code("rn.f64.s32"), &[32, 64], &edges, |[a]| (a as u32 as i32 as f64).to_bits());
    let longs = [0, 1, u64::MAX, 1 << 63, (1 << 53) + 1, 0x7fff_ffff_ffff_ffff];
    matches(&code("rn.f32.u64"), &[64, 32], &longs, |[a]| (a as f32).to_bits().into());
    matches(&code("rn.f32.s64"), &[64, 32], &longs, |[a]| (a as i64 as f32).to_bits().into());
    matches(&code("rn.f64.u64"), &[64, 64], &longs, |[a]| (a as f64).to_bits());
    table(&code("rz.f32.u32"), &[32, 32], &[([0xffff_ffff], 0x4f7f_ffff)]);
    table(&code("rp.f32.s32"), &[32, 32], &[([0x100_0001], 0x4b80_0001), ([0xfeff_ffff], 0xcb80_0000)]);
    table(&code("rm.f32.s32"), &[32, 32], &[([0x100_0001], 0x4b80_0000), ([0xfeff_ffff], 0xcb80_0001)]);
    table(&code("rn.f32.u8"), &[32, 32], &[([0x1ff], 0x437f_0000)]);
    table(&code("rn.f16.u32"), &[32, 16], &[([65504], 0x7bff), ([65519], 0x7bff), ([65520], 0x7c00)]);
    table(&code("rz.f16.u32"), &[32, 16], &[([100_000], 0x7bff)]);
    table(&code("rn.bf16.s32"), &[32, 16], &[([0xffff_ffff], 0xbf80)]);
}

#[test]
fn between_floats() {
    let code = |modes: &str| format!("cvt.{modes} %result, %x0;");
    let widened = |a: f32| if a.is_nan() { None } else { Some(f64::from(a).to_bits()) };
    matches(&code("f64.f32"), &[32, 64], &SINGLES[..20], |[a]| widened(f(a)).expect("no NaN"));
    table(
        &code("rn.f32.f64"),
        &[64, 32],
        &[
            ([0x3ff0_0000_1000_0000], 0x3f80_0000),
            ([0x3ff0_0000_3000_0000], 0x3f80_0002),
            ([0x3ff0_0000_1000_0001], 0x3f80_0001),
            ([0x47ef_ffff_f000_0000], 0x7f80_0000),
            ([0x3690_0000_0000_0000], 0),
            ([0x3690_0000_0000_0001], 1),
            ([0x7ff8_0000_0000_1234], NAN32),
        ],
    );
    table(
        &code("rz.f32.f64"),
        &[64, 32],
        &[([0x47ef_ffff_f000_0000], 0x7f7f_ffff), ([0xbff0_0000_3fff_ffff], 0xbf80_0001)],
    );
    table(&code("rm.f32.f64"), &[64, 32], &[([0xbff0_0000_0000_0001], 0xbf80_0001), ([1], 0)]);
    table(&code("rp.f32.f64"), &[64, 32], &[([1], 1), ([1 << 63 | 1], 0x8000_0000)]);
    table(&code("rn.ftz.f32.f64"), &[64, 32], &[([0x3690_0000_0000_0001], 0)]);
    table(
        &code("f32.f16"),
        &[16, 32],
        &[
            ([0x3c00], 0x3f80_0000),
            ([0x0001], 0x3380_0000),
            ([0x83ff], 0xb87f_c000),
            ([0x7bff], 0x477f_e000),
            ([0xfc00], 0xff80_0000),
            ([0x7e01], NAN32),
        ],
    );
    table(&code("f32.bf16"), &[16, 32], &[([0x3f81], 0x3f81_0000), ([0x0001], 0x0001_0000), ([0x7f81], NAN32)]);
    table("mov.b32 %result, {0, %x0};", &[16, 32], &[([0x3f81], 0x3f81_0000)]);
}

#[test]
fn to_half_precision() {
    let f16 = "cvt.rn.f16.f32 %result, %x0;";
    table(
        f16,
        &[32, 16],
        &[
            ([0x3f80_0000], 0x3c00),
            ([0x477f_efff], 0x7bff),
            ([0x477f_f000], 0x7c00),
            ([0x3f80_1000], 0x3c00),
            ([0x3f80_3000], 0x3c02),
            ([0x3300_0000], 0),
            ([0x3300_0001], 1),
            ([0x3340_0000], 1),
            ([0x33c0_0000], 2),
            ([0x387f_ffff], 0x0400),
            ([0x387f_c000], 0x03ff),
            ([0x8000_0001], 0x8000),
            ([0xff80_0000], 0xfc00),
            ([0xffc0_0000], 0x7fff),
        ],
    );
    let bf16 = "cvt.rn.bf16.f32 %result, %x0;";
    table(
        bf16,
        &[32, 16],
        &[
            ([0x3f80_8000], 0x3f80),
            ([0x3f81_8000], 0x3f82),
            ([0x3f80_8001], 0x3f81),
            ([0x7f7f_ffff], 0x7f80),
            ([0xff7f_7fff], 0xff7f),
            ([0x0000_8000], 0),
            ([0x0000_8001], 1),
            ([0x7f80_0001], 0x7fff),
            ([0xff80_0000], 0xff80),
        ],
    );
    table("cvt.rz.f16.f32 %result, %x0;", &[32, 16], &[([0x477f_f000], 0x7bff), ([0x33ff_ffff], 1)]);
    table("cvt.rz.bf16.f32 %result, %x0;", &[32, 16], &[([0x3f80_ffff], 0x3f80)]);
    table("cvt.rn.relu.bf16.f32 %result, %x0;", &[32, 16], &[([0xbf80_0000], 0), ([0x3f80_0000], 0x3f80)]);
    table("cvt.rn.f16x2.f32 %result, %x0, %x1;", &[32, 32, 32], &[([0x3f80_0000, 0x4000_0000], 0x3c00_4000)]);
    table("cvt.rn.bf16x2.f32 %result, %x0, %x1;", &[32, 32, 32], &[([0x3f80_0000, 0x4000_0000], 0x3f80_4000)]);
    table(
        "cvt.rn.f16.f64 %result, %x0;",
        &[64, 16],
        &[([0x3ff0_0200_0000_0000], 0x3c00), ([0x3ff0_0200_0000_0001], 0x3c01)],
    );
}

/// The conversion in a hurry and the one through exact numbers are the same: the second one is
/// what `.ftz` of an f32 source without subnormals takes.
#[test]
fn to_half_precision_on_all_ranges() {
    let values: Vec<u64> =
        (0..2048u64).flat_map(|at| [at << 21, at << 21 | 0xfff, at << 21 | 0x1000, at << 21 | 0x8000]).collect();
    let normal: Vec<u64> = values.iter().copied().filter(|a| f(*a).is_normal()).collect();
    for format in ["f16", "bf16"] {
        let rows: Vec<Vec<u64>> = normal.iter().map(|a| vec![*a]).collect();
        let quick = crate::bench::results(&format!("cvt.rn.{format}.f32 %result, %x0;"), &[32, 16], &rows);
        let exact = crate::bench::results(&format!("cvt.rn.ftz.{format}.f32 %result, %x0;"), &[32, 16], &rows);
        for ((a, quick), exact) in normal.iter().zip(quick).zip(exact) {
            assert_eq!(quick, exact, "{format} of {a:#x}");
        }
    }
}

/// Every half becomes the f32 that its sign, exponent and fraction say, and comes back.
#[test]
fn every_half_and_back() {
    let rows: Vec<Vec<u64>> = (0..1 << 16).map(|half| vec![half]).collect();
    for (format, fraction, bias) in [("f16", 10, 15), ("bf16", 7, 127)] {
        let code = format!("cvt.f32.{format} %r1, %x0;\ncvt.rn.{format}.f32 %h1, %r1;\nmov.b64 %result, {{%r1, %r2}};");
        let code = code.replace("mov.b64", "cvt.u32.u16 %r2, %h1;\nmov.b64");
        for (half, found) in (0u64..).zip(crate::bench::results(&code, &[16, 64], &rows)) {
            let (sign, exponent) = (half >> 15, half >> fraction & ((1 << (15 - fraction)) - 1));
            let rest = (half & ((1 << fraction) - 1)) as f64;
            let scale = f64::from(1 << fraction);
            let magnitude = match exponent {
                0 => rest / scale * 2f64.powi(1 - bias),
                _ if exponent == (1 << (15 - fraction)) - 1 && rest != 0.0 => {
                    assert_eq!(found, NAN32 | 0x7fff << 32, "{format} {half:#x}");
                    continue;
                }
                _ if exponent == (1 << (15 - fraction)) - 1 => f64::INFINITY,
                _ => (1.0 + rest / scale) * 2f64.powi(exponent as i32 - bias),
            };
            let single = (if sign == 1 { -magnitude } else { magnitude }) as f32;
            assert_eq!(found, u64::from(single.to_bits()) | half << 32, "{format} {half:#x}");
        }
    }
}

#[test]
fn to_integral_floats() {
    let code = |mode: &str| format!("cvt.{mode}.f32.f32 %result, %x0;");
    let bits = |value: f32| if value.is_nan() { NAN32 } else { value.to_bits().into() };
    matches(&code("rni"), &[32, 32], &SINGLES, |[a]| bits(f(a).round_ties_even()));
    matches(&code("rzi"), &[32, 32], &SINGLES, |[a]| bits(f(a).trunc()));
    matches(&code("rmi"), &[32, 32], &SINGLES, |[a]| bits(f(a).floor()));
    matches(&code("rpi"), &[32, 32], &SINGLES, |[a]| bits(f(a).ceil()));
    table(
        "cvt.sat.f32.f32 %result, %x0;",
        &[32, 32],
        &[([0x4000_0000], 0x3f80_0000), ([0x8000_0000], 0), ([0x7fc0_0000], 0)],
    );
    table("cvt.ftz.f32.f32 %result, %x0;", &[32, 32], &[([0x8000_0001], 0x8000_0000)]);
}
