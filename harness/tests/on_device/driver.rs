//! Processes of tests on a driver, and their strategies and elements.

use consonance::{DType, Device, MirroredStrategy, Strategy, Tensor, raw::HostMemory};
use consonance_spec::for_each_dtype;
use std::{env, ffi::OsStr, process::Command};

const DRIVER: &str = "CONSONANCE_CUDA_DRIVER";
const PLAN: &str = "CONSONANCE_FAKE_DRIVER";

/// The plan of a test without a driver.
pub(crate) const ABSENT: &str = "absent";

/// Runs `work`: in a process of the test of this path, on the driver for tests with this plan. On
/// another driver a test with a plan does nothing.
pub(crate) fn on_a_driver(test: &str, plan: &str, work: fn()) {
    on_a_driver_with(test, plan, &[], work);
}

/// As [`on_a_driver`], in a process with these variables.
pub(crate) fn on_a_driver_with(test: &str, plan: &str, variables: &[(&str, &OsStr)], work: fn()) {
    if env::var_os(DRIVER).is_some() {
        let is_planned = env::var(PLAN).unwrap_or_default() == plan;
        return if is_planned { work() } else { println!("{test} needs the driver for tests") };
    }
    let this = env::current_exe().expect("the path of this test");
    let folder = this.parent().expect("a folder");
    let driver = folder.join(if plan == ABSENT { ABSENT } else { "libconsonance_fake_driver.so" });
    let mut process = Command::new(&this);
    process.args(["--exact", test, "--nocapture"]).env(DRIVER, driver).env(PLAN, plan).envs(variables.iter().copied());
    let output = process.output().expect("the process of a test");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success() && stdout.contains("1 passed"), "{stdout}{stderr}");
}

/// Moves the tensor of a replica to its device.
pub(crate) fn there(tensor: &Tensor, device: Device) -> Tensor {
    tensor.to(device).expect("a device with memory")
}

/// Returns a strategy of this many replicas that share GPU 0.
pub(crate) fn sharing(replicas: usize) -> Strategy {
    let devices = (0..replicas).map(|logical| Device::Cuda { gpu: 0, logical });
    MirroredStrategy::new(devices).expect("a GPU").into()
}

pub(crate) fn on_cpus(replicas: usize) -> Strategy {
    MirroredStrategy::new((0..replicas).map(Device::Cpu)).expect("processors").into()
}

/// Returns elements of any bits. Those of `bool` are valid.
pub(crate) fn any_elements(dtype: DType, count: usize, seed: usize) -> Tensor {
    let mut memory = HostMemory::zeroed(dtype, count);
    let mut state = seed as u64 + 1;
    let bytes: Vec<u8> = (0..count * dtype.size())
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        })
        .collect();
    memory.as_buf_mut().copy_from_bytes(&bytes);
    Tensor::from_memory(vec![count], memory).expect("the shape of the elements")
}

/// Returns the elements in digits that tell all bits apart, but for those of a NaN.
pub(crate) fn digits(tensors: &[Tensor]) -> Vec<String> {
    let digits = |tensor: &Tensor| {
        macro_rules! digits {
            ($({ type: $type:ty, variant: $variant:ident, $($more:tt)* })*) => {
                match tensor.dtype() {
                    $(DType::$variant => format!("{} {:?}", tensor.dtype(), tensor.as_slice::<$type>()),)*
                }
            };
        }
        for_each_dtype!(digits)
    };
    tensors.iter().map(digits).collect()
}
