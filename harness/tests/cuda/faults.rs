//! Faults that are planted into the PTX that ships: the suite must find each.

use crate::{alongs, folds};
use consonance_harness::cuda::{Case, Interpreter};
use consonance_kernels::cuda::kernels::modules;
use consonance_spec::{DType, ReduceOp};

/// The suite that runs a kernel.
#[derive(Clone, Copy)]
enum Suite {
    Fold,
    Along,
}

/// A kernel with the cases that run it.
#[derive(Clone, Copy)]
struct Subject {
    suite: Suite,
    op: ReduceOp,
    dtype: DType,
    kernel: &'static str,
}

const SUM: Subject = Subject { suite: Suite::Fold, op: ReduceOp::Sum, dtype: DType::F32, kernel: "fold_sum_f32" };
const PRODUCT: Subject = Subject { op: ReduceOp::Product, kernel: "fold_product_f32", ..SUM };
const MEAN: Subject = Subject { op: ReduceOp::Mean, ..SUM };
const ALONG: Subject = Subject { suite: Suite::Along, kernel: "along_sum_f32", ..SUM };

impl Subject {
    /// Plants a fault into each line for which `edit` returns another, one line at a time, and
    /// asserts that the suite finds all but `harmless` of them.
    fn finds(self, name: &str, harmless: usize, edit: impl Fn(&str) -> Option<String>) {
        self.finds_all(name, harmless, |lines| {
            let planted = |at: usize| {
                let other = edit(lines[at])?;
                let mut edited: Vec<String> = lines.iter().map(|line| line.to_string()).collect();
                edited[at] = other;
                Some((lines[at].to_owned(), edited))
            };
            (0..lines.len()).filter_map(planted).collect()
        });
    }

    /// Asserts that the suite finds all but `harmless` of the edited kernels that `edit` makes of
    /// the kernel's lines. Each has a name.
    fn finds_all(self, name: &str, harmless: usize, edit: impl Fn(&[&str]) -> Vec<(String, Vec<String>)>) {
        let Subject { suite, op, dtype, kernel } = self;
        let (module, cases): (_, Vec<Case>) = match suite {
            Suite::Fold => (format!("fold_{dtype}"), folds::cases(op, dtype).into_iter().map(Case::Fold).collect()),
            Suite::Along => (format!("along_{dtype}"), alongs::cases(op, dtype).into_iter().map(Case::Along).collect()),
        };
        let shipped = modules().into_iter().find(|shipped| shipped.name == module).expect("a module");
        let begin = shipped.ptx.find(&format!(".entry {kernel}(")).expect("the kernel");
        let end = shipped.ptx[begin..].find("\n}").map_or(shipped.ptx.len(), |length| begin + length);
        let lines: Vec<&str> = shipped.ptx[begin..end].lines().collect();
        let planted = edit(&lines);
        assert!(planted.len() > harmless, "{name}: {} places in {kernel} to plant it into", planted.len());
        let mut missed = Vec::new();
        for (place, edited) in &planted {
            let text = format!("{}{}{}", &shipped.ptx[..begin], edited.join("\n"), &shipped.ptx[end..]);
            let pick = |other: &str, ptx: &str| Some(if other == module { text.clone() } else { ptx.to_owned() });
            let machine = Interpreter::edited(pick).unwrap_or_else(|error| panic!("{name}: {error}"));
            let is_found = cases.iter().any(|case| machine.fresh(1).judge(case).is_err());
            if !is_found {
                missed.push(place);
            }
        }
        assert_eq!(missed.len(), harmless, "{name}, planted into {kernel}, is not found in {missed:#?}");
        println!("{name}: {} of {} places in {kernel} found", planted.len() - harmless, planted.len());
    }
}

/// Returns the line with `from` replaced, if it has it.
fn replaced(line: &str, from: &str, to: &str) -> Option<String> {
    line.contains(from).then(|| line.replace(from, to))
}

/// Returns the operands of the instruction, if the line is one.
fn operands<'l>(line: &'l str, instruction: &str) -> Option<Vec<&'l str>> {
    Some(line.strip_prefix(instruction)?.trim_end_matches(';').trim().split(", ").collect())
}

#[test]
fn another_rounding_is_found() {
    let edit = |line: &str| replaced(line, "add.rn.f32", "add.rz.f32");
    SUM.finds("a sum rounded toward zero", 0, edit);
    ALONG.finds("a sum rounded toward zero", 0, edit);
    let half = Subject { dtype: DType::F16, kernel: "fold_sum_f16", ..SUM };
    half.finds("a result rounded toward zero", 0, |line| replaced(line, "cvt.rn.f16.f32", "cvt.rz.f16.f32"));
    MEAN.finds("a mean rounded toward zero", 0, |line| replaced(line, "div.rn.f32", "div.rz.f32"));
}

#[test]
fn flushed_subnormals_are_found() {
    PRODUCT.finds("a flushed product", 0, |line| replaced(line, "mul.rn.f32", "mul.rn.ftz.f32"));
}

#[test]
fn a_contraction_is_found() {
    PRODUCT.finds("a fused multiply-add", 0, |line| {
        let of = operands(line, "mul.rn.f32")?;
        Some(format!("fma.rn.f32 {}, {}, {}, {};", of[0], of[1], of[2], of[2]))
    });
    // As where a product with a factor next to one and a sum are rounded together.
    SUM.finds("a fused multiply-add", 0, |line| {
        let of = operands(line, "add.rn.f32")?;
        Some(format!("fma.rn.f32 {}, {}, 0f3F800001, {};", of[0], of[1], of[2]))
    });
}

#[test]
fn a_barrier_removed_is_found() {
    let edit = |line: &str| line.contains("bar.sync").then(String::new);
    ALONG.finds("a barrier removed", 0, edit);
    let wide = Subject { op: ReduceOp::Mean, dtype: DType::I64, kernel: "along_mean_i64", ..ALONG };
    wide.finds("a barrier removed", 0, edit);
}

#[test]
fn another_order_is_found() {
    let edit = |line: &str| {
        let of = operands(line, "add.rn.f32")?;
        Some(format!("add.rn.f32 {}, {}, {};", of[0], of[1], of[1]))
    };
    SUM.finds("an operand taken twice", 0, edit);
    ALONG.finds("an operand taken twice", 0, edit);
    let greatest = Subject { op: ReduceOp::Max, kernel: "fold_max_f32", ..SUM };
    greatest.finds("the other operand chosen", 0, |line| replaced(line, "setp.gt.f32", "setp.lt.f32"));
    SUM.finds_all("sources in another order", 0, |lines| exchanged(lines, "ld.global.v4.u32"));
    // The first load of a lane and the rest of its elements are in other loops than the four
    // between.
    ALONG.finds_all("elements of a lane in another order", 0, |lines| {
        let all = exchanged(lines, "ld.global.f32");
        all[1..all.len() - 1].to_vec()
    });
}

/// Returns the lines with the results of two neighbouring loads exchanged, for each such pair.
fn exchanged(lines: &[&str], load: &str) -> Vec<(String, Vec<String>)> {
    let loads: Vec<usize> = (0..lines.len()).filter(|&at| lines[at].contains(load)).collect();
    let exchange = |pair: &[usize]| {
        let (one, other) = (lines[pair[0]], lines[pair[1]]);
        let address = |line: &str| line[line.find('[').expect("an address")..].to_owned();
        let result = |line: &str| line[..line.find('[').expect("an address")].to_owned();
        let mut edited: Vec<String> = lines.iter().map(|line| line.to_string()).collect();
        edited[pair[0]] = result(other) + &address(one);
        edited[pair[1]] = result(one) + &address(other);
        (format!("{one} and {other}"), edited)
    };
    loads.windows(2).map(exchange).collect()
}

#[test]
fn a_bound_off_by_one_is_found() {
    let bytes = Subject { dtype: DType::U8, kernel: "fold_sum_u8", ..SUM };
    bytes.finds("a bound off by one", 0, |line| replaced(line, "setp.lt.u64", "setp.le.u64"));
    bytes.finds("a bound off by one", 0, |line| replaced(line, "setp.ge.u64", "setp.gt.u64"));
    SUM.finds("a bound off by one", 0, |line| replaced(line, "setp.lt.u32", "setp.le.u32"));
    // A tile past the last has no result, so that a grid that enters it does no harm.
    ALONG.finds("a bound off by one", 1, |line| replaced(line, "setp.ge.u64", "setp.gt.u64"));
    ALONG.finds("a bound off by one", 1, |line| replaced(line, "setp.lt.u64", "setp.le.u64"));
    // Each warp has a first pass over the tile.
    ALONG.finds("a bound off by one", 1, |line| replaced(line, "setp.ge.u32", "setp.gt.u32"));
}
