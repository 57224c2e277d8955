//! Kernels that nvcc compiled, and faults that are planted in what it wrote.
//!
//! `nvcc -ptx -arch=compute_75 --fmad=false -o kernels.ptx kernels.cu` makes the text of
//! `tests/samples/`, with nvcc 13.0.

use consonance_ptx::{Fault, FaultKind, Launch, Memory, Module};

const TEXT: &str = include_str!("samples/kernels.ptx");

fn module() -> Module {
    Module::parse(TEXT).unwrap_or_else(|error| panic!("{error}"))
}

/// Returns the module with another text in place of the first one in a kernel.
fn planted(kernel: &str, from: &str, to: &str) -> Module {
    let start = TEXT.find(&format!(".entry {kernel}(")).expect("the kernel");
    let at = start + TEXT[start..].find(from).expect("the text to replace");
    let text = format!("{}{to}{}", &TEXT[..at], &TEXT[at + from.len()..]);
    Module::parse(&text).unwrap_or_else(|error| panic!("{error}"))
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn floats(memory: &Memory, address: u64, count: usize) -> Vec<f32> {
    let mut data = vec![0; count * 4];
    memory.read(address, &mut data).unwrap_or_else(|fault| panic!("{fault}"));
    data.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().expect("4 bytes"))).collect()
}

/// A sum of one block's part: each thread in steps of the block, then lanes by halves, then warps.
fn tree_of(x: &[f32], threads: usize) -> f32 {
    let mut sums: Vec<f32> = (0..threads).map(|t| x.iter().skip(t).step_by(threads).fold(0.0, |s, x| s + x)).collect();
    let halves = |sums: &mut [f32]| {
        for distance in [16, 8, 4, 2, 1] {
            for lane in 0..distance {
                sums[lane] += sums[lane + distance];
            }
        }
    };
    for warp in sums.chunks_exact_mut(32) {
        halves(warp);
    }
    let mut parts: Vec<f32> = sums.iter().copied().step_by(32).collect();
    halves(&mut parts);
    parts[0]
}

/// Runs the kernel `tree` on four parts of 5,000 numbers. Returns the sums and the expected ones.
fn run_tree(module: &Module, seed: u64) -> Result<[Vec<f32>; 2], Fault> {
    let n = 5000;
    let x: Vec<f32> = (0..4 * n).map(|i| ((i * 7919) % 1000) as f32 * 0.37 - 100.0).collect();
    let mut memory = Memory::new();
    let (input, output) = (memory.alloc(x.len() * 4), memory.alloc(16));
    memory.write(input, &bytes(&x))?;
    let parameters = [input.to_le_bytes().as_slice(), &output.to_le_bytes(), &(n as u32).to_le_bytes()].concat();
    let (grid, block) = ([4, 1, 1], [1024, 1, 1]);
    let launch = Launch { kernel: "tree", grid, block, shared_bytes: 0, parameters: &parameters, seed };
    let stats = module.launch(&mut memory, &launch)?;
    assert_eq!((stats.blocks, stats.barriers), (4, 4));
    Ok([floats(&memory, output, 4), x.chunks(n).map(|x| tree_of(x, 1024)).collect()])
}

#[test]
fn a_tree_of_shuffles_and_shared_memory() {
    for seed in 0..3 {
        let [found, expected] = run_tree(&module(), seed).unwrap_or_else(|fault| panic!("{fault}"));
        assert_eq!(found, expected);
    }
}

#[test]
fn a_barrier_removed_is_found() {
    let module = planted("tree", "bar.sync", "// bar.sync");
    for seed in 0..8 {
        let fault = run_tree(&module, seed).expect_err("a fault");
        // The kind depends on whether the reader or the writers came first.
        assert!(matches!(fault.kind, FaultKind::Race | FaultKind::Uninitialised), "{fault}");
    }
}

#[test]
fn a_sum_rounded_to_zero_is_found() {
    let module = Module::parse(&TEXT.replace("add.rn.f32", "add.rz.f32")).expect("a module");
    let [found, expected] = run_tree(&module, 0).expect("no fault");
    assert_ne!(found, expected);
}

#[test]
fn a_block_too_small_leaves_shared_memory_unwritten() {
    let module = module();
    let mut memory = Memory::new();
    let (input, output) = (memory.alloc(4 * 64), memory.alloc(4));
    memory.write(input, &[0; 4 * 64]).expect("written");
    let parameters = [input.to_le_bytes().as_slice(), &output.to_le_bytes(), &64u32.to_le_bytes()].concat();
    let (grid, block) = ([1; 3], [64, 1, 1]);
    let launch = Launch { kernel: "tree", grid, block, shared_bytes: 0, parameters: &parameters, seed: 0 };
    let fault = module.launch(&mut memory, &launch).expect_err("30 of 32 parts have no value");
    assert_eq!((fault.kind, fault.thread), (FaultKind::Uninitialised, [2, 0, 0]));
    assert!(fault.text.starts_with("ld.shared.f32"), "{fault}");
}

/// Runs the kernel `red3` on 1,000 numbers, and asserts the results.
fn run_three(module: &Module) -> Result<(), Fault> {
    let count = 1000;
    let mut memory = Memory::new();
    let inputs: Vec<Vec<f32>> = (0..3).map(|k| (0..count).map(|i| (i * (k + 3)) as f32 * 0.1).collect()).collect();
    let mut parameters = vec![0; 160];
    let mut outputs = Vec::new();
    for (k, input) in inputs.iter().enumerate() {
        let (from, to) = (memory.alloc(count * 4), memory.alloc(count * 4));
        memory.write(from, &bytes(input))?;
        parameters[8 * k..][..8].copy_from_slice(&from.to_le_bytes());
        parameters[72 + 8 * k..][..8].copy_from_slice(&to.to_le_bytes());
        outputs.push(to);
    }
    parameters[144..152].copy_from_slice(&(count as u64).to_le_bytes());
    let (grid, block) = ([3, 1, 1], [64, 1, 1]);
    let launch = Launch { kernel: "red3", grid, block, shared_bytes: 0, parameters: &parameters, seed: 5 };
    module.launch(&mut memory, &launch)?;
    for output in outputs {
        for (at, found) in floats(&memory, output, count).iter().enumerate() {
            let x = ((inputs[0][at] + inputs[1][at]) + inputs[2][at]) / if at % 4 == 0 { 3.0 } else { 1.0 };
            assert_eq!(found.to_bits(), x.to_bits(), "{at}");
        }
    }
    Ok(())
}

#[test]
fn a_reduction_of_three_inputs() {
    let module = module();
    let parameter = &module.parameters("red3").expect("a kernel")[0];
    assert_eq!((parameter.offset, parameter.bytes, parameter.align), (0, 160, 8));
    run_three(&module).unwrap_or_else(|fault| panic!("{fault}"));
}

#[test]
fn a_bound_off_by_one_is_found() {
    let fault = run_three(&planted("red3", "setp.lt.u64", "setp.le.u64")).expect_err("a fault");
    assert_eq!(fault.kind, FaultKind::OutOfBounds);
    assert!(fault.text.starts_with("ld.global.v4.f32"), "{fault}");
}
