//! Variables on servers: saved whole, restored on other servers and under other strategies.

use super::{Folder, bits, mirrored, samples, zeros_like};
use crate::fields::{found, refusal};
use consonance::{
    ClusterCoordinator, Error, ParameterServerStrategy, Result, ShardedVariable, Tensor, TfConfigClusterResolver,
    checkpoint::{self, CheckpointManager, Saveable},
    parameter_server::{FixedShardsPartitioner, Order},
};
use std::{fs, num::NonZeroUsize, time::Duration};

const LIMIT: Duration = Duration::from_secs(60);

/// Returns a strategy of threads whose variables have so many shards.
fn servers(servers: usize, shards: usize, order: Order) -> ParameterServerStrategy {
    let builder = ParameterServerStrategy::builder_of_threads(2, servers).order(order);
    builder.partitioner(FixedShardsPartitioner::new(shards).unwrap()).build().unwrap()
}

fn scheduled(window: usize) -> Order {
    Order::Scheduled { window: NonZeroUsize::new(window).unwrap() }
}

/// Returns variables with these values.
fn variables(strategy: &ParameterServerStrategy, values: &[Tensor]) -> Vec<ShardedVariable> {
    values.iter().map(|value| strategy.variable(|| value.clone()).unwrap()).collect()
}

/// Returns the values, and some of several rows.
fn values() -> Vec<Tensor> {
    let rows = Tensor::new([7, 3], &(0..21).map(|element| 0.1 * element as f32 - 1.0).collect::<Vec<_>>()).unwrap();
    let numbers = Tensor::from((0..11).map(|element| i64::MAX - element).collect::<Vec<_>>());
    samples().into_iter().chain([rows, numbers]).collect()
}

#[test]
fn variables_are_restored_on_other_servers_and_under_another_strategy_and_back() {
    let folder = Folder::new("servers");
    let values = values();
    let names: Vec<String> = (0..values.len()).map(|number| format!("variable {number}")).collect();
    let zeros: Vec<Tensor> = values.iter().map(zeros_like).collect();
    let equal = |read: Vec<Tensor>| {
        for (read, value) in read.iter().zip(&values) {
            assert_eq!((read.shape(), bits(read)), (value.shape(), bits(value)));
        }
    };
    let first = servers(3, 3, Order::Arrival);
    let saved = variables(&first, &values);
    checkpoint::save(folder.path("servers"), names.iter().zip(&saved)).unwrap();
    for (server_count, shards, order) in [(1, 1, Order::Arrival), (2, 5, Order::Arrival), (4, 4, scheduled(3))] {
        let other = servers(server_count, shards, order);
        let restored = variables(&other, &zeros);
        checkpoint::restore(folder.path("servers"), names.iter().zip(&restored).rev()).unwrap();
        equal(restored.iter().map(|variable| variable.read().unwrap()).collect());
    }
    let mirrored = mirrored(2);
    let copies: Vec<_> = zeros.iter().map(|zero| mirrored.variable(|| zero.clone()).unwrap()).collect();
    checkpoint::restore(folder.path("servers"), names.iter().zip(&copies)).unwrap();
    equal(copies.iter().map(|variable| variable.read().unwrap()).collect());
    checkpoint::save(folder.path("mirrored"), names.iter().zip(&copies)).unwrap();
    let files = ["servers", "mirrored"].map(|name| fs::read(folder.path(name)).unwrap());
    assert!(files[0] == files[1], "the file does not depend on the strategy");
    let last = servers(2, 3, Order::Arrival);
    let restored = variables(&last, &zeros);
    checkpoint::restore(folder.path("mirrored"), names.iter().zip(&restored)).unwrap();
    equal(restored.iter().map(|variable| variable.read().unwrap()).collect());
}

/// In order of windows a save and a restore have their place among the closures.
#[test]
fn saves_and_restores_end_a_window() -> Result<()> {
    let folder = Folder::new("windows");
    let path = folder.path("saved");
    let strategy = servers(2, 2, scheduled(100));
    let table = strategy.variable(|| Tensor::from([0i64, 0, 0]))?;
    let coordinator = ClusterCoordinator::new(&strategy);
    let add = coordinator.function("add", {
        let table = table.clone();
        move |worker, number: i64| worker.assign_add(&table, &Tensor::from([number, 1, 0]))
    })?;
    for number in 1..=10 {
        coordinator.schedule(&add, number)?;
    }
    checkpoint::save(&path, [("table", &table)])?;
    for number in 0..10 {
        coordinator.schedule(&add, number)?;
    }
    checkpoint::restore(&path, [("table", &table)])?;
    coordinator.schedule(&add, 100)?;
    assert_eq!(table.read()?, Tensor::from([155i64, 11, 0]));
    coordinator.join(LIMIT).map(drop)
}

/// A file that is damaged, or does not fit, changes no variable of either kind.
#[test]
fn an_unfit_file_changes_no_variable() -> Result<()> {
    let folder = Folder::new("unfit");
    let path = folder.path("saved");
    let strategy = servers(2, 2, Order::Arrival);
    let [table, wider, integers] =
        [Tensor::from([1.0f32, 2.0, 3.0]), Tensor::from([1.0f32; 4]), Tensor::from([1i32, 2, 3])]
            .map(|value| strategy.variable(|| value));
    let (table, wider, integers) = (table?, wider?, integers?);
    let step = mirrored(2).variable(|| Tensor::from(7u64))?;
    checkpoint::save(&path, [("table", Saveable::from(&table)), ("step", Saveable::from(&step))])?;
    table.assign(&Tensor::from([4.0f32, 5.0, 6.0]))?;
    step.assign(8u64)?;
    let restore = |name: &str, variable: &ShardedVariable| {
        checkpoint::restore(&path, [("step", Saveable::from(&step)), (name, Saveable::from(variable))])
    };
    let untouched = || {
        assert_eq!(table.read().unwrap(), Tensor::from([4.0f32, 5.0, 6.0]));
        assert_eq!(step.read().unwrap(), Tensor::from(8u64));
    };
    for (name, variable, wanted, present) in [
        ("other", &table, r#"a tensor "other""#, r#"["step", "table"]"#),
        ("table", &wider, r#"tensor "table" of f32[4], as the variable"#, "f32[3]"),
        ("table", &integers, r#"tensor "table" of i32[3], as the variable"#, "f32[3]"),
    ] {
        let error = restore(name, variable).unwrap_err();
        let Error::InvalidCall { expected, found, .. } = &error else { panic!("{error}") };
        assert_eq!((&expected[..], &found[..]), (wanted, present));
        untouched();
    }
    let whole = fs::read(&path).unwrap();
    let mut damaged = whole.clone();
    *damaged.last_mut().unwrap() ^= 1;
    fs::write(&path, damaged).unwrap();
    assert!(matches!(restore("table", &table), Err(Error::InvalidCall { .. })));
    untouched();
    fs::write(&path, whole).unwrap();
    restore("table", &table)?;
    assert_eq!((table.read()?, step.read()?), (Tensor::from([1.0f32, 2.0, 3.0]), Tensor::from(7u64)));
    Ok(())
}

/// A worker, a server and a program without servers save and restore nothing.
#[test]
fn only_the_chief_saves_and_restores() -> Result<()> {
    let folder = Folder::new("chief");
    let path = folder.path("saved");
    let check = |table: &ShardedVariable| {
        let manager = CheckpointManager::new(folder.path("all"), 3).unwrap();
        let results = [
            ("checkpoint::save", checkpoint::save(&path, [("table", table)])),
            ("checkpoint::restore", checkpoint::restore(&path, [("table", table)])),
            ("CheckpointManager::save", manager.save(1, [("table", table)]).map(drop)),
            ("CheckpointManager::restore_or_initialize", manager.restore_or_initialize([("table", table)]).map(drop)),
        ];
        for (name, result) in results {
            let Err(Error::WrongContext { call, .. }) = result else { panic!("{result:?}") };
            assert_eq!(call, name);
        }
        assert!(folder.files().is_empty());
    };
    let cluster = r#""cluster": {"chief": ["localhost:1"], "worker": ["localhost:2"], "ps": ["localhost:3"]}"#;
    for job in ["worker", "ps"] {
        let text = format!(r#"{{{cluster}, "task": {{"type": "{job}", "index": 0}}}}"#);
        let strategy = ParameterServerStrategy::builder(TfConfigClusterResolver::from_text(&text)?)?.build()?;
        check(&strategy.variable(|| Tensor::from([1.0f32]))?);
    }
    let strategy = ParameterServerStrategy::threads(1, 1)?;
    let table = strategy.variable(|| Tensor::from([1.0f32]))?;
    let twice = checkpoint::save(&path, [("a", &table), ("b", &table.clone())]).unwrap_err();
    assert_eq!(refusal(&twice), ("checkpoint::save", "variables", None));
    assert_eq!(found(&twice), r#"the same as "a" and "b""#);
    drop(strategy);
    check(&table);
    Ok(())
}

#[test]
fn a_training_is_resumed_on_other_servers() -> Result<()> {
    let folder = Folder::new("resumed-servers");
    let manager = CheckpointManager::new(folder.path("all"), 2)?;
    for (round, server_count) in [3, 1, 2].into_iter().enumerate() {
        let strategy = servers(server_count, server_count, Order::Arrival);
        let table = strategy.variable(|| Tensor::from([0i64; 5]))?;
        let resumed = manager.restore_or_initialize([("table", &table)])?;
        let first = resumed.map_or(0, |restored| restored.step);
        assert_eq!(first, 4 * round as u64);
        assert_eq!(table.read()?, Tensor::from([first as i64; 5]));
        for step in first..first + 4 {
            table.assign_add(&Tensor::from([1i64; 5]))?;
            manager.save(step + 1, [("table", &table)])?;
        }
    }
    Ok(())
}
