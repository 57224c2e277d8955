//! `consonance tune` writes a file that programs run with.
#![cfg(target_os = "linux")]

use consonance_kernels::tuning::Pipeline;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::{
    env, fs,
    io::{BufRead, BufReader},
    process::{self, Command, Output, Stdio},
};

fn consonance(words: &[&str], tuning: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_consonance"));
    command.args(words).env("CONSONANCE_TUNING", tuning).output().expect("the command")
}

#[test]
fn groups_use_the_file_written_by_tune() {
    let path = env::temp_dir().join(format!("consonance-tune-{}", process::id()));
    let file = path.to_str().expect("UTF-8");
    let knobs = "window_bytes,near,own,threads_payload_bytes,stream_bytes";
    let output = consonance(&["tune", file, "--time", "200ms", "--knobs", knobs], "off");
    let table = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(output.status.success(), "{table}{}", String::from_utf8_lossy(&output.stderr));
    for knob in knobs.split(',') {
        let rows: Vec<&str> = table.lines().filter(|line| line.trim().starts_with(knob)).collect();
        let times = rows.iter().map(|row| row.split_whitespace().next_back().and_then(|time| time.parse::<f64>().ok()));
        assert!(matches!(times.collect::<Vec<_>>()[..], [Some(_)]), "{table}");
    }
    let mut text = fs::read_to_string(file).expect("the file");
    let at = text.find("window_bytes = ").expect("a line of each knob");
    let end = at + text[at..].find('\n').expect("lines");
    text.replace_range(at..end, "window_bytes = 12800");
    fs::write(file, text).expect("a file");
    for transport in ["threads", "processes"] {
        let words = ["explain", "broadcast", "-b", "1M", "--no-measure", "--json", "--transport", transport];
        let json = String::from_utf8(consonance(&words, file).stdout).expect("UTF-8");
        let row: Value = serde_json::from_str(&json).expect("JSON");
        assert_eq!(
            (&row["tuning"]["window_bytes"]["value"], &row["tuning"]["window_bytes"]["from"]),
            (&12800.into(), &"file".into())
        );
        if transport == "processes" {
            assert_eq!(row["window_bytes"], 12800, "{row}");
        }
        let json = String::from_utf8(consonance(&words, "off").stdout).expect("UTF-8");
        let row: Value = serde_json::from_str(&json).expect("JSON");
        assert_eq!(row["tuning"]["window_bytes"]["from"], "default", "{row}");
    }
    fs::remove_file(file).expect("the file");
}

#[test]
fn every_pipeline_is_compared_with_the_choice_and_no_file_is_written() {
    let output = consonance(&["tune", "--all", "--time", "100ms"], "");
    let table = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(output.status.success(), "{table}{}", String::from_utf8_lossy(&output.stderr));
    let rows: Vec<Vec<&str>> =
        table.lines().filter(|line| line.starts_with("  ")).map(|line| line.split_whitespace().collect()).collect();
    let [header, .., last] = table.lines().collect::<Vec<_>>()[..] else { panic!("{table}") };
    let names: Vec<&str> = header.split_whitespace().skip(3).take(Pipeline::ALL.len()).collect();
    assert_eq!(names, Pipeline::ALL.map(Pipeline::name));
    for row in &rows {
        let number = |index: usize| row[index].parse::<f64>().expect("a number");
        let least = (2..3 + names.len()).map(number).fold(f64::MAX, f64::min);
        let fastest = names.iter().position(|name| *name == row[3 + names.len()]).expect("a pipeline");
        assert!(number(2 + fastest) <= number(2) && least > 0.0 && number(4 + names.len()) >= 1.0, "{table}");
    }
    assert!(last.ends_with(&format!(" of {} classes", rows.len())), "{table}");
    for words in [&["tune", "--all", "a-file"][..], &["tune", "--all", "--knobs", "near"], &["tune"]] {
        assert!(!consonance(words, "").status.success(), "{words:?}");
    }
}

#[test]
fn an_interrupted_tune_leaves_the_file_unchanged() {
    let [old, new] =
        ["old", "new"].map(|name| env::temp_dir().join(format!("consonance-tune-{name}-{}", process::id())));
    fs::write(&old, "what was there").expect("a file");
    for file in [&old, &new] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_consonance"));
        command.arg("tune").arg(file).args(["--time", "1h"]).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the command");
        let mut first = String::new();
        BufReader::new(child.stderr.take().expect("a pipe")).read_line(&mut first).expect("a line");
        assert!(first.starts_with("consonance: 1 of "), "{first}");
        kill_process(Pid::from_child(&child), Signal::TERM).expect("it runs");
        child.wait().expect("its end");
    }
    assert_eq!(fs::read_to_string(&old).expect("a file"), "what was there");
    assert!(!new.exists());
    fs::remove_file(old).expect("the file");
}

#[test]
fn a_malformed_file_is_refused_everywhere_by_line_and_knob() {
    let path = env::temp_dir().join(format!("consonance-tune-malformed-{}", process::id()));
    fs::write(&path, "consonance tuning 1\n\nwindow_bytes = many\n").expect("a file");
    let file = path.to_str().expect("UTF-8");
    let why = format!(
        "CONSONANCE_TUNING={file}, line 3, window_bytes: expected a multiple of 128 from 1024 to 67108864, found many"
    );
    let report = consonance(&["doctor", "--json"], file);
    let report: Value = serde_json::from_slice(&report.stdout).expect("JSON");
    let row = report["rows"].as_array().and_then(|rows| rows.iter().find(|row| row["name"] == "knobs")).expect("a row");
    assert_eq!((&row["state"], &row["finding"]), (&"fails".into(), &why.as_str().into()));
    let tune = consonance(&["tune", file], file);
    assert!(String::from_utf8_lossy(&tune.stderr).contains(&why), "{tune:?}");
    for transport in ["threads", "processes"] {
        let explain = consonance(&["explain", "broadcast", "--no-measure", "--transport", transport], file);
        assert!(!explain.status.success() && explain.stdout.is_empty(), "{transport}: {explain:?}");
    }
    let wrong = consonance(&["tune", file, "--knobs", "window"], "off");
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("expected one of near, far, "), "{wrong:?}");
    fs::remove_file(file).expect("the file");
}
