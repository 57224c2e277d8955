//! The table of results as text, as wide as its reader's terminal.

use super::{Row, size};
use std::fmt::Write;

/// The columns of a table with everything.
const WIDE: usize = 127;

/// A table that is printed row by row.
pub(crate) struct Table {
    /// The columns that a line may have. The lines of a wide table are as long as they are.
    width: usize,
    /// The notes and failures that were printed. Each is printed once, and not at each size.
    told: Vec<String>,
    begun: bool,
}

impl Table {
    /// Returns an empty table for lines of at most `width` columns. With fewer than 127 it has only
    /// the columns that differ from row to row, in 80.
    pub(crate) fn new(width: usize) -> Table {
        Table { width, told: Vec::new(), begun: false }
    }

    /// Returns the lines of a row, with the header before the first one. Returns nothing if they
    /// were there before: a library that is not installed is so at each size.
    pub(crate) fn lines(&mut self, row: &Row) -> String {
        let is_wide = self.width >= WIDE;
        let mut lines = String::new();
        if !self.begun {
            self.begun = true;
            lines += &if is_wide { Row::header() + "\n" } else { header(row) };
        }
        if row.figures.is_none() {
            let why = format!("{} of {}: {}", row.case.collective, row.library, row.transport);
            let is_new = self.is_new(&why);
            match is_wide {
                _ if !is_new => {}
                true => line(&mut lines, &row.to_string()),
                false => line(&mut lines, &fold(&format!("# {why}"), self.width)),
            }
            return lines;
        }
        if is_wide {
            line(&mut lines, &row.to_string());
            return lines;
        }
        let version = row.version.as_ref().map_or(String::new(), |version| format!(" {version}"));
        let barrier = if row.barrier == Some("own") { ", its own barrier before calls" } else { "" };
        let note = format!("# {}{version}: {}{barrier}", row.library, row.transport);
        let step = row.step.map(|step| format!("# times: {step}"));
        if let Some(step) = step.filter(|step| self.is_new(step)) {
            line(&mut lines, &fold(&step, self.width));
        }
        if self.is_new(&note) {
            line(&mut lines, &fold(&note, self.width));
        }
        line(&mut lines, &narrow(row));
        lines
    }

    fn is_new(&mut self, text: &str) -> bool {
        let is_new = self.told.iter().all(|told| told != text);
        if is_new {
            self.told.push(text.to_owned());
        }
        is_new
    }
}

/// Breaks the lines of a text that have more than `width` columns, between words. The rest of a
/// line begins below the last column of a table that the line begins with, if that is in its first
/// half.
pub(crate) fn fold(text: &str, width: usize) -> String {
    let mut folded = String::new();
    for long in text.split_inclusive('\n') {
        let (long, end) = long.strip_suffix('\n').map_or((long, ""), |long| (long, "\n"));
        let begin = long.len() - long.trim_start().len();
        let column = long.rmatch_indices("  ").map(|(at, _)| at + 2).find(|at| (begin..width / 2).contains(at));
        let indent = column.unwrap_or(begin + 2).min(width / 2);
        let mut columns = 0;
        for word in long.split_inclusive(' ') {
            let count = word.trim_end().chars().count();
            if columns > indent && columns + count > width {
                folded.truncate(folded.trim_end().len());
                _ = write!(folded, "\n{:indent$}", "");
                columns = indent;
            }
            folded += word;
            columns += word.chars().count();
        }
        folded += end;
    }
    folded
}

fn line(lines: &mut String, line: &str) {
    lines.push_str(line);
    lines.push('\n');
}

/// Returns the properties that all rows have in common, and the names of the columns.
fn header(row: &Row) -> String {
    let case = row.case;
    let op = if case.collective.kind().combines() { format!(", {}", case.op) } else { String::new() };
    let place = if case.in_place { ", in place" } else { "" };
    let ranks = if case.ranks == 1 { "1 rank".to_owned() } else { format!("{} ranks", case.ranks) };
    let columns = |words: [&str; 8]| {
        let [collective, library, bytes, time, p99, busbw, trip, wrong] = words;
        format!("# {collective:<14} {library:<10} {bytes:>9} {time:>9} {p99:>9} {busbw:>7} {trip:>6} {wrong:>5}\n")
    };
    format!("# {}{op}{place}, {ranks}; --wide shows all columns\n", case.dtype)
        + &columns(["collective", "library", "bytes", "time", "p99", "busbw", "trip", "wrong"])
        + &columns(["", "", "", "(us)", "(us)", "(GB/s)", "(us)", ""])
}

fn narrow(row: &Row) -> String {
    let Row { library, case, figures, round_trip_us, is_below_limit, .. } = row;
    let (collective, bytes) = (case.collective.name(), size(case.bytes()));
    let time = row.time_us().unwrap_or(0.0);
    let (p99, wrong) = figures.map_or((0.0, 0), |figures| (figures.time_us_p99, figures.wrong));
    let busbw = row.busbw().unwrap_or(0.0);
    let trip = round_trip_us.map_or("-".to_owned(), |trip| format!("{trip:.3}"));
    let fault = if *is_below_limit { "\n    (faster than the limit: a fault of the bench)" } else { "" };
    format!(
        "  {collective:<14} {library:<10} {bytes:>9} {time:>9.2} {p99:>9.2} {busbw:>7.2} {trip:>6} {wrong:>5}{fault}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{
        Figures,
        case::{Case, Collective},
    };
    use consonance::{DType, ReduceOp};

    fn row(library: &str, bytes: usize, why: Option<&str>) -> Row {
        let collective: Collective = "reduce_scatter".parse().expect("a collective");
        let case = Case {
            collective,
            ranks: 2,
            count: 0,
            dtype: DType::F32,
            op: ReduceOp::Product,
            in_place: false,
            spread: 0,
        };
        let figures = Figures {
            time_us_median: 123_456.789,
            time_us_mean: 200_000.0,
            time_us_p99: 654_321.0,
            cpu_seconds: 1.0,
            wrong: 0,
        };
        Row {
            library: library.to_owned(),
            version: Some("5.0.10".to_owned()),
            transport: why.unwrap_or("processes").to_owned(),
            round_trip_us: Some(0.123),
            barrier: Some("own"),
            memory: "slice",
            case: case.with_bytes(bytes),
            step: None,
            figures: why.is_none().then_some(figures),
            is_below_limit: false,
        }
    }

    #[test]
    fn a_narrow_table_fits_its_terminal_and_tells_a_failure_once() {
        let why = "none: not installed: pip install mpich, in an environment of its own, and name it with --python";
        for width in [80, 200] {
            let mut table = Table::new(width);
            let mut text = String::new();
            for bytes in [8, 1 << 20, 1 << 30] {
                for (library, why) in [("consonance", None), ("mpich", Some(why)), ("openmpi", None)] {
                    text += &table.lines(&row(library, bytes, why));
                }
            }
            assert_eq!(text.matches("not installed").count(), 1, "{text}");
            assert_eq!(text.matches("openmpi").count(), if width == 80 { 4 } else { 3 }, "{text}");
            assert!(width > 80 || text.lines().all(|line| line.chars().count() <= 80), "{text}");
            assert_eq!(text.contains("1 GiB"), width == 80, "{text}");
        }
    }

    #[test]
    fn lines_are_folded_below_their_last_column() {
        assert_eq!(fold("a b\n\n  c\n", 9), "a b\n\n  c\n");
        assert_eq!(fold("name  one two three four\nend", 16), "name  one two\n      three four\nend");
        assert_eq!(fold("one two three four", 9), "one two\n  three\n  four");
    }
}
