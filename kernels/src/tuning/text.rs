//! Files of knobs: a line `name = value` for each. `#` begins a comment.

use super::{
    knobs::{Knob, Tuning},
    value::Value,
};
use std::{fmt, fmt::Write};

/// The first line of a file, with the version of its form.
const TITLE: &str = "consonance tuning 1";

/// The reason why a file of knobs cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TuningError {
    /// The path of the file, or the name of the text.
    pub file: String,
    /// The line, from 1 on; 0 if the file cannot be read.
    pub line: usize,
    /// The knob of the line, if it names one.
    pub knob: Option<String>,
    /// The text that the line should have.
    pub expected: String,
    /// The text that it has.
    pub found: String,
}

impl TuningError {
    /// Returns the file, the line and the knob in words.
    pub fn place(&self) -> String {
        let line = if self.line > 0 { format!(", line {}", self.line) } else { String::new() };
        let knob = self.knob.as_ref().map_or(String::new(), |knob| format!(", {knob}"));
        format!("{}{line}{knob}", self.file)
    }
}

impl fmt::Display for TuningError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: expected {}, found {}", self.place(), self.expected, self.found)
    }
}

impl std::error::Error for TuningError {}

/// Returns the values in `text`, each with its knob, in the order of lines. `file` names the text
/// in errors.
///
/// # Errors
/// The first line that is not right: the title, a knob that does not exist or is there twice, a
/// value that the knob does not allow.
///
/// ```
/// use consonance_kernels::tuning::parse;
/// let values = parse("a.tuning", "consonance tuning 1\nwindow_bytes = 65536\n").unwrap();
/// assert_eq!(values[0].0.name, "window_bytes");
/// let error = parse("a.tuning", "consonance tuning 1\nwindow_bytes = 7\n").unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "a.tuning, line 2, window_bytes: expected a multiple of 128 from 1024 to 67108864, found 7"
/// );
/// ```
pub fn parse(file: &str, text: &str) -> Result<Vec<(&'static Knob, Value)>, TuningError> {
    let error = |line: usize, knob: Option<&str>, expected: String, found: &str| TuningError {
        file: file.to_owned(),
        line,
        knob: knob.map(str::to_owned),
        expected,
        found: if found.is_empty() { "nothing".to_owned() } else { found.to_owned() },
    };
    let mut lines = text.lines().enumerate().map(|(at, line)| (at + 1, line.split('#').next().unwrap_or("").trim()));
    match lines.find(|(_, line)| !line.is_empty()) {
        Some((_, TITLE)) => {}
        Some((at, line)) => return Err(error(at, None, format!("the title {TITLE:?}"), line)),
        None => return Err(error(1, None, format!("the title {TITLE:?}"), "")),
    }
    let mut values: Vec<(&'static Knob, Value)> = Vec::new();
    for (at, line) in lines.filter(|(_, line)| !line.is_empty()) {
        let Some((name, value)) = line.split_once('=').map(|(name, value)| (name.trim(), value.trim())) else {
            return Err(error(at, None, "a knob, = and its value".to_owned(), line));
        };
        let Some(knob) = Tuning::offered().find(|knob| knob.name == name) else {
            return Err(error(at, None, "the name of a knob".to_owned(), name));
        };
        if values.iter().any(|(other, _)| other.name == name) {
            return Err(error(at, Some(name), "one line for each knob".to_owned(), "a second"));
        }
        let parsed = Tuning::DEFAULT.get(knob).with_text(value).filter(|&value| knob.allows(value));
        let parsed = parsed.ok_or_else(|| error(at, Some(name), knob.expected(), value))?;
        values.push((knob, parsed));
    }
    Ok(values)
}

/// Returns a file of these values, which [`parse`] reads. Each knob's comment says what it does.
pub fn to_text(tuning: &Tuning) -> String {
    let mut text = format!("{TITLE}\n");
    for knob in Tuning::offered() {
        let about = knob.about.split_whitespace().collect::<Vec<_>>().join(" ");
        write!(text, "\n# {about}\n{} = {}\n", knob.name, tuning.get(knob)).expect("a string takes any text");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tuning::Pipeline;

    #[test]
    fn written_knobs_read_back() {
        let mut tuning = Tuning::DEFAULT;
        tuning = tuning.with_windows(32 << 10);
        tuning.near = Pipeline::Stream;
        let mut read = Tuning::DEFAULT;
        for (knob, value) in parse("text", &to_text(&tuning)).unwrap() {
            read.set(knob, value).unwrap();
        }
        assert_eq!(read, tuning);
    }

    #[test]
    fn a_malformed_file_is_refused_by_line_and_knob() {
        let fails = |text: &str| {
            let TuningError { file, line, knob, found, .. } = parse("f", text).unwrap_err();
            assert_eq!(file, "f");
            (line, knob.unwrap_or_default(), found)
        };
        let refused = |line, knob: &str, found: &str| (line, knob.to_owned(), found.to_owned());
        assert_eq!(fails(""), refused(1, "", "nothing"));
        assert_eq!(fails("consonance tuning 2"), refused(1, "", "consonance tuning 2"));
        let line = |line: &str| fails(&format!("\n# a comment\n{TITLE}\n\n{line}\n"));
        assert_eq!(line("window_bytes"), refused(5, "", "window_bytes"));
        assert_eq!(line("window = 7"), refused(5, "", "window"));
        assert_eq!(line("moving_bytes = 128"), refused(5, "", "moving_bytes"), "it follows from another");
        assert_eq!(line("near = memcpy"), refused(5, "near", "memcpy"));
        assert_eq!(line("own = 1"), refused(5, "own", "1"));
        assert_eq!(line("far ="), refused(5, "far", "nothing"));
        assert_eq!(line("read_bytes = -1"), refused(5, "read_bytes", "-1"));
        assert_eq!(line("far = read\nfar = read"), refused(6, "far", "a second"));
    }
}
