//! Integer arithmetic.

use crate::bench::{matches, table};

const EDGES32: [u64; 9] = [0, 1, 2, 7, 0x7fff_ffff, 0x8000_0000, 0x8000_0001, 0xffff_fffe, 0xffff_ffff];
const EDGES64: [u64; 8] =
    [0, 1, 3, 0xffff_ffff, 0x7fff_ffff_ffff_ffff, 0x8000_0000_0000_0000, 0x8000_0000_0000_0001, u64::MAX];
const EDGES16: [u64; 7] = [0, 1, 5, 0x7fff, 0x8000, 0x8001, 0xffff];

fn s32(a: u64) -> i32 {
    a as u32 as i32
}

fn u32_of(a: i32) -> u64 {
    a as u32 as u64
}

#[test]
fn sums_wrap() {
    matches("add.s32 %result, %x0, %x1;", &[32, 32, 32], &EDGES32, |[a, b]| u32_of(s32(a).wrapping_add(s32(b))));
    matches("sub.u32 %result, %x0, %x1;", &[32, 32, 32], &EDGES32, |[a, b]| u32_of(s32(a).wrapping_sub(s32(b))));
    matches("add.u64 %result, %x0, %x1;", &[64, 64, 64], &EDGES64, |[a, b]| a.wrapping_add(b));
    matches("sub.s64 %result, %x0, %x1;", &[64, 64, 64], &EDGES64, |[a, b]| a.wrapping_sub(b));
    matches("add.s16 %result, %x0, %x1;", &[16, 16, 16], &EDGES16, |[a, b]| (a as u16).wrapping_add(b as u16).into());
    matches("sub.u16 %result, %x0, %x1;", &[16, 16, 16], &EDGES16, |[a, b]| (a as u16).wrapping_sub(b as u16).into());
}

#[test]
fn saturated_sums_clamp() {
    matches("add.sat.s32 %result, %x0, %x1;", &[32, 32, 32], &EDGES32, |[a, b]| u32_of(s32(a).saturating_add(s32(b))));
    matches("sub.sat.s32 %result, %x0, %x1;", &[32, 32, 32], &EDGES32, |[a, b]| u32_of(s32(a).saturating_sub(s32(b))));
}

#[test]
fn pairs_of_halves_are_apart() {
    table(
        "add.u16x2 %result, %x0, %x1;",
        &[32, 32, 32],
        &[([0xffff_0001, 0x0001_ffff], 0), ([0x0001_0002, 0x0003_0004], 0x0004_0006)],
    );
    table("min.s16x2 %result, %x0, %x1;", &[32, 32, 32], &[([0xffff_0001, 0x0001_ffff], 0xffff_ffff)]);
    table("max.u16x2 %result, %x0, %x1;", &[32, 32, 32], &[([0xffff_0001, 0x0001_ffff], 0xffff_ffff)]);
}

#[test]
fn products_in_parts() {
    matches("mul.lo.s32 %result, %x0, %x1;", &[32, 32, 32], &EDGES32, |[a, b]| u32_of(s32(a).wrapping_mul(s32(b))));
    matches("mul.hi.u32 %result, %x0, %x1;", &[32, 32, 32], &EDGES32, |[a, b]| (a * b) >> 32);
    matches("mul.hi.s32 %result, %x0, %x1;", &[32, 32, 32], &EDGES32, |[a, b]| {
        u32_of(((i64::from(s32(a)) * i64::from(s32(b))) >> 32) as i32)
    });
    matches("mul.wide.u32 %result, %x0, %x1;", &[32, 32, 64], &EDGES32, |[a, b]| a * b);
    matches("mul.wide.s32 %result, %x0, %x1;", &[32, 32, 64], &EDGES32, |[a, b]| {
        (i64::from(s32(a)) * i64::from(s32(b))) as u64
    });
    matches("mul.wide.u16 %result, %x0, %x1;", &[16, 16, 32], &EDGES16, |[a, b]| a * b);
    matches("mul.wide.s16 %result, %x0, %x1;", &[16, 16, 32], &EDGES16, |[a, b]| {
        u32_of(i32::from(a as u16 as i16) * i32::from(b as u16 as i16))
    });
    matches("mul.lo.u64 %result, %x0, %x1;", &[64, 64, 64], &EDGES64, |[a, b]| a.wrapping_mul(b));
    matches("mul.hi.u64 %result, %x0, %x1;", &[64, 64, 64], &EDGES64, |[a, b]| {
        ((u128::from(a) * u128::from(b)) >> 64) as u64
    });
    matches("mul.hi.s64 %result, %x0, %x1;", &[64, 64, 64], &EDGES64, |[a, b]| {
        ((i128::from(a as i64) * i128::from(b as i64)) >> 64) as u64
    });
    matches("mul.lo.u16 %result, %x0, %x1;", &[16, 16, 16], &EDGES16, |[a, b]| (a * b) & 0xffff);
}

#[test]
fn products_and_sums() {
    matches("mad.lo.s32 %result, %x0, %x1, %x2;", &[32, 32, 32, 32], &EDGES32, |[a, b, c]| {
        u32_of(s32(a).wrapping_mul(s32(b)).wrapping_add(s32(c)))
    });
    matches("mad.hi.u32 %result, %x0, %x1, %x2;", &[32, 32, 32, 32], &EDGES32, |[a, b, c]| {
        (((a * b) >> 32) + c) & 0xffff_ffff
    });
    matches("cvt.u64.u32 %d4, %x2; mad.wide.s32 %result, %x0, %x1, %d4;", &[32, 32, 32, 64], &EDGES32, |[a, b, c]| {
        (i64::from(s32(a)) * i64::from(s32(b))).wrapping_add(c as i64) as u64
    });
    matches("mad.hi.sat.s32 %result, %x0, %x1, %x2;", &[32, 32, 32, 32], &EDGES32, |[a, b, c]| {
        u32_of((((i64::from(s32(a)) * i64::from(s32(b))) >> 32) as i32).saturating_add(s32(c)))
    });
}

#[test]
fn quotients() {
    let divide = |a: u64, b: u64| a.checked_div(b).unwrap_or(0xffff_ffff);
    matches("div.u32 %result, %x0, %x1;", &[32, 32, 32], &EDGES32, |[a, b]| divide(a, b));
    matches("rem.u32 %result, %x0, %x1;", &[32, 32, 32], &EDGES32, |[a, b]| if b == 0 { a } else { a % b });
    matches("div.s32 %result, %x0, %x1;", &[32, 32, 32], &EDGES32, |[a, b]| {
        if b == 0 { 0xffff_ffff } else { u32_of(s32(a).wrapping_div(s32(b))) }
    });
    matches("rem.s32 %result, %x0, %x1;", &[32, 32, 32], &EDGES32, |[a, b]| {
        if b == 0 { a } else { u32_of(s32(a).wrapping_rem(s32(b))) }
    });
    matches("div.s64 %result, %x0, %x1;", &[64, 64, 64], &EDGES64, |[a, b]| {
        if b == 0 { u64::MAX } else { (a as i64).wrapping_div(b as i64) as u64 }
    });
    matches("rem.u64 %result, %x0, %x1;", &[64, 64, 64], &EDGES64, |[a, b]| if b == 0 { a } else { a % b });
    table("div.s16 %result, %x0, %x1;", &[16, 16, 16], &[([0xfff9, 2], 0xfffd), ([0x8000, 0xffff], 0x8000)]);
    table("div.u16 %result, %x0, %x1;", &[16, 16, 16], &[([0xfff9, 2], 0x7ffc)]);
}

#[test]
fn signs_and_order() {
    matches("abs.s32 %result, %x0;", &[32, 32], &EDGES32, |[a]| u32_of(s32(a).wrapping_abs()));
    matches("neg.s32 %result, %x0;", &[32, 32], &EDGES32, |[a]| u32_of(s32(a).wrapping_neg()));
    matches("abs.s64 %result, %x0;", &[64, 64], &EDGES64, |[a]| (a as i64).wrapping_abs() as u64);
    matches("abs.s16 %result, %x0;", &[16, 16], &EDGES16, |[a]| (a as u16 as i16).wrapping_abs() as u16 as u64);
    matches("min.s32 %result, %x0, %x1;", &[32, 32, 32], &EDGES32, |[a, b]| u32_of(s32(a).min(s32(b))));
    matches("max.s32 %result, %x0, %x1;", &[32, 32, 32], &EDGES32, |[a, b]| u32_of(s32(a).max(s32(b))));
    matches("min.u32 %result, %x0, %x1;", &[32, 32, 32], &EDGES32, |[a, b]| a.min(b));
    matches("max.u64 %result, %x0, %x1;", &[64, 64, 64], &EDGES64, |[a, b]| a.max(b));
    matches("min.s64 %result, %x0, %x1;", &[64, 64, 64], &EDGES64, |[a, b]| (a as i64).min(b as i64) as u64);
    matches("max.s16 %result, %x0, %x1;", &[16, 16, 16], &EDGES16, |[a, b]| (a as i16).max(b as i16) as u16 as u64);
    matches("sad.u32 %result, %x0, %x1, %x2;", &[32, 32, 32, 32], &EDGES32, |[a, b, c]| {
        (a.abs_diff(b) + c) & 0xffff_ffff
    });
    matches("sad.s32 %result, %x0, %x1, %x2;", &[32, 32, 32, 32], &EDGES32, |[a, b, c]| {
        (u64::from(s32(a).abs_diff(s32(b))) + c) & 0xffff_ffff
    });
}

#[test]
fn carries_make_wide_sums_and_differences() {
    let wide = |op: &str| format!("{op}.cc.u32 %r2, %x0, %x1; {op}c.u32 %r3, %x2, %x3; mov.b64 %result, {{%r2, %r3}};");
    let edges = [0, 1, 0x8000_0000, 0xffff_ffff];
    let whole = |low: u64, high: u64| high << 32 | low;
    matches(&wide("add"), &[32, 32, 32, 32, 64], &edges, |[a, b, c, d]| whole(a, c).wrapping_add(whole(b, d)));
    matches(&wide("sub"), &[32, 32, 32, 32, 64], &edges, |[a, b, c, d]| whole(a, c).wrapping_sub(whole(b, d)));
    // Three words: the middle sum both takes and sets the flag.
    let three = "add.cc.u32 %r2, %x0, %x0; addc.cc.u32 %r3, %x1, %x1; addc.u32 %result, 0, 0;";
    matches(three, &[32, 32, 32], &edges, |[a, b]| ((u128::from(whole(a, b)) * 2) >> 64) as u64);
    let product = "mad.lo.cc.u32 %r2, %x0, %x1, %x2; madc.hi.u32 %r3, %x0, %x1, 0; mov.b64 %result, {%r2, %r3};";
    matches(product, &[32, 32, 32, 64], &edges, |[a, b, c]| a * b + c);
}
