//! The records of calls on GPUs.

use super::driver::{on_a_driver_with, sharing, there};
use consonance::{
    Device, MirroredStrategy, ReduceOp, Tensor,
    profile::{EXTENSION, Event, Record, VARIABLE},
};
use consonance_kernels::{cuda::Uuid, os::record_file};
use std::{env, fs, path::Path, process};

/// Calls of two replicas on GPU 0, and of one on GPU 1 beside a processor.
fn calls() {
    let x = Tensor::from([1.0f32, 2.0]);
    let together = sharing(2).run(|replica| {
        let device = Device::Cuda { gpu: 0, logical: replica.replica_id_in_sync_group() };
        replica.all_reduce(ReduceOp::Sum, there(&x, device))?;
        replica.broadcast(there(&x, device), 0)?;
        replica.all_reduce(ReduceOp::Sum, x.clone())
    });
    together.expect("calls of two replicas");
    let mixed = MirroredStrategy::new(["cuda:1", "cpu:0"]).expect("devices").run(|replica| {
        let is_first = replica.replica_id_in_sync_group() == 0;
        let own = if is_first { there(&x, Device::Cuda { gpu: 1, logical: 0 }) } else { x.clone() };
        replica.all_reduce(ReduceOp::Sum, own)
    });
    mixed.expect("calls of two replicas");
}

/// A folder that the drop removes.
struct Folder<'f>(&'f Path);

impl Folder<'_> {
    fn new(path: &Path) -> Folder<'_> {
        fs::create_dir_all(path).expect("a folder");
        Folder(path)
    }
}

impl Drop for Folder<'_> {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(self.0);
    }
}

#[test]
fn calls_on_gpus_are_recorded_with_their_uuids() {
    let is_parent = env::var_os(VARIABLE).is_none() && env::var_os("CONSONANCE_CUDA_DRIVER").is_none();
    let folder = env::temp_dir().join(format!("consonance-profile-of-gpus-{}", process::id()));
    let _removed = is_parent.then(|| Folder::new(&folder));
    let variables = [(VARIABLE, folder.as_os_str())];
    let test = "profiles::calls_on_gpus_are_recorded_with_their_uuids";
    on_a_driver_with(test, "devices=2 first=4", &variables, calls);
    if !is_parent {
        return;
    }
    let mut found = Vec::new();
    for entry in fs::read_dir(&folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        assert_eq!(path.extension().and_then(|extension| extension.to_str()), Some(EXTENSION));
        let contents = record_file::read(&fs::read(&path).expect("a file")).expect("a file of records");
        let mut gpus = [None; 2];
        for record in contents.records.iter().filter_map(Record::from_words) {
            match record.event {
                Event::Gpu(gpu) => assert_eq!(gpus[gpu.ordinal].replace(gpu.uuid), None, "{}", contents.name),
                Event::Call(call) if call.bytes > 0 => {
                    let uuid = call.gpu.map(|gpu| gpus[gpu].expect("an identity before a call"));
                    found.push((record.replica, call.name.name(), uuid.map(number), call.is_fold, call.path.is_some()));
                }
                Event::Run | Event::Call(_) | Event::Closure(_) | Event::Request(_) | Event::Clock(_) => {}
            }
        }
    }
    found.sort_unstable();
    let mut expected = vec![(0, "all_reduce", Some(5), false, true), (1, "all_reduce", None, false, true)];
    for replica in [0, 1] {
        expected.push((replica, "all_reduce", Some(4), true, false));
        expected.push((replica, "all_reduce", None, false, true));
        expected.push((replica, "broadcast", Some(4), false, true));
    }
    expected.sort_unstable();
    assert_eq!(found, expected);
}

/// Returns the number of a GPU of the driver for tests among those of its machine.
fn number(Uuid(bytes): Uuid) -> u8 {
    bytes[15]
}
