//! Groups of real processes with every kind of fault. This test program starts itself again for
//! each process.
#![cfg(target_os = "linux")]

#[path = "../fields/mod.rs"]
mod fields;
mod driver;
mod calls;
mod crowds;
mod ends;
mod numbers;
mod stops;
mod kills;
mod alloc;
mod ids;
mod messages;
mod leavers;
mod chains;
mod forks;
mod limits;
#[cfg(debug_assertions)]
mod corrupt_peer;
mod reforms;
mod servers;
mod losses;
mod datasets;
#[cfg(feature = "checkpoint")]
mod recoveries;
mod costs;
mod measures;

use driver::Part;

/// The parts of processes, by name. Each function documents the words after the name.
const PARTS: &[(&str, Part)] = &[
    ("mixed", crowds::mixed),
    ("meets", ends::meets),
    ("leaves", ends::leaves),
    ("exits_after_an_abort", ends::exits_after_an_abort),
    ("disagrees", ends::disagrees),
    ("goes_on", ends::goes_on),
    ("many_calls", stops::many_calls),
    ("calls_until_told", stops::calls_until_told),
    ("random_calls", kills::random_calls),
    ("merges", kills::merges),
    ("doubles", alloc::doubles),
    ("survives", leavers::survives),
    ("chains", chains::chains),
    ("barriers", chains::barriers),
    ("forks", forks::forks),
    ("forks_between_runs", forks::forks_between_runs),
    ("limited", limits::limited),
    ("threadless", limits::threadless),
    ("teamless", limits::teamless),
    ("closes", limits::closes),
    ("memoryless", limits::memoryless),
    #[cfg(debug_assertions)]
    ("corrupts", corrupt_peer::corrupts),
    ("obeys", reforms::obeys),
    ("serves", servers::serves),
    ("loses_much", losses::loses_much),
    ("takes", datasets::takes),
    #[cfg(feature = "checkpoint")]
    ("recovers", recoveries::recovers),
    ("exchanges", messages::exchanges),
    ("waits_for_messages", messages::waits_for_messages),
    ("by_ids", ids::by_ids),
    ("waits", costs::waits),
    ("rests", costs::rests),
    ("names", costs::names),
    ("keeps", costs::keeps),
    ("measures", measures::measures),
    ("has_chosen", measures::has_chosen),
];

/// Not a test: the entry point of the started processes.
#[test]
fn process() {
    driver::play(PARTS);
}
