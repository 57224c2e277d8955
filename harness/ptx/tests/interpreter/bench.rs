//! Kernels around the instructions under test.

use consonance_ptx::{Fault, Launch, Memory, Module, Stats};

/// Returns a module with one kernel `k` of three addresses (`%a`, `%b`, `%c`), which has registers
/// of each type for its body, and the thread's number in `%t`.
pub(crate) fn module(body: &str) -> Module {
    Module::parse(&text(body)).unwrap_or_else(|error| panic!("{error}"))
}

/// Returns the text of [`module`]. The body begins at line 20.
pub(crate) fn text(body: &str) -> String {
    format!(
        ".version 8.0
.target sm_80
.address_size 64
.visible .entry k(
    .param .u64 a,
    .param .u64 b,
    .param .u64 c
)
{{
    .reg .pred %p<10>;
    .reg .b16 %h<20>;
    .reg .b32 %r<40>, %t;
    .reg .b64 %d<40>, %a, %b, %c;
    ld.param.u64 %a, [a];
    ld.param.u64 %b, [b];
    ld.param.u64 %c, [c];
    mov.u32 %t, %tid.x;
    // The body.

{body}
    ret;
}}
"
    )
}

/// The line of the text at which a body begins.
pub(crate) const BODY: u32 = 20;

/// Runs the kernel of [`module`].
pub(crate) fn launch(
    module: &Module,
    memory: &mut Memory,
    addresses: [u64; 3],
    grid: u32,
    block: u32,
    seed: u64,
) -> Result<Stats, Fault> {
    let parameters: Vec<u8> = addresses.iter().flat_map(|address| address.to_le_bytes()).collect();
    let (grid, block) = ([grid, 1, 1], [block, 1, 1]);
    module.launch(memory, &Launch { kernel: "k", grid, block, shared_bytes: 64, parameters: &parameters, seed })
}

/// Allocates memory with these words.
pub(crate) fn words(memory: &mut Memory, words: &[u64]) -> u64 {
    let address = memory.alloc(words.len() * 8);
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    memory.write(address, &bytes).expect("the memory was allocated with this size");
    address
}

/// Reads words from memory.
pub(crate) fn read_words(memory: &Memory, address: u64, count: usize) -> Vec<u64> {
    let mut bytes = vec![0; count * 8];
    memory.read(address, &mut bytes).unwrap_or_else(|fault| panic!("{fault}"));
    bytes.chunks_exact(8).map(|bytes| u64::from_le_bytes(bytes.try_into().expect("8 bytes"))).collect()
}

/// Runs code for each row of operands, a lane a row, and returns what is in `%result`, extended
/// with zeros. The code names its operands `%x0`, `%x1`, …, registers of `bits[0]`, `bits[1]`, …;
/// the last of `bits` is that of `%result`. A size of 1 is a predicate.
pub(crate) fn results(code: &str, bits: &[u32], rows: &[Vec<u64>]) -> Vec<u64> {
    let (result_bits, operand_bits) = bits.split_last().expect("a result has a size");
    let count = operand_bits.len().max(1);
    let mut body = String::new();
    for (at, bits) in bits.iter().enumerate() {
        let name = if at == operand_bits.len() { "%result".to_owned() } else { format!("%x{at}") };
        let register = if *bits == 1 { "pred".to_owned() } else { format!("b{bits}") };
        body += &format!(".reg .{register} {name};\n");
    }
    body += &format!("mul.wide.u32 %d1, %t, {};\nadd.u64 %d1, %d1, %a;\n", count * 8);
    for (at, bits) in operand_bits.iter().enumerate() {
        body += &match bits {
            1 => format!("ld.global.b32 %r1, [%d1+{}];\nsetp.ne.u32 %x{at}, %r1, 0;\n", at * 8),
            _ => format!("ld.global.b{bits} %x{at}, [%d1+{}];\n", at * 8),
        };
    }
    body += code;
    body += "\nmul.wide.u32 %d2, %t, 8;\nadd.u64 %d2, %d2, %b;\n";
    body += &match result_bits {
        1 => "selp.b64 %d3, 1, 0, %result;\n".to_owned(),
        64 => "mov.b64 %d3, %result;\n".to_owned(),
        bits => format!("cvt.u64.u{bits} %d3, %result;\n"),
    };
    body += "st.global.b64 [%d2], %d3;\n";
    let module = module(&body);
    let mut found = Vec::new();
    for rows in rows.chunks(256) {
        let mut memory = Memory::new();
        let operands: Vec<u64> =
            rows.iter().flat_map(|row| (0..count).map(|at| row.get(at).copied().unwrap_or(0))).collect();
        let (from, to) = (words(&mut memory, &operands), memory.alloc(rows.len() * 8));
        let ran = launch(&module, &mut memory, [from, to, 0], 1, rows.len() as u32, 0);
        ran.unwrap_or_else(|fault| panic!("{code}: {fault}"));
        found.extend(read_words(&memory, to, rows.len()));
    }
    found
}

/// Asserts the results of code: each case has the operands and the result.
#[track_caller]
pub(crate) fn table<const N: usize>(code: &str, bits: &[u32], cases: &[([u64; N], u64)]) {
    let rows: Vec<Vec<u64>> = cases.iter().map(|(operands, _)| operands.to_vec()).collect();
    for ((operands, expected), found) in cases.iter().zip(results(code, bits, &rows)) {
        assert_eq!(found, *expected, "{code} {operands:#x?}: found {found:#x}, expected {expected:#x}");
    }
}

/// Asserts that code computes what a function does, for all pairs, triples… of the values.
#[track_caller]
pub(crate) fn matches<const N: usize>(code: &str, bits: &[u32], values: &[u64], expected: impl Fn([u64; N]) -> u64) {
    let rows: Vec<Vec<u64>> = (0..values.len().pow(N as u32))
        .map(|at| (0..N).map(|place| values[at / values.len().pow(place as u32) % values.len()]).collect())
        .collect();
    for (row, found) in rows.iter().zip(results(code, bits, &rows)) {
        let expected = expected(row.as_slice().try_into().expect("N operands"));
        assert_eq!(found, expected, "{code} {row:#x?}: found {found:#x}, expected {expected:#x}");
    }
}
