//! Writes inputs of fuzz targets that begin with none: `seeds FOLDER TARGET...` puts those of each
//! target into `FOLDER/TARGET`.
//!
//! They are many. The fuzzer chooses those that are checked in: see CONTRIBUTING.md.

use consonance_harness::seeds::seeds;
use std::{env, error::Error, fs, path::Path};

/// As many as the fuzzer tries in a few seconds.
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
