//! The command `consonance`.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    consonance_cli::main(std::env::args_os())
}
