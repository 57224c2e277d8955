//! Shuffles, votes, and barriers that reduce.

use crate::bench::{launch, module, read_words, results};
use consonance_ptx::{FaultKind, Memory};

fn per_lane(code: &str, bits: &[u32]) -> Vec<u64> {
    results(code, bits, &(0..32).map(|lane| vec![lane]).collect::<Vec<_>>())
}

/// Returns the kind of the fault of a body that one warp runs.
fn fault(body: &str, threads: u32) -> FaultKind {
    let module = module(body);
    launch(&module, &mut Memory::new(), [0; 3], 1, threads, 0).expect_err("a fault").kind
}

#[test]
fn shuffles_read_other_lanes() {
    let value = |lane: u64| lane * lane + 3;
    let shuffle = |mode: &str, by: &str, clamp: u32| {
        let code = format!(
            "mad.lo.u32 %r2, %x0, %x0, 3;
            shfl.sync.{mode}.b32 %r3|%p1, %r2, {by}, {clamp}, -1;
            selp.u32 %r4, 0x10000, 0, %p1;
            or.b32 %result, %r3, %r4;"
        );
        per_lane(&code, &[32, 32])
    };
    let expected = |source: &dyn Fn(u64) -> Option<u64>| -> Vec<u64> {
        (0..32).map(|lane| source(lane).map_or(value(lane), |source| value(source) | 0x10000)).collect()
    };
    assert_eq!(shuffle("down", "4", 31), expected(&|lane| Some(lane + 4).filter(|lane| *lane < 32)));
    assert_eq!(shuffle("up", "3", 0), expected(&|lane| lane.checked_sub(3)));
    assert_eq!(shuffle("bfly", "5", 31), expected(&|lane| Some(lane ^ 5)));
    assert_eq!(shuffle("idx", "9", 31), expected(&|_| Some(9)));
    // Segments of 8 lanes: the mask 0b11000 is in the bits from 8 on.
    let segment = 0b11000 << 8;
    assert_eq!(shuffle("down", "2", segment | 7), expected(&|lane| Some(lane + 2).filter(|to| to / 8 == lane / 8)));
    assert_eq!(shuffle("up", "2", segment), expected(&|lane| lane.checked_sub(2).filter(|to| to / 8 == lane / 8)));
    assert_eq!(shuffle("idx", "3", segment | 7), expected(&|lane| Some(lane / 8 * 8 + 3)));
    // The lane may differ, and lanes outside are those of no lane.
    assert_eq!(shuffle("idx", "%x0", 31), expected(&Some));
    assert_eq!(shuffle("bfly", "16", segment | 7), expected(&|lane| Some(lane ^ 16).filter(|to| *to < lane)));
}

#[test]
fn shuffles_wait_for_lanes_of_another_branch() {
    let code = "
        setp.lt.u32 %p1, %x0, 16;
        mov.u32 %r2, 1;
        @%p1 bra $on;
        mul.lo.u32 %r2, %x0, 10;
    $on:
        shfl.sync.bfly.b32 %result, %r2, 16, 31, -1;";
    let expected: Vec<u64> = (0..32).map(|lane| if lane < 16 { (lane + 16) * 10 } else { 1 }).collect();
    assert_eq!(per_lane(code, &[32, 32]), expected);
}

#[test]
fn halves_of_a_warp_shuffle_apart() {
    let code = "
        setp.lt.u32 %p1, %x0, 16;
        @%p1 bra $low;
        shfl.sync.down.b32 %result, %x0, 1, 31, 0xffff0000;
        bra $end;
    $low:
        shfl.sync.down.b32 %result, %x0, 1, 0x100f, 0xffff;
    $end:";
    let expected: Vec<u64> = (0..32).map(|lane| if lane % 16 == 15 { lane } else { lane + 1 }).collect();
    assert_eq!(per_lane(code, &[32, 32]), expected);
}

#[test]
fn shuffles_of_absent_lanes_are_faults() {
    assert_eq!(fault("shfl.sync.idx.b32 %r1, %t, 20, 31, -1;", 16), FaultKind::Undefined);
    assert_eq!(fault("shfl.sync.bfly.b32 %r1, %t, 1, 31, 0xfffe;", 32), FaultKind::Undefined);
    let one_way = "setp.lt.u32 %p1, %t, 16;\n@%p1 bra $end;\nshfl.sync.bfly.b32 %r1, %t, 1, 31, -1;\n$end:";
    // The lower lanes end: the upper ones need not wait, but read only each other.
    let module = module(one_way);
    assert!(launch(&module, &mut Memory::new(), [0; 3], 1, 32, 0).is_ok());
    let two_ways = "setp.lt.u32 %p1, %t, 16;\n@%p1 bra $low;\nshfl.sync.bfly.b32 %r1, %t, 1, 31, -1;\nbra $end;\n$low:\nshfl.sync.bfly.b32 %r1, %t, 1, 31, -1;\n$end:";
    assert_eq!(fault(two_ways, 32), FaultKind::WarpDivergence);
    let skipped = "setp.lt.u32 %p1, %t, 16;\n@%p1 shfl.sync.bfly.b32 %r1, %t, 1, 31, -1;";
    assert_eq!(fault(skipped, 32), FaultKind::WarpDivergence);
}

#[test]
fn votes() {
    let vote = |mode: &str, bound: u32| {
        let code = format!("setp.lt.u32 %p1, %x0, {bound};\nvote.sync.{mode}.pred %result, %p1, -1;");
        per_lane(&code, &[32, 1])[0]
    };
    let found: Vec<[u64; 3]> = [0, 7, 32].map(|bound| ["all", "any", "uni"].map(|mode| vote(mode, bound))).to_vec();
    assert_eq!(found, [[0, 0, 1], [0, 1, 0], [1, 1, 1]]);
    let ballot = "and.b32 %r2, %x0, 3;\nsetp.eq.u32 %p1, %r2, 1;\nvote.sync.ballot.b32 %result, %p1, -1;";
    assert_eq!(per_lane(ballot, &[32, 32]), [0x2222_2222; 32]);
    let negated = "setp.lt.u32 %p1, %x0, 4;\nvote.sync.ballot.b32 %result, !%p1, -1;";
    assert_eq!(per_lane(negated, &[32, 32]), [0xffff_fff0; 32]);
}

#[test]
fn masks_of_lanes() {
    let code = |name: &str| per_lane(&format!("mov.u32 %result, %{name};"), &[32, 32]);
    let expected = |mask: &dyn Fn(u32) -> u32| (0..32).map(|lane| u64::from(mask(lane))).collect::<Vec<_>>();
    assert_eq!(code("laneid"), expected(&|lane| lane));
    assert_eq!(code("lanemask_eq"), expected(&|lane| 1 << lane));
    assert_eq!(code("lanemask_lt"), expected(&|lane| (1 << lane) - 1));
    assert_eq!(code("lanemask_le"), expected(&|lane| u32::MAX >> (31 - lane)));
    assert_eq!(code("lanemask_ge"), expected(&|lane| u32::MAX << lane));
    assert_eq!(code("lanemask_gt"), expected(&|lane| (u32::MAX << lane) & !(1 << lane)));
}

#[test]
fn barriers_reduce_over_all_warps() {
    let module = module(
        "setp.lt.u32 %p1, %t, 70;
        bar.red.popc.u32 %r1, 0, %p1;
        bar.red.and.pred %p2, 0, %p1;
        barrier.cta.red.or.pred.aligned %p3, 1, 100, !%p1;
        selp.u32 %r2, 1000, 0, %p2;
        selp.u32 %r3, 2000, 0, %p3;
        add.u32 %r1, %r1, %r2;
        add.u32 %r1, %r1, %r3;
        cvt.u64.u32 %d1, %r1;
        mul.wide.u32 %d2, %t, 8;
        add.u64 %d2, %d2, %a;
        st.global.u64 [%d2], %d1;",
    );
    let mut memory = Memory::new();
    let data = memory.alloc(800);
    let stats = launch(&module, &mut memory, [data, 0, 0], 1, 100, 1).unwrap_or_else(|fault| panic!("{fault}"));
    assert_eq!(stats.barriers, 3);
    assert_eq!(read_words(&memory, data, 100), [2070; 100]);
}

#[test]
fn special_registers_name_threads_and_blocks() {
    let text = "
.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 a, .param .u32 unused)
{
    .reg .b64 %d<4>;
    .reg .b32 %r<30>;
    mov.u32 %r1, %tid.x; mov.u32 %r2, %tid.y; mov.u32 %r3, %tid.z;
    mov.u32 %r4, %ntid.x; mov.u32 %r5, %ntid.y; mov.u32 %r6, %ntid.z;
    mov.u32 %r7, %ctaid.x; mov.u32 %r8, %ctaid.y; mov.u32 %r9, %ctaid.z;
    mov.u32 %r10, %nctaid.x; mov.u32 %r11, %nctaid.y;
    mad.lo.u32 %r12, %r9, %r11, %r8;
    mad.lo.u32 %r12, %r12, %r10, %r7;
    mad.lo.u32 %r12, %r12, %r6, %r3;
    mad.lo.u32 %r12, %r12, %r5, %r2;
    mad.lo.u32 %r12, %r12, %r4, %r1;
    mov.u32 %r13, %warpid; mov.u32 %r14, %nwarpid; mov.u32 %r15, %nctaid.z;
    mad.lo.u32 %r16, %r13, 100, %r14;
    mad.lo.u32 %r16, %r15, 10000, %r16;
    mov.b64 %d1, {%r12, %r16};
    ld.param.u64 %d2, [a];
    mad.wide.u32 %d2, %r12, 8, %d2;
    st.global.u64 [%d2], %d1;
    ret;
}";
    let module = consonance_ptx::Module::parse(text).unwrap_or_else(|error| panic!("{error}"));
    let (grid, block) = ([2, 3, 2], [5, 4, 3]);
    let count = 12 * 60;
    let mut memory = Memory::new();
    let data = memory.alloc(8 * count);
    let parameters = [data.to_le_bytes().as_slice(), &[0; 4]].concat();
    let launch = consonance_ptx::Launch { kernel: "k", grid, block, shared_bytes: 0, parameters: &parameters, seed: 9 };
    module.launch(&mut memory, &launch).unwrap_or_else(|fault| panic!("{fault}"));
    for (at, found) in read_words(&memory, data, count).into_iter().enumerate() {
        let warp = at as u64 % 60 / 32;
        assert_eq!(found, at as u64 | (20_000 + warp * 100 + 2) << 32, "{at}");
    }
}
