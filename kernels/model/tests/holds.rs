//! Every scenario holds in every interleaving.
//!
//! Each is checked in a process of its own. The model maps and unmaps a stack for each thread of
//! each run, and in a process of many threads the kernel would stop all of them for that.

use consonance_model::scenario;
use std::{
    env,
    process::Command,
    sync::Mutex,
    thread::{self, available_parallelism},
};

/// The name of the scenario that a process checks.
const SCENARIO: &str = "CONSONANCE_MODEL_SCENARIO";

#[test]
fn every_scenario_holds() {
    if let Ok(name) = env::var(SCENARIO) {
        match scenario::named(&name).check(None) {
            Ok(runs) => assert!(runs > 1, "{name}: there is only one way to run it"),
            Err(failure) => panic!("{name}: {failure}"),
        }
        return;
    }
    let (rest, failures) = (Mutex::new(scenario::ALL.iter()), Mutex::new(Vec::new()));
    let check_rest = || {
        while let Some(scenario) = { rest.lock().expect("no panic").next() } {
            let mut command = Command::new(env::current_exe().expect("this program"));
            command.args(["--exact", "every_scenario_holds"]).env(SCENARIO, scenario.name);
            let output = command.output().expect("this program runs");
            if !output.status.success() {
                let text = [output.stdout, output.stderr].concat();
                failures.lock().expect("no panic").push(String::from_utf8_lossy(&text).into_owned());
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..available_parallelism().map_or(1, usize::from) {
            scope.spawn(check_rest);
        }
    });
    let failures = failures.into_inner().expect("no panic");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
