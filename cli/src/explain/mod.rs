//! `consonance explain`: what a call would do, and a lower bound of its time.
//!
//! The protocol comes from the same functions that the call itself uses
//! ([`consonance_kernels::group::plan`]), for the topology of a real group of that size
//! (`group.rs`). `traffic.rs` counts the bytes that each protocol moves. Between hosts all calls
//! are messages: `hosts.rs` makes the call, and counts them. `on_gpus.rs` asks the engines of ranks
//! on GPUs.

mod group;
mod hosts;
mod on_gpus;
mod traffic;

pub use group::{join, start, topology_of, topology_of_threads};
pub use hosts::BetweenHosts;
pub use on_gpus::{OnGpus, RankOnDevice};
pub use traffic::Traffic;

use crate::bench::{
    BenchError, Memory, Transport,
    case::{Case, Collective, MOST_IN_ALL},
    limits,
};
use consonance_kernels::{
    cpu::{isa::Isa, reduce::Reducer},
    digest::digest_counts,
    group::plan::{Chunking, Protocol, StepKind, Targets, Topology, Windows},
};
use consonance_spec::{Extent, Flow, Signature, Work};
use serde_json::{Value, json};
use std::{fmt, io, ops::Range};

/// The largest size up to which thresholds are searched.
const MOST_BYTES: usize = 1 << 30;

/// A question: a call of any size.
#[derive(Clone, Copy, Debug)]
pub struct Question {
    /// The call; its count does not matter.
    pub case: Case,
    /// The transport between the ranks.
    pub transport: Transport,
    /// The memory of the buffers.
    pub memory: Memory,
}

/// The answer for a call of one size.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// The question, with the count.
    pub question: Question,
    /// The step that executes the call.
    pub step: StepKind,
    /// The protocol of its data.
    pub protocol: Protocol,
    /// The instruction set of the kernel that reduces, if the call reduces.
    pub isa: Option<Isa>,
    /// Whether the counts of so many ranks have a step of their own before.
    pub has_counts_before: bool,
    /// The bytes that the busiest rank moves.
    pub traffic: Traffic,
    /// The sizes at which the protocol changes.
    pub thresholds: Vec<Threshold>,
    /// A lower bound of the time with any library, if it was measured.
    pub limit: Option<Limit>,
}

/// From this size on, calls use this protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Threshold {
    /// Bytes of the larger buffer.
    pub bytes: usize,
    /// The protocol's name.
    pub name: &'static str,
}

/// The limit of this machine, measured now.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    /// Microseconds of a copy of the bytes that a call must move at least, on each core at the same
    /// time.
    pub copy_us: f64,
    /// Microseconds from one core to another: half of a cache line's round trip. `None` for one
    /// rank or one core.
    pub one_way_us: Option<f64>,
}

impl Limit {
    /// Returns the lower bound of the time with any library, if all ranks can read and write all
    /// buffers.
    pub fn time_us(&self) -> f64 {
        self.copy_us.max(self.one_way_us.unwrap_or(0.0))
    }
}

impl Question {
    /// Returns the answer for a larger buffer of `bytes` bytes, in a group with this topology.
    /// `measure` says whether to measure the limit, which takes a moment.
    ///
    /// # Errors
    /// The reason why there is no answer: an error of [`check`](Question::check) or of the system.
    pub fn explain(&self, topology: &Topology, bytes: usize, measure: bool) -> Result<Explanation, BenchError> {
        self.check(bytes)?;
        let question = Question { case: self.case.with_bytes(bytes), ..*self };
        let (step, protocol) = question.way(topology)?;
        let isa = if self.case.collective.kind().combines() { Some(question.reducer()?.isa()) } else { None };
        let limit = if measure {
            Some(question.limit().map_err(|error| BenchError::Failed(format!("the limit: {error}")))?)
        } else {
            None
        };
        let thresholds = self.thresholds(topology)?;
        let traffic = Traffic::most(&question.case, step, protocol);
        let has_counts_before = !topology.rides_before(2 * self.case.ranks, 0);
        Ok(Explanation { question, step, protocol, has_counts_before, isa, traffic, thresholds, limit })
    }

    /// Checks that there is an answer for a larger buffer of `bytes` bytes.
    ///
    /// # Errors
    /// If the operation is not defined on the type, or no machine has buffers of this size.
    pub fn check(&self, bytes: usize) -> Result<(), BenchError> {
        let (ranks, most) = (self.case.ranks, MOST_IN_ALL / self.case.ranks);
        if bytes > most {
            let expected = format!("at most {most} bytes of each of {ranks} ranks");
            return Err(BenchError::Invalid { argument: "--bytes <SIZES>", expected, found: bytes.to_string() });
        }
        if self.case.collective.kind().combines() { self.reducer().map(drop) } else { Ok(()) }
    }

    fn reducer(&self) -> Result<Reducer, BenchError> {
        let Case { op, dtype, .. } = self.case;
        let invalid = || BenchError::Invalid {
            argument: "--op <OP>",
            expected: format!("an operation on {dtype}"),
            found: op.to_string(),
        };
        Reducer::new(op, dtype).ok_or_else(invalid)
    }

    /// Returns the step of the call, and the protocol of its data.
    fn way(&self, topology: &Topology) -> Result<(StepKind, Protocol), BenchError> {
        let Case { collective, ranks, in_place, dtype, .. } = self.case;
        let (kind, all) = (collective.kind(), self.case.bytes());
        let has_counts = collective.is_ragged() && kind.has_root();
        let counts = has_counts.then(|| (0..ranks).map(|rank| self.case.part(rank).len()).collect::<Vec<_>>());
        let counts = counts.as_deref();
        let signature = Signature { detail: counts.map_or(0, digest_counts), ..Signature::new(kind) };
        let largest = |parts: &mut dyn Iterator<Item = usize>| parts.max().unwrap_or(0) * dtype.size();
        let parts = |ranks: Range<usize>| largest(&mut ranks.map(|rank| self.case.part(rank).len()));
        let (step, bytes) = match (kind.flow(), kind.work(), kind.extent()) {
            (Flow::Control, _, _) => (topology.moving(0, Chunking::WHOLE), 0),
            (Flow::Everyone, Work::Combines, Extent::Whole) => {
                (topology.combining(&self.reducer()?, all, Targets::All), all)
            }
            (Flow::ToRoot, Work::Combines, _) => (topology.combining(&self.reducer()?, all, Targets::Root(0)), all),
            (Flow::Everyone, Work::Combines, Extent::Parts) if in_place => {
                (topology.combining(&self.reducer()?, all, Targets::Own), all)
            }
            (Flow::Everyone, Work::Moves, Extent::Parts) if collective.is_ragged() => {
                let others =
                    |rank: usize| self.case.counts(rank).into_iter().enumerate().filter(move |&(to, _)| to != rank);
                let largest = largest(&mut (0..ranks).flat_map(others).map(|(_, count)| count));
                let chunking = Chunking::blocks(ranks, ranks * largest);
                // Each rank tells what it sends to each and receives from each.
                let rides = topology.rides_before(2 * ranks, all);
                (if rides { StepKind::Exchange } else { StepKind::Published(chunking) }, all)
            }
            (Flow::Everyone, _, Extent::Parts) => (topology.moving(all, Chunking::blocks(ranks, all)), all),
            (Flow::Everyone, Work::Moves, Extent::Whole) => (topology.gathering(parts(0..ranks)), parts(0..ranks)),
            (Flow::ToRoot, Work::Moves, _) => {
                let largest = parts(0..ranks);
                (topology.one_way(&signature, counts, largest, Chunking::one_way(largest, 1)), largest)
            }
            (Flow::FromRoot, _, Extent::Parts) => {
                let bytes = if collective.is_ragged() { ranks * parts(1..ranks) } else { all };
                (topology.one_way(&signature, counts, all, Chunking::one_way(bytes, ranks)), all)
            }
            (Flow::FromRoot, _, Extent::Whole) | (Flow::Pair, _, _) => {
                (topology.one_way(&signature, None, all, Chunking::one_way(all, 1)), all)
            }
        };
        let protocol = match topology.protocol(step, bytes, self.memory == Memory::Alloc) {
            // No rank knows the others' counts when it stages its first window.
            Protocol::Staged(_) if collective == Collective::AllToAllV && topology.rides_before(2 * ranks, 0) => {
                Protocol::Staged(topology.windows_ahead(step, bytes))
            }
            protocol => protocol,
        };
        Ok((step, protocol))
    }

    /// Returns the sizes at which the protocol changes. Compares each size with its double, and
    /// finds at most one change between them.
    fn thresholds(&self, topology: &Topology) -> Result<Vec<Threshold>, BenchError> {
        let at = |bytes: usize| -> Result<Threshold, BenchError> {
            let question = Question { case: self.case.with_bytes(bytes), ..*self };
            Ok(Threshold { bytes: question.case.bytes(), name: name(question.way(topology)?.1) })
        };
        let mut thresholds = vec![at(1)?];
        let mut below = 1;
        while below < MOST_BYTES && self.case.collective.kind().flow() != Flow::Control {
            let (mut low, mut high) = (below, 2 * below);
            if at(low)?.name != at(high)?.name {
                while high - low > 1 {
                    let middle = low.midpoint(high);
                    *if at(middle)?.name == at(low)?.name { &mut low } else { &mut high } = middle;
                }
                thresholds.push(at(high)?);
            }
            below *= 2;
        }
        Ok(thresholds)
    }

    fn limit(&self) -> io::Result<Limit> {
        let ranks = 0..self.case.ranks;
        let bytes = ranks.map(|rank| self.case.data(rank).least()).max().unwrap_or(0) * self.case.dtype.size();
        let one_way = limits::round_trip()?.filter(|_| self.case.ranks > 1);
        let seconds = if bytes == 0 { 0.0 } else { limits::copy(bytes / 2, self.case.reduces_in_place())? };
        // Ranks that share a core run in turn.
        let turns = self.case.ranks.div_ceil(limits::cores()) as f64;
        Ok(Limit { copy_us: 1e6 * seconds * turns, one_way_us: one_way.map(|seconds| 1e6 * seconds / 2.0) })
    }
}

/// Returns the name of a protocol.
fn name(protocol: Protocol) -> &'static str {
    if protocol == Protocol::Message { "message" } else { protocol.path().name() }
}

impl Explanation {
    /// Returns the protocol's name: `"inline"`, `"staged"`, …
    pub fn name(&self) -> &'static str {
        name(self.protocol)
    }

    fn windows(&self) -> Option<Windows> {
        match self.protocol {
            Protocol::Inline | Protocol::Message | Protocol::InPlace | Protocol::ProcessRead => None,
            Protocol::Staged(windows) | Protocol::TwoShot(windows) => Some(windows),
        }
    }

    /// Describes the algorithm.
    fn algorithm(&self) -> &'static str {
        match (self.protocol, self.step) {
            (Protocol::Inline, _) => "the data are in the call descriptors",
            (Protocol::Message, _) => "the data are in the call descriptors; who gives them does not wait",
            (Protocol::InPlace, StepKind::Divided { .. }) => "each rank reduces its block into all outputs",
            (Protocol::InPlace, _) => "each rank reads the data it needs in place",
            (Protocol::ProcessRead, _) => "process_vm_readv copies the data that each rank needs",
            (Protocol::Staged(_), StepKind::Divided { .. }) => "copy in, then each rank reduces the part that it needs",
            (Protocol::Staged(_), _) => "copy in, then each rank reads the part that it needs",
            (Protocol::TwoShot(_), _) => "copy in, reduce own block, copy the result in for receivers",
        }
    }

    /// Describes where the data are when another rank reads them.
    fn memory(&self) -> &'static str {
        match (self.protocol, self.question.transport) {
            (Protocol::Inline | Protocol::Message, _) => "the call descriptor of each rank",
            (Protocol::InPlace, Transport::Threads) => "the buffers themselves, in the memory of the one process",
            (Protocol::InPlace, _) => "the buffers themselves, in memory from Communicator::alloc",
            (Protocol::ProcessRead, _) => "the buffers themselves, in the memory of each process",
            (Protocol::Staged(_) | Protocol::TwoShot(_), _) => "staging, in memory that the processes share",
        }
    }

    /// Returns the answer as a JSON object. Absent values are null.
    pub fn json(&self) -> Value {
        let Question { case, transport, memory } = self.question;
        let Traffic { rank, read, written, across } = self.traffic;
        let thresholds = self.thresholds.iter();
        json!({
            "collective": case.collective.name(),
            "transport": transport.name(),
            "ranks": case.ranks,
            "bytes": case.bytes(),
            "count": case.count,
            "dtype": case.dtype.name(),
            "op": case.collective.kind().combines().then(|| case.op.name()),
            "memory": memory.name(),
            "in_place": case.in_place,
            "protocol": self.name(),
            "algorithm": self.algorithm(),
            "windows": self.windows().map(|windows| windows.count),
            "window_bytes": self.windows().map(|windows| windows.blocks * windows.stride),
            "isa": self.isa.map(Isa::name),
            "memory_path": self.memory(),
            "past_caches": Traffic::goes_past_caches(&case, self.protocol),
            "rank": rank,
            "read_bytes": read,
            "written_bytes": written,
            "across_bytes": across,
            "limit_us": self.limit.map(|limit| limit.time_us()),
            "one_way_us": self.limit.and_then(|limit| limit.one_way_us),
            "thresholds": thresholds.map(|threshold| json!({ "bytes": threshold.bytes, "protocol": threshold.name })).collect::<Vec<_>>(),
        })
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Question { case, transport, memory } = self.question;
        let Traffic { rank, read, written, across } = self.traffic;
        let what = if case.collective.kind().combines() {
            format!("{}, {}", case.op, case.dtype)
        } else {
            case.dtype.to_string()
        };
        let place = if case.in_place { ", in place" } else { "" };
        let ranks = match case.ranks {
            1 => format!("1 rank ({})", transport.name()),
            ranks => format!("{ranks} {}", transport.name()),
        };
        writeln!(f, "{}({what}) of {}, {ranks}, {}{place}", case.collective, size(case.bytes()), memory.name())?;
        let mut line = |name: &str, text: String| writeln!(f, "  {name:<10} {text}");
        line("protocol", format!("{}: {}", self.name(), self.algorithm()))?;
        if case.collective == Collective::AllToAllV {
            let way = if self.has_counts_before { "in a step before" } else { "with the data" };
            line("counts", format!("those of every rank go to all ranks {way}"))?;
        }
        if let Some(Windows { count, blocks, stride }) = self.windows() {
            line("windows", format!("{count} of at most {}", size(blocks * stride)))?;
        }
        line("memory", self.memory().to_owned())?;
        if Traffic::goes_past_caches(&case, self.protocol) {
            line("stores", "non-temporal: the call exceeds the last-level cache".to_owned())?;
        }
        if let Some(isa) = self.isa {
            line("kernel", format!("{} of {} in {isa}", case.op, case.dtype))?;
        }
        line(
            "moved",
            format!(
                "rank {rank} reads {} and writes {}; {} move between cores",
                size(read),
                size(written),
                size(across)
            ),
        )?;
        if let Some(limit) = self.limit {
            let why = match limit.one_way_us {
                Some(time) if time >= limit.copy_us => "half of a cache line's round trip, measured now",
                _ => "a copy of the bytes that must be moved, measured now",
            };
            line("limit", format!("{:.2} us: {why}", limit.time_us()))?;
        }
        line("thresholds", "(from this many bytes on)".to_owned())?;
        let own = self.thresholds.iter().rposition(|threshold| threshold.bytes <= case.bytes());
        for (index, threshold) in self.thresholds.iter().enumerate() {
            let mark = if Some(index) == own { "  <- this call" } else { "" };
            writeln!(f, "  {:>10}   {}{mark}", threshold.bytes, threshold.name)?;
        }
        Ok(())
    }
}

/// Formats a size: 12 B, 1.5 MiB.
fn size(bytes: usize) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    let unit = units.into_iter().find(|(power, _)| bytes >= 1 << power);
    let Some((power, unit)) = unit else { return format!("{bytes} B") };
    let text = format!("{:.2}", bytes as f64 / f64::from(1u32 << power));
    format!("{} {unit}", text.trim_end_matches('0').trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use consonance_harness::counted_calls::pair_of_processes;
    use consonance_spec::{DType, ReduceOp};

    fn question(collective: Collective, transport: Transport) -> Question {
        let case =
            Case { collective, ranks: 2, count: 0, dtype: DType::F32, op: ReduceOp::Sum, in_place: false, spread: 10 };
        Question { case, transport, memory: Memory::Slice }
    }

    #[test]
    fn a_call_goes_the_way_of_the_last_threshold_before_it() {
        let threads = (Transport::Threads, topology_of_threads(2));
        let processes = (Transport::Processes, pair_of_processes()[0].topology(None).expect("ranks that share memory"));
        for &collective in Collective::ALL {
            for (transport, topology) in [threads, processes] {
                for memory in [Memory::Slice, Memory::Alloc] {
                    let question = Question { memory, ..question(collective, transport) };
                    for power in 0..26 {
                        let explanation = question.explain(&topology, 3 << power, false).expect("a call");
                        let bytes = explanation.question.case.bytes();
                        let last = explanation.thresholds.iter().rfind(|threshold| threshold.bytes <= bytes);
                        assert_eq!(last.map(|threshold| threshold.name), Some(explanation.name()), "{explanation}");
                    }
                }
            }
        }
    }

    #[test]
    fn the_largest_calls_are_counted() {
        let processes = pair_of_processes()[0].topology(None).expect("ranks that share memory");
        for &collective in Collective::ALL {
            for ranks in [collective.least_ranks(), 2, 3, 256] {
                for topology in [topology_of_threads(ranks), Topology { ranks, ..processes }] {
                    for (memory, wanted) in [Memory::Slice, Memory::Alloc].into_iter().zip([false, true]) {
                        let Question { case, transport, .. } = question(collective, Transport::Processes);
                        let case = Case { ranks, in_place: collective.in_place(wanted), ..case };
                        let question = Question { case, transport, memory };
                        question.explain(&topology, MOST_IN_ALL / ranks, false).expect("numbers");
                        question.explain(&topology, MOST_IN_ALL / ranks + 1, false).expect_err("too large");
                    }
                }
            }
        }
    }

    #[test]
    fn sizes_are_short() {
        assert_eq!(
            [size(12), size(1024), size(1536), size(1 << 20), size(5 << 30)],
            ["12 B", "1 KiB", "1.5 KiB", "1 MiB", "5 GiB"]
        );
    }
}
