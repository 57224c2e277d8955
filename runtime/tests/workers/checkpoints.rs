//! A folder of checkpoints that several workers save to and resume from.

use super::{ENGINES, WORKERS, workers, workers_with};
use crate::fields::{found, mismatch, refusal, told};
use consonance::{
    ParameterServerStrategy, Strategy, Tensor, Variable,
    checkpoint::{self, CheckpointManager, Saveable},
};
use std::{env, fs, path::PathBuf, process, time::Duration};

/// A separate folder for a test, removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        Folder(env::temp_dir().join(format!("consonance-workers-{}-{name}", process::id())))
    }

    fn manager(&self) -> CheckpointManager {
        CheckpointManager::new(&self.0, 2).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A panic in a panic would hide the message of the first.
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn the_workers_resume_the_same_whole_checkpoint() {
    for sizes in WORKERS {
        let folder = Folder::new("resume");
        let manager = folder.manager();
        workers(sizes, |_, strategy| {
            let weights = strategy.variable(|| Tensor::from(0u64)).unwrap();
            assert!(manager.restore_or_initialize([("weights", &weights)]).unwrap().is_none());
            for step in 1..=3u64 {
                weights.assign(step).unwrap();
                let path = manager.save(step, [("weights", &weights)]).unwrap();
                assert_eq!(manager.latest_checkpoint().unwrap(), Some(path), "it is written when any worker has saved");
            }
        });
        assert_eq!(manager.checkpoints().unwrap().len(), 2);
        fs::write(manager.latest_checkpoint().unwrap().unwrap(), "torn").unwrap();
        workers(sizes, |_, strategy| {
            let weights = strategy.variable(|| Tensor::from(0u64)).unwrap();
            let resumed = manager.restore_or_initialize([("weights", &weights)]).unwrap().unwrap();
            assert_eq!((resumed.step, resumed.skipped.len()), (2, 1), "{sizes:?}");
            assert_eq!(weights.read().unwrap(), Tensor::from(2u64));
            manager.save(3, [("weights", &weights)]).unwrap();
        });
    }
}

/// As with folders on disks of their own, on other hosts or in containers.
#[test]
fn workers_with_other_files_or_none_restore_those_of_the_chief() {
    for engine in ENGINES {
        let (folder, other) = (Folder::new("first"), Folder::new("second"));
        workers_with(&[1, 2, 1], *engine, Duration::from_secs(60), |worker, strategy| {
            let (weights, step) = (variable(strategy, &[1.5, -0.0, f32::NAN]), variable(strategy, &[7.0]));
            let variables = [("weights", &weights), ("step", &step)];
            folder.manager().save(5, variables).unwrap();
            other.manager().save(6, variables).unwrap();
            let path = folder.0.join("ckpt-5.safetensors");
            // The values of the other folder would be found by their file's damage.
            for path in other.manager().checkpoints().unwrap() {
                fs::write(path, "torn").unwrap();
            }
            let managers =
                [folder.manager(), other.manager(), CheckpointManager::new("/no such folder", None).unwrap()];
            for anew in 0..2 {
                weights.assign(Tensor::from([0.0f32; 3])).unwrap();
                step.assign(Tensor::from([0.0f32])).unwrap();
                // Workers may list the variables in any order.
                let variables = if worker == 1 { [variables[1], variables[0]] } else { variables };
                if anew == 0 {
                    let resumed = managers[worker].restore_or_initialize(variables).unwrap().unwrap();
                    assert_eq!((resumed.step, resumed.skipped.len()), (5, 0), "{engine:?}");
                } else {
                    let path = if worker == 0 { path.clone() } else { "/no such file".into() };
                    checkpoint::restore(path, variables).unwrap();
                }
                assert_eq!(format!("{:?}", weights.read().unwrap().as_slice::<f32>()), "Ok([1.5, -0.0, NaN])");
                assert_eq!(step.read().unwrap(), Tensor::from([7.0f32]));
            }
        });
    }
}

#[test]
fn damage_skipped_by_the_chief_is_known_to_all_workers() {
    let (folder, none) = (Folder::new("skipped"), Folder::new("nothing skipped"));
    let skipped = workers(&[1, 2], |worker, strategy| {
        let weights = variable(strategy, &[1.0]);
        let manager = if worker == 0 { folder.manager() } else { none.manager() };
        assert!(manager.restore_or_initialize([("weights", &weights)]).unwrap().is_none());
        folder.manager().save(5, [("weights", &weights)]).unwrap();
        if worker == 0 {
            fs::write(folder.0.join("ckpt-9.safetensors"), "torn").unwrap();
        }
        let resumed = manager.restore_or_initialize([("weights", &weights)]).unwrap().unwrap();
        assert_eq!((resumed.step, resumed.path.parent()), (5, Some(manager.directory())));
        resumed.skipped.iter().map(ToString::to_string).collect::<Vec<_>>()
    });
    assert!(skipped[0].len() == 1 && skipped[0][0].contains("ckpt-9.safetensors"), "{skipped:?}");
    assert_eq!(skipped[0], skipped[1]);
}

#[test]
fn workers_restoring_other_variables_get_an_error_and_change_none() {
    let folder = Folder::new("variables");
    let errors = workers(&[1, 1, 1], |worker, strategy| {
        let weights = variable(strategy, &[1.0]);
        folder.manager().save(5, [("weights", &weights)]).unwrap();
        weights.assign(Tensor::from([2.0f32])).unwrap();
        let name = if worker == 1 { "bias" } else { "weights" };
        let error = folder.manager().restore_or_initialize([(name, &weights)]).unwrap_err();
        assert_eq!(weights.read().unwrap(), Tensor::from([2.0f32]));
        error
    });
    for error in &errors {
        let expected = ("checkpoint::restore", "variables", 1, "\"weights\" f32[1]", "\"bias\" f32[1]");
        assert_eq!(mismatch(error), expected, "{error}");
    }
}

#[test]
fn variables_of_workers_and_on_servers_are_in_calls_of_their_own() {
    let folder = Folder::new("servers");
    let errors = workers(&[1, 1], |_, strategy| {
        let weights = variable(strategy, &[1.0]);
        let servers = ParameterServerStrategy::threads(1, 1).unwrap();
        let table = servers.variable(|| Tensor::from([2.0f32])).unwrap();
        let both = [("weights", Saveable::from(&weights)), ("table", Saveable::from(&table))];
        let refused = folder.manager().save(1, both).unwrap_err();
        folder.manager().save(2, [("weights", &weights)]).unwrap();
        refused
    });
    for error in &errors {
        assert_eq!(refusal(error), ("CheckpointManager::save", "variables", None));
        assert_eq!(found(error), r#"both, of which "table" is on servers"#);
    }
}

fn variable(strategy: &Strategy, value: &[f32]) -> Variable {
    strategy.variable(|| Tensor::from(value.to_vec())).unwrap()
}

#[test]
fn workers_saving_different_or_refused_steps_get_an_error() {
    let folder = Folder::new("steps");
    let errors = workers(&[2, 1], |worker, strategy| {
        let weights = strategy.variable(|| Tensor::from(0u64)).unwrap();
        let save = |step| folder.manager().save(step, [("weights", &weights)]);
        save(5).unwrap();
        [save(6 + worker as u64).unwrap_err(), save(4).unwrap_err()]
    });
    assert!(errors.iter().all(|[steps, _]| mismatch(steps).1 == "step"));
    let [[_, chief], [_, other]] = &errors[..] else { panic!("two workers") };
    assert_eq!(refusal(chief), ("CheckpointManager::save", "step", None));
    assert_eq!(told(other).1, 0);
}
