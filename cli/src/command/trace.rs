//! `consonance trace`: the last calls of the ranks of a process's groups.

use consonance_kernels::shm::{
    Inspection, RankCalls, Segment, SegmentError,
    call_log::{CALLS, Entry},
};
use serde_json::{Value, json};
use std::io;

/// Show the last calls of all ranks that share memory with a process.
///
/// The process may be any process of a group. It may be stopped. Ranks whose process died are
/// shown, too. The memory is read without the help of the process: calls that begin meanwhile may
/// be missing. Each line has a rank, its process, and the number, kind, bytes and outcome of its
/// last call. A rank is in, or died in, a call that is "not ended".
#[derive(clap::Args)]
pub(crate) struct Trace {
    /// Process id
    #[arg(short, long, value_name = "P")]
    pid: u32,
    /// Number of calls to show of each rank, up to 64
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=CALLS as i64))]
    calls: u8,
    /// Write a JSON list of groups
    #[arg(long)]
    json: bool,
}

impl Trace {
    /// Writes the report to standard output.
    ///
    /// # Errors
    /// The reason why there is no report, in one line.
    pub(crate) fn run(&self) -> Result<(), String> {
        let Trace { pid, calls, json } = *self;
        let inspections = Segment::inspect(pid).map_err(|error| match &error {
            SegmentError::System { source, .. } => match source.kind() {
                io::ErrorKind::NotFound => format!("there is no process {pid}"),
                io::ErrorKind::PermissionDenied => format!("process {pid} cannot be inspected: {source}"),
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
