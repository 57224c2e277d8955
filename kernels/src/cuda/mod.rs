//! Computing on CUDA devices.
//!
//! [`kernels`] has the table of kernels, whose PTX is compiled ahead and embedded. A launch is a
//! value: the kernel, its geometry and the bytes of its parameters. Making one needs no driver.

pub mod kernels;
