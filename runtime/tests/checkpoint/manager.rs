//! A folder of checkpoints: the newest whole one is resumed, and the last few are kept.

use super::{Folder, mirrored};
use crate::fields::{found, refusal};
use consonance::{
    Error, OneDeviceStrategy, Result, Tensor, Variable,
    checkpoint::{self, CheckpointManager, Restored},
};
use std::{env, fs, process::Command, time::Duration};

/// A folder with checkpoints of these steps, each with its step as the value of `x`.
fn saved(folder: &Folder, steps: &[u64]) -> (CheckpointManager, Variable) {
    let manager = CheckpointManager::new(folder.path("all"), 3).unwrap();
    let x = mirrored(2).variable(|| Tensor::from(0u64)).unwrap();
    for &step in steps {
        x.assign(step).unwrap();
        manager.save(step, [("x", &x)]).unwrap();
    }
    x.assign(0u64).unwrap();
    (manager, x)
}

fn restore(manager: &CheckpointManager, x: &Variable) -> Result<Option<Restored>> {
    manager.restore_or_initialize([("x", x)])
}

fn value(x: &Variable) -> u64 {
    x.read().unwrap().item().unwrap()
}

/// Returns the names of the checkpoints, without the folder.
fn names(manager: &CheckpointManager) -> Vec<String> {
    let all = manager.checkpoints().unwrap();
    assert_eq!(manager.latest_checkpoint().unwrap().as_ref(), all.last());
    let name = |path: &std::path::PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
    assert!(all.iter().all(|path| path.parent() == Some(manager.directory())));
    all.iter().map(name).collect()
}

#[test]
fn the_newest_are_kept_and_the_newest_is_resumed() {
    let folder = Folder::new("manager");
    let (manager, x) = saved(&folder, &[]);
    assert!(restore(&manager, &x).unwrap().is_none(), "there is no folder yet");
    assert_eq!(names(&manager), [""; 0]);
    // In the order of numbers, not of their texts.
    let (manager, x) = saved(&folder, &[8, 9, 10, 11, 11]);
    fs::write(manager.directory().join("ckpt-012.safetensors"), "of nobody").unwrap();
    assert_eq!(names(&manager), [9, 10, 11].map(|step| format!("ckpt-{step}.safetensors")));
    let resumed = restore(&manager, &x).unwrap().unwrap();
    assert_eq!((resumed.step, value(&x), resumed.skipped.len()), (11, 11, 0));
    assert_eq!(resumed.path, manager.latest_checkpoint().unwrap().unwrap());
    checkpoint::restore(&manager.checkpoints().unwrap()[0], [("x", &x)]).expect("an ordinary checkpoint");
    assert_eq!(value(&x), 9);
    let all = CheckpointManager::new(manager.directory(), None).unwrap();
    all.save(12, [("x", &x)]).unwrap();
    assert_eq!(names(&all).len(), 4);
    let none = CheckpointManager::new(manager.directory(), 0).unwrap_err();
    assert_eq!((refusal(&none), found(&none)), (("CheckpointManager::new", "max_to_keep", None), "0"));
}

#[test]
fn damaged_checkpoints_are_skipped_and_named() {
    let folder = Folder::new("skipped");
    let (manager, x) = saved(&folder, &[1, 2, 3]);
    let [_, second, third] = &manager.checkpoints().unwrap()[..] else { panic!("three") };
    let whole = fs::read(third).unwrap();
    // The file of step 3 under the name of step 2 is no checkpoint of step 2.
    fs::write(second, &whole).unwrap();
    fs::write(third, &whole[..whole.len() - 1]).unwrap();
    let resumed = restore(&manager, &x).unwrap().unwrap();
    assert_eq!((resumed.step, value(&x)), (1, 1));
    let skipped: Vec<_> = resumed.skipped.iter().map(refusal).collect();
    let call = "CheckpointManager::restore_or_initialize";
    assert_eq!(skipped, [third, second].map(|path| (call, path.to_str().unwrap(), None)));
    assert_eq!(found(&resumed.skipped[1]), "step 3");
    // A checkpoint without a number of steps is not the manager's.
    checkpoint::save(third, [("x", &x)]).unwrap();
    assert_eq!(found(&restore(&manager, &x).unwrap().unwrap().skipped[0]), "none");
}

#[test]
fn no_damage_to_a_file_gives_another_step_or_value() {
    let folder = Folder::new("damage-of-steps");
    let (manager, x) = saved(&folder, &[7]);
    let path = manager.latest_checkpoint().unwrap().unwrap();
    let whole = fs::read(&path).unwrap();
    for (place, bit) in (0..whole.len()).flat_map(|place| (0..8).map(move |bit| (place, bit))) {
        let mut damaged = whole.clone();
        damaged[place] ^= 1 << bit;
        // Use a new file: some file systems sync a file at once when it is overwritten.
        fs::remove_file(&path).unwrap();
        fs::write(&path, damaged).unwrap();
        x.assign(0u64).unwrap();
        match restore(&manager, &x) {
            // Spaces between words mean nothing.
            Ok(resumed) => assert_eq!((resumed.unwrap().step, value(&x)), (7, 7), "byte {place}, bit {bit}"),
            Err(error) => assert_eq!((refusal(&error).1, value(&x)), (path.to_str().unwrap(), 0)),
        }
    }
}

#[test]
fn a_changed_number_of_steps_is_damage_even_under_its_name() {
    let folder = Folder::new("changed-step");
    let (manager, x) = saved(&folder, &[7]);
    let path = manager.latest_checkpoint().unwrap().unwrap();
    let mut bytes = fs::read(&path).unwrap();
    let number = bytes.windows(3).position(|bytes| bytes == b" 7\"").expect("the number is in the header");
    bytes[number + 1] = b'8';
    fs::write(path.with_file_name("ckpt-8.safetensors"), bytes).unwrap();
    let resumed = restore(&manager, &x).unwrap().unwrap();
    assert_eq!((resumed.step, value(&x), resumed.skipped.len()), (7, 7, 1));
}

#[test]
fn if_all_checkpoints_are_damaged_the_error_names_the_newest() {
    let folder = Folder::new("all-damaged");
    let (manager, x) = saved(&folder, &[1, 2]);
    let all = manager.checkpoints().unwrap();
    all.iter().for_each(|path| fs::write(path, "").unwrap());
    let error = restore(&manager, &x).unwrap_err();
    assert_eq!(refusal(&error).1, all[1].to_str().unwrap());
    assert_eq!(value(&x), 0);
}

#[test]
fn a_whole_mismatched_checkpoint_is_an_error_and_not_skipped() {
    let folder = Folder::new("unfit");
    let (manager, x) = saved(&folder, &[1]);
    let wider = mirrored(1).variable(|| Tensor::from([0u64, 0])).unwrap();
    manager.save(2, [("x", &wider)]).unwrap();
    let error = restore(&manager, &x).unwrap_err();
    assert_eq!((refusal(&error).1, found(&error)), (manager.checkpoints().unwrap()[1].to_str().unwrap(), "u64[2]"));
    assert_eq!(value(&x), 0);
}

#[test]
fn a_step_before_a_whole_checkpoint_is_refused_and_a_damaged_one_makes_way() {
    let folder = Folder::new("back");
    let (manager, x) = saved(&folder, &[10, 20, 30]);
    let error = manager.save(25, [("x", &x)]).unwrap_err();
    assert_eq!((refusal(&error), found(&error)), (("CheckpointManager::save", "step", None), "25"));
    assert_eq!(names(&manager).len(), 3);
    let newest = manager.latest_checkpoint().unwrap().unwrap();
    fs::write(&newest, "torn").unwrap();
    manager.save(25, [("x", &x)]).unwrap();
    assert_eq!(names(&manager), [10, 20, 25].map(|step| format!("ckpt-{step}.safetensors")));
}

#[test]
fn a_failed_save_removes_no_checkpoint() {
    let folder = Folder::new("failed");
    let (manager, x) = saved(&folder, &[1, 2, 3]);
    fs::create_dir(manager.directory().join("ckpt-4.safetensors")).unwrap();
    assert!(matches!(manager.save(4, [("x", &x)]), Err(Error::System { .. })));
    fs::remove_dir(manager.directory().join("ckpt-4.safetensors")).unwrap();
    assert_eq!(names(&manager).len(), 3);
    assert_eq!(restore(&manager, &x).unwrap().unwrap().step, 3);
}

/// A process is killed again and again while it saves, and resumes each time.
#[test]
#[cfg(unix)]
fn a_killed_process_resumes_a_whole_checkpoint() {
    const TRAINER: &str = "CONSONANCE_TEST_TRAINER";
    const KILLS: u64 = 12;
    let strategy = OneDeviceStrategy::new("cpu:0").unwrap();
    let weights = || strategy.variable(|| Tensor::from(vec![0u64; 1 << 17])).unwrap();
    let resume = |manager: &CheckpointManager, weights: &Variable| -> u64 {
        let resumed = manager.restore_or_initialize([("weights", weights)]).unwrap();
        let step = resumed.map_or(0, |resumed| {
            assert!(resumed.skipped.is_empty(), "{resumed:?}");
            resumed.step
        });
        assert!(weights.read().unwrap().as_slice::<u64>().unwrap().iter().all(|&weight| weight == step));
        step
    };
    if let Some(path) = env::var_os(TRAINER) {
        let (manager, weights) = (CheckpointManager::new(path, 2).unwrap(), weights());
        let first = resume(&manager, &weights);
        for step in first + 1.. {
            weights.assign(Tensor::from(vec![step; 1 << 17])).unwrap();
            manager.save(step, [("weights", &weights)]).unwrap();
        }
    }
    let folder = Folder::new("trainer");
    let (manager, weights) = (CheckpointManager::new(folder.path("all"), 2).unwrap(), weights());
    let mut last = 0;
    for kill in 0..KILLS {
        let mut trainer = Command::new(env::current_exe().unwrap())
            .args(["--exact", "manager::a_killed_process_resumes_a_whole_checkpoint"])
            .env(TRAINER, manager.directory())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let newest = || manager.latest_checkpoint().unwrap();
        let before = newest();
        while newest() == before {
            assert!(trainer.try_wait().unwrap().is_none(), "it saves until it is killed");
        }
        std::thread::sleep(Duration::from_micros(700 * kill));
        trainer.kill().unwrap();
        trainer.wait().unwrap();
        let step = resume(&manager, &weights);
        assert!(step > last, "step {step} after {last}");
        last = step;
    }
    manager.save(last + 1, [("weights", &weights)]).unwrap();
    assert_eq!(fs::read_dir(manager.directory()).unwrap().count(), 2, "no temporary file is left");
}
