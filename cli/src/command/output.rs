//! Shows results on standard output, and progress on standard error.

use indicatif::{ProgressBar, ProgressStyle};
use std::{cell::Cell, fmt};

/// Shows results on standard output, and progress on standard error if that is a terminal.
pub(super) struct Show {
    json: bool,
    /// The header of the table, until it is printed above the first row.
    header: Cell<Option<String>>,
    bar: ProgressBar,
}

impl Show {
    pub(super) fn new(json: bool, header: String) -> Show {
        let style = ProgressStyle::with_template("{bar:20} {percent} %, {elapsed} gone, {eta} left: {wide_msg}");
        Show {
            json,
            header: Cell::new(Some(header).filter(|_| !json)),
            bar: ProgressBar::new(1).with_style(style.expect("a template that is right")),
        }
    }

    pub(super) fn row(&self, row: &impl fmt::Display, json: impl FnOnce() -> serde_json::Value) {
        let text = if self.json { json().to_string() } else { row.to_string() };
        let header = self.header.take().map_or(String::new(), |header| header + "\n");
        self.lines(&format!("{header}{text}\n"));
    }

    /// Writes words to standard error.
    pub(super) fn say(&self, words: &str) {
        self.bar.suspend(|| eprintln!("consonance bench: {words}"));
    }

    /// Writes lines to standard output.
    pub(super) fn lines(&self, lines: &str) {
        self.bar.suspend(|| print!("{lines}"));
    }

    pub(super) fn progress(&self, done: usize, total: usize, what: String) {
        self.bar.set_length(total as u64);
        self.bar.set_position(done as u64);
        self.bar.set_message(what);
        self.bar.tick();
    }

    pub(super) fn end(&self) {
        self.bar.finish_and_clear();
    }
}
