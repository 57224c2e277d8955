//! Runs the initial inputs of the fuzz targets as ordinary tests. All of them must pass.
#![cfg(target_os = "linux")]

use consonance_harness::{
    compare::{self, Verdict, check},
    corruption,
    cuda::fuzzed,
    external_input, network_input,
    seeds::seeds,
    subjects::{GROUPS, STRATEGIES},
};
use std::{
    fs,
    path::Path,
    sync::{Mutex, PoisonError},
};

fn text(judge: fn(&str) -> Verdict, bytes: &[u8]) -> Verdict {
    std::str::from_utf8(bytes).map_or(Ok(()), judge)
}

/// The name of a target, and its judge of an input.
type Target = (&'static str, fn(&[u8]) -> Verdict);

const TARGETS: &[Target] = &[
    ("axes", |bytes| check(bytes, STRATEGIES, compare::axes)),
    ("checkpoints", compare::checkpoint),
    ("collectives", |bytes| check(bytes, &GROUPS, compare::script)),
    ("control", external_input::control),
    ("cuda", fuzzed),
    ("files", compare::file),
    ("formation", external_input::formation),
    ("hosts", network_input::hosts),
    ("corrupted_memory", corruption::corrupted_memory),
    ("messages", |bytes| check(bytes, &GROUPS, compare::messages)),
    ("nests", |bytes| check(bytes, STRATEGIES, compare::nest)),
    ("rank_deviation", |bytes| check(bytes, &GROUPS, compare::rank_deviation)),
    ("replica_deviation", |bytes| check(bytes, STRATEGIES, compare::replica_deviation)),
    ("segment", external_input::segment),
    ("slurm", |bytes| text(external_input::slurm, bytes)),
    ("tf_config", |bytes| text(external_input::tf_config, bytes)),
    ("trace", corruption::trace),
    ("call_codes", external_input::call_codes),
];

/// Admits one test at a time: `corrupted_memory` and `trace` recognise their group's segment as the
/// only new segment of the process.
static ALONE: Mutex<()> = Mutex::new(());

#[test]
fn inputs_in_the_repository_pass() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for (name, judge) in TARGETS {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds").join(name);
        let mut count = 0;
        for entry in fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
            let path = entry.unwrap().path();
            judge(&fs::read(&path).unwrap()).unwrap_or_else(|wrong| panic!("{}: {wrong}", path.display()));
            count += 1;
        }
        assert!(count > 0, "{name} begins with nothing");
    }
}

#[test]
fn generated_inputs_pass() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for (name, judge) in TARGETS {
        let inputs = seeds(name, 20).expect("a target");
        assert!(inputs.len() > 2, "{name}: {} inputs", inputs.len());
        inputs.iter().for_each(|input| judge(input).unwrap_or_else(|wrong| panic!("{name}: {wrong}")));
    }
    assert_eq!(seeds("another", 1), None);
}
