//! `consonance doctor`: on this machine as it is, and with lowered limits.
#![cfg(target_os = "linux")]

use serde_json::Value;
use std::{
    collections::BTreeSet,
    env, fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::{self, Command, Output},
    time::{Duration, Instant},
};

const CONSONANCE: &str = env!("CARGO_BIN_EXE_consonance");

/// Far longer than any test here takes.
const LIMIT: Duration = Duration::from_secs(60);

const KEYS: [&str; 6] = ["section", "name", "state", "finding", "advice", "facts"];

/// Runs `consonance doctor` with these words.
fn doctor(words: &str) -> Output {
    Command::new(CONSONANCE).arg("doctor").args(words.split_whitespace()).output().expect("the command")
}

/// Runs `consonance doctor` in a shell that has lowered a limit before.
fn limited(limit: &str, words: &str) -> (Option<i32>, String) {
    let script = format!("ulimit {limit} && exec \"$0\" doctor {words}");
    let begin = Instant::now();
    let output = Command::new("sh").args(["-c", &script, CONSONANCE]).output().expect("a shell");
    assert!(begin.elapsed() < LIMIT, "{limit}: {output:?}");
    (output.status.code(), text(&output.stdout))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns the rows of a report that is a JSON object.
#[track_caller]
fn rows(report: &str) -> Vec<Value> {
    let report: Value = serde_json::from_str(report).unwrap_or_else(|error| panic!("{error}: {report}"));
    let rows = report["rows"].as_array().expect("a list").clone();
    let failed = |row: &&Value| row["state"] == "fails";
    assert_eq!(report["usable"], rows.iter().find(failed).is_none(), "{report}");
    for row in &rows {
        let keys: Vec<&str> = row.as_object().expect("an object").keys().map(String::as_str).collect();
        assert_eq!(keys, KEYS, "{row}");
        assert!(row["facts"].is_object() && !row["finding"].as_str().expect("words").is_empty(), "{row}");
        let needs_advice = ["fails", "note", "absent"].iter().any(|state| row["state"] == *state);
        assert_eq!(row["advice"].is_string(), needs_advice, "{row}");
    }
    let names: BTreeSet<&str> = rows.iter().filter_map(|row| row["name"].as_str()).collect();
    assert_eq!(names.len(), rows.len(), "a row is found by its name: {names:?}");
    rows
}

#[track_caller]
fn named<'r>(rows: &'r [Value], name: &str) -> &'r Value {
    rows.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("no {name} in {rows:?}"))
}

#[track_caller]
fn assert_is_narrow(report: &str) {
    let wide: Vec<&str> = report.lines().filter(|line| line.chars().count() > 80).collect();
    assert!(wide.is_empty(), "{wide:?}");
}

/// The variables of another launch have no effect on the processes of the trial.
#[test]
fn this_machine_can_run_the_tests() {
    let mut command = Command::new(CONSONANCE);
    command.arg("doctor").env("TF_CONFIG", "no JSON").env("CONSONANCE_REPLICAS", "7").env("CONSONANCE_JOB", "another");
    let output = command.output().expect("the command");
    let report = text(&output.stdout);
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()), "{report}");
    assert_is_narrow(&report);
    let titles: Vec<&str> = report.lines().filter(|line| !line.is_empty() && !line.starts_with(' ')).collect();
    let expected = [
        "machine",
        "memory",
        "limits and settings",
        "trial",
        "for groups of several hosts (information only)",
        "for GPUs, and for benches beside MPIs (information only)",
        concat!("This machine can run Consonance ", env!("CARGO_PKG_VERSION"), "."),
    ];
    assert_eq!(titles, expected, "{report}");
}

#[test]
fn programs_read_json() {
    let mut command = Command::new(CONSONANCE);
    command.args(["doctor", "--json"]).env_remove("CONSONANCE_TUNING");
    let output = command.output().expect("the command");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let rows = rows(&text(&output.stdout));
    for name in ["processor", "instruction set", "cores", "caches", "free memory", "control group", "open files"] {
        named(&rows, name);
    }
    assert!(named(&rows, "cores")["facts"]["count"].as_u64().is_some_and(|count| count > 0));
    assert!(named(&rows, "free memory")["facts"]["available_bytes"].is_u64());
    for name in ["threads", "processes"] {
        assert_eq!(named(&rows, name)["facts"]["wrong"], 0);
    }
    assert!(named(&rows, "peers' memory")["facts"]["readable"].is_boolean());
    // Other tests may keep the machine busy, and it may have one core.
    let origin = &named(&rows, "pipelines")["facts"]["origin"];
    assert!(origin == "measured" || origin == "default", "{origin}");
    let engines: Vec<&Value> = rows.iter().filter(|row| row["section"] == "engines").collect();
    let names: Vec<&str> = engines.iter().filter_map(|row| row["name"].as_str()).collect();
    assert_eq!(names, ["library folders", "CUDA driver", "NCCL", "Open MPI", "MPICH", "Intel MPI"]);
    for row in &engines {
        assert!(row["facts"]["looked_in"].as_array().is_some_and(|places| !places.is_empty()), "{row}");
    }
    for row in &engines[1..] {
        let has_engine = &row["facts"]["engine_built"];
        assert_eq!(*has_engine == true, row["name"] == "CUDA driver", "{row}");
        let found = row["facts"]["path"].is_string();
        assert_eq!(row["state"], if found { "found" } else { "absent" }, "{row}");
    }
}

#[test]
fn a_fixed_choice_of_pipelines_is_shown() {
    let file = env::temp_dir().join(format!("consonance-doctor-{}.tuning", process::id()));
    fs::write(&file, "consonance tuning 1\n\nnear = plain\nfar = stream\n").expect("a file");
    for (value, expected) in
        [(file.as_os_str(), ["plain", "stream", "file"]), ("off".as_ref(), ["vector", "ahead", "off"])]
    {
        let mut command = Command::new(CONSONANCE);
        let output = command.args(["doctor", "--json"]).env("CONSONANCE_TUNING", value).output().expect("the command");
        let facts = named(&rows(&text(&output.stdout)), "pipelines")["facts"].clone();
        assert_eq!(["near", "far", "origin"].map(|key| facts[key].as_str().unwrap_or_default()), expected);
    }
    fs::remove_file(&file).expect("the file");
}

#[test]
fn ucx_is_found_where_programs_find_it() {
    let row = |variables: &[(&str, &str)]| {
        let mut command = Command::new(CONSONANCE);
        let output = command.args(["doctor", "--json"]).envs(variables.iter().copied()).output().expect("the command");
        named(&rows(&text(&output.stdout)), "UCX").clone()
    };
    let absent = row(&[("CONSONANCE_UCX", "/no/such/libucp.so.0")]);
    assert_eq!((&absent["state"], &absent["section"]), (&"absent".into(), &"hosts".into()), "{absent}");
    let place = "/no/such/libucp.so.0 (from CONSONANCE_UCX)";
    assert_eq!(absent["finding"], format!("{place}: there is no such file"));
    assert_eq!(absent["facts"]["looked_in"], serde_json::json!([place]), "{absent}");
    assert!(absent["advice"].as_str().is_some_and(|advice| advice.contains("apt install libucx0")), "{absent}");

    let found = row(&[("VIRTUAL_ENV", "/v"), ("CONDA_PREFIX", "/c")]);
    let facts = &found["facts"];
    assert_eq!(facts["looked_in"].as_array().map(Vec::len), Some(4), "{found}");
    match consonance::raw::Wire::open(None) {
        Ok(wire) => {
            let version = wire.version().map(|number| number.to_string()).join(".");
            assert_eq!((&found["state"], &facts["version"]), (&"found".into(), &version.into()), "{found}");
            assert!(facts["path"].as_str().is_some_and(|path| path.starts_with('/')), "{found}");
            let transports = facts["transports"].as_array().expect("a list");
            assert!(transports.iter().all(|name| name.as_str().is_some_and(|name| name.contains('/'))), "{found}");
            assert!(!transports.is_empty(), "{found}");
        }
        Err(_) => {
            println!("skipped: UCX that is found; there is none");
            assert_eq!((&found["state"], facts["looked"].as_array().map(Vec::len)), (&"absent".into(), Some(4)));
        }
    }
}

#[test]
fn an_mpi_is_found_where_its_launcher_s_processes_find_it() {
    let row = |path: &str| {
        let mut command = Command::new(CONSONANCE);
        let output = command.args(["doctor", "--json"]).env("CONSONANCE_MPI", path).output().expect("the command");
        named(&rows(&text(&output.stdout)), "MPI").clone()
    };
    for (path, reason) in [
        ("/no/such/libmpi.so.12", "there is no such file"),
        // A file, and no library.
        (CONSONANCE, "cannot"),
    ] {
        let absent = row(path);
        let place = format!("{path} (from CONSONANCE_MPI)");
        assert_eq!((&absent["state"], &absent["section"]), (&"absent".into(), &"hosts".into()), "{absent}");
        let finding = absent["finding"].as_str().unwrap_or_default();
        assert!(finding.starts_with(&place) && finding.contains(reason), "{absent}");
        assert_eq!(absent["facts"]["looked"][0]["place"], place, "{absent}");
        assert!(absent["advice"].as_str().is_some_and(|advice| advice.contains("pip install mpich")), "{absent}");
    }
    let library = env::var("VIRTUAL_ENV").map(|root| format!("{root}/lib/libmpi.so.12")).unwrap_or_default();
    if !Path::new(&library).exists() {
        println!("skipped: an MPI that is found; VIRTUAL_ENV has no lib/libmpi.so.12 (see cli/tests/mpi)");
        return;
    }
    let found = row(&library);
    assert_eq!(found["state"], "found", "{found}");
    assert_eq!(found["facts"]["looked"][0]["place"], format!("{library} (from CONSONANCE_MPI)"), "{found}");
    let version = found["facts"]["looked"][0]["version"].as_str().unwrap_or_default();
    assert!(
        version.contains("MPI") && found["finding"].as_str().is_some_and(|words| words.contains(version)),
        "{found}"
    );
}

#[test]
fn too_few_open_files_fail_the_trial_of_processes() {
    let (status, report) = limited("-n 10", "--json");
    assert_eq!(status, Some(1), "{report}");
    let rows = rows(&report);
    assert_eq!(named(&rows, "open files")["state"], "note");
    let processes = named(&rows, "processes");
    assert_eq!((&processes["state"], &processes["facts"]["os_error"]), (&"fails".into(), &24.into()), "{processes}");
    assert!(processes["advice"].as_str().is_some_and(|advice| advice.starts_with("ulimit -n ")), "{processes}");
}

#[test]
fn too_few_addresses_fail_shared_memory() {
    // Less than a segment takes, more than the command needs.
    let (status, report) = limited("-v 1000000", "");
    assert_eq!(status, Some(1), "{report}");
    assert_is_narrow(&report);
    for words in ["  FAILS  shared memory ", "  note   address space ", "  ok     threads ", "  FAILS  processes "] {
        assert!(report.contains(words), "{words:?} is not in {report}");
    }
    assert_eq!(report.matches("-> ulimit -v unlimited").count(), 3, "{report}");
    assert!(report.ends_with("Failed: shared memory, processes.\n"), "{report}");
}

/// If the threads of the trial get no memory, their process ends. The report must go on.
#[test]
fn a_trial_without_memory_is_reported() {
    let (status, report) = limited("-v 100000", "--json");
    assert_eq!(status, Some(1), "{report}");
    let rows = rows(&report);
    assert_eq!(named(&rows, "processes")["state"], "fails");
    let threads = named(&rows, "threads");
    let advice = threads["advice"].as_str().unwrap_or_default();
    assert!(threads["state"] == "ok" || advice.contains("ulimit -v unlimited"), "{threads}");
}

#[test]
fn a_limit_on_files_fails_shared_memory() {
    let (status, report) = limited("-f 100", "--json");
    assert_eq!(status, Some(1), "{report}");
    let rows = rows(&report);
    let shared = named(&rows, "shared memory");
    assert_eq!((&shared["state"], &shared["facts"]["os_error"]), (&"fails".into(), &27.into()), "{shared}");
    assert!(shared["advice"].as_str().is_some_and(|advice| advice.starts_with("ulimit -f unlimited")), "{shared}");
}

/// A folder for temporary files. It is removed when this is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        let path = env::temp_dir().join(format!("consonance-doctor-engines-{}", process::id()));
        fs::create_dir_all(&path).expect("a folder for temporary files");
        Folder(path)
    }

    /// Writes an executable shell script.
    fn script(&self, name: &str, script: &str) {
        let path = self.0.join(name);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("a file");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("a file of this test's");
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn engines_are_found_where_they_are_looked_for() {
    let folder = Folder::new();
    folder.script("mpirun", "echo 'mpirun (Open MPI) 4.1.4'");
    folder.script("mpiexec", "/bin/sleep 100");
    folder.script("mpiexec.hydra", "echo 'Intel(R) MPI Library for Linux* OS, Version 2021.9 Build 20230307'");
    fs::write(folder.0.join("libnccl.so.2.27.3"), "").expect("a file");
    symlink("libnccl.so.2.27.3", folder.0.join("libnccl.so.2")).expect("a link");
    // A file where a folder is expected.
    let broken = folder.0.join("mpirun");
    let paths = env::join_paths([&broken, &folder.0]).expect("paths without a colon");

    let mut command = Command::new(CONSONANCE);
    command.args(["doctor", "--json"]).env("PATH", &folder.0).env("LD_LIBRARY_PATH", paths);
    let begin = Instant::now();
    let output = command.output().expect("the command");
    assert!(begin.elapsed() < LIMIT, "{output:?}");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let rows = rows(&text(&output.stdout));
    let expected =
        [("Open MPI", "mpirun", "4.1.4"), ("Intel MPI", "mpiexec.hydra", "2021.9"), ("NCCL", "libnccl.so.2", "2.27.3")];
    for (name, file, version) in expected {
        let row = named(&rows, name);
        assert_eq!((&row["state"], &row["facts"]["version"]), (&"found".into(), &version.into()), "{row}");
        assert_eq!(row["facts"]["path"], folder.0.join(file).to_string_lossy().into_owned(), "{row}");
    }
    let mpich = named(&rows, "MPICH");
    assert_eq!(mpich["state"], "absent");
    let hangs = format!("{}: it gave no answer in time", folder.0.join("mpiexec").display());
    assert_eq!(mpich["facts"]["problems"], serde_json::json!([hangs]), "{mpich}");
    assert!(mpich["finding"].as_str().is_some_and(|finding| finding.contains(&hangs)), "{mpich}");
    let problem = format!("{} cannot be read: ", broken.display());
    let folders = named(&rows, "library folders");
    assert_eq!(folders["state"], "note");
    assert!(folders["finding"].as_str().is_some_and(|finding| finding.contains(&problem)), "{folders}");
}

#[test]
fn invalid_arguments_are_refused() {
    for words in ["--jsn", "now", "--json yes"] {
        let output = doctor(words);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{words}");
        assert!(text(&output.stderr).contains("Usage: consonance doctor "), "{words}: {output:?}");
    }
}
