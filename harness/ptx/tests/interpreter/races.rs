//! Races, and barriers that not all threads reach.

use crate::bench::{BODY, launch, module, words};
use consonance_ptx::{Fault, FaultKind, Memory, Stats};

fn run(body: &str, grid: u32, block: u32, seed: u64) -> Result<Stats, Fault> {
    let module = module(body);
    let mut memory = Memory::new();
    let a = words(&mut memory, &[0; 4096]);
    launch(&module, &mut memory, [a, 0, 0], grid, block, seed)
}

/// Asserts that a body has a race between two of its lines, counted from 0, whatever the seed.
#[track_caller]
fn races(body: &str, grid: u32, block: u32, lines: [u32; 2]) {
    for seed in 0..8 {
        let fault = run(body, grid, block, seed).expect_err("a race");
        assert_eq!(fault.kind, FaultKind::Race, "{fault}");
        let other = fault.other.as_ref().expect("the other access");
        let mut found = [fault.line - BODY, other.line - BODY];
        found.sort_unstable();
        assert_eq!(found, lines, "{fault}");
        assert!((fault.block, fault.thread) != (other.block, other.thread), "{fault}");
    }
}

#[track_caller]
fn runs(body: &str, grid: u32, block: u32) {
    for seed in 0..8 {
        run(body, grid, block, seed).unwrap_or_else(|fault| panic!("seed {seed}: {fault}"));
    }
}

/// Each thread writes its word of shared memory twice, then reads the next one's.
const NEIGHBOURS: &str = ".shared .align 4 .b8 s[1024];
mov.u64 %d1, s;
mad.wide.u32 %d2, %t, 4, %d1;
st.shared.u32 [%d2], %t;
bar.sync 1;
st.shared.u32 [%d2], %t;
bar.sync 0;
add.u32 %r1, %t, 33;
and.b32 %r1, %r1, 63;
mad.wide.u32 %d3, %r1, 4, %d1;
ld.shared.u32 %r2, [%d3];";

#[test]
fn in_shared_memory_without_the_barrier() {
    runs(NEIGHBOURS, 2, 64);
    races(&NEIGHBOURS.replace("bar.sync 0;", ""), 1, 64, [5, 10]);
    // A read before the next write needs a barrier, too.
    let twice = format!("{NEIGHBOURS}\nst.shared.u32 [%d2], %r2;");
    races(&twice, 1, 64, [10, 11]);
    runs(&format!("{NEIGHBOURS}\nbar.sync 0;\nst.shared.u32 [%d2], %r2;"), 1, 64);
}

#[test]
fn within_a_warp() {
    let within = NEIGHBOURS.replace("33", "1").replace("63", "31");
    races(&within.replace("bar.sync 0;", ""), 1, 32, [5, 10]);
    runs(&within.replace("bar.sync 0;", "bar.warp.sync -1;"), 1, 32);
    // A barrier of the warp does not order two warps.
    races(&NEIGHBOURS.replace("bar.sync 0;", "bar.warp.sync -1;"), 1, 64, [5, 10]);
    // A shuffle orders no memory.
    races(&within.replace("bar.sync 0;", "shfl.sync.bfly.b32 %r9, %t, 1, 31, -1;"), 1, 32, [5, 10]);
}

#[test]
fn in_global_memory_within_a_block() {
    let body = "mad.wide.u32 %d1, %t, 4, %a;\nst.global.u32 [%d1], %t;\nbar.sync 0;\nxor.b32 %r1, %t, 32;\nmad.wide.u32 %d2, %r1, 4, %a;\nld.global.u32 %r2, [%d2];";
    runs(body, 1, 64);
    races(&body.replace("bar.sync 0;", ""), 1, 64, [1, 5]);
    races("st.global.u32 [%a], %t;", 1, 2, [0, 0]);
    races("st.global.u32 [%a], %t;\n", 1, 64, [0, 0]);
}

#[test]
fn between_blocks_a_barrier_orders_nothing() {
    // Each block reads what the other writes.
    let body = "mov.u32 %r1, %ctaid.x;
mul.wide.u32 %d1, %r1, 4;
add.u64 %d1, %d1, %a;
st.global.u32 [%d1], %r1;
bar.sync 0;
xor.b32 %r2, %r1, 1;
mul.wide.u32 %d2, %r2, 4;
add.u64 %d2, %d2, %a;
ld.global.u32 %r3, [%d2];";
    races(body, 2, 1, [3, 8]);
    // Reads first, and many of them: the write still races with one.
    let reads = "ld.global.u32 %r1, [%a];
bar.sync 0;
mov.u32 %r2, %ctaid.x;
setp.ne.u32 %p1, %r2, 1;
@%p1 ret;
setp.ne.u32 %p1, %t, 0;
@%p1 ret;
st.global.u32 [%a], %t;";
    races(reads, 3, 40, [0, 7]);
    runs(reads, 1, 40);
}

#[test]
fn accesses_of_one_thread_and_of_one_word_s_bytes_are_none() {
    runs(
        "mad.wide.u32 %d1, %t, 4, %a;\nld.global.u32 %r1, [%d1];\nst.global.u32 [%d1], %t;\nld.global.u32 %r1, [%d1];",
        1,
        96,
    );
    runs("cvt.u64.u32 %d1, %t;\nadd.u64 %d1, %d1, %a;\nst.global.u8 [%d1], %t;\nld.global.u8 %r1, [%d1];", 1, 96);
    races(
        "cvt.u64.u32 %d1, %t;\nadd.u64 %d1, %d1, %a;\nst.global.u8 [%d1], %t;\nld.global.u32 %r1, [%a];",
        1,
        4,
        [2, 3],
    );
    races(
        "ld.global.u32 %r1, [%a];\ncvt.u64.u32 %d1, %t;\nadd.u64 %d1, %d1, %a;\nst.global.u8 [%d1], %t;",
        1,
        4,
        [0, 3],
    );
    runs("ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%a];", 4, 64);
}

#[test]
fn a_write_to_constant_memory_is_a_fault() {
    let faulty = |body: &str, lines: [u32; 2]| {
        let fault = run(body, 1, 2, 0).expect_err("a fault");
        let other = fault.other.as_ref().expect("the other access").line;
        assert_eq!((fault.kind, fault.line - BODY, other - BODY), (FaultKind::ReadOnly, lines[0], lines[1]), "{fault}");
    };
    let address = "mad.wide.u32 %d1, %t, 4, %a;";
    faulty(&format!("{address}\nld.global.nc.u32 %r1, [%d1];\nst.global.u32 [%d1], %t;"), [2, 1]);
    faulty(&format!("{address}\nst.global.u32 [%d1], %t;\nld.global.nc.u32 %r1, [%d1];"), [2, 1]);
    faulty(&format!("{address}\nld.global.nc.u8 %r1, [%d1+1];\nst.global.u32 [%d1], %t;"), [2, 1]);
    runs(
        &format!("{address}\nld.global.nc.u8 %r1, [%d1+1];\nst.global.u8 [%d1], %t;\nst.global.u8 [%d1+8], %t;"),
        1,
        1,
    );
}

#[test]
fn launches_do_not_race_with_each_other() {
    let module = module("mov.u32 %r1, %ctaid.x;\nmad.wide.u32 %d1, %r1, 4, %a;\nst.global.u32 [%d1], %r1;");
    let mut memory = Memory::new();
    let a = words(&mut memory, &[0; 8]);
    for seed in 0..3 {
        launch(&module, &mut memory, [a, 0, 0], 16, 1, seed).unwrap_or_else(|fault| panic!("{fault}"));
    }
}

#[test]
fn a_barrier_without_all_threads_is_a_fault() {
    let diverges = |body: &str, threads: u32| {
        for seed in 0..4 {
            let fault = run(body, 1, threads, seed).expect_err("a fault");
            assert_eq!(fault.kind, FaultKind::BarrierDivergence, "{fault}");
            assert!(fault.text.contains("bar.sync"), "{fault}");
        }
    };
    // Lanes, or warps, that ended or skip it.
    diverges("setp.lt.u32 %p1, %t, 5;\n@%p1 ret;\nbar.sync 0;", 32);
    diverges("setp.lt.u32 %p1, %t, 32;\n@%p1 ret;\nbar.sync 0;", 64);
    diverges("setp.lt.u32 %p1, %t, 5;\n@%p1 bar.sync 0;", 32);
    // Two barriers, one for each side.
    let sides = "setp.lt.u32 %p1, %t, N;\n@%p1 bra $low;\nbar.sync 0;\nbra $end;\n$low:\nbar.sync 0;\n$end:";
    diverges(&sides.replace('N', "5"), 32);
    diverges(&sides.replace('N', "32"), 64);
    // Barriers of other numbers, and of some of the threads.
    diverges("bar.sync %t;", 2);
    diverges("bar.sync 0, 32;", 64);
    runs("bar.sync 3;\nbar.sync 0, 64;\nbarrier.sync.aligned 1;", 1, 64);
}

#[test]
fn every_seed_gives_the_same_results_in_another_order() {
    let body = "st.global.u32 [%a], %t;";
    let blocks: Vec<[u32; 3]> = (0..8).map(|seed| run(body, 50, 1, seed).expect_err("a race").block).collect();
    assert!(blocks.iter().any(|block| *block != blocks[0]), "{blocks:?}");
}
