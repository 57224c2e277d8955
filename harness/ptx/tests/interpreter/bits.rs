//! Logic, shifts and fields of bits: the manual's own definitions, bit by bit.

use crate::bench::{matches, table};

const WORDS: [u64; 6] = [0, 1, 0x8000_0000, 0xffff_ffff, 0x1234_5678, 0xa5a5_00ff];
const COUNTS: [u64; 8] = [0, 1, 4, 31, 32, 33, 63, 0xffff_ffff];

#[test]
fn logic() {
    matches("and.b32 %result, %x0, %x1;", &[32, 32, 32], &WORDS, |[a, b]| a & b);
    matches("or.b64 %result, %x0, %x1;", &[64, 64, 64], &WORDS, |[a, b]| a | b);
    matches("xor.b16 %result, %x0, %x1;", &[16, 16, 16], &[0, 1, 0xffff, 0xa5a5], |[a, b]| a ^ b);
    matches("not.b32 %result, %x0;", &[32, 32], &WORDS, |[a]| !a & 0xffff_ffff);
    matches("not.b16 %result, %x0;", &[16, 16], &[0, 1, 0xffff], |[a]| !a & 0xffff);
    matches("cnot.b32 %result, %x0;", &[32, 32], &WORDS, |[a]| u64::from(a == 0));
    matches("and.pred %result, %x0, %x1;", &[1, 1, 1], &[0, 1], |[a, b]| a & b);
    matches("or.pred %result, %x0, !%x1;", &[1, 1, 1], &[0, 1], |[a, b]| a | (1 - b));
    matches("xor.pred %result, %x0, %x1;", &[1, 1, 1], &[0, 1], |[a, b]| a ^ b);
    matches("not.pred %result, %x0;", &[1, 1], &[0, 1], |[a]| 1 - a);
    matches("mov.pred %result, %x0;", &[1, 1], &[0, 1], |[a]| a);
}

#[test]
fn shifts_clamp_their_counts() {
    let rows = |code: &str, bits: u32, expected: &dyn Fn(u64, u64) -> u64| {
        for count in COUNTS {
            let code = code.replace("COUNT", &count.to_string());
            matches(
                &code,
                &[bits, bits],
                &[1, 0x8000, 0x8765, 0x8765_4321, 1 << 63 | 5].map(|a| a & (u64::MAX >> (64 - bits))),
                |[a]| expected(a, count),
            );
        }
    };
    rows("shl.b32 %result, %x0, COUNT;", 32, &|a, n| if n > 31 { 0 } else { a << n & 0xffff_ffff });
    rows("shl.b64 %result, %x0, COUNT;", 64, &|a, n| if n > 63 { 0 } else { a << n });
    rows("shl.b16 %result, %x0, COUNT;", 16, &|a, n| if n > 15 { 0 } else { a << n & 0xffff });
    rows("shr.u32 %result, %x0, COUNT;", 32, &|a, n| if n > 31 { 0 } else { a >> n });
    rows("shr.b64 %result, %x0, COUNT;", 64, &|a, n| if n > 63 { 0 } else { a >> n });
    rows("shr.s32 %result, %x0, COUNT;", 32, &|a, n| (a as u32 as i32 >> n.min(31)) as u32 as u64);
    rows("shr.s64 %result, %x0, COUNT;", 64, &|a, n| (a as i64 >> n.min(63)) as u64);
    rows("shr.s16 %result, %x0, COUNT;", 16, &|a, n| (a as u16 as i16 >> n.min(15)) as u16 as u64);
}

#[test]
fn funnel_shifts() {
    for (mode, limit) in [("wrap", None), ("clamp", Some(32))] {
        let count = |n: u64| limit.map_or(n & 31, |limit| n.min(limit));
        matches(&format!("shf.l.{mode}.b32 %result, %x0, %x1, %x2;"), &[32, 32, 32, 32], &WORDS, |[a, b, n]| {
            (u128::from(b << 32 | a) << count(n) >> 32) as u64 & 0xffff_ffff
        });
        matches(&format!("shf.r.{mode}.b32 %result, %x0, %x1, %x2;"), &[32, 32, 32, 32], &WORDS, |[a, b, n]| {
            (b << 32 | a) >> count(n) & 0xffff_ffff
        });
    }
}

#[test]
fn counts_of_bits() {
    matches("popc.b32 %result, %x0;", &[32, 32], &WORDS, |[a]| a.count_ones().into());
    matches("popc.b64 %result, %x0;", &[64, 32], &[0, u64::MAX, 0x10], |[a]| a.count_ones().into());
    matches("clz.b32 %result, %x0;", &[32, 32], &WORDS, |[a]| (a as u32).leading_zeros().into());
    matches("clz.b64 %result, %x0;", &[64, 32], &[0, 1, u64::MAX], |[a]| a.leading_zeros().into());
    matches("brev.b32 %result, %x0;", &[32, 32], &WORDS, |[a]| (a as u32).reverse_bits().into());
    matches("brev.b64 %result, %x0;", &[64, 64], &[1, 0x8765_4321], |[a]| a.reverse_bits());
    table(
        "bfind.u32 %result, %x0;",
        &[32, 32],
        &[([0], 0xffff_ffff), ([1], 0), ([0x8000_0000], 31), ([0x00ff_0000], 23)],
    );
    table(
        "bfind.s32 %result, %x0;",
        &[32, 32],
        &[([0xffff_ffff], 0xffff_ffff), ([0xffff_fffe], 0), ([0x8000_0000], 30), ([5], 2)],
    );
    table("bfind.shiftamt.u32 %result, %x0;", &[32, 32], &[([1], 31), ([0x8000_0000], 0), ([0], 0xffff_ffff)]);
    table("bfind.u64 %result, %x0;", &[64, 32], &[([1 << 63], 63), ([0], 0xffff_ffff)]);
}

/// The manual's definition of `bfe`.
fn extract(a: u64, pos: u64, len: u64, bits: u64, is_signed: bool) -> u64 {
    let (pos, len, msb) = (pos & 0xff, len & 0xff, bits - 1);
    let bit = |at: u64| a >> at & 1;
    let sbit = if !is_signed || len == 0 { 0 } else { bit((pos + len - 1).min(msb)) };
    (0..=msb).fold(0, |d, i| d | (if i < len && pos + i <= msb { bit(pos + i) } else { sbit }) << i)
}

/// The manual's definition of `bfi`.
fn insert(a: u64, b: u64, pos: u64, len: u64, bits: u64) -> u64 {
    let (pos, len, msb) = (pos & 0xff, len & 0xff, bits - 1);
    let mut f = b;
    for i in (0..len).take_while(|i| pos + i <= msb) {
        f = f & !(1 << (pos + i)) | (a >> i & 1) << (pos + i);
    }
    f
}

#[test]
fn fields() {
    for (pos, len) in [(0, 0), (0, 32), (0, 255), (4, 8), (28, 8), (31, 1), (32, 4), (63, 1), (255, 255), (8, 64)] {
        let with = |code: &str| format!("{code} {pos}, {len};");
        let words = [0, 0x8765_4321, 0xffff_ffff, 0x7fff_0080, 0x0800_0000];
        matches(&with("bfe.u32 %result, %x0,"), &[32, 32], &words, |[a]| extract(a, pos, len, 32, false));
        matches(&with("bfe.s32 %result, %x0,"), &[32, 32], &words, |[a]| extract(a, pos, len, 32, true));
        let longs = [0, u64::MAX, 0x8765_4321_0fed_cba9];
        matches(&with("bfe.u64 %result, %x0,"), &[64, 64], &longs, |[a]| extract(a, pos, len, 64, false));
        matches(&with("bfe.s64 %result, %x0,"), &[64, 64], &longs, |[a]| extract(a, pos, len, 64, true));
        matches(&with("bfi.b32 %result, %x0, %x1,"), &[32, 32, 32], &words, |[a, b]| insert(a, b, pos, len, 32));
        matches(&with("bfi.b64 %result, %x0, %x1,"), &[64, 64, 64], &longs, |[a, b]| insert(a, b, pos, len, 64));
    }
}

#[test]
fn permutations_of_bytes() {
    let code = "prmt.b32 %result, %x0, %x1, %x2;";
    table(
        code,
        &[32, 32, 32, 32],
        &[
            ([0x3322_1100, 0x7766_5544, 0x3210], 0x3322_1100),
            ([0x3322_1100, 0x7766_5544, 0x7654], 0x7766_5544),
            ([0x3322_1100, 0x7766_5544, 0x0123], 0x0011_2233),
            ([0x3322_1100, 0x7766_5544, 0x5410], 0x5544_1100),
            // The highest bit of each half byte asks for the sign.
            ([0x8000_7f80, 0, 0x0b98], 0x80ff_00ff),
        ],
    );
    let bytes = [0x3322_1100, 0x7766_5544];
    let modes: [(&str, [u64; 4]); 6] = [
        ("f4e", [0x3322_1100, 0x4433_2211, 0x5544_3322, 0x6655_4433]),
        ("b4e", [0x5566_7700, 0x6677_0011, 0x7700_1122, 0x0011_2233]),
        ("rc8", [0, 0x1111_1111, 0x2222_2222, 0x3333_3333]),
        ("ecl", [0x3322_1100, 0x3322_1111, 0x3322_2222, 0x3333_3333]),
        ("ecr", [0, 0x1111_1100, 0x2222_1100, 0x3322_1100]),
        ("rc16", [0x1100_1100, 0x3322_3322, 0x1100_1100, 0x3322_3322]),
    ];
    for (mode, expected) in modes {
        for (selector, expected) in expected.into_iter().enumerate() {
            let code = format!("prmt.b32.{mode} %result, %x0, %x1, {selector};");
            table(&code, &[32, 32, 32], &[(bytes, expected)]);
        }
    }
}

#[test]
fn any_function_of_three_bits() {
    // The manual's example: the table of an expression is the expression of 0xF0, 0xCC and 0xAA.
    matches("lop3.b32 %result, %x0, %x1, %x2, 0x1a;", &[32, 32, 32, 32], &WORDS, |[a, b, c]| (a & b | c) ^ a);
    matches("lop3.b32 %result, %x0, %x1, %x2, 0x80;", &[32, 32, 32, 32], &WORDS, |[a, b, c]| a & b & c);
    matches("lop3.b32 %result, %x0, %x1, %x2, 0xca;", &[32, 32, 32, 32], &WORDS, |[a, b, c]| a & b | !a & c);
    matches("lop3.b32 %result, %x0, %x1, %x2, 0x96;", &[32, 32, 32, 32], &WORDS, |[a, b, c]| a ^ b ^ c);
}

#[test]
fn choices_by_a_sign() {
    matches("slct.b32.s32 %result, 5, 6, %x0;", &[32, 32], &WORDS, |[c]| if (c as u32 as i32) < 0 { 6 } else { 5 });
    let cases = [([0], 5), ([0x8000_0000], 5), ([0x8000_0001], 6), ([0x7fc0_0000], 6), ([0x3f80_0000], 5)];
    table("slct.u64.f32 %result, 5, 6, %x0;", &[32, 64], &cases);
    table("slct.ftz.u64.f32 %result, 5, 6, %x0;", &[32, 64], &[([0x8000_0001], 5)]);
}

#[test]
fn choices_and_parts() {
    matches("selp.b32 %result, %x0, %x1, %x2;", &[32, 32, 1, 32], &[0, 1], |[a, b, p]| if p == 1 { a } else { b });
    matches("mov.b64 {%r2, %r3}, %x0; mov.b64 %result, {%r3, %r2};", &[64, 64], &[0x0123_4567_89ab_cdef], |[a]| {
        a.rotate_left(32)
    });
    matches("mov.b32 {%h1, %h2}, %x0; mov.b32 %result, {%h2, %h1};", &[32, 32], &[0x0123_4567], |[a]| {
        (a as u32).rotate_left(16).into()
    });
    matches(
        "mov.b64 {%h1, _, %h2, %h3}, %x0; mov.b64 %result, {%h3, %h2, %h1, %h1};",
        &[64, 64],
        &[0x0123_4567_89ab_cdef],
        |[_]| 0xcdef_cdef_4567_0123,
    );
}
