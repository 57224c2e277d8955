//! A folder of checkpoints that several workers save to and resume from.

use super::{WORKERS, workers};
use crate::fields::{mismatch, refusal, told};
use consonance::{Tensor, checkpoint::CheckpointManager};
use std::{env, fs, path::PathBuf, process};

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

/// As with folders on disks of their own, in containers.
#[test]
fn workers_with_different_checkpoints_get_an_error_naming_one() {
    let (folder, other, empty) = (Folder::new("first"), Folder::new("second"), env::temp_dir().join("no such folder"));
    let errors = workers(&[1, 1, 1], |worker, strategy| {
        let weights = strategy.variable(|| Tensor::from(0u64)).unwrap();
        folder.manager().save(5, [("weights", &weights)]).unwrap();
        other.manager().save(6, [("weights", &weights)]).unwrap();
        let empty = CheckpointManager::new(&empty, None).unwrap();
        [other.manager(), empty].map(|odd| {
            let manager = if worker == 1 { odd } else { folder.manager() };
            let error = manager.restore_or_initialize([("weights", &weights)]).unwrap_err();
            assert_eq!(weights.read().unwrap(), Tensor::from(0u64));
            error
        })
    });
    for error in errors.iter().flatten() {
        assert_eq!((mismatch(error).1, mismatch(error).2), ("digest", 1), "{error}");
    }
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
