//! UCX, which carries the data of groups of several hosts. It is loaded as a program loads it, in a
//! process of its own, which is ended if the library hangs.

use super::{
    engines::Loader,
    row::{Row, Section, Verdict},
};
use crate::{executable, subprocess::Program};
use consonance_kernels::wire::{Absent, Kind, Wire, places_of_ucx};
use serde_json::{Value, json};
use std::{
    env,
    time::{Duration, Instant},
};

/// The time that UCX has to start.
const UCX: Duration = Duration::from_secs(10);

/// A way without UCX.
const MPI: &str = "processes that the launcher of an MPI has started can use that MPI instead (CONSONANCE_WIRE=mpi)";

/// Returns what a program of several hosts finds, as a JSON object.
pub fn loaded() -> Value {
    let interface = env::var("CONSONANCE_INTERFACE").ok().filter(|interface| !interface.is_empty());
    match Wire::open_first(&[Kind::Ucx], interface.as_deref(), UCX) {
        Ok(wire) => {
            let [major, minor, release] = wire.version();
            json!({
                "library": wire.library(), "version": format!("{major}.{minor}.{release}"),
                "transports": wire.transports().unwrap_or_default(),
            })
        }
        Err(Absent { looked, .. }) => json!({ "looked": looked }),
    }
}

/// Returns the row of UCX.
pub(super) fn row(loader: &Loader) -> Row {
    let answer = ask().unwrap_or_else(|why| json!({ "looked": [["UCX", format!("it does not start: {why}")]] }));
    let path = answer["library"].as_str().map(|name| match loader.find(name) {
        // The loader has found it by its name.
        Some(path) if !name.contains('/') => path.display().to_string(),
        _ => name.to_owned(),
    });
    let facts = json!({
        "engine_built": true, "path": path, "version": answer["version"], "transports": answer["transports"],
        "looked": answer["looked"], "looked_in": places_of_ucx(),
    });
    let row = |state, finding| Row::new(Section::Hosts, "UCX", state, finding).facts(facts);
    match path {
        Some(path) => {
            let words = |key: &str| answer[key].as_str().unwrap_or_default().to_owned();
            let mut transports: Vec<&str> =
                answer["transports"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            transports.dedup();
            row(Verdict::Found, format!("{path}, version {}; transports: {}", words("version"), transports.join(", ")))
        }
        None => {
            let looked = answer["looked"].as_array().into_iter().flatten();
            let words = looked.filter_map(|pair| Some(format!("{}: {}", pair[0].as_str()?, pair[1].as_str()?)));
            row(Verdict::Absent, words.collect::<Vec<_>>().join("; ")).advice(format!("{}; {MPI}", Absent::REMEDY))
        }
    }
}

/// Loads UCX in another process.
fn ask() -> Result<Value, String> {
    let mut command = executable::command().map_err(|error| error.to_string())?;
    command.arg("doctor-ucx");
    let program = Program::start(command).map_err(|error| error.to_string())?;
    match program.finish(Instant::now() + UCX)? {
        (true, text) => serde_json::from_str(text.trim()).map_err(|error| format!("{error}: {text}")),
        (false, text) => Err(text.lines().last().unwrap_or("its process ended without a word").to_owned()),
    }
}
