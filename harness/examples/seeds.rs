//! Writes initial inputs of fuzz targets: `seeds FOLDER TARGET...` writes the inputs of each target
//! to `FOLDER/TARGET`.
//!
//! These are many inputs, of which the fuzzer chooses the ones to check in: see CONTRIBUTING.md.

use consonance_harness::seeds::seeds;
use std::{env, error::Error, fs, path::Path};

/// The number of inputs that the fuzzer tries in a few seconds.
const COUNT: u64 = 1000;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args().skip(1);
    let folder = arguments.next().ok_or("no folder")?;
    for target in arguments {
        let folder = Path::new(&folder).join(&target);
        fs::create_dir_all(&folder)?;
        let inputs = seeds(&target, COUNT).ok_or_else(|| format!("no target is called {target}"))?;
        for (number, input) in inputs.into_iter().enumerate() {
            fs::write(folder.join(format!("{number:04}")), input)?;
        }
    }
    Ok(())
}
