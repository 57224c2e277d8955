//! `consonance trace`: what the ranks of a process's groups last called.

use consonance_kernels::shm::{
    Inspection, RankCalls, Segment, SegmentError,
    call_log::{CALLS, Entry},
};
use serde_json::{Value, json};
use std::io;

/// Show the last calls of all ranks that share memory with a process.
///
/// The process may be any of a group of processes, and stopped; ranks whose process died are shown,
/// too. Nothing is asked of it: calls that begin meanwhile may be missing. Each line has a rank,
/// its process, and the number, kind, bytes and end of its last call. A call that is "not ended" is
/// the one that the rank is in, or died in.
#[derive(clap::Args)]
pub(crate) struct Trace {
    /// The process
    #[arg(short, long, value_name = "P")]
    pid: u32,
    /// Show so many calls of each rank, up to 64
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=CALLS as i64))]
    calls: u8,
    /// Write JSON: a list of groups
    #[arg(long)]
    json: bool,
}

impl Trace {
    /// Writes the report to standard output.
    ///
    /// # Errors
    /// Why there is none, in one line.
    pub(crate) fn run(&self) -> Result<(), String> {
        let Trace { pid, calls, json } = *self;
        let inspections = Segment::inspect(pid).map_err(|error| match &error {
            SegmentError::System { source, .. } => match source.kind() {
                io::ErrorKind::NotFound => format!("there is no process {pid}"),
                io::ErrorKind::PermissionDenied => format!("process {pid} cannot be looked into: {source}"),
                _ => error.to_string(),
            },
            _ => format!("process {pid}: {error}"),
        })?;
        if inspections.is_empty() {
            return Err(format!("process {pid} shares no memory: it is in no group of several processes"));
        }
        if json {
            let groups: Vec<Value> = inspections.iter().map(|group| group_json(group, calls.into())).collect();
            println!("{:#}", Value::from(groups));
            return Ok(());
        }
        for inspection in &inspections {
            match calls {
                1 => println!("{inspection}"),
                calls => println!("{}", inspection.text(calls.into())),
            }
        }
        Ok(())
    }
}

fn group_json(Inspection { group, ranks, .. }: &Inspection, calls: usize) -> Value {
    let ranks: Vec<Value> = ranks.iter().map(|rank| rank_json(rank, calls)).collect();
    json!({ "group": group.to_string(), "ranks": ranks })
}

fn rank_json(RankCalls { rank, process, calls: all }: &RankCalls, calls: usize) -> Value {
    let last = &all[all.len().saturating_sub(calls)..];
    json!({ "rank": rank, "process": process, "calls": last.iter().map(call_json).collect::<Vec<_>>() })
}

fn call_json(entry: &Entry) -> Value {
    let call = entry.signature().map(|signature| signature.to_string());
    json!({ "number": entry.number, "call": call, "bytes": entry.bytes, "outcome": entry.outcome.to_string() })
}
