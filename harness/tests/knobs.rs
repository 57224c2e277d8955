//! Results do not depend on any knob: the suites of random calls, and calls of sizes at which
//! protocols change, with random values of all knobs. Each is checked with the spec, bit for bit.

mod law;

use consonance::Implementation;
use consonance_harness::{
    cases::{Collective, Counts, Memory, Runs, Script},
    compare::{self, check, check_case},
    subjects::{GROUPS, Group, STRATEGIES},
};
use consonance_kernels::{
    digest::mix,
    tuning::{Knob, Origin, Pipeline, Tuning, Value, Way, adopt},
};
use consonance_spec::{DType, Kind, ReduceOp};
use law::check_law;
use std::env;

/// Values of all knobs that are tried in a run.
const ROUNDS: u64 = 10;

/// No call of these tests has more bytes.
const MOST_BYTES: usize = 1 << 22;

/// Returns the first seed: another one in each run of a long test.
fn first_seed() -> u64 {
    env::var("CONSONANCE_KNOBS_SEED").ok().map_or(0, |text| text.parse().expect("a number"))
}

/// Returns a random value of each knob. Half of them are the defaults, since some values hide the
/// effect of others.
fn random(seed: u64) -> Tuning {
    let mut tuning = Tuning::DEFAULT;
    for (index, knob) in Tuning::KNOBS.iter().enumerate() {
        let words = [0, 1, 2].map(|word| mix(mix(seed, index as u64), word));
        if words[0] % 2 == 0 {
            tuning.set(knob, value(knob, &tuning, words[1], words[2])).expect("an allowed value");
        }
    }
    tuning
}

fn value(knob: &Knob, tuning: &Tuning, one: u64, other: u64) -> Value {
    match tuning.get(knob) {
        Value::Way(_) => Value::Way(Way::ALL[one as usize % Way::ALL.len()]),
        Value::Pipeline(_) => Value::Pipeline(Pipeline::ALL[one as usize % Pipeline::ALL.len()]),
        Value::Bytes(_) => {
            // About as many small as large ones.
            let (least, most) = (*knob.limits.start(), (*knob.limits.end()).min(MOST_BYTES));
            let bytes = (other as usize % MOST_BYTES) >> (one % 22);
            Value::Bytes((bytes.clamp(least, most) / knob.unit * knob.unit).max(least))
        }
    }
}

/// Makes the calls whose ranks have `count` elements each.
fn check_count(group: Group, size: usize, count: usize, memory: Memory) {
    let call = |kind, in_place, runs| {
        let is_divided = matches!(kind, Kind::ReduceScatter | Kind::AllToAll);
        let counts = Counts::Even(if is_divided { count / size } else { count });
        let offset = if memory == Memory::Own { 3 } else { 0 };
        let (dtype, op) = (DType::F64, ReduceOp::Sum);
        Collective { kind, dtype, op, counts, runs, root: 1, in_place, memory, offset, seed: 3 }
    };
    let kinds = [
        Kind::AllReduce,
        Kind::ReduceScatter,
        Kind::AllToAll,
        Kind::Reduce,
        Kind::Broadcast,
        Kind::AllGather,
        Kind::Gather,
        Kind::Scatter,
    ];
    let plain = kinds.iter().flat_map(|&kind| [call(kind, true, None), call(kind, false, None)]);
    // Ranks have one leaf, two and none.
    let lengths: Vec<usize> = (0..size).map(|rank| (rank + 1) % 3).collect();
    let reductions = kinds.iter().filter(|kind| kind.combines());
    let leaves = reductions.map(|&kind| call(kind, true, Some(Runs::of_lengths(&lengths))));
    let calls = plain.chain(leaves).collect();
    let script = Script { size, asynchronous: false, implementation: Implementation::Auto, calls };
    check_case(group, &script, compare::script).unwrap();
}

#[test]
fn random_calls_have_the_same_bits_with_random_knobs() {
    for seed in (0..ROUNDS).map(|round| first_seed() + round) {
        let tuning = random(seed);
        println!("knobs of seed {seed}: {tuning:?}");
        adopt(&tuning, Origin::File);
        compare::forget();
        check_law(60, |bytes| check(&bytes.0, &GROUPS, compare::script));
        check_law(20, |bytes| check(&bytes.0, &GROUPS, compare::messages));
        check_law(10, |bytes| check(&bytes.0, &GROUPS, compare::rank_deviation));
        check_law(20, |bytes| check(&bytes.0, STRATEGIES, compare::nest));
        check_law(20, |bytes| check(&bytes.0, STRATEGIES, compare::axes));
        check_law(10, |bytes| check(&bytes.0, STRATEGIES, compare::replica_deviation));
        for (at, &group) in GROUPS.iter().enumerate() {
            let size = 2 + (seed as usize + at) % 3;
            let Some(topology) = (group.make)(size)[0].communicator.topology(None) else { continue };
            let borders: Vec<usize> = topology.borders().into_iter().filter(|&bytes| bytes <= 256 << 10).collect();
            for place in 0..4 {
                let border = borders[mix(seed, place + 100) as usize % borders.len()] / DType::F64.size();
                for count in [border, border + 1] {
                    check_count(group, size, count, if place % 2 == 0 { Memory::Own } else { Memory::Mixed(seed) });
                }
            }
        }
    }
}

#[test]
fn random_knobs_differ() {
    let all: Vec<Tuning> = (0..20).map(random).collect();
    for knob in Tuning::KNOBS {
        let values: Vec<String> = all.iter().map(|tuning| tuning.get(knob).to_string()).collect();
        assert!(values.iter().any(|value| *value != values[0]), "{}", knob.name);
    }
}
