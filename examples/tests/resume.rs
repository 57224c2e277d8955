//! The example's training, interrupted and resumed from its checkpoint, ends with the same bits as
//! one without a break.

#[path = "../digits/data.rs"]
mod data;
#[expect(dead_code, reason = "the example shows how much is read right")]
#[path = "../digits/network.rs"]
mod network;
#[path = "../digits/plan.rs"]
mod plan;
#[path = "../digits/state.rs"]
mod state;
#[expect(dead_code, reason = "the example shows more of an epoch than its number")]
#[path = "../digits/train.rs"]
mod train;

use consonance::{CentralStorageStrategy, MirroredStrategy, OneDeviceStrategy, Result, Strategy};
use data::Digits;
use plan::Plan;
use std::{env, fs, process};
use train::train;

fn plan(epochs: usize) -> Plan {
    Plan { sizes: vec![64, 12, 10], epochs, batch: 30, learning_rate: 0.1, seed: 5 }
}

#[test]
fn interrupted_training_ends_with_the_same_bits() -> Result<()> {
    let digits = Digits::load(5);
    let path = env::temp_dir().join(format!("consonance-resume-{}", process::id()));
    let (one, three) = (OneDeviceStrategy::new("cpu:0")?, MirroredStrategy::new(["cpu:0", "cpu:1", "cpu:2"])?);
    let central = CentralStorageStrategy::new(["cpu:0", "cpu:1", "cpu:2"], "cpu:0")?;
    let grains = |replicas: usize| {
        let devices = (0..replicas).map(|replica| format!("cpu:{replica}"));
        MirroredStrategy::builder(devices).grains(4).build()
    };
    let (one_of_four, three_of_four) = (grains(1)?, grains(3)?);
    // The strategy may change at the break. The number of grains must not: it divides the batches.
    // Without grains it is the number of replicas.
    let breaks: [(&Strategy, &Strategy); 4] =
        [(&one, &one), (&three, &three), (&three, &central), (&one_of_four, &three_of_four)];
    for (before, after) in breaks {
        let whole = train(before, &digits, &plan(4), None, |_| ())?;
        for epochs in 1..=4 {
            let mut seen = Vec::new();
            let partial = train(before, &digits, &plan(epochs), Some(&path), |epoch| seen.push(epoch.number))?;
            assert_eq!(partial == whole, epochs == 4, "each epoch changes the weights");
            let resumed = train(after, &digits, &plan(4), Some(&path), |epoch| seen.push(epoch.number))?;
            assert_eq!((resumed, &seen[..]), (whole, &[1, 2, 3, 4][..]), "broken off after {epochs}");
            fs::remove_file(&path).expect("the checkpoint");
        }
    }
    train(&three, &digits, &plan(2), Some(&path), |_| ())?;
    for (strategy, plan, words) in [
        (&one as &Strategy, plan(4), "another training"),
        (&three_of_four, plan(4), "another training"),
        (&three, Plan { batch: 31, ..plan(4) }, "another training"),
        (&three, Plan { sizes: vec![64, 13, 10], ..plan(4) }, "f32[64, 13]"),
        (&three, plan(1), "of epoch 2, after the last of 1"),
    ] {
        let error = train(strategy, &digits, &plan, Some(&path), |_| ()).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    fs::remove_file(&path).expect("the checkpoint");
    Ok(())
}
