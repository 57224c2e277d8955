//! `consonance gpu-check`: whether a GPU computes the bits that the processor computes, and how
//! fast. `bits.rs` compares, `speed.rs` measures, `torch.rs` measures PyTorch.

mod bits;
mod times;
mod speed;
mod torch;

pub use bits::Bits;
pub use speed::Row;
pub use torch::Torch;

use consonance_kernels::cuda::{Compiled, Context, Device, Driver};
use serde_json::{Value, json};
use std::{fmt, num::NonZeroUsize, path::PathBuf, time::Duration};

/// Upper bound on each wait for the device. No work of the check takes a tenth of it on a GPU. The
/// interpreter takes longer.
const PATIENCE: Duration = Duration::from_secs(60);

/// The plan of a check.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The number of the device.
    pub device: usize,
    /// Whether nothing is measured.
    pub bits_only: bool,
    /// The maximum number of elements of a case.
    pub elements: usize,
    /// Only each so many-th case is compared.
    pub every: NonZeroUsize,
    /// The seed of the data.
    pub seed: u64,
    /// The pythons that may have torch.
    pub pythons: Vec<PathBuf>,
}

/// A check of a device that was found.
#[derive(Debug)]
pub struct Check {
    plan: Plan,
    device: Device,
    context: Context,
}

/// The result of a check.
#[derive(Debug)]
pub struct Report {
    device: Device,
    bits: Bits,
    compiled: Vec<Compiled>,
    speed: Vec<Row>,
    /// PyTorch's times for the rows, or the reason why there are none. `None` if nothing was
    /// measured.
    torch: Option<Result<Torch, String>>,
}

impl Check {
    /// Finds the driver and the device.
    ///
    /// # Errors
    /// What is missing, and what to do about it.
    pub fn begin(plan: Plan) -> Result<Check, String> {
        let device =
            Driver::load().and_then(|driver| driver.device(plan.device)).map_err(|absent| absent.to_string())?;
        let context = Context::new(&device).map_err(|failure| failure.to_string())?;
        Ok(Check { plan, device, context })
    }

    /// Runs the check. Calls `progress` with what is done, how many steps of it were done, and how
    /// many there are.
    ///
    /// # Errors
    /// The device's, if the check cannot go on. Wrong bits are no error, but in the report.
    pub fn run(self, progress: impl Fn(&str, usize, usize)) -> Result<Report, String> {
        let Check { plan, device, context } = self;
        let (bits, compiled) = bits::compare(&context, &plan, |done, all| progress("bits", done, all))?;
        // The interpreter's times are no property of any device.
        if plan.bits_only || device.is_interpreter() {
            return Ok(Report { device, bits, compiled, speed: Vec::new(), torch: None });
        }
        let speed = speed::measure(&context, |done, all| progress("speed", done, all))?;
        // PyTorch needs the memory.
        drop(context);
        progress("PyTorch", 0, 1);
        let torch = Some(torch::measure(&plan.pythons, plan.device, &speed));
        Ok(Report { device, bits, compiled, speed, torch })
    }
}

impl Report {
    /// Whether all bits are the same.
    pub fn agrees(&self) -> bool {
        self.bits.wrong.is_empty() && self.speed.iter().all(|row| row.wrong == 0)
    }

    /// Returns the report as a JSON object.
    pub fn json(&self) -> Value {
        let compiled = self
            .compiled
            .iter()
            .map(|Compiled { name, time }| json!({ "module": name, "seconds": time.as_secs_f64() }));
        let torch = self.torch.as_ref().map(|torch| match torch {
            Ok(torch) => json!({ "version": torch.version, "python": torch.python.to_string_lossy() }),
            Err(why) => json!({ "absent": why }),
        });
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "agrees": self.agrees(),
            "driver": driver_json(self.device.driver()),
            "device": device_json(&self.device),
            "bits": { "cases": self.bits.cases, "wrong": self.bits.wrong },
            "compiled": compiled.collect::<Vec<_>>(),
            "speed": self.speed.iter().enumerate().map(|(index, row)| row.json(self.torch_row(index))).collect::<Vec<_>>(),
            "torch": torch,
        })
    }

    fn torch_row(&self, index: usize) -> Option<&times::Times> {
        self.torch.as_ref()?.as_ref().ok()?.rows.get(index)?.as_ref()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let device = &self.device;
        writeln!(f, "cuda:{}    {}", device.ordinal(), describe(device))?;
        writeln!(f, "driver    {}, CUDA {}", device.driver().path().display(), device.driver().version())?;
        let all: Duration = self.compiled.iter().map(|compiled| compiled.time).sum();
        write!(f, "compile   {} modules in {:.1} ms, each when first used", self.compiled.len(), ms(all))?;
        if let Some(longest) = self.compiled.iter().max_by_key(|compiled| compiled.time) {
            write!(f, "; the longest: {}, {:.1} ms", longest.name, ms(longest.time))?;
        }
        write!(f, "\n{}", self.bits)?;
        if !self.speed.is_empty() {
            writeln!(f, "\n{}", Row::HEADER)?;
            for (index, row) in self.speed.iter().enumerate() {
                writeln!(f, "{}", row.text(self.torch_row(index)))?;
            }
        }
        match &self.torch {
            Some(Ok(torch)) => writeln!(f, "PyTorch {} of {}", torch.version, torch.python.display())?,
            Some(Err(why)) => writeln!(f, "no PyTorch: {why}")?,
            None => {}
        }
        if device.is_interpreter() {
            writeln!(f, "This ran on the interpreter of the kernels' PTX, and on no GPU. Nothing was measured.")?;
        }
        Ok(())
    }
}

/// Returns what there is of CUDA, for the doctor: the driver and its devices, or what is absent.
pub(crate) fn found() -> Value {
    let driver = match Driver::load() {
        Ok(driver) => driver,
        Err(absent) => return json!({ "absent": absent.to_string() }),
    };
    let devices = (0..driver.device_count()).map(|ordinal| match driver.device(ordinal) {
        Ok(device) => device_json(&device),
        Err(absent) => json!({ "absent": absent.to_string() }),
    });
    let devices: Vec<Value> = devices.collect();
    json!({ "driver": driver_json(&driver), "devices": devices })
}

fn driver_json(driver: &Driver) -> Value {
    json!({ "path": driver.path().to_string_lossy(), "cuda_version": driver.version() })
}

fn device_json(device: &Device) -> Value {
    json!({
        "ordinal": device.ordinal(),
        "name": device.name(),
        "uuid": device.uuid().to_string(),
        "is_interpreter": device.is_interpreter(),
        "compute_capability": format!("{}.{}", device.capability().0, device.capability().1),
        "multiprocessors": device.multiprocessors(),
        "memory_bytes": device.memory_bytes(),
        "description": describe(device),
    })
}

/// Returns what a device is, in words.
fn describe(device: &Device) -> String {
    let (major, minor) = device.capability();
    let gib = device.memory_bytes() as f64 / f64::from(1 << 30);
    let (name, uuid, count) = (device.name(), device.uuid(), device.multiprocessors());
    format!("{name}, {uuid}, compute capability {major}.{minor}, {count} multiprocessors, {gib:.1} GiB")
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
