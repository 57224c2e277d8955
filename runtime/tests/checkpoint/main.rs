//! Checkpoints: saved values are restored bit for bit, and a damaged checkpoint changes no
//! variable.
#![cfg(feature = "checkpoint")]

#[path = "../fields/mod.rs"]
mod fields;
mod manager;
mod servers;

use consonance::{
    CentralStorageStrategy, ClusterResolver, DType, Element, Error, MirroredStrategy, OneDeviceStrategy, Strategy,
    Tensor, TfConfigClusterResolver, Variable, VariableAggregation, VariableSynchronization, bf16, checkpoint,
    dataset::Column, f16,
};
use fields::{found, refusal};
use std::{
    env, fs,
    path::PathBuf,
    process::{self, Command},
    time::{Duration, Instant},
};

/// A separate folder for a test, removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let folder = env::temp_dir().join(format!("consonance-checkpoint-{}-{name}", process::id()));
        fs::create_dir_all(&folder).unwrap();
        Folder(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Returns the names of its files.
    fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).unwrap();
        let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

fn mirrored(replicas: usize) -> MirroredStrategy {
    MirroredStrategy::new((0..replicas).map(|replica| format!("cpu:{replica}"))).unwrap()
}

/// Returns the bits of all elements, with one value for all NaNs.
fn bits(tensor: &Tensor) -> String {
    fn of<T: Element>(tensor: &Tensor, bits: impl Fn(T) -> u64) -> String {
        format!("{:x?}", tensor.as_slice::<T>().unwrap().iter().map(|&element| bits(element)).collect::<Vec<_>>())
    }
    match tensor.dtype() {
        DType::F16 => of::<f16>(tensor, |x| if x.is_nan() { 1 << 63 } else { x.to_bits().into() }),
        DType::Bf16 => of::<bf16>(tensor, |x| if x.is_nan() { 1 << 63 } else { x.to_bits().into() }),
        DType::F32 => of::<f32>(tensor, |x| if x.is_nan() { 1 << 63 } else { x.to_bits().into() }),
        DType::F64 => of::<f64>(tensor, |x| if x.is_nan() { 1 << 63 } else { x.to_bits() }),
        DType::Bool
        | DType::I8
        | DType::I16
        | DType::I32
        | DType::I64
        | DType::U8
        | DType::U16
        | DType::U32
        | DType::U64 => format!("{tensor:?}"),
    }
}

/// Returns a tensor of each dtype, with extreme values.
fn samples() -> Vec<Tensor> {
    vec![
        Tensor::from([true, false, true]),
        Tensor::from([i8::MIN, -1, i8::MAX]),
        Tensor::from([[i16::MIN, -1], [0, i16::MAX]]),
        Tensor::from([i32::MIN, -1, i32::MAX]),
        Tensor::from(i64::MIN),
        Tensor::from([0, u8::MAX]),
        Tensor::from([0, u16::MAX, 258]),
        Tensor::from([0, u32::MAX]),
        Tensor::from([0, u64::MAX]),
        Tensor::from([f16::NEG_ZERO, f16::NAN, f16::MAX, f16::MIN_POSITIVE_SUBNORMAL]),
        Tensor::from([bf16::NEG_ZERO, bf16::NAN, bf16::MAX, bf16::MIN_POSITIVE_SUBNORMAL]),
        Tensor::from([-0.0, 0.0, f32::NAN, f32::MAX, f32::from_bits(1), 0.1]),
        Tensor::from([-0.0, 0.0, f64::NEG_INFINITY, f64::MAX, f64::from_bits(1), 0.1]),
        Tensor::zeros(DType::F32, [0, 3]),
    ]
}

fn on_read(strategy: &Strategy, aggregation: VariableAggregation, value: Tensor) -> Variable {
    let build = || {
        let builder = Variable::builder(|| value).synchronization(VariableSynchronization::OnRead);
        builder.aggregation(aggregation).build()
    };
    strategy.scope(build).unwrap()
}

fn zeros_like(value: &Tensor) -> Tensor {
    Tensor::zeros(value.dtype(), value.shape())
}

#[test]
fn every_type_under_every_strategy() {
    let folder = Folder::new("types");
    let (four, path) = (mirrored(4), folder.path("a"));
    let saved: Vec<_> = samples().into_iter().map(|value| four.variable(|| value).unwrap()).collect();
    let names: Vec<String> = (0..saved.len()).map(|index| format!("tensor \"{index}\" – β")).collect();
    checkpoint::save(&path, names.iter().zip(&saved)).unwrap();
    assert_eq!(folder.files(), ["a"]);
    let central = CentralStorageStrategy::new(["cpu:0", "cpu:1"], "cpu:0").unwrap();
    let one = OneDeviceStrategy::new("cpu:0").unwrap();
    let strategies: [&Strategy; 4] = [&four, &central, &one, &Strategy::default_strategy()];
    for strategy in strategies {
        let restored: Vec<_> =
            saved.iter().map(|old| strategy.variable(|| zeros_like(&old.read().unwrap())).unwrap()).collect();
        checkpoint::restore(&path, names.iter().zip(&restored).rev()).unwrap();
        for (old, new) in saved.iter().zip(&restored) {
            assert_eq!(bits(&old.read().unwrap()), bits(&new.read().unwrap()), "{strategy}");
        }
    }
    let column = Column::safetensors(&path, &names[2]).unwrap();
    assert_eq!(format!("{column:?}"), "Column(2 rows of i16[2])", "other programs can read it");
}

#[test]
fn aggregates_read_the_same_for_any_number_of_replicas() {
    let folder = Folder::new("aggregates");
    let path = folder.path("a");
    for aggregation in [VariableAggregation::Sum, VariableAggregation::Mean, VariableAggregation::OnlyFirstReplica] {
        let fits = |value: &Tensor| match aggregation {
            VariableAggregation::Sum => value.dtype() != DType::Bool,
            // The sum of a mean must not overflow.
            VariableAggregation::Mean => value.dtype() == DType::F64,
            _ => true,
        };
        for value in samples().into_iter().filter(fits) {
            let value = match aggregation {
                VariableAggregation::Mean => Tensor::from([-0.0, 0.1, f64::NAN, 1e300, f64::from_bits(1)]),
                _ => value,
            };
            let from = OneDeviceStrategy::new("cpu:0").unwrap();
            checkpoint::save(&path, [("x", &on_read(&from, aggregation, value.clone()))]).unwrap();
            for replicas in [1usize, 2, 3, 4, 5, 8] {
                if aggregation == VariableAggregation::Mean && !replicas.is_power_of_two() {
                    continue;
                }
                let strategy = mirrored(replicas);
                let variable = on_read(&strategy, aggregation, zeros_like(&value));
                checkpoint::restore(&path, [("x", &variable)]).unwrap();
                let read = variable.read().unwrap();
                assert_eq!(bits(&read), bits(&value), "{aggregation:?} {replicas} replicas");
            }
        }
    }
}

#[test]
fn counts_of_replicas_continue_after_a_restore() {
    let folder = Folder::new("counts");
    let path = folder.path("a");
    let count = |replicas: usize| {
        let strategy = mirrored(replicas);
        let seen = on_read(&strategy, VariableAggregation::Sum, Tensor::from(0i32));
        if path.exists() {
            checkpoint::restore(&path, [("seen", &seen)]).unwrap();
        }
        strategy.run(|replica| replica.assign_add(&seen, 1 + replica.replica_id_in_sync_group() as i32)).unwrap();
        checkpoint::save(&path, [("seen", &seen)]).unwrap();
        seen.read().unwrap().item::<i32>().unwrap()
    };
    assert_eq!([count(2), count(3), count(1)], [3, 3 + 6, 3 + 6 + 1]);
}

/// Two variables with values, and a checkpoint of two others.
fn two(folder: &Folder) -> (PathBuf, [Variable; 2]) {
    let strategy = mirrored(2);
    let variable = |value| strategy.variable(|| value).unwrap();
    let (x, y) = (variable(Tensor::from([1.0f32, 2.0])), variable(Tensor::from([3u8, 4, 5])));
    let path = folder.path("a");
    checkpoint::save(&path, [("x", &x), ("y", &y)]).unwrap();
    (path, [variable(Tensor::from([-1.0f32, -2.0])), variable(Tensor::from([0u8, 0, 0]))])
}

#[track_caller]
fn check_untouched([x, y]: &[Variable; 2]) {
    assert_eq!(x.read().unwrap(), Tensor::from([-1.0f32, -2.0]));
    assert_eq!(y.read().unwrap(), Tensor::from([0u8, 0, 0]));
}

#[test]
fn a_damaged_file_changes_nothing() {
    let folder = Folder::new("damage");
    let (path, variables) = two(&folder);
    let [x, y] = &variables;
    let whole = fs::read(&path).unwrap();
    let restore = |bytes: &[u8]| {
        // Use a new file: some file systems sync a file at once when it is overwritten.
        fs::remove_file(&path).unwrap();
        fs::write(&path, bytes).unwrap();
        checkpoint::restore(&path, [("y", y), ("x", x)])
    };
    for bytes in 0..whole.len() {
        restore(&whole[..bytes]).expect_err("a file without its end");
        check_untouched(&variables);
    }
    restore(&[&whole[..], &[0]].concat()).expect_err("a file with more");
    let mut passed = Vec::new();
    for place in 0..whole.len() {
        for other in (0..8).map(|bit| whole[place] ^ 1 << bit).chain([0, 0xff, b' ', b'"']) {
            let mut damaged = whole.clone();
            damaged[place] = other;
            match restore(&damaged) {
                Ok(()) => {
                    passed.push((whole[place], other));
                    assert_eq!(x.read().unwrap(), Tensor::from([1.0f32, 2.0]));
                    assert_eq!(y.read().unwrap(), Tensor::from([3u8, 4, 5]));
                    x.assign([-1.0f32, -2.0]).unwrap();
                    y.assign([0u8, 0, 0]).unwrap();
                }
                Err(_) => check_untouched(&variables),
            }
        }
    }
    passed.retain(|(byte, other)| byte != other && *byte != b' ');
    assert_eq!(passed, [], "what is not between words is noticed");
}

/// Two threads check and read a large file.
#[test]
fn a_large_file_is_restored_and_a_damaged_one_changes_nothing() {
    let folder = Folder::new("large");
    let (path, count) = (folder.path("saved"), 3 << 20);
    let value = Tensor::from((0..count).map(|element| element as f32).collect::<Vec<_>>());
    let variable = Variable::new(value.clone()).unwrap();
    checkpoint::save(&path, [("x", &variable)]).unwrap();
    let zeros = Tensor::zeros(DType::F32, [count]);
    variable.assign(zeros.clone()).unwrap();
    checkpoint::restore(&path, [("x", &variable)]).unwrap();
    assert_eq!(variable.read().unwrap(), value);
    variable.assign(zeros.clone()).unwrap();
    let mut damaged = fs::read(&path).unwrap();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    fs::write(&path, damaged).unwrap();
    // The value does not fit either, but the damage is the reason that counts.
    let other = Variable::new(Tensor::from(1u8)).unwrap();
    for variable in [&variable, &other] {
        match checkpoint::restore(&path, [("x", variable)]) {
            Err(Error::InvalidCall { expected, .. }) => assert!(expected.starts_with("the digest"), "{expected}"),
            result => panic!("{result:?}"),
        }
    }
    assert_eq!(variable.read().unwrap(), zeros);
}

#[test]
fn a_foreign_file_changes_nothing() {
    let folder = Folder::new("foreign");
    let (path, variables) = two(&folder);
    let [x, y] = &variables;
    let other = |value: Tensor| Variable::new(value).unwrap();
    let (shape, dtype) = (other(Tensor::from([1u8, 2])), other(Tensor::from([1i8, 2, 3])));
    for (name, variable, wanted, present) in [
        ("z", y, r#"a tensor "z""#, r#"["x", "y"]"#),
        ("y", &shape, r#"tensor "y" of u8[2], as the variable"#, "u8[3]"),
        ("y", &dtype, r#"tensor "y" of i8[3], as the variable"#, "u8[3]"),
    ] {
        let error = checkpoint::restore(&path, [("x", x), (name, variable)]).unwrap_err();
        let Error::InvalidCall { expected, found, .. } = &error else { panic!("{error}") };
        assert_eq!((&expected[..], &found[..]), (wanted, present));
        check_untouched(&variables);
    }
    let header = r#"{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
    let foreign = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[0; 8]].concat();
    fs::write(&path, foreign).unwrap();
    let error = checkpoint::restore(&path, [("x", x)]).unwrap_err();
    let Error::InvalidCall { expected, .. } = &error else { panic!("{error}") };
    assert_eq!(expected, "a checkpoint of checkpoint::save");
    let error = checkpoint::restore(folder.path("nothing"), [("x", x)]).unwrap_err();
    assert!(matches!(error, Error::System { .. }), "{error}");
    check_untouched(&variables);
}

#[test]
fn a_part_can_be_restored() {
    let folder = Folder::new("part");
    let (path, [x, y]) = two(&folder);
    checkpoint::restore(path, [("y", &y)]).unwrap();
    assert_eq!((x.read().unwrap(), y.read().unwrap()), (Tensor::from([-1.0f32, -2.0]), Tensor::from([3u8, 4, 5])));
}

#[test]
fn the_same_values_make_the_same_file() {
    let folder = Folder::new("same");
    let (path, [x, y]) = two(&folder);
    let first = fs::read(&path).unwrap();
    checkpoint::restore(&path, [("x", &x), ("y", &y)]).unwrap();
    checkpoint::save(&path, [("y", &y), ("x", &x)]).unwrap();
    assert_eq!(fs::read(&path).unwrap(), first);
}

#[test]
fn a_failed_save_leaves_no_trace() {
    let folder = Folder::new("fails");
    let x = Variable::new(Tensor::from(1.0f32)).unwrap();
    fs::create_dir(folder.path("taken")).unwrap();
    let taken = checkpoint::save(folder.path("taken"), [("x", &x)]).unwrap_err();
    assert!(matches!(&taken, Error::System { what, .. } if what.contains("taken")), "{taken}");
    assert_eq!(folder.files(), ["taken"]);
    assert!(matches!(checkpoint::save(folder.path("no/x"), [("x", &x)]), Err(Error::System { .. })));
    assert!(matches!(checkpoint::save("/", [("x", &x)]), Err(Error::InvalidCall { .. })));
    let path = folder.path("a");
    checkpoint::save(&path, [("x", &x)]).unwrap();
    let before = fs::read(&path).unwrap();
    let alone = on_read(&mirrored(2), VariableAggregation::None, Tensor::from(0i32));
    for variables in [[("x", &x), ("x", &x)], [("x", &x), ("__metadata__", &x)], [("x", &x), ("y", &alone)]] {
        assert!(matches!(checkpoint::save(&path, variables), Err(Error::InvalidCall { .. })));
        assert!(checkpoint::restore(&path, variables).is_err());
    }
    assert_eq!(fs::read(&path).unwrap(), before);
    assert_eq!(folder.files(), ["a", "taken"]);
}

#[test]
#[cfg(unix)]
fn links_permissions_and_long_names_stay() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let folder = Folder::new("links");
    let (path, variables) = two(&folder);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    symlink(&path, folder.path("link")).unwrap();
    checkpoint::save(folder.path("link"), [("other", &variables[0])]).unwrap();
    assert!(folder.path("link").is_symlink());
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
    checkpoint::restore(&path, [("other", &variables[0])]).unwrap();
    let long = folder.path(&"n".repeat(255));
    checkpoint::save(&long, [("x", &variables[0])]).unwrap();
    checkpoint::restore(&long, [("x", &variables[0])]).unwrap();
    assert_eq!(folder.files().len(), 3);
}

/// As often as it takes until one is killed while its temporary file is there.
#[test]
#[cfg(unix)]
fn the_next_save_to_a_folder_removes_the_file_of_a_killed_one() {
    const SAVER: &str = "CONSONANCE_TEST_KILLED_SAVER";
    let strategy = OneDeviceStrategy::new("cpu:0").unwrap();
    if let Some(path) = env::var_os(SAVER) {
        let many = strategy.variable(|| Tensor::zeros(DType::F32, [4 << 20])).unwrap();
        (0..1000).for_each(|_| checkpoint::save(&path, [("many", &many)]).unwrap());
        return;
    }
    let folder = Folder::new("killed");
    let left = || folder.files().into_iter().find(|name| name.ends_with(".tmp"));
    for _ in 0..100 {
        let mut saver = Command::new(env::current_exe().unwrap())
            .args(["--exact", "the_next_save_to_a_folder_removes_the_file_of_a_killed_one"])
            .env(SAVER, folder.path("killed"))
            .stdout(process::Stdio::null())
            .spawn()
            .unwrap();
        while left().is_none() {
            assert!(saver.try_wait().unwrap().is_none(), "it saves until it is killed");
        }
        saver.kill().unwrap();
        saver.wait().unwrap();
        if left().is_some() {
            break;
        }
    }
    left().expect("a save of 16 MiB lasts long enough to be killed in it");
    let x = strategy.variable(|| Tensor::from(1.0f32)).unwrap();
    checkpoint::save(folder.path("other"), [("x", &x)]).unwrap();
    assert_eq!(left(), None);
}

#[test]
fn a_save_removes_no_file_of_a_running_save_and_none_of_others() {
    let folder = Folder::new("goes-on");
    let x = Variable::new(Tensor::from(1.0f32)).unwrap();
    let names = [
        ".checkpoint-0123456789abcdef.tmp",
        ".checkpoint-0123456789abcde.tmp",
        ".checkpoint-0123456789abcdeg.tmp",
        "checkpoint-0123456789abcdef.tmp",
    ];
    let [own, ..] = names.map(|name| fs::File::create(folder.path(name)).unwrap());
    fs::create_dir(folder.path(".checkpoint-0000000000000000.tmp")).unwrap();
    own.lock().expect("locks in the folder for temporary files");
    let before = folder.files();
    checkpoint::save(folder.path("x"), [("x", &x)]).unwrap();
    assert_eq!(folder.files(), [&before[..], &["x".to_owned()]].concat());
    drop(own);
    // A process that another test starts has a copy of the descriptor until it executes its
    // program.
    let deadline = Instant::now() + Duration::from_secs(60);
    let is_there = || folder.files().iter().any(|name| name.starts_with(names[0]));
    while is_there() {
        assert!(Instant::now() < deadline, "{:?}", folder.files());
        checkpoint::save(folder.path("x"), [("x", &x)]).unwrap();
    }
    assert_eq!(folder.files().len(), before.len());
}

/// Processes with equal process ids, as in two containers.
#[test]
#[cfg(target_os = "linux")]
fn two_savers_of_one_number_do_not_meet() {
    const SAVER: &str = "CONSONANCE_TEST_SAVER";
    let strategy = OneDeviceStrategy::new("cpu:0").unwrap();
    if let Some(path) = env::var_os(SAVER) {
        let many = strategy.variable(|| Tensor::zeros(DType::F32, [1 << 16])).unwrap();
        (0..50).for_each(|_| checkpoint::save(&path, [("many", &many)]).unwrap());
        return;
    }
    let folder = Folder::new("savers");
    let path = folder.path("checkpoint");
    let saver = || {
        let mut command = Command::new("unshare");
        command.args(["--user", "--pid", "--fork"]).arg(env::current_exe().unwrap());
        command.args(["--exact", "two_savers_of_one_number_do_not_meet"]).env(SAVER, &path);
        command.stdout(process::Stdio::piped()).stderr(process::Stdio::piped()).spawn()
    };
    let savers = [saver(), saver()].map(|saver| saver.and_then(process::Child::wait_with_output));
    for saver in savers {
        match saver {
            Ok(output) if String::from_utf8_lossy(&output.stderr).contains("unshare: ") => {
                println!(
                    "skipped: no namespaces of processes here: {}",
                    String::from_utf8_lossy(&output.stderr).trim()
                );
                return;
            }
            Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout)),
            Err(error) => println!("skipped: no `unshare` (Debian's package util-linux has it): {error}"),
        }
    }
}

#[test]
fn a_refused_restore_changes_nothing() {
    let folder = Folder::new("context");
    let (path, variables) = two(&folder);
    let [x, y] = &variables;
    let strategy = x.strategy().clone();
    let error = strategy.run(|_| checkpoint::restore(&path, [("x", x)])).unwrap_err();
    assert!(matches!(error.root(), Error::WrongContext { .. }), "{error}");
    let error = strategy.run(|_| checkpoint::save(&path, [("x", x)])).unwrap_err();
    assert!(matches!(error.root(), Error::WrongContext { .. }), "{error}");
    let elsewhere = mirrored(2).scope(|| checkpoint::restore(&path, [("x", x)]));
    assert!(matches!(elsewhere, Err(Error::WrongContext { .. })));
    let amid = strategy.update(y, |_| checkpoint::restore(&path, [("x", x), ("y", y)])).unwrap_err();
    assert!(matches!(amid, Error::WrongContext { .. }), "{amid}");
    let strategy = mirrored(2);
    let alone = on_read(&strategy, VariableAggregation::None, Tensor::from([0u8, 0, 0]));
    let error = checkpoint::restore(&path, [("x", x), ("y", &alone)]).unwrap_err();
    assert_eq!(refusal(&error), ("checkpoint::restore", "aggregation", None));
    check_untouched(&variables);
}

#[test]
fn variables_without_elements_are_restored() {
    let folder = Folder::new("without-elements");
    let variables: Vec<Variable> =
        (0..8).map(|columns| Variable::new(Tensor::zeros(DType::F32, [0, columns])).unwrap()).collect();
    let named = || variables.iter().enumerate().map(|(number, variable)| (number.to_string(), variable));
    checkpoint::save(folder.path("empty"), named()).unwrap();
    checkpoint::restore(folder.path("empty"), named()).unwrap();
}

#[test]
fn a_variable_has_one_name() {
    let folder = Folder::new("twice");
    let (path, variables) = two(&folder);
    let [x, y] = &variables;
    for (call, twice) in [
        ("save", checkpoint::save(&path, [("x", x), ("z", y), ("y", x)])),
        ("restore", checkpoint::restore(&path, [("x", x), ("z", y), ("y", x)])),
    ] {
        let (error, call) = (twice.unwrap_err(), format!("checkpoint::{call}"));
        assert_eq!(refusal(&error), (&call[..], "variables", None));
        assert_eq!(found(&error), "the same as \"x\" and \"y\"");
    }
    check_untouched(&variables);
    checkpoint::restore(&path, [("x", x), ("y", y)]).expect("the file as it was");
}

/// Three processes make the same call, the chief first. A second writer would overwrite its value.
#[test]
fn of_several_processes_the_chief_alone_writes() {
    const WORKER: &str = "CONSONANCE_CHECKPOINT_OF_A_WORKER";
    let strategy = OneDeviceStrategy::new("cpu:0").unwrap();
    if let Some(path) = env::var_os(WORKER) {
        let resolver = TfConfigClusterResolver::new().unwrap();
        let task = strategy.variable(|| Tensor::from(resolver.task_id().unwrap() as u64)).unwrap();
        let wrote = checkpoint::save_on_chief(&resolver, path, [("task", &task)]).unwrap();
        assert_eq!(wrote, resolver.task_id() == Some(0));
        return;
    }
    let folder = Folder::new("chief");
    let path = folder.path("checkpoint");
    for index in 0..3 {
        let cluster = r#"{"worker": ["a:1", "b:1", "c:1"]}"#;
        let tf_config = format!(r#"{{"cluster": {cluster}, "task": {{"type": "worker", "index": {index}}}}}"#);
        let worker = Command::new(env::current_exe().unwrap())
            .args(["--exact", "of_several_processes_the_chief_alone_writes"])
            .env("TF_CONFIG", tf_config)
            .env(WORKER, &path)
            .output()
            .unwrap();
        assert!(worker.status.success(), "worker {index}: {}", String::from_utf8_lossy(&worker.stdout));
    }
    let task = strategy.variable(|| Tensor::from(9u64)).unwrap();
    checkpoint::restore(&path, [("task", &task)]).unwrap();
    assert_eq!(task.read().unwrap(), Tensor::from(0u64));
    assert_eq!(folder.files(), ["checkpoint"]);
    let twice = checkpoint::save_on_chief(
        &TfConfigClusterResolver::from_text(
            r#"{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}"#,
        )
        .unwrap(),
        &path,
        [("x", &task), ("x", &task)],
    );
    assert!(matches!(twice, Err(Error::InvalidCall { .. })), "what is wrong is wrong in every process");
}
