//! Says that the tests of the Python package were skipped, or runs them.

use std::{
    env,
    process::{Command, ExitCode},
};

fn main() -> ExitCode {
    let test = concat!(env!("CARGO_MANIFEST_DIR"), "/test");
    if env::var_os("CONSONANCE_PYTHON").is_none() {
        println!("skipped: the tests of the Python package and of PyTorch's backend; CONSONANCE_PYTHON=1 runs {test}");
        return ExitCode::SUCCESS;
    }
    let done = Command::new(test).status().expect("a script beside this test");
    if done.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
