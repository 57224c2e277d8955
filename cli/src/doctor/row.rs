//! A row of the report.

use serde_json::{Value, json};
use std::fmt;

/// The width of the text, which fits the narrowest common terminal.
pub(super) const COLUMNS: usize = 80;

/// Columns of the state, of the name, and before them.
const STATE: usize = 7;
const NAME: usize = 18;
const MARGIN: usize = 2;

/// One thing that the doctor looks at, and its finding.
#[derive(Clone, Debug)]
pub struct Row {
    /// The part of the report.
    pub section: Section,
    /// The thing; no two rows have the same name.
    pub name: &'static str,
    /// The verdict.
    pub state: Verdict,
    /// The finding, in words.
    pub finding: String,
    /// The advice to the user. Exactly the rows with the state `Note`, `Fails` or `Absent` have it.
    pub advice: Option<String>,
    /// The finding for programs: a JSON object.
    pub facts: Value,
}

/// The parts of the report, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    /// The processor.
    Machine,
    /// Memory, and whether processes can share it.
    Memory,
    /// The limits of this process, and settings of the system.
    Limits,
    /// Calls with known results.
    Trial,
    /// The libraries of which groups of several hosts need one.
    Hosts,
    /// Libraries of GPUs, and launchers of MPIs.
    Engines,
}

/// The verdict on a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// As it should be.
    Good,
    /// Calls work, but something is slower or scarcer than it could be.
    Note,
    /// A need of Consonance is absent or does not work.
    Fails,
    /// An optional thing is present.
    Found,
    /// An optional thing is absent.
    Absent,
}

impl Section {
    /// Returns the line above the section's rows.
    pub(super) fn title(self) -> &'static str {
        match self {
            Section::Machine => "machine",
            Section::Memory => "memory",
            Section::Limits => "limits and settings",
            Section::Trial => "trial",
            Section::Hosts => "for groups of several hosts (information only)",
            Section::Engines => "for GPUs, and for benches beside MPIs (information only)",
        }
    }

    /// Returns the name that programs read.
    fn name(self) -> &'static str {
        match self {
            Section::Machine => "machine",
            Section::Memory => "memory",
            Section::Limits => "limits",
            Section::Trial => "trial",
            Section::Hosts => "hosts",
            Section::Engines => "engines",
        }
    }
}

impl Verdict {
    /// Returns the name that users and programs read.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Good => "ok",
            Verdict::Note => "note",
            Verdict::Fails => "FAILS",
            Verdict::Found => "found",
            Verdict::Absent => "absent",
        }
    }
}

impl Row {
    pub(super) fn new(section: Section, name: &'static str, state: Verdict, finding: impl Into<String>) -> Row {
        Row { section, name, state, finding: finding.into(), advice: None, facts: json!({}) }
    }

    /// Adds what the user can do.
    pub(super) fn advice(self, advice: impl Into<String>) -> Row {
        Row { advice: Some(advice.into()), ..self }
    }

    /// Adds the finding for programs.
    pub(super) fn facts(self, facts: Value) -> Row {
        Row { facts, ..self }
    }

    pub(super) fn json(&self) -> Value {
        let Row { section, name, state, finding, advice, facts } = self;
        json!({
            "section": section.name(),
            "name": name,
            "state": state.name().to_lowercase(),
            "finding": finding,
            "advice": advice,
            "facts": facts,
        })
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let indent = MARGIN + STATE + NAME;
        let finding = wrapped(&self.finding, COLUMNS - indent);
        let advice = self.advice.iter().flat_map(|advice| wrapped(&format!("-> {advice}"), COLUMNS - indent));
        for (index, line) in finding.into_iter().chain(advice).enumerate() {
            let (state, name) = if index == 0 { (self.state.name(), self.name) } else { ("", "") };
            writeln!(f, "{:MARGIN$}{state:STATE$}{name:NAME$}{line}", "")?;
        }
        Ok(())
    }
}

/// Splits a text into lines of at most `width` characters. Cuts a longer word, such as a path.
pub(super) fn wrapped(text: &str, width: usize) -> Vec<String> {
    let (mut lines, mut line) = (Vec::new(), String::new());
    for word in text.split_whitespace() {
        let word: Vec<char> = word.chars().collect();
        for part in word.chunks(width) {
            if !line.is_empty() && line.chars().count() + 1 + part.len() > width {
                lines.push(std::mem::take(&mut line));
            }
            if !line.is_empty() {
                line.push(' ');
            }
            line.extend(part);
        }
    }
    lines.push(line);
    lines
}

/// Formats a size: "12 B", "1.5 MiB".
pub(super) fn size(bytes: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    let unit = units.into_iter().find(|(power, _)| bytes >= 1 << power);
    let Some((power, unit)) = unit else { return format!("{bytes} B") };
    let text = format!("{:.1}", bytes as f64 / (1u64 << power) as f64);
    format!("{} {unit}", text.trim_end_matches(".0"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_fit() {
        let long = "a".repeat(200);
        let row = Row::new(Section::Machine, "processor", Verdict::Fails, format!("x {long} y"))
            .advice("do this and that until all of it is done, and then once more");
        let text = row.to_string();
        assert!(text.lines().all(|line| line.chars().count() <= COLUMNS), "{text}");
        assert!(text.starts_with("  FAILS  processor         x\n"), "{text}");
        assert_eq!(
            text.matches('a').count(),
            200 + "do this and that until all of it is done, and then".matches('a').count()
        );
    }

    #[test]
    fn sizes_are_short() {
        assert_eq!([size(12), size(48 << 10), size(3 << 29), size(5 << 40)], ["12 B", "48 KiB", "1.5 GiB", "5 TiB"]);
    }
}
