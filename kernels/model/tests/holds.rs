//! Every scenario holds in every interleaving.

use consonance_model::scenario;
use std::thread;

#[test]
fn every_scenario_holds() {
    let results = thread::scope(|scope| {
        let runs = scenario::ALL.map(|scenario| (scenario, scope.spawn(move || scenario.check(None))));
        runs.map(|(scenario, run)| (scenario.name, run.join().expect("a model that fails says so")))
    });
    for (name, result) in results {
        match result {
            Ok(runs) => assert!(runs > 1, "{name}: there is only one way to run it"),
            Err(failure) => panic!("{name}: {failure}"),
        }
    }
}
