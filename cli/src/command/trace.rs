//! `consonance trace`: the last calls of the ranks of a process's groups, and the roles of its
//! links.

use super::{links::Links, number, process_states, terminal};
use consonance::raw::EXTENSIONS;
use consonance_kernels::shm::{
    Inspection, RankCalls, Segment, SegmentError,
    call_log::{CALLS, Entry, Outcome},
};
use consonance_spec::Kind;
use serde_json::{Value, json};
use std::io;

/// Show the last calls of all ranks that share memory with a process.
///
/// The process may be any process of a group. It may be stopped. Ranks whose process died are
/// shown, too. The memory is read without the help of the process: calls that begin meanwhile may
/// be missing. Each line has a rank, its process, and the number, kind, bytes and outcome of its
/// last call. The number counts all calls of the group, those of strategies for themselves too. A
/// rank is in, or died in, a call that is "not ended".
///
/// A rank on a GPU has a line with the GPU's number in the process of the rank, and with its UUID,
/// which is the same in all processes.
///
/// A line says whether the process of a rank is stopped or has ended. Another says for which ranks
/// a rank waits: those that have begun no call of the number of the call that it is in. Groups that
/// were split off count their own calls, so that this line can be wrong while ranks use several.
///
/// Processes with parameter servers are in no such groups. The report has the role of the process
/// and those that it has links to: a link carries the chief's orders, or the shards of a server.
#[derive(clap::Args)]
pub(crate) struct Trace {
    /// Process id
    #[arg(short, long, value_name = "P", value_parser = number::<u32>(1..=u32::MAX as usize))]
    pid: u32,
    /// Number of calls to show of each rank, up to 64
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = number::<u8>(1..=CALLS))]
    calls: u8,
    /// Write a JSON list of groups and roles
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
        let links = Links::of(pid, &inspections);
        let groups = inspections.iter().filter(|group| group.title.is_none());
        if json {
            let groups = groups.map(|group| group_json(group, calls.into()));
            let groups: Vec<Value> = groups.chain(links.iter().map(Links::json)).collect();
            println!("{:#}", Value::from(groups));
            return Ok(());
        }
        for report in groups.map(|group| text(group, calls.into())).chain(links.iter().map(Links::text)) {
            print!("{}", terminal::fit(&report));
        }
        Ok(())
    }
}

/// Returns the report about a group: the last calls of each rank, whether its process is stopped or
/// gone, its GPU, and for whom it waits.
fn text(inspection: &Inspection, calls: usize) -> String {
    let mut text = format!("group {} of {} ranks\n", inspection.group, inspection.ranks.len());
    for rank in &inspection.ranks {
        text += &match rank.process {
            Some(process) => format!("rank {}, process {process}{}", rank.rank, process_states::words(process)),
            None => format!("rank {}, in no process", rank.rank),
        };
        let last = &rank.calls[rank.calls.len().saturating_sub(calls)..];
        let gpu = rank.gpu.map(|(ordinal, uuid)| format!("  on cuda:{ordinal}, {uuid}\n")).unwrap_or_default();
        text += &match (calls, last) {
            (1, [call]) => format!(": {}\n{gpu}", call.in_words(EXTENSIONS)),
            (1, _) => format!(": no call\n{gpu}"),
            (_, last) => last
                .iter()
                .fold(format!("\n{gpu}"), |lines, call| lines + &format!("  {}\n", call.in_words(EXTENSIONS))),
        };
        let awaited = awaited(rank, &inspection.ranks);
        if let (Some(call), [_, ..]) = (rank.calls.last(), &awaited[..]) {
            text += &format!("  waits for {}, not yet in call {}\n", names(&awaited), call.number);
        }
    }
    text
}

/// Returns the ranks for which a rank waits: if its last call has not ended, those that have begun
/// no call of this number. Messages have no number that ranks share.
fn awaited(rank: &RankCalls, ranks: &[RankCalls]) -> Vec<usize> {
    let Some(call) = rank.calls.last() else { return Vec::new() };
    let is_message = call.signature(EXTENSIONS).is_none_or(|signature| signature.kind == Kind::SendRecv);
    if call.outcome != Outcome::Begun || is_message {
        return Vec::new();
    }
    let is_behind = |other: &&RankCalls| other.calls.last().is_none_or(|last| last.number < call.number);
    ranks.iter().filter(is_behind).map(|other| other.rank).collect()
}

/// Returns `rank 3`, or `ranks 0, 3`.
fn names(ranks: &[usize]) -> String {
    let list: Vec<String> = ranks.iter().map(usize::to_string).collect();
    format!("rank{} {}", if list.len() == 1 { "" } else { "s" }, list.join(", "))
}

fn group_json(Inspection { group, ranks, .. }: &Inspection, calls: usize) -> Value {
    let ranks: Vec<Value> = ranks.iter().map(|rank| rank_json(rank, ranks, calls)).collect();
    json!({ "group": group.to_string(), "ranks": ranks })
}

fn rank_json(rank: &RankCalls, ranks: &[RankCalls], calls: usize) -> Value {
    let last = &rank.calls[rank.calls.len().saturating_sub(calls)..];
    let state = rank.process.map(process_states::name);
    json!({
        "rank": rank.rank,
        "process": rank.process,
        "state": state,
        "gpu": rank.gpu.map(|(ordinal, _)| format!("cuda:{ordinal}")),
        "gpu_uuid": rank.gpu.map(|(_, uuid)| uuid.to_string()),
        "waits_for": awaited(rank, ranks),
        "calls": last.iter().map(call_json).collect::<Vec<_>>(),
    })
}

fn call_json(entry: &Entry) -> Value {
    let call = entry.signature(EXTENSIONS).map(|signature| signature.to_string());
    json!({ "number": entry.number, "call": call, "bytes": entry.bytes, "outcome": entry.outcome.to_string() })
}
