//! Groups of real processes, and each fault that they may have: this test program starts itself again for each of them.
#![cfg(target_os = "linux")]

mod driver;
mod calls;
mod crowds;
mod ends;
mod numbers;
mod stops;
mod kills;
mod forks;
mod limits;
mod lies;
mod reforms;
mod costs;

use driver::Part;

/// What processes do, by name; what the words after the name mean says the function.
const PARTS: &[(&str, Part)] = &[
    ("mixed", crowds::mixed),
    ("meets", ends::meets),
    ("leaves", ends::leaves),
    ("disagrees", ends::disagrees),
    ("many_calls", stops::many_calls),
    ("random_calls", kills::random_calls),
    ("merges", kills::merges),
    ("forks", forks::forks),
    ("forks_between_runs", forks::forks_between_runs),
    ("limited", limits::limited),
    ("threadless", limits::threadless),
    ("teamless", limits::teamless),
    ("closes", limits::closes),
    ("memoryless", limits::memoryless),
    ("scribbles", lies::scribbles),
    ("obeys", reforms::obeys),
    ("waits", costs::waits),
    ("rests", costs::rests),
    ("names", costs::names),
];

/// Not a test: what the started processes run.
#[test]
fn process() {
    driver::play(PARTS);
}
