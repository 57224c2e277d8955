//! `consonance gpu-check`.

use super::number;
use crate::{
    bench::rivals::pythons::pythons,
    gpu_check::{Check, Plan},
};
use indicatif::{ProgressBar, ProgressStyle};
use std::{num::NonZeroUsize, path::PathBuf};

/// Check that a GPU computes the same bits as the processor, and measure how fast it does.
///
/// Needs NVIDIA's driver, and nothing else: the kernels are in this program. Loads the driver's
/// library libcuda.so.1, or the one that the environment variable CONSONANCE_CUDA_DRIVER names.
///
/// First runs reductions of every element type and operation, of 1 to 9 inputs, with lengths at the
/// edges of a vector, a warp, a block and a grid, in place and apart, aligned and not, and compares
/// every bit with the processor's results. Then reduces 2, 4 and 8 inputs of 1 MiB to 1 GiB, as far
/// as the device's memory allows, in turn with copies on the device. `ratio` is the part of the
/// copies' bandwidth that a reduction reaches. Where a python has torch with CUDA, the last columns
/// are the times of torch.stack(inputs).sum(0), of additions in place, and of torch._foreach_add_.
///
/// The status is 0 if the driver and the device are there and all bits are the same, and 1
/// otherwise.
#[derive(clap::Args)]
pub(crate) struct GpuCheck {
    /// Number of the device
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = number::<usize>(0..=usize::MAX))]
    device: usize,
    /// Compare bits only, and measure nothing
    #[arg(long)]
    bits_only: bool,
    /// Leave out cases of more elements than this
    #[arg(long, value_name = "N", default_value_t = usize::MAX, hide_default_value = true,
        value_parser = number::<usize>(0..=usize::MAX))]
    elements: usize,
    /// Compare only each K-th case
    #[arg(long, value_name = "K", default_value = "1", value_parser = number::<NonZeroUsize>(1..=usize::MAX))]
    every: NonZeroUsize,
    /// Seed of the data
    #[arg(long, value_name = "S", default_value_t = 1, value_parser = number::<u64>(0..=usize::MAX))]
    seed: u64,
    /// Look for torch in this python, too, before those in PATH
    #[arg(long, value_name = "PATH")]
    python: Vec<PathBuf>,
    /// Write the report as a JSON object
    #[arg(long)]
    json: bool,
}

/// The hidden subcommand with which the doctor looks for the driver. A driver that hangs then hangs
/// a process that can be ended.
#[derive(clap::Args)]
pub(crate) struct DoctorGpu {}

impl GpuCheck {
    /// Writes the report to standard output, and returns the exit status of the command.
    pub(crate) fn run(&self) -> i32 {
        let GpuCheck { device, bits_only, elements, every, seed, .. } = *self;
        let pythons = if bits_only { Vec::new() } else { pythons(&self.python) };
        let plan = Plan { device, bits_only, elements, every, seed, pythons };
        let style = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} {eta}");
        let bar = ProgressBar::new(0).with_style(style.expect("a template that is right"));
        let report = Check::begin(plan).and_then(|check| {
            check.run(|what, done, all| {
                bar.set_message(what.to_owned());
                bar.set_length(all as u64);
                bar.set_position(done as u64);
            })
        });
        bar.finish_and_clear();
        match report {
            Ok(report) => {
                if self.json {
                    println!("{:#}", report.json());
                } else {
                    print!("{report}");
                }
                i32::from(!report.agrees())
            }
            Err(why) => {
                eprintln!("consonance: {why}");
                1
            }
        }
    }
}

impl DoctorGpu {
    /// Writes what there is as a JSON object, and returns the exit status of the command.
    pub(crate) fn run(&self) -> i32 {
        println!("{}", crate::gpu_check::found());
        0
    }
}
