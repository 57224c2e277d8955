//! Faults that are planted into the PTX that ships: the suite must find each.

use crate::{alongs, folds};
use consonance_harness::cuda::Interpreter;
use consonance_kernels::cuda::kernels::modules;
use consonance_spec::{DType, ReduceOp};

/// What runs a kernel of the suite.
#[derive(Clone, Copy)]
enum Suite {
    Fold,
    Along,
}

/// Runs the cases of an operation with an edited module, and asserts that some of them fail. `edit`
/// gets a line of the kernel and returns the other line, or `None` to leave it. `which` says how
/// many edits are made, each on a copy of its own: `edit` is applied to one line at a time.
fn found(name: &str, suite: Suite, op: ReduceOp, dtype: DType, kernel: &str, edit: impl Fn(&str) -> Option<String>) {
    let module = match suite {
        Suite::Fold => format!("fold_{dtype}"),
        Suite::Along => format!("along_{dtype}"),
    };
    let shipped = modules().into_iter().find(|shipped| shipped.name == module).expect("a module");
    let begin = shipped.ptx.find(&format!(".entry {kernel}(")).expect("the kernel");
    let end = shipped.ptx[begin..].find("\n}").map_or(shipped.ptx.len(), |length| begin + length);
    let lines: Vec<&str> = shipped.ptx[begin..end].lines().collect();
    let places: Vec<usize> = (0..lines.len()).filter(|&at| edit(lines[at]).is_some()).collect();
    assert!(!places.is_empty(), "{name}: no line of {kernel} to plant it into");
    for &place in &places {
        let mut edited: Vec<String> = lines.iter().map(|line| line.to_string()).collect();
        edited[place] = edit(lines[place]).expect("a line to edit");
        let text = format!("{}{}{}", &shipped.ptx[..begin], edited.join("\n"), &shipped.ptx[end..]);
        let pick = |other: &str, ptx: &str| Some(if other == module { text.clone() } else { ptx.to_owned() });
        let machine = Interpreter::edited(pick).unwrap_or_else(|error| panic!("{name}: {error}"));
        let is_found = match suite {
            Suite::Fold => folds::cases(op, dtype).iter().any(|case| case.judge(&mut machine.fresh(1)).is_err()),
            Suite::Along => alongs::cases(op, dtype).iter().any(|case| case.judge(&mut machine.fresh(1)).is_err()),
        };
        assert!(is_found, "{name}, planted into `{}` of {kernel}, is not found", lines[place]);
    }
    println!("{name}: {} places in {kernel}, all found", places.len());
}

/// Returns the line with `from` replaced, if it has it.
fn replaced(line: &str, from: &str, to: &str) -> Option<String> {
    line.contains(from).then(|| line.replace(from, to))
}

#[test]
fn another_rounding_is_found() {
    let edit = |line: &str| replaced(line, "add.rn.f32", "add.rz.f32");
    found("a sum rounded toward zero", Suite::Fold, ReduceOp::Sum, DType::F32, "fold_sum_f32", edit);
    found("a sum rounded toward zero", Suite::Along, ReduceOp::Sum, DType::F32, "along_sum_f32", edit);
    let edit = |line: &str| replaced(line, "cvt.rn.f16.f32", "cvt.rz.f16.f32");
    found("a result rounded toward zero", Suite::Fold, ReduceOp::Sum, DType::F16, "fold_sum_f16", edit);
    let edit = |line: &str| replaced(line, "div.rn.f32", "div.rz.f32");
    found("a mean rounded toward zero", Suite::Fold, ReduceOp::Mean, DType::F32, "fold_sum_f32", edit);
}

#[test]
fn flushed_subnormals_are_found() {
    let edit = |line: &str| replaced(line, "mul.rn.f32", "mul.rn.ftz.f32");
    found("a flushed product", Suite::Fold, ReduceOp::Product, DType::F32, "fold_product_f32", edit);
}

#[test]
fn a_contraction_is_found() {
    // `a * b` becomes `a * b + b`, as where a product and the next sum are fused.
    let edit = |line: &str| {
        let operands = line.strip_prefix("mul.rn.f32 ")?.trim_end_matches(';').split(", ").collect::<Vec<_>>();
        Some(format!("fma.rn.f32 {}, {}, {}, {};", operands[0], operands[1], operands[2], operands[2]))
    };
    found("a fused multiply-add", Suite::Fold, ReduceOp::Product, DType::F32, "fold_product_f32", edit);
    // A sum that a multiplication by one precedes in full precision keeps its bits; one by a number
    // that is not one does not.
    let edit = |line: &str| {
        let operands = line.strip_prefix("add.rn.f32 ")?.trim_end_matches(';').split(", ").collect::<Vec<_>>();
        Some(format!("fma.rn.f32 {}, {}, 0f3F800001, {};", operands[0], operands[1], operands[2]))
    };
    found("a fused multiply-add", Suite::Fold, ReduceOp::Sum, DType::F32, "fold_sum_f32", edit);
}

#[test]
fn a_barrier_removed_is_found() {
    let edit = |line: &str| line.contains("bar.sync").then(String::new);
    found("a barrier removed", Suite::Along, ReduceOp::Sum, DType::F32, "along_sum_f32", edit);
    found("a barrier removed", Suite::Along, ReduceOp::Mean, DType::I64, "along_mean_i64", edit);
}

#[test]
fn another_order_is_found() {
    // The first sum takes its first operand twice, so that an operand is lost.
    let edit = |line: &str| {
        let operands = line.strip_prefix("add.rn.f32 ")?.trim_end_matches(';').split(", ").collect::<Vec<_>>();
        Some(format!("add.rn.f32 {}, {}, {};", operands[0], operands[1], operands[1]))
    };
    found("an operand taken twice", Suite::Fold, ReduceOp::Sum, DType::F32, "fold_sum_f32", edit);
    found("an operand taken twice", Suite::Along, ReduceOp::Sum, DType::F32, "along_sum_f32", edit);
    // The distance of lanes grows by another step: lanes are combined in another tree.
    let edit = |line: &str| replaced(line, "setp.gt.f32", "setp.lt.f32");
    found("the other operand chosen", Suite::Fold, ReduceOp::Max, DType::F32, "fold_max_f32", edit);
}

#[test]
fn a_bound_off_by_one_is_found() {
    // A limit of the loop over places, and of the loop over targets, one more or one less.
    let edit = |line: &str| replaced(line, "setp.lt.u64", "setp.le.u64");
    found("a bound off by one", Suite::Fold, ReduceOp::Sum, DType::U8, "fold_sum_u8", edit);
    let edit = |line: &str| replaced(line, "setp.ge.u64", "setp.gt.u64");
    found("a bound off by one", Suite::Fold, ReduceOp::Sum, DType::U8, "fold_sum_u8", edit);
    found("a bound off by one", Suite::Along, ReduceOp::Sum, DType::F32, "along_sum_f32", edit);
    let edit = |line: &str| replaced(line, "setp.lt.u32", "setp.le.u32");
    found("a bound off by one", Suite::Fold, ReduceOp::Sum, DType::F32, "fold_sum_f32", edit);
}
