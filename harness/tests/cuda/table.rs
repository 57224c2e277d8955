//! The table of kernels and the modules that ship.

use crate::defined;
use consonance_kernels::cuda::kernels::{
    Launch, Rows, Stage, along, cast, compare, concat, fill, fold, modules, scale, sum_rows, tree,
};
use consonance_ptx::Module;
use consonance_spec::DType;
use std::collections::BTreeSet;

/// Limit on the bytes of all modules.
const MOST_BYTES: usize = 1 << 20;

/// Returns a launch of each kernel that the table has.
fn launches() -> Vec<Launch> {
    let mut launches = Vec::new();
    for (op, dtype) in defined() {
        launches.extend(Stage::ALL.map(|stage| fold(stage, op, dtype, &[0], &[0], 1, 1).unwrap()));
        launches.push(along(op, dtype, 0, 0, [1, 1, 1]).unwrap());
        launches.push(tree(op, dtype, 0, 0, [1, 1, 1]).unwrap());
    }
    for &dtype in DType::ALL {
        launches.extend(scale(dtype, 0, 0, 1, 1.0));
        launches.extend(sum_rows(dtype, 0, 0, Rows { order: 0, starts: 0, places: None, groups: 1, width: 1 }));
        launches.push(cast(dtype, dtype, 0, 0, 1).unwrap());
        launches.push(compare(dtype, 0, 0, 1, 0).unwrap());
        launches.push(fill(dtype, 0, 1, 0).unwrap());
        launches.extend(concat(dtype, 1, &[(0, 1)], 0).unwrap());
    }
    launches.extend(concat(DType::U8, 1, &[(0, 16)], 0).unwrap());
    launches
}

#[test]
fn the_table_names_each_kernel_of_the_modules_and_no_other() {
    let (mut named, mut shipped) = (BTreeSet::new(), BTreeSet::new());
    for launch in launches() {
        let module = modules().into_iter().find(|module| module.ptx == launch.kernel.module).unwrap();
        named.insert((module.name, launch.kernel.name.to_owned()));
    }
    for module in modules() {
        let parsed = Module::parse(module.ptx).unwrap_or_else(|error| panic!("{}: {error}", module.name));
        shipped.extend(parsed.kernels().map(|kernel| (module.name, kernel.to_owned())));
    }
    let missing: Vec<_> = named.difference(&shipped).collect();
    let unused: Vec<_> = shipped.difference(&named).collect();
    assert!(missing.is_empty() && unused.is_empty(), "not in a module: {missing:?}; not in the table: {unused:?}");
    println!("{} kernels in {} modules", shipped.len(), modules().len());
}

#[test]
fn a_launch_has_the_bytes_of_the_parameter() {
    for launch in launches() {
        let parsed = Module::parse(launch.kernel.module).unwrap();
        let parameters = parsed.parameters(launch.kernel.name).unwrap();
        let bytes: Vec<usize> = parameters.iter().map(|parameter| parameter.bytes).collect();
        assert_eq!(bytes, [launch.parameters.len()], "{:?}", launch.kernel);
    }
}

#[test]
fn the_modules_are_small_and_load_on_old_drivers() {
    let bytes: usize = modules().iter().map(|module| module.ptx.len()).sum();
    assert!(bytes < MOST_BYTES, "{bytes} bytes of PTX");
    for module in modules() {
        // The version of CUDA 12.0 (driver 525), and the oldest architecture that CUDA 13 knows.
        assert!(module.ptx.contains(".version 8.0\n.target sm_75\n"), "{}", module.name);
    }
    println!("{bytes} bytes of PTX");
}

#[test]
fn invalid_arguments_of_a_launch_are_refused() {
    use consonance_kernels::cuda::kernels::{MOST, Unsupported, reduce};
    use consonance_spec::ReduceOp::{Sum, Xor};
    let refused = |launch: Result<Launch, Unsupported>| launch.expect_err("no launch");
    let number = |what, expected, found| Unsupported::Number { what, expected, found };
    assert_eq!(
        refused(reduce(Sum, DType::Bool, &[0], &[0], 1)),
        Unsupported::Undefined { op: Sum, dtype: DType::Bool }
    );
    assert_eq!(refused(reduce(Xor, DType::F32, &[0], &[0], 1)), Unsupported::Undefined { op: Xor, dtype: DType::F32 });
    assert_eq!(refused(reduce(Sum, DType::F32, &[], &[0], 1)), number("sources", 1..=16, 0));
    assert_eq!(refused(reduce(Sum, DType::F32, &[0; MOST + 1], &[0], 1)), number("sources", 1..=16, 17));
    assert_eq!(
        refused(reduce(Sum, DType::F32, &[4, 6], &[0], 1)),
        Unsupported::Unaligned { what: "sources", address: 6, bytes: 4 }
    );
    assert_eq!(refused(scale(DType::I8, 0, 0, 1, 2.0)), Unsupported::Type { what: "scaling", dtype: DType::I8 });
    assert_eq!(refused(along(Sum, DType::F32, 0, 0, [1, 0, 1])), number("elements along the axis", 1..=u64::MAX, 0));
    assert_eq!(refused(along(Sum, DType::F32, 0, 0, [1 << 40, 1 << 20, 1 << 20])), Unsupported::TooLarge);
}
