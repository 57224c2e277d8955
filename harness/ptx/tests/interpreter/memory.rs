//! Spaces, sizes, and every fault of an access.

use crate::bench::{BODY, launch, module, read_words, results, table, words};
use consonance_ptx::{Fault, FaultKind, Memory, Module};

/// Runs one thread of a body on 64 written bytes at `%a`, and returns the fault.
fn fault(body: &str) -> Fault {
    fault_at(body, |memory| words(memory, &[0; 8]))
}

fn fault_at(body: &str, address: impl Fn(&mut Memory) -> u64) -> Fault {
    let module = module(body);
    let mut memory = Memory::new();
    let a = address(&mut memory);
    launch(&module, &mut memory, [a, 0, 0], 1, 1, 0).expect_err("a fault")
}

#[test]
fn out_of_bounds_by_one() {
    for (code, address) in [
        ("ld.global.u8 %r1, [%a+64];", 64),
        ("ld.global.u8 %r1, [%a-1];", -1),
        ("st.global.u8 [%a+64], %r1;", 64),
        ("ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%a+64];", 64),
        ("st.global.u64 [%a-8], %d1;", -8),
        ("ld.u8 %r1, [%a+64];", 64),
    ] {
        let found = fault(code);
        assert_eq!((found.kind, found.line, found.text.as_str()), (FaultKind::OutOfBounds, BODY, code));
        assert_eq!(found.address, Some(0x10_0000_0000u64.wrapping_add_signed(address)));
    }
    // A vector that begins inside and ends outside, in an allocation of 20 bytes.
    let found = fault_at("ld.global.v2.u32 {%r1, %r2}, [%a+16];", |memory| {
        let address = memory.alloc(20);
        memory.write(address, &[0; 20]).expect("inside");
        address
    });
    assert_eq!(found.kind, FaultKind::OutOfBounds);
    assert_eq!(fault("mov.u64 %d1, 0;\nld.global.u8 %r1, [%d1];").kind, FaultKind::OutOfBounds);
    assert_eq!(fault("mov.u64 %d1, 8;\nld.u32 %r1, [%d1];").kind, FaultKind::OutOfBounds);
}

#[test]
fn misaligned() {
    for code in [
        "ld.global.u16 %r1, [%a+1];",
        "ld.global.u32 %r1, [%a+2];",
        "st.global.u64 [%a+4], %d1;",
        "ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%a+8];",
        "st.global.v2.u64 [%a+8], {%d1, %d2};",
    ] {
        assert_eq!(fault(code).kind, FaultKind::Misaligned, "{code}");
    }
}

#[test]
fn uninitialised_and_freed() {
    let found = fault_at("ld.global.u32 %r1, [%a+4];", |memory| {
        let address = memory.alloc(8);
        memory.write(address, &[0; 7]).expect("inside");
        address
    });
    assert_eq!(found.kind, FaultKind::Uninitialised);
    for code in ["ld.global.u32 %r1, [%a];", "st.global.u32 [%a+4], %r1;"] {
        let found = fault_at(code, |memory| {
            let (address, _other) = (memory.alloc(8), memory.alloc(8));
            memory.free(address).expect("live");
            address
        });
        assert_eq!(found.kind, FaultKind::Freed, "{code}");
    }
    let mut memory = Memory::new();
    let address = memory.alloc(8);
    assert_eq!(memory.free(address + 1).expect_err("no allocation").kind, FaultKind::OutOfBounds);
    memory.free(address).expect("live");
    assert_eq!(memory.free(address).expect_err("freed").kind, FaultKind::Freed);
    assert_eq!(memory.write(address, &[0]).expect_err("freed").kind, FaultKind::Freed);
    assert_ne!(memory.alloc(8), address);
}

#[test]
fn shared_memory_is_as_large_as_its_variables() {
    let body =
        |code: &str| format!(".shared .align 4 .b8 one[8];\n.shared .align 4 .b8 two[8];\nmov.u32 %r1, 7;\n{code}");
    for code in ["st.shared.u32 [one+8], %r1;", "st.shared.u8 [two-1], %r1;", "st.shared.u32 [two+8], %r1;"] {
        assert_eq!(fault(&body(code)).kind, FaultKind::OutOfBounds, "{code}");
    }
    assert_eq!(fault(&body("ld.shared.u32 %r1, [two];")).kind, FaultKind::Uninitialised);
    assert_eq!(fault(&body("st.shared.u32 [one+2], %r1;")).kind, FaultKind::Misaligned);
}

#[test]
fn spaces_and_generic_addresses() {
    let code = "
        .shared .align 8 .b8 one[16];
        .local .align 8 .b8 own[16];
        cvt.u64.u32 %d1, %x0;
        mov.u64 %d2, own;
        st.local.u64 [own+8], %d1;
        cvta.local.u64 %d3, %d2;
        ld.u64 %d4, [%d3+8];
        st.u32 [%d3], %x0;
        ld.local.u32 %r5, [%d2];
        cvt.u64.u32 %d5, %r5;
        add.u64 %d4, %d4, %d5;
        mov.u64 %d6, one;
        cvta.shared.u64 %d7, %d6;
        setp.ne.u32 %p1, %x0, 3;
        @%p1 bra $on;
        st.u64 [%d7], 17;
    $on:
        bar.sync 0;
        ld.shared.u64 %d8, [%d6];
        cvta.to.shared.u64 %d9, %d7;
        ld.shared.u64 %d10, [%d9];
        isspacep.shared %p2, %d7;
        isspacep.global %p3, %d7;
        isspacep.local %p4, %d3;
        selp.u64 %d11, 1000, 0, %p2;
        selp.u64 %d12, 5000, 0, %p3;
        selp.u64 %d13, 2000, 0, %p4;
        add.u64 %result, %d4, %d8;
        add.u64 %result, %result, %d10;
        add.u64 %result, %result, %d11;
        add.u64 %result, %result, %d12;
        add.u64 %result, %result, %d13;";
    let rows: Vec<Vec<u64>> = (0..40).map(|lane| vec![lane]).collect();
    // A store of an immediate needs a register of its own.
    let code = code.replace("st.u64 [%d7], 17;", "mov.u64 %d14, 17;\nst.u64 [%d7], %d14;");
    let expected: Vec<u64> = (0..40).map(|lane| 2 * lane + 34 + 3000).collect();
    assert_eq!(results(&code, &[32, 64], &rows), expected);
    assert_eq!(fault(".local .align 4 .b8 own[8];\nld.local.u32 %r1, [own+8];").kind, FaultKind::OutOfBounds);
    assert_eq!(fault(".local .align 4 .b8 own[8];\nld.local.u32 %r1, [own];").kind, FaultKind::Uninitialised);
}

#[test]
fn dynamic_shared_memory_comes_last() {
    let body = |offset: u32| {
        format!(".extern_is_outside\nmov.u64 %d1, dynamic;\nst.shared.u32 [%d1+{offset}], %t;\nld.shared.u32 %r1, [dynamic+{offset}];")
            .replace(".extern_is_outside", ".shared .align 4 .b8 fixed[4];")
    };
    let text = |offset| {
        crate::bench::text(&body(offset)).replace(".visible", ".extern .shared .align 16 .b8 dynamic[];\n.visible")
    };
    let run = |offset| {
        let module = Module::parse(&text(offset)).unwrap_or_else(|error| panic!("{error}"));
        launch(&module, &mut Memory::new(), [0; 3], 1, 1, 0)
    };
    // The bench launches with 64 bytes.
    assert!(run(60).is_ok());
    assert_eq!(run(64).expect_err("outside").kind, FaultKind::OutOfBounds);
}

#[test]
fn sizes_signs_and_vectors() {
    let x = 0x8182_8384_8586_8788u64;
    let from = |code: &str, bits: u32, expected: u64| {
        table(
            &format!(".local .align 16 .b8 own[16];\nst.local.b64 [own], %x0;\nst.local.b64 [own+8], %x0;\n{code}"),
            &[64, bits],
            &[([x], expected)],
        );
    };
    from("ld.local.u8 %result, [own];", 32, 0x88);
    from("ld.local.s8 %result, [own];", 32, 0xffff_ff88);
    from("ld.local.s8 %result, [own];", 16, 0xff88);
    from("ld.local.s16 %result, [own+2];", 64, 0xffff_ffff_ffff_8586);
    from("ld.local.u32 %result, [own+4];", 64, 0x8182_8384);
    from("ld.local.s32 %result, [own+4];", 64, 0xffff_ffff_8182_8384);
    from("ld.local.v4.u8 {%r1, %r2, %r3, %r4}, [own];\nmov.u32 %result, %r3;", 32, 0x86);
    from("ld.local.v2.b64 {_, %result}, [own];", 64, x);
    from("ld.local.v4.b32 {%r1, %r2, _, _}, [own];\nmov.b64 %result, {%r2, %r1};", 64, x.rotate_left(32));
    from("mov.b64 {%r1, %r2}, %x0;\nst.local.u8 [own+1], %r2;\nld.local.u32 %result, [own];", 32, 0x8586_8488);
}

#[test]
fn hints_change_nothing() {
    for code in [
        "ld.global.nc.L1::no_allocate.L2::128B.v2.u32 {%r1, %r2}, [%d1];",
        "ld.global.nc.L2::256B.v2.b32 {%r1, %r2}, [%d1];",
        "ld.volatile.global.v2.u32 {%r1, %r2}, [%d1];",
        "ld.weak.global.cg.v2.u32 {%r1, %r2}, [%d1];",
        "ldu.global.v2.u32 {%r1, %r2}, [%d1];",
        "prefetch.global.L2 [%d1];\nld.global.cs.v2.u32 {%r1, %r2}, [%d1];",
        "prefetch.global.L2::evict_last [%d1];\nld.global.lu.v2.u32 {%r1, %r2}, [%d1];",
    ] {
        table(
            &format!("{code}\nmov.b64 %result, {{%r1, %r2}};"),
            &[64, 64],
            &[([0x0123_4567_89ab_cdef], 0x0123_4567_89ab_cdef)],
        );
    }
}

#[test]
fn variables_of_the_module() {
    let text = crate::bench::text(
        "mov.u64 %d1, table;
        ld.const.u16 %r1, [%d1+2];
        ld.const.u16 %r2, [table+4];
        ld.global.u32 %r3, [counter];
        add.u32 %r4, %r3, 1;
        st.global.u32 [counter], %r4;
        ld.global.u64 %d2, [pointer];
        ld.u32 %r5, [%d2];
        mov.b64 %d3, {%r1, %r2};
        mov.b64 %d4, {%r3, %r5};
        ld.global.f32 %r6, [real];
        cvt.u64.u32 %d5, %r6;
        ld.global.u64 %d6, [zeros+8];
        st.global.u64 [%a], %d3;
        st.global.u64 [%a+8], %d4;
        st.global.u64 [%a+16], %d5;
        st.global.u64 [%a+24], %d6;",
    );
    let text = text.replace(
        ".visible",
        ".const .align 2 .u16 table[3] = {7, 8, 0xfff9};
.global .align 4 .u32 counter = 41;
.global .align 8 .u64 pointer = generic(counter);
.global .f32 real = 1.5;
.global .align 8 .b8 zeros[16];
.visible",
    );
    let module = Module::parse(&text).unwrap_or_else(|error| panic!("{error}"));
    for memory in [&mut Memory::new(), &mut Memory::new()] {
        let data = memory.alloc(32);
        for count in [41u64, 42] {
            launch(&module, memory, [data, 0, 0], 1, 1, 0).unwrap_or_else(|fault| panic!("{fault}"));
            let expected = [8 | 0xfff9 << 32, count | (count + 1) << 32, 0x3fc0_0000, 0];
            assert_eq!(read_words(memory, data, 4), expected);
        }
    }
}

#[test]
fn constants_and_parameters_cannot_be_written() {
    let found = fault("mov.u64 %d1, a;\ncvta.param.u64 %d1, %d1;\nst.u64 [%d1], %d1;");
    assert_eq!(found.kind, FaultKind::ReadOnly);
    assert_eq!(fault("ld.param.u64 %d1, [c+8];").kind, FaultKind::OutOfBounds);
}

#[test]
fn traps_and_endless_loops_end() {
    let found = fault("trap;");
    assert_eq!((found.kind, found.text.as_str()), (FaultKind::Trap, "trap;"));
    let module = module("$loop:\nadd.u32 %r1, %r1, 1;\nbra $loop;");
    let mut memory = Memory::new();
    memory.set_instruction_limit(1000);
    let found = launch(&module, &mut memory, [0; 3], 1, 1, 0).expect_err("the limit");
    assert_eq!(found.kind, FaultKind::InstructionLimit);
}

#[test]
fn invalid_launches_are_refused() {
    let module = module("");
    let parameters = [0; 24];
    let good = consonance_ptx::Launch {
        kernel: "k",
        grid: [1; 3],
        block: [1; 3],
        shared_bytes: 0,
        parameters: &parameters,
        seed: 0,
    };
    let bad = [
        consonance_ptx::Launch { kernel: "other", ..good.clone() },
        consonance_ptx::Launch { grid: [0, 1, 1], ..good.clone() },
        consonance_ptx::Launch { grid: [1 << 24, 2, 1], ..good.clone() },
        consonance_ptx::Launch { block: [1025, 1, 1], ..good.clone() },
        consonance_ptx::Launch { block: [32, 0, 1], ..good.clone() },
        consonance_ptx::Launch { parameters: &parameters[..23], ..good.clone() },
    ];
    assert!(module.launch(&mut Memory::new(), &good).is_ok());
    for launch in bad {
        let fault = module.launch(&mut Memory::new(), &launch).expect_err("refused");
        assert_eq!(fault.kind, FaultKind::InvalidLaunch, "{launch:?}");
    }
}
