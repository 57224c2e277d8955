//! Computing on CUDA devices, by the functions of NVIDIA's driver alone. The driver is loaded at
//! run time, so that programs build and run where there is none: its absence is a value,
//! [`Absent`].
//!
//! There are three floors:
//!
//! * [`sys`] declares the driver's functions and loads them.
//! * `result` calls them. Every code of the driver becomes a [`Result`] there.
//! * `safe` has what other code uses: [`Driver`], [`Device`], [`Context`], [`DeviceMemory`],
//!   [`PinnedMemory`], [`Module`], [`Stream`], [`Event`], and [`Kernels`], which launches.
//!
//! [`kernels`] has the table of kernels, whose PTX is compiled ahead and embedded. A launch is a
//! value: the kernel, its geometry and the bytes of its parameters. Making one needs no driver.
//!
//! No wait is without a bound, and no `Drop` waits for the device's work. What the work may still
//! use when it is dropped is kept by the [`Context`], until the work has ended.

pub mod kernels;
pub mod sys;
mod result;
mod safe;

pub use result::DriverError;
pub use safe::{
    Absent, Access, CallerStream, Compiled, Context, Device, DeviceMemory, DeviceSlice, Driver, Event, Failure, Fold,
    Found, Function, Gpu, INTERPRETER, InFlight, Kernels, LoadError, Module, PinnedMemory, Stream, Uuid,
};
