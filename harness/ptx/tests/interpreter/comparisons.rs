//! `setp` and `set`.

use crate::{
    bench::{matches, table},
    floats::SINGLES,
};
use std::cmp::Ordering::{Equal, Greater, Less};

#[test]
fn of_integers() {
    let edges = [0, 1, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff];
    for (name, holds) in [
        ("eq", [Equal, Equal]),
        ("lt", [Less, Less]),
        ("le", [Less, Equal]),
        ("gt", [Greater, Greater]),
        ("ge", [Greater, Equal]),
        ("ne", [Less, Greater]),
    ] {
        matches(&format!("setp.{name}.s32 %result, %x0, %x1;"), &[32, 32, 1], &edges, |[a, b]| {
            holds.contains(&(a as u32 as i32).cmp(&(b as u32 as i32))).into()
        });
        matches(&format!("setp.{name}.u32 %result, %x0, %x1;"), &[32, 32, 1], &edges, |[a, b]| {
            holds.contains(&a.cmp(&b)).into()
        });
        matches(&format!("setp.{name}.s64 %result, %x0, %x1;"), &[64, 64, 1], &[0, 1, 1 << 63, u64::MAX], |[a, b]| {
            holds.contains(&(a as i64).cmp(&(b as i64))).into()
        });
        matches(&format!("setp.{name}.s16 %result, %x0, %x1;"), &[16, 16, 1], &[0, 1, 0x8000, 0xffff], |[a, b]| {
            holds.contains(&(a as u16 as i16).cmp(&(b as u16 as i16))).into()
        });
    }
    for (name, holds) in
        [("lo", [Less, Less]), ("ls", [Less, Equal]), ("hi", [Greater, Greater]), ("hs", [Greater, Equal])]
    {
        matches(&format!("setp.{name}.u32 %result, %x0, %x1;"), &[32, 32, 1], &edges, |[a, b]| {
            holds.contains(&a.cmp(&b)).into()
        });
    }
    matches("setp.eq.b64 %result, %x0, %x1;", &[64, 64, 1], &[0, 1 << 40], |[a, b]| u64::from(a == b));
}

#[test]
fn of_floats() {
    let f = |bits: u64| f32::from_bits(bits as u32);
    let names: [(&str, &[_]); 6] = [
        ("eq", &[Equal]),
        ("ne", &[Less, Greater]),
        ("lt", &[Less]),
        ("le", &[Less, Equal]),
        ("gt", &[Greater]),
        ("ge", &[Greater, Equal]),
    ];
    for (name, holds) in names {
        let ordered = |[a, b]: [u64; 2]| f(a).partial_cmp(&f(b)).map(|ordering| u64::from(holds.contains(&ordering)));
        matches(&format!("setp.{name}.f32 %result, %x0, %x1;"), &[32, 32, 1], &SINGLES, |x| ordered(x).unwrap_or(0));
        matches(&format!("setp.{name}u.f32 %result, %x0, %x1;"), &[32, 32, 1], &SINGLES, |x| ordered(x).unwrap_or(1));
    }
    matches("setp.num.f32 %result, %x0, %x1;", &[32, 32, 1], &SINGLES, |[a, b]| {
        u64::from(!f(a).is_nan() && !f(b).is_nan())
    });
    matches("setp.nan.f32 %result, %x0, %x1;", &[32, 32, 1], &SINGLES, |[a, b]| {
        u64::from(f(a).is_nan() || f(b).is_nan())
    });
    table("setp.eq.ftz.f32 %result, %x0, %x1;", &[32, 32, 1], &[([1, 0x8000_0001], 1)]);
    table(
        "setp.lt.f64 %result, %x0, %x1;",
        &[64, 64, 1],
        &[([1 << 63, 0], 0), ([1 << 63 | 1, 0], 1), ([0x7ff8 << 48, 0], 0)],
    );
    table("setp.gt.f16 %result, %x0, %x1;", &[16, 16, 1], &[([0x3c01, 0x3c00], 1), ([0x7e00, 0], 0), ([0, 0x8000], 0)]);
    table("setp.leu.bf16 %result, %x0, %x1;", &[16, 16, 1], &[([0x7fc0, 0], 1), ([0xff80, 0], 1)]);
}

#[test]
fn with_a_combination_and_a_complement() {
    matches("setp.lt.and.s32 %result, %x0, %x1, %x2;", &[32, 32, 1, 1], &[0, 1], |[a, b, p]| u64::from(a < b) & p);
    matches("setp.lt.or.s32 %result, %x0, %x1, !%x2;", &[32, 32, 1, 1], &[0, 1], |[a, b, p]| {
        u64::from(a < b) | (1 - p)
    });
    matches("setp.lt.xor.s32 %result, %x0, %x1, %x2;", &[32, 32, 1, 1], &[0, 1], |[a, b, p]| u64::from(a < b) ^ p);
    matches("setp.lt.and.s32 %p1|%result, %x0, %x1, %x2;", &[32, 32, 1, 1], &[0, 1], |[a, b, p]| u64::from(a >= b) & p);
}

#[test]
fn into_registers() {
    matches("set.lt.u32.s32 %result, %x0, %x1;", &[32, 32, 32], &[0, 1, 0xffff_ffff], |[a, b]| {
        if (a as u32 as i32) < b as u32 as i32 { 0xffff_ffff } else { 0 }
    });
    matches("set.gtu.f32.f32 %result, %x0, %x1;", &[32, 32, 32], &SINGLES, |[a, b]| {
        let (a, b) = (f32::from_bits(a as u32), f32::from_bits(b as u32));
        if a.partial_cmp(&b).is_none_or(|ordering| ordering == Greater) { 0x3f80_0000 } else { 0 }
    });
}
