//! `consonance gpu-check`: on the driver for tests, whose device is an interpreter, and on machines
//! where something is missing.
#![cfg(target_os = "linux")]

use serde_json::Value;
use std::{
    env,
    path::PathBuf,
    process::{Command, Output},
};

/// The path of the driver for tests, which is built beside these.
fn driver() -> PathBuf {
    let path = env::current_exe().expect("the path of this test");
    path.parent().expect("a folder").join("libconsonance_fake_driver.so")
}

/// Runs a subcommand with this driver, and with a plan of its failures.
fn consonance(words: &str, driver: &str, plan: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_consonance"));
    command.args(words.split_whitespace());
    command.env("CONSONANCE_CUDA_DRIVER", driver).env("CONSONANCE_FAKE_DRIVER", plan);
    command.output().expect("the command")
}

fn with_plan(words: &str, plan: &str) -> Output {
    consonance(words, &driver().to_string_lossy(), plan)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The shipped PTX, end to end through the driver's functions: bits of each element type.
#[test]
fn the_kernels_have_the_processor_s_bits_on_the_interpreter() {
    let output = with_plan("gpu-check --bits-only --elements 70 --every 37", "delay=1 seed=3");
    let report = text(&output.stdout);
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()), "{report}");
    for words in [
        "cuda:0    interpreter (no GPU), ",
        ", CUDA 12.0\n",
        "compile   ",
        " modules in ",
        " pairs of work and element type: all as the processor's\n",
        "This ran on the interpreter of the kernels' PTX, and on no GPU. Nothing was measured.\n",
    ] {
        assert!(report.contains(words), "{words:?} is not in {report}");
    }
}

#[test]
fn programs_read_json() {
    let output = with_plan("gpu-check --json --elements 5 --every 200 --device 1", "devices=2");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["agrees"], true, "{report}");
    assert_eq!(report["device"]["name"], "interpreter (no GPU)", "{report}");
    assert_eq!(report["device"]["is_interpreter"], true, "{report}");
    assert_eq!(report["device"]["uuid"], "GPU-696e7465-7270-7265-7465-722000000001", "{report}");
    assert!(report["bits"]["cases"].as_u64().is_some_and(|cases| cases > 10), "{report}");
    assert_eq!((report["speed"].as_array().map(Vec::len), report["torch"].is_null()), (Some(0), true), "{report}");
}

/// A check that could not fail would say nothing.
#[test]
fn a_wrong_bit_is_found() {
    for copy in [1, 7, 20] {
        let output = with_plan("gpu-check --bits-only --elements 40 --every 499", &format!("flip={copy}"));
        let report = text(&output.stdout);
        assert_eq!(output.status.code(), Some(1), "{report}");
        let wrong = report.split_once(": WRONG\n").unwrap_or_else(|| panic!("{report}")).1;
        assert!(wrong.contains("source ") || wrong.contains("target ") || wrong.contains("byte "), "{report}");
    }
}

#[test]
fn the_doctor_tells_of_the_driver_and_its_devices() {
    let row = |output: Output| {
        let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let rows = report["rows"].as_array().expect("a list").clone();
        rows.into_iter().find(|row| row["name"] == "CUDA driver").expect("a row")
    };
    let found = row(with_plan("doctor --json", "devices=2 first=1"));
    assert_eq!((&found["state"], &found["facts"]["path"]), (&"found".into(), &driver().to_string_lossy().into()));
    let finding = found["finding"].as_str().expect("words");
    let uuids = [1, 2].map(|device| format!("GPU-696e7465-7270-7265-7465-72200000000{device}"));
    let named = [0, 1].map(|device| found["facts"]["cuda"]["devices"][device]["uuid"].as_str().expect("a UUID"));
    assert!(named == uuids && uuids.iter().all(|uuid| finding.contains(uuid)), "{found}");
    assert!(finding.contains("; it has CUDA 12.0; cuda:0 is interpreter (no GPU), "), "{finding}");
    assert_eq!(found["facts"]["cuda"]["devices"].as_array().map(Vec::len), Some(2), "{found}");

    let absent = row(consonance("doctor --json", "/no/such/libcuda.so.1", ""));
    let why = absent["facts"]["cuda"]["absent"].as_str().expect("words");
    assert!(why.contains("/no/such/libcuda.so.1 cannot be loaded"), "{absent}");
}

#[test]
fn missing_parts_of_the_driver_are_reported() {
    let cases = [
        ("/no/such/libcuda.so.1", "", "there is no CUDA driver: /no/such/libcuda.so.1 cannot be loaded"),
        ("libc.so.6", "", "libc.so.6 has no function cuInit"),
    ];
    for (driver, plan, said) in cases {
        let output = consonance("gpu-check", driver, plan);
        let error = text(&output.stderr);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{error}");
        assert!(error.starts_with(&format!("consonance: {said}")), "{error}");
    }
    let cases = [
        ("", "devices=0", "there is no CUDA device 0: the driver sees none"),
        ("--device 3", "", "there is no CUDA device 3: the driver sees 1"),
        ("", "fail=cuInit:1:100", "there is no CUDA device 0"),
        ("", "fail=cuInit:1:999", "cuInit failed with code 999"),
        ("", "fail=cuMemAlloc_v2:2:2", "cuMemAlloc_v2 failed with code 2 (CUDA_ERROR_OUT_OF_MEMORY)"),
        ("", "fail=cuModuleLoadDataEx:1:218", "cuModuleLoadDataEx failed with code 218"),
        ("", "fail=cuStreamQuery:9:700", "CUDA_ERROR_ILLEGAL_ADDRESS"),
    ];
    for (words, plan, said) in cases {
        let output = with_plan(&format!("gpu-check --bits-only --elements 5 --every 500 {words}"), plan);
        let error = text(&output.stderr);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{plan}: {error}");
        assert!(error.starts_with("consonance: ") && error.contains(said), "{plan}: {error}");
    }
}

#[test]
fn invalid_arguments_are_refused() {
    for words in ["--device first", "--every 0", "now"] {
        let output = with_plan(&format!("gpu-check {words}"), "");
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{words}");
    }
}
