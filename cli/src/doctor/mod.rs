//! `consonance doctor`: whether this machine can run Consonance, and what to do if it cannot.
//!
//! A report has one row for each thing it looks at (`row.rs`). `machine.rs`, `memory.rs` and
//! `limits.rs` ask the system. `trial.rs` makes calls and checks their bits. `hosts.rs` loads UCX
//! and MPIs. `engines.rs` looks for the libraries of GPUs, and for the launchers of MPIs with which
//! the bench compares. `groups.rs` reads the control groups of this process.
//!
//! Only a need of Consonance can fail: `/proc`, shared memory, and the calls of the trial. Every
//! other row informs.

mod row;
mod groups;
pub(crate) mod machine;
mod memory;
mod limits;
mod trial;
#[cfg(target_os = "linux")]
mod hosts;
mod engines;

#[cfg(target_os = "linux")]
pub use hosts::loaded;
pub use row::{Row, Section, Verdict};
pub use trial::serve;

use groups::Groups;
use row::{COLUMNS, wrapped};
use serde_json::{Value, json};
use std::fmt;

/// The rows about one machine.
#[derive(Clone, Debug)]
pub struct Report {
    /// In the order of their sections.
    pub rows: Vec<Row>,
}

impl Report {
    /// Looks at this machine. It takes less than a second, and a few seconds if something hangs.
    pub fn of_this_machine() -> Report {
        let groups = Groups::of_this_process();
        let mut rows = machine::rows(&groups);
        rows.extend(memory::rows(&groups));
        rows.extend(limits::rows());
        rows.extend(trial::rows());
        let loader = engines::Loader::of_this_process();
        #[cfg(target_os = "linux")]
        rows.extend(hosts::rows(&loader));
        rows.extend(engines::rows(&loader));
        Report { rows }
    }

    /// Whether everything that Consonance needs works.
    pub fn is_usable(&self) -> bool {
        self.rows.iter().all(|row| row.state != Verdict::Fails)
    }

    /// Returns the report as a JSON object.
    pub fn json(&self) -> Value {
        let rows: Vec<Value> = self.rows.iter().map(Row::json).collect();
        json!({ "version": env!("CARGO_PKG_VERSION"), "usable": self.is_usable(), "rows": rows })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut section = None;
        for row in &self.rows {
            if section.replace(row.section) != Some(row.section) {
                writeln!(f, "{}", row.section.title())?;
            }
            write!(f, "{row}")?;
        }
        let failed: Vec<&str> =
            self.rows.iter().filter(|row| row.state == Verdict::Fails).map(|row| row.name).collect();
        let verdict = match failed[..] {
            [] => format!("This machine can run Consonance {}.", env!("CARGO_PKG_VERSION")),
            _ => format!("This machine cannot run all of Consonance. Failed: {}.", failed.join(", ")),
        };
        writeln!(f, "\n{}", wrapped(&verdict, COLUMNS).join("\n"))
    }
}
