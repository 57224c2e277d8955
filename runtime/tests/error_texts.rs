//! The words of every error, in one file: `error_texts.txt`. Other tests look at variants and
//! fields.

use consonance::{
    Device, Error, MirroredStrategy, PerReplica, ReduceOp, Result, Tensor, Variable, VariableSynchronization,
    cluster::{expand_hostlist, expand_tasks_per_node},
    dataset,
    raw::Reason,
};
use std::{io, time::Duration};

#[test]
fn every_error_has_its_text() {
    let text = |text: &str| text.to_owned();
    let invalid = |replica| Error::InvalidCall {
        call: "all_reduce",
        argument: text("value/1"),
        replica,
        expected: text("an operation on bool"),
        found: text("sum"),
    };
    let unknown =
        |call, replica| Error::UnknownReduceOp { call, replica, source: "avg".parse::<ReduceOp>().unwrap_err() };
    let left =
        Error::Left { call: text("barrier"), replica: 2, last: text("its last call was broadcast"), lost: false };
    let missing = vec![(1, text("it called nothing")), (3, text("its last call was barrier"))];
    let calls = vec![(0, text("all_reduce(sum, f32)")), (1, text("no call"))];
    let aborted = Error::Aborted { call: text("barrier"), replica: 1, reason: text("was lost"), lost: true, calls };
    let reasons = [
        Reason::Deadline,
        Reason::Panic,
        Reason::Failure,
        Reason::Death,
        Reason::Memory,
        Reason::Departure,
        Reason::Return,
        Reason::Leave,
    ];
    let errors = [
        invalid(None),
        invalid(Some(2)),
        Error::WrongContext { call: "merge_call", problem: text("called in a cross-replica context") },
        Error::Mismatch {
            call: text("all_reduce"),
            replica: 1,
            argument: text("value/1"),
            expected: text("f32[2]"),
            found: text("f32[3]"),
        },
        left,
        Error::Timeout { call: text("all_reduce"), waited: Duration::from_millis(1500), missing },
        aborted,
        Error::Meeting { call: "ProcessGroup::join", task: text("worker[0]"), problem: text("worker[1] did not come") },
        Error::Panic { replica: 1, message: text("oh") },
        Error::Replica { replica: 1, source: Box::new(invalid(None)) },
        unknown(None, None),
        unknown(Some("Strategy::reduce"), None),
        unknown(Some("all_reduce"), Some(2)),
        Error::System { what: text("allocate 8 elements of f32"), source: io::ErrorKind::OutOfMemory.into() },
        Error::other("no more data"),
    ];
    let ends = reasons.map(|reason| Error::aborted("barrier", 2, reason));
    let found: String = errors.iter().chain(&ends).chain(&refusals()).map(|error| format!("{error}\n")).collect();
    assert_eq!(found, include_str!("error_texts.txt"), "if this is meant, it is the new file");
}

/// Refusals of arguments, whose text tells a user what to pass.
fn refusals() -> Vec<Error> {
    fn of<T>(result: Result<T>) -> Error {
        result.err().expect("a refusal")
    }
    let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"]).unwrap();
    let (value, unknown) = (PerReplica::new(vec![1.0f32; 2]), Device::Cpu(1_000_000));
    let builder = Variable::builder(|| Tensor::from(1.0f32)).synchronization(VariableSynchronization::OnRead);
    let variable = strategy.scope(|| builder.build()).unwrap();
    vec![
        of(MirroredStrategy::new(Vec::<Device>::new())),
        of(MirroredStrategy::new(["cpu:0", "cpu:1", "CPU:0"])),
        of(MirroredStrategy::new(["gpu:0"])),
        of(strategy.reduce_to("sum", &value, unknown)),
        of(strategy.reduce("sum", &PerReplica::new(vec![1.0f32; 3]), None)),
        of(strategy.run_with(PerReplica::new(vec![0]), |_, _| Ok(()))),
        of(variable.read()),
        of(strategy.distribute_dataset(dataset::from_tensor_slices(Tensor::from([1, 2, 3])).unwrap())),
        of(dataset::from_tensor_slices((Tensor::from([1, 2]), Tensor::from([1])))),
        of(Tensor::new([0, 1 << 40, 1 << 40], &[0u8; 0])),
        of(expand_hostlist("n[1")),
        of(expand_tasks_per_node("x")),
    ]
}
