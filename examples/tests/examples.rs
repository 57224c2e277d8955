//! The examples that start processes, and the command that starts them, run as a user runs them.
//! `cargo test --workspace` builds all of them first.
#![cfg(target_os = "linux")]

use consonance::raw::Wire;
use std::{
    env, fs,
    io::Read,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Far longer than any test here takes.
const LIMIT: Duration = Duration::from_secs(120);

/// Returns a program of the workspace, by its path beside the folder of this test.
fn built(path: &str) -> PathBuf {
    let test = env::current_exe().expect("the path of this test");
    let path = test.parent().expect("a folder").with_file_name(path);
    assert!(path.exists(), "cargo test --workspace builds {}", path.display());
    path
}

fn example(name: &str) -> PathBuf {
    built(&format!("examples/{name}"))
}

/// Runs a program with these arguments, separated by spaces. Returns its status, and both of its
/// outputs.
fn run(program: impl AsRef<Path>, arguments: &str) -> (Option<i32>, String) {
    run_with(program, &arguments.split_whitespace().collect::<Vec<_>>())
}

/// Like [`run`], with arguments that may contain spaces.
fn run_with(program: impl AsRef<Path>, arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(program.as_ref());
    command.args(arguments).env_remove("TF_CONFIG").env_remove("CONSONANCE_REPLICAS");
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (mut stdout, mut stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let read = |pipe: &mut dyn Read| {
        let mut text = String::new();
        pipe.read_to_string(&mut text).map(|_| text).unwrap()
    };
    let readers = [thread::spawn(move || read(&mut stdout)), thread::spawn(move || read(&mut stderr))];
    let begin = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if begin.elapsed() > LIMIT {
            child.kill().unwrap();
            let output = readers.map(|reader| reader.join().unwrap()).concat();
            panic!("{} {arguments:?}: not ended within {LIMIT:?}:\n{output}", program.as_ref().display());
        }
        thread::sleep(Duration::from_millis(5));
    };
    (status.code(), readers.map(|reader| reader.join().unwrap()).concat())
}

/// Returns the output of a program that succeeds.
fn success(program: impl AsRef<Path>, arguments: &str) -> String {
    let (status, output) = run(program, arguments);
    assert_eq!(status, Some(0), "{arguments}: {output}");
    output
}

/// Returns the digest in a line with these words.
fn digest<'o>(output: &'o str, words: &str) -> &'o str {
    let line = output.lines().find(|line| line.contains(words)).unwrap_or_else(|| panic!("no {words:?} in {output}"));
    let is_digest = |word: &&str| word.len() == 16 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    line.split_whitespace().find(is_digest).unwrap_or_else(|| panic!("no digest: {line}"))
}

#[test]
fn digits_have_the_same_bits_in_workers_and_in_one_process() {
    const SMALL: &str = "--epochs 1 --hidden 12";
    let digits = example("digits");
    let of_training = "the training above";
    let [two, four] = [2, 4]
        .map(|replicas| success(&digits, &format!("--replicas {replicas} {SMALL}")))
        .map(|output| digest(&output, of_training).to_owned());

    let output = success(&digits, &format!("--workers 2 {SMALL}"));
    assert_eq!([digest(&output, of_training), digest(&output, "2 in one process")], [&two; 2], "{output}");
    for words in ["2 × 1, staged by 256.00 KiB", "2 × 1, staged by 4.00 MiB", "OneShot", "TwoShot"] {
        assert_eq!(digest(&output, words), two, "{output}");
    }
    // Only one of the workers prints.
    assert_eq!(output.matches("Every bit of every weight is the same.").count(), 1, "{output}");

    // The command starts the workers, and sets their number of replicas.
    let arguments = format!("run -n 2 --replicas 2 --timeout 100s -- {} {SMALL}", digits.display());
    let output = success(built("consonance"), &arguments);
    assert_eq!([digest(&output, of_training), digest(&output, "4 in one process")], [&four; 2], "{output}");
    assert!(output.contains("2 × 2, staged by 1.00 MiB"), "{output}");
}

/// Returns whether this machine plays hosts that have a wire; otherwise says that a test is
/// skipped.
fn plays_hosts(test: &str) -> bool {
    if run(built("consonance"), "run --hosts 2 -n 1 -- true").0 != Some(0) {
        println!("skipped: {test}; run the tests as root, with iproute2 and util-linux");
        return false;
    }
    let wire = Wire::open(None);
    wire.as_ref().err().iter().for_each(|absent| println!("skipped: {test}: {absent}"));
    wire.is_ok()
}

#[test]
fn digits_have_the_same_bits_on_two_hosts_and_in_one_process() {
    const SMALL: &str = "--epochs 1 --hidden 12";
    let digits = example("digits");
    if !plays_hosts("digits on two hosts") {
        return;
    }
    let output = success(&digits, &format!("--hosts 2 --workers 2 {SMALL}"));
    let four = success(&digits, &format!("--replicas 4 {SMALL}"));
    let of_training = "the training above";
    assert_eq!([digest(&output, of_training), digest(&output, "4 in one process")], [digest(&four, of_training); 2]);
}

#[test]
fn digits_fail_if_a_worker_fails() {
    let (status, output) = run(example("digits"), "--workers 2 --batch 1");
    assert_eq!(status, Some(1), "{output}");
    assert!(output.contains("error: --batch 1 leaves some of 2 replicas without a digit"), "{output}");
}

#[test]
fn training_goes_on_without_a_lost_worker() {
    for lose in 0..3 {
        let output = success(example("elastic"), &format!("--steps 60 --at 20 --lose {lose}"));
        assert_eq!(output.matches("20 steps are done; ").count(), 2, "{output}");
        assert_eq!(output.matches(&format!("replica {lose} was lost with its process")).count(), 2, "{output}");
        for replica in 0..2 {
            assert!(output.contains(&format!("reformed: now replica {replica} of 2")), "{output}");
        }
        let one_process = "one process: 3 replicas in steps 0 to 19, 2 replicas in steps 20 to 59";
        assert_eq!(digest(&output, "] done: "), digest(&output, one_process), "{output}");
    }
}

#[test]
fn a_recommender_loses_a_worker_and_no_bit() {
    let output = success(example("recommender"), "--epochs 4");
    assert!(output.contains("worker 1 was lost") && output.ends_with("same bits\n"), "{output}");
    // The window decides, and not the number of workers or servers.
    let others = success(example("recommender"), "--epochs 4 --threads --workers 3 --servers 1");
    assert_eq!(digest(&output, "digest of the tables"), digest(&others, "digest of the tables"), "{output}{others}");
}

#[test]
fn grains_give_digits_the_same_bits_for_any_number_of_replicas() {
    const SMALL: &str = "--epochs 1 --hidden 12";
    let digits = example("digits");
    let trained = |way: &str| success(&digits, &format!("{way} --no-proof {SMALL}"));
    let of_weights = "digest of the weights";
    let eight = trained("--replicas 8");
    let eight = digest(&eight, of_weights);
    for way in [
        "--replicas 1",
        "--replicas 2",
        "--replicas 5",
        "--replicas 8",
        "--workers 2",
        "--workers 3",
        "--workers 2 --device cpu:5,cpu:1",
    ] {
        let output = trained(&format!("--grains 8 {way}"));
        assert_eq!(digest(&output, of_weights), eight, "{way}: {output}");
    }
    let output = success(&digits, &format!("--grains 8 --replicas 3 {SMALL}"));
    for words in ["the training above", "1 in one process", "5 in one process", "8 in one process", "send messages"] {
        assert_eq!(digest(&output, words), eight, "{output}");
    }
    let (status, output) = run(&digits, "--grains 2 --replicas 3");
    assert_eq!(status, Some(1), "{output}");
    assert!(output.contains("grains: expected at least one for each of 3 replicas, found 2"), "{output}");
    let (status, output) = run(&digits, "--grains 2 --device cuda:0");
    // Without a GPU there is no such device.
    assert!(status != Some(0) && output.starts_with("error: ") && output.contains("cuda:0"), "{status:?}: {output}");
}

#[test]
fn grains_of_a_lost_worker_are_done_by_the_others() {
    let output = success(example("elastic"), "--grains 6 --steps 60 --at 20");
    assert_eq!(output.matches("20 steps are done; ").count(), 2, "{output}");
    let undisturbed = "one process: 1 replicas in steps 0 to 59";
    assert_eq!(digest(&output, "] done: "), digest(&output, undisturbed), "{output}");
}

#[test]
fn grains_of_a_lost_host_are_done_by_the_others() {
    if !plays_hosts("elastic on two hosts") {
        return;
    }
    for (hosts, workers, lose) in [(2, 3, 1), (2, 2, 1), (3, 2, 0)] {
        let output = success(
            example("elastic"),
            &format!("--grains 6 --hosts {hosts} --workers {workers} --lose {lose} --steps 60 --at 20"),
        );
        assert_eq!(output.matches("in step 20: kill -9 ").count(), workers, "{output}");
        assert_eq!(output.matches("] done: ").count(), (hosts - 1) * workers, "{output}");
        let undisturbed = "one process: 1 replicas in steps 0 to 59";
        assert_eq!(digest(&output, "] done: "), digest(&output, undisturbed), "{output}");
    }
}

#[test]
fn absent_hosts_and_too_few_grains_for_hosts_are_refused_at_the_start() {
    for (words, problem) in [
        ("--grains 6 --lose 2", "there are hosts 0 to 1 and steps 0 to 239"),
        ("--grains 5", "--grains 5 leaves some of 6 workers without a grain"),
    ] {
        let refused = run(example("elastic"), &format!("--hosts 2 {words}"));
        assert_eq!(refused, (Some(1), format!("error: {problem}\n")));
    }
}

#[test]
fn too_few_grains_for_the_workers_are_refused_at_the_start() {
    for grains in [0, 2] {
        let (status, output) = run(example("elastic"), &format!("--grains {grains}"));
        let refused = format!("error: --grains {grains} leaves some of 3 workers without a grain\n");
        assert_eq!((status, output), (Some(1), refused));
    }
}

#[test]
fn workers_of_the_command_reform_if_it_keeps_going() {
    let elastic = example("elastic");
    let elastic = format!("exec {} --steps 60 --at 20", elastic.display());
    let script = format!("case $TF_CONFIG in *'\"index\": 1}}'*) {elastic} --doomed;; *) {elastic};; esac");
    let (status, output) = run_with(
        built("consonance"),
        &["run", "-n", "3", "--keep-going", "--timeout", "100s", "--", "sh", "-c", &script],
    );
    assert_eq!(status, Some(0), "{output}");
    assert_eq!(output.matches("20 steps are done; ").count(), 2, "{output}");
    assert_eq!(output.matches("] done: ").count(), 2, "{output}");
    assert!(output.contains("): killed by SIGKILL; the others go on\n"), "{output}");
}

#[test]
fn the_command_replaces_a_lost_worker() {
    let elastic = example("elastic");
    let elastic = format!("exec {} --steps 60 --at 20 --replace", elastic.display());
    let script =
        format!("case \"$RANK $TORCHELASTIC_RESTART_COUNT\" in '1 0') {elastic} --doomed;; *) {elastic};; esac");
    let (status, output) = run_with(
        built("consonance"),
        &["run", "-n", "3", "--max-restarts", "1", "--timeout", "100s", "--", "sh", "-c", &script],
    );
    assert_eq!(status, Some(0), "{output}");
    assert!(output.contains("[worker 1] caught up from step 0 to step 20"), "{output}");
    assert_eq!(output.matches(digest(&output, "] done: ")).count(), 3, "{output}");
    assert!(output.contains(" replaces it (restart 1 of 1)\n"), "{output}");
    let alone = success(example("elastic"), "--steps 60 --at 20 --replace");
    assert_eq!(digest(&alone, "one process: "), digest(&output, "] done: "), "{output}");
}

#[test]
fn training_with_a_replaced_worker_has_the_bits_of_one_without_a_loss() {
    for (lose, at) in [(0, 0), (1, 20), (2, 59)] {
        let output = success(example("elastic"), &format!("--steps 60 --at {at} --lose {lose} --replace"));
        assert_eq!(output.matches("reformed: now replica ").count(), 2, "{output}");
        assert_eq!(output.contains(&format!("[worker {lose}] caught up from step 0 to step {at}")), at > 0, "{output}");
        let (done, one_process) = (digest(&output, "] done: "), "one process: 3 replicas in steps 0 to 59");
        assert_eq!(done, digest(&output, one_process), "{output}");
        assert_eq!(output.matches(done).count(), 4, "{output}");
    }
}

#[test]
fn train_learns_between_threads_and_between_processes() {
    let folder = env::temp_dir().join(format!("consonance-train-{}", std::process::id()));
    let train = example("train").display().to_string();
    let alone = success(&train, &folder.display().to_string());
    let accuracy = alone.lines().last().and_then(|line| line.split_whitespace().nth(4)).map(str::parse::<f64>);
    assert!(accuracy.is_some_and(|percent| percent.is_ok_and(|percent| percent > 85.0)), "{alone}");
    assert_eq!(success(&train, &folder.display().to_string()), "", "all epochs are in the checkpoint");
    fs::remove_dir_all(&folder).expect("the checkpoints");

    let workers = success(built("consonance"), &format!("run -n 2 --timeout 100s -- {train}"));
    assert_eq!(workers.matches("[worker 0] epoch ").count(), 20, "{workers}");
    assert!(!workers.contains("[worker 1]"), "{workers}");
}
