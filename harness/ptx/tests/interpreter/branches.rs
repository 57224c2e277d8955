//! Divergence and reconvergence, loops, calls and guards.

use crate::bench::{launch, module, read_words, results, words};
use consonance_ptx::Memory;

fn per_lane(code: &str, bits: &[u32], count: u64) -> Vec<u64> {
    results(code, bits, &(0..count).map(|lane| vec![lane]).collect::<Vec<_>>())
}

#[test]
fn lanes_take_both_sides_and_meet() {
    let code = "
        setp.lt.u32 %p1, %x0, 10;
        @%p1 bra $small;
        setp.lt.u32 %p2, %x0, 20;
        @%p2 bra $middle;
        mov.u32 %r2, 300;
        bra.uni $end;
    $middle:
        mov.u32 %r2, 200;
        bra.uni $end;
    $small:
        mov.u32 %r2, 100;
    $end:
        activemask.b32 %r3;
        popc.b32 %r3, %r3;
        mad.lo.u32 %result, %r3, 1000, %r2;";
    let expected: Vec<u64> = (0..32).map(|lane| 32_000 + [100, 200, 300][(lane / 10usize).min(2)]).collect();
    assert_eq!(per_lane(code, &[32, 32], 32), expected);
}

#[test]
fn loops_of_other_lengths_meet_behind() {
    let code = "
        mov.u32 %r2, 0;
        mov.u32 %r3, %x0;
    $loop:
        setp.eq.u32 %p1, %r3, 0;
        @%p1 bra $end;
        add.u32 %r2, %r2, %r3;
        sub.u32 %r3, %r3, 1;
        bra $loop;
    $end:
        activemask.b32 %r4;
        not.b32 %r4, %r4;
        add.u32 %result, %r2, %r4;";
    let expected: Vec<u64> = (0..32).map(|n| n * (n + 1) / 2).collect();
    assert_eq!(per_lane(code, &[32, 32], 32), expected);
}

#[test]
fn nested_loops_with_early_ends() {
    // Counts pairs i < n, j < i with (i + j) % 3 != 0; breaks at i = 12.
    let code = "
        mov.u32 %r2, 0;
        mov.u32 %r3, 0;
    $outer:
        setp.ge.u32 %p1, %r3, %x0;
        @%p1 bra $end;
        setp.eq.u32 %p2, %r3, 12;
        @%p2 bra $end;
        mov.u32 %r4, 0;
    $inner:
        setp.ge.u32 %p3, %r4, %r3;
        @%p3 bra $next;
        add.u32 %r5, %r3, %r4;
        rem.u32 %r5, %r5, 3;
        setp.eq.u32 %p4, %r5, 0;
        @%p4 bra $skip;
        add.u32 %r2, %r2, 1;
    $skip:
        add.u32 %r4, %r4, 1;
        bra $inner;
    $next:
        add.u32 %r3, %r3, 1;
        bra $outer;
    $end:
        mov.u32 %result, %r2;";
    let count = |n: u64| {
        let pairs = (0..n.min(12)).flat_map(|i| (0..i).map(move |j| i + j));
        pairs.filter(|sum| sum % 3 != 0).count() as u64
    };
    assert_eq!(per_lane(code, &[32, 32], 32), (0..32).map(count).collect::<Vec<_>>());
}

#[test]
fn guards_let_lanes_skip() {
    let code = "
        and.b32 %r2, %x0, 1;
        setp.eq.u32 %p1, %r2, 1;
        mov.u32 %result, 5;
        @%p1 mov.u32 %result, 7;
        @!%p1 add.u32 %result, %result, 1;
        @%p1 setp.gt.u32 %p1, %x0, 3;
        @%p1 add.u32 %result, %result, 10;";
    let expected: Vec<u64> =
        (0..8).map(|lane| [6, 7][lane % 2] + if lane % 2 == 1 && lane > 3 { 10 } else { 0 }).collect();
    assert_eq!(per_lane(code, &[32, 32], 8), expected);
}

#[test]
fn indexed_branches() {
    let code = "
        min.u32 %r2, %x0, 3;
        brx.idx %r2, $targets;
    $targets: .branchtargets $zero, $one, $two, $more;
    $zero: mov.u32 %result, 10; bra $end;
    $one: mov.u32 %result, 11; bra $end;
    $two: mov.u32 %result, 12; bra $end;
    $more: mov.u32 %result, 13;
    $end:";
    assert_eq!(per_lane(code, &[32, 32], 6), [10, 11, 12, 13, 13, 13]);
}

#[test]
fn threads_may_end_early() {
    let module = module(
        "setp.lt.u32 %p1, %t, 5;
        @%p1 ret;
        setp.lt.u32 %p1, %t, 9;
        @%p1 exit;
        mul.wide.u32 %d1, %t, 8;
        add.u64 %d1, %d1, %a;
        activemask.b32 %r1;
        cvt.u64.u32 %d2, %r1;
        st.global.u64 [%d1], %d2;",
    );
    let mut memory = Memory::new();
    let data = words(&mut memory, &[1; 40]);
    launch(&module, &mut memory, [data, 0, 0], 1, 40, 3).unwrap_or_else(|fault| panic!("{fault}"));
    let expected: Vec<u64> = (0..40)
        .map(|t| {
            if t < 9 {
                1
            } else if t < 32 {
                0xffff_fe00
            } else {
                0xff
            }
        })
        .collect();
    assert_eq!(read_words(&memory, data, 40), expected);
}

#[test]
fn functions_with_parameters_in_memory_and_in_registers() {
    let text = "
.version 8.0
.target sm_80
.address_size 64
.func (.param .b64 result) scaled (.param .b64 value, .param .align 8 .b8 pair[8])
{
    .reg .b64 %d<4>;
    .reg .b32 %r<4>;
    .reg .pred %p;
    ld.param.u64 %d1, [value];
    ld.param.u32 %r1, [pair];
    ld.param.u32 %r2, [pair+4];
    setp.eq.u32 %p, %r1, 0;
    @%p bra $zero;
    mad.wide.u32 %d2, %r1, %r2, %d1;
    st.param.b64 [result], %d2;
    ret;
$zero:
    mov.u64 %d2, 99;
    st.param.b64 [result], %d2;
    ret;
}
.func (.reg .b32 %out) twice (.reg .b32 %in)
{
    add.u32 %out, %in, %in;
    ret;
}
.visible .entry k(.param .u64 a)
{
    .reg .b64 %d<9>;
    .reg .b32 %r<9>;
    .reg .pred %p1;
    ld.param.u64 %d1, [a];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %d2, %r1, 8;
    add.u64 %d1, %d1, %d2;
    and.b32 %r2, %r1, 3;
    mov.u64 %d3, 5;
    setp.ne.u32 %p1, %r1, 7;
    @%p1 call (%r2), twice, (%r2);
    {
        .param .b64 v;
        .param .align 8 .b8 q[8];
        .param .b64 r;
        st.param.b64 [v], %d3;
        st.param.b32 [q], %r2;
        st.param.b32 [q+4], %r1;
        call.uni (r), scaled, (v, q);
        ld.param.b64 %d4, [r];
    }
    st.global.u64 [%d1], %d4;
    ret;
}";
    let module = consonance_ptx::Module::parse(text).unwrap_or_else(|error| panic!("{error}"));
    let mut memory = Memory::new();
    let data = memory.alloc(8 * 16);
    let parameters = data.to_le_bytes();
    let launch = consonance_ptx::Launch {
        kernel: "k",
        grid: [1; 3],
        block: [16, 1, 1],
        shared_bytes: 0,
        parameters: &parameters,
        seed: 0,
    };
    module.launch(&mut memory, &launch).unwrap_or_else(|fault| panic!("{fault}"));
    let expected = |t: u64| {
        let low = if t == 7 { t & 3 } else { 2 * (t & 3) };
        if low == 0 { 99 } else { low * t + 5 }
    };
    assert_eq!(read_words(&memory, data, 16), (0..16).map(expected).collect::<Vec<_>>());
}
