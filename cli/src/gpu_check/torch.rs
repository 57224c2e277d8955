//! The same sums by PyTorch, in a python that has it.

use super::{speed::Row, times::Times};
use crate::subprocess::Program;
use std::{
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

const SOURCE: &str = include_str!("torch.py");

/// The time that a python has to tell whether it has torch with CUDA, and that for all rows.
const ANSWER: Duration = Duration::from_secs(60);
const ROWS: Duration = Duration::from_secs(300);

/// Prints whether torch sees a device.
const QUESTION: &str = "import torch; print('consonance', torch.cuda.is_available(), sep='\\t')";

/// The beginning of lines that are no warnings.
const MARK: &str = "consonance\t";

/// The times of PyTorch.
#[derive(Clone, Debug)]
pub struct Torch {
    /// The python that has it.
    pub python: PathBuf,
    /// PyTorch's version.
    pub version: String,
    /// For each row, what the calls took; `None` for rows in place, and if there was no memory.
    pub rows: Vec<Option<Times>>,
}

/// Measures the rows in the first python that has torch with CUDA.
///
/// # Errors
/// Why none has.
pub(super) fn measure(pythons: &[PathBuf], device: usize, rows: &[Row]) -> Result<Torch, String> {
    let mut problems = Vec::new();
    for python in pythons {
        match ask(python).and_then(|()| run(python, device, rows)) {
            Ok(torch) => return Ok(torch),
            Err(why) => problems.push(format!("{}: {why}", python.display())),
        }
    }
    if problems.is_empty() { Err("there is no python3 in PATH".to_owned()) } else { Err(problems.join("; ")) }
}

fn ask(python: &Path) -> Result<(), String> {
    match call(python, &[QUESTION], ANSWER)?.first().map(String::as_str) {
        Some("True") => Ok(()),
        Some(_) => Err("its torch sees no CUDA device".to_owned()),
        None => Err("it gave no answer".to_owned()),
    }
}

fn run(python: &Path, device: usize, rows: &[Row]) -> Result<Torch, String> {
    // PyTorch's sums have one target.
    let words =
        rows.iter().filter(|row| !row.in_place).map(|row| format!("{}:{}:{}", row.dtype, row.inputs, row.bytes));
    let arguments: Vec<String> = [SOURCE.to_owned(), device.to_string()].into_iter().chain(words).collect();
    let mut lines = call(python, &arguments, ROWS)?.into_iter();
    let version = lines.next().unwrap_or_default();
    let row = |row: &Row| if row.in_place { None } else { lines.next().and_then(|line| times(&line)) };
    let rows = rows.iter().map(row).collect();
    Ok(Torch { python: python.to_owned(), version, rows })
}

/// Runs a program of Python: its text, and its arguments. Returns the marked lines, without the
/// mark.
fn call(python: &Path, arguments: &[impl AsRef<str>], time: Duration) -> Result<Vec<String>, String> {
    let mut command = Command::new(python);
    command.arg("-c").args(arguments.iter().map(AsRef::as_ref));
    let program = Program::start(command).map_err(|error| error.to_string())?;
    match program.finish(Instant::now() + time)? {
        (true, text) => Ok(text.lines().filter_map(|line| line.strip_prefix(MARK)).map(str::to_owned).collect()),
        (false, text) => Err(text.lines().last().unwrap_or("it failed without a word").to_owned()),
    }
}

/// Reads a line of times.
fn times(line: &str) -> Option<Times> {
    let mut numbers = line.split('\t').map(|number| number.parse::<f64>().ok().filter(|time| *time > 0.0));
    let times = Times { stack_sum: numbers.next()?, adds: numbers.next()?, foreach: numbers.next()? };
    times.stack_sum.is_some().then_some(times)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_times_are_read() {
        let read = times("0.001\t0.5\t2e-05").expect("three times");
        assert_eq!((read.stack_sum, read.adds, read.foreach), (Some(0.001), Some(0.5), Some(2e-5)));
        assert!(times("-").is_none() && times("").is_none());
    }

    #[test]
    fn a_python_without_torch_is_no_reason_to_fail() {
        let why = measure(&["/no/such/python".into(), "false".into()], 0, &[]).expect_err("no torch");
        assert!(why.contains("/no/such/python: ") && why.contains("false: "), "{why}");
        measure(&[], 0, &[]).expect_err("no python");
    }
}
