//! The guide's tables of collectives and of static shapes are the spec's.

use consonance_spec::{
    Kind, Work,
    call::{Counts, Extent, Flow},
    static_shapes::{RULES, Rule},
    traffic::{Data, Position},
};

const GUIDE: &str = include_str!("../src/guide/collectives.md");

/// Returns the row of a collective.
fn row(kind: Kind) -> String {
    let (sends, receives) = match kind.flow() {
        Flow::Control => ("", ""),
        Flow::FromRoot => ("the root", "all"),
        Flow::ToRoot => ("all", "the root"),
        Flow::Everyone => ("all", "all"),
        Flow::Pair => ("one rank", "another"),
    };
    let result = match (kind.flow(), kind.work(), kind.extent()) {
        (Flow::Control, _, _) => "",
        (_, Work::Combines, Extent::Whole) => "the reduction",
        (_, Work::Combines, Extent::Parts) => "its block of the reduction",
        (Flow::FromRoot, _, Extent::Parts) => "its part",
        (_, Work::Moves, Extent::Parts) => "a part of each rank's",
        (Flow::FromRoot | Flow::Pair, Work::Moves, Extent::Whole) => "the data",
        (Flow::ToRoot | Flow::Everyone, Work::Moves, Extent::Whole) => "the data of all, in rank order",
    };
    let counts = match kind.counts() {
        Counts::Equal => "",
        Counts::EachRank => "`_v`: a count for each rank",
        Counts::EachPair => "`_v`: a count from each rank to each",
    };
    let factors = [2, 4, 8].map(|ranks| format!("{:.2}", kind.bus_factor(ranks))).join(", ");
    let least = [2, 4, 8].map(|ranks| format!("{:.2}", least(kind, ranks))).join(", ");
    let adjoint = kind.adjoint().map_or_else(String::new, |adjoint| format!("`{adjoint}`"));
    format!("| `{kind}` | {sends} | {receives} | {result} | {counts} | {factors} | {least} | {adjoint} |\n")
}

/// Returns the elements that the busiest rank must move for each element of the larger buffer, with
/// even parts.
fn least(kind: Kind, ranks: usize) -> f64 {
    let data = |place| Data { kind, ranks, place, whole: 8 * ranks, own: 8, in_place: false };
    let moved = [Position::Root, Position::Receiver, Position::Other].map(|place| data(place).least());
    moved.into_iter().max().unwrap_or(0) as f64 / (8 * ranks) as f64
}

#[test]
fn the_table_of_collectives_is_the_spec_s() {
    let moves_data = |kind: &&Kind| kind.flow() != Flow::Control;
    let table: String = Kind::ALL.iter().filter(moves_data).map(|&kind| row(kind)).collect();
    assert!(GUIDE.contains(&table), "the guide needs these rows:\n{table}");
}

#[test]
fn the_table_of_static_shapes_is_the_spec_s() {
    let row = |rule: &Rule| format!("| {} | {} | {} | {} |\n", rule.name, rule.calls, rule.sentence, rule.source);
    let table: String = RULES.iter().map(row).collect();
    let guide = include_str!("../src/guide/strategies.md");
    assert!(guide.contains(&table), "the guide needs these rows:\n{table}");
}
