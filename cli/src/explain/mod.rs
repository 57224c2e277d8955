//! `consonance explain`: what a call would do, and what it costs at least.
//!
//! The way of the data is asked of the same functions that the call itself asks ([`consonance_kernels::group::plan`]), on the ground of a real
//! group of so many ranks (`group.rs`). `traffic.rs` counts the bytes of each way.

mod group;
mod traffic;

pub use group::{ground_of, ground_of_threads, join, start};
pub use traffic::Traffic;

use crate::bench::{
    Memory, Transport,
    case::{Case, Collective, MOST_IN_ALL},
    limits,
};
use consonance_kernels::{
    cpu::{isa::Isa, reduce::Reducer},
    group::plan::{Cut, Ground, Path, Step, Targets, Windows},
};
use serde_json::{Value, json};
use std::{fmt, io};

/// The largest size at which it is looked for another way.
const MOST_BYTES: usize = 1 << 30;

/// What is asked: a call of any size.
#[derive(Clone, Copy, Debug)]
pub struct Question {
    /// The call; its count does not matter.
    pub case: Case,
    /// How the ranks meet.
    pub transport: Transport,
    /// Where their buffers are.
    pub memory: Memory,
}

/// What a call of one size does.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// What was asked, with the count.
    pub question: Question,
    /// The step that carries it out.
    pub step: Step,
    /// The way of its data.
    pub path: Path,
    /// The instruction set of the kernel that combines, if anything is combined.
    pub isa: Option<Isa>,
    /// What the rank that moves most moves.
    pub traffic: Traffic,
    /// From which size on which way is taken.
    pub thresholds: Vec<Threshold>,
    /// The least time of any library, if it was measured.
    pub limit: Option<Limit>,
}

/// From so many bytes of the larger buffer on data go this way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Threshold {
    /// Bytes of the larger buffer.
    pub bytes: usize,
    /// The way's name.
    pub name: &'static str,
}

/// What this machine allows, measured now.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    /// Microseconds of a copy, on each core at the same time, of the bytes that must at least be moved there.
    pub copy_us: f64,
    /// Microseconds from one core to the other: half of a cache line's round trip. Nothing where there is one core.
    pub one_way_us: Option<f64>,
}

impl Limit {
    /// No library takes less, where all ranks can read and write all buffers.
    pub fn time_us(&self) -> f64 {
        self.copy_us.max(self.one_way_us.unwrap_or(0.0))
    }
}

impl Question {
    /// The answer for a larger buffer of so many bytes, in a group on this ground; `measure` says whether the limit is measured, which
    /// takes a moment.
    ///
    /// # Errors
    /// Why there is none: what [`check`](Question::check) refuses, or what the system does.
    pub fn explain(&self, ground: &Ground, bytes: usize, measure: bool) -> Result<Explanation, String> {
        self.check(bytes)?;
        let question = Question { case: self.case.with_bytes(bytes), ..*self };
        let (step, path) = question.way(ground)?;
        let isa = if self.case.collective.reduces() { Some(question.reducer()?.isa()) } else { None };
        let limit = if measure { Some(question.limit().map_err(|error| format!("the limit: {error}"))?) } else { None };
        let thresholds = self.thresholds(ground)?;
        let traffic = Traffic::most(&question.case, step, path);
        Ok(Explanation { question, step, path, isa, traffic, thresholds, limit })
    }

    /// Whether there is an answer for a larger buffer of so many bytes.
    ///
    /// # Errors
    /// If the operation is not defined on the type, or no machine has buffers of the size.
    pub fn check(&self, bytes: usize) -> Result<(), String> {
        let (ranks, most) = (self.case.ranks, MOST_IN_ALL / self.case.ranks);
        if bytes > most {
            return Err(format!("-b: expected at most {most} bytes of each of {ranks} ranks, found {bytes}"));
        }
        if self.case.collective.reduces() { self.reducer().map(drop) } else { Ok(()) }
    }

    fn reducer(&self) -> Result<Reducer, String> {
        let Case { op, dtype, .. } = self.case;
        Reducer::new(op, dtype).ok_or_else(|| format!("--op: expected an operation on {dtype}, found {op}"))
    }

    /// The step of the call, and the way of its data.
    fn way(&self, ground: &Ground) -> Result<(Step, Path), String> {
        let Case { collective, ranks, in_place, dtype, .. } = self.case;
        let all = self.case.bytes();
        let (step, bytes) = match collective {
            Collective::Barrier => (ground.moving(0, Cut::WHOLE), 0),
            Collective::AllReduce => (ground.combining(&self.reducer()?, all, Targets::All), all),
            Collective::Reduce => (ground.combining(&self.reducer()?, all, Targets::Root(0)), all),
            Collective::ReduceScatter if in_place => (ground.combining(&self.reducer()?, all, Targets::Own), all),
            Collective::ReduceScatter | Collective::AllToAll => (ground.moving(all, Cut::blocks(ranks, all)), all),
            Collective::Scatter => (ground.moving(all, Cut::one_way(all, ranks)), all),
            Collective::AllGather | Collective::AllGatherV | Collective::Gather | Collective::GatherV => {
                let largest = (0..ranks).map(|rank| self.case.part(rank).len()).max().unwrap_or(0) * dtype.size();
                let to_one = matches!(collective, Collective::Gather | Collective::GatherV);
                let step =
                    if to_one { ground.moving(largest, Cut::one_way(largest, 1)) } else { ground.gathering(largest) };
                (step, largest)
            }
            Collective::Broadcast | Collective::SendRecv | Collective::ScatterV => {
                (ground.moving(all, Cut::one_way(all, 1)), all)
            }
            Collective::AllToAllV => (ground.moving(all, Cut::WHOLE), all),
        };
        Ok((step, ground.path(step, bytes, self.memory == Memory::Alloc)))
    }

    /// Every size at which the way changes, as far as sizes twice as large each show it.
    fn thresholds(&self, ground: &Ground) -> Result<Vec<Threshold>, String> {
        let at = |bytes: usize| -> Result<Threshold, String> {
            let question = Question { case: self.case.with_bytes(bytes), ..*self };
            Ok(Threshold { bytes: question.case.bytes(), name: name(question.way(ground)?.1) })
        };
        let mut thresholds = vec![at(1)?];
        let mut below = 1;
        while below < MOST_BYTES && self.case.collective != Collective::Barrier {
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
        let bytes = ranks.map(|rank| self.case.least_traffic(rank)).max().unwrap_or(0) * self.case.dtype.size();
        let one_way = limits::round_trip()?.filter(|_| self.case.ranks > 1);
        let seconds = if bytes == 0 { 0.0 } else { limits::copy(bytes / 2)? };
        // Ranks that share a core take turns there.
        let turns = self.case.ranks.div_ceil(limits::cores()) as f64;
        Ok(Limit { copy_us: 1e6 * seconds * turns, one_way_us: one_way.map(|seconds| 1e6 * seconds / 2.0) })
    }
}

/// The name of a way.
fn name(path: Path) -> &'static str {
    match path {
        Path::Card => "card",
        Path::InPlace => "in place",
        Path::Read => "read",
        Path::PutUp(_) => "put up",
        Path::Blocks(_) => "blocks",
    }
}

impl Explanation {
    /// The way's name: `"card"`, `"in place"`, …
    pub fn name(&self) -> &'static str {
        name(self.path)
    }

    fn windows(&self) -> Option<Windows> {
        match self.path {
            Path::Card | Path::InPlace | Path::Read => None,
            Path::PutUp(windows) | Path::Blocks(windows) => Some(windows),
        }
    }

    /// What is done, in words.
    fn algorithm(&self) -> &'static str {
        match (self.path, self.step) {
            (Path::Card, _) => "the data ride in the cards by which the ranks arrive; nobody waits for who reads them",
            (Path::InPlace, Step::Divided { .. }) => {
                "each rank folds its block of all data where they lie straight into all results, in one pass"
            }
            (Path::InPlace, _) => "who needs data reads them where they lie",
            (Path::Read, _) => {
                "every rank has the system read what it needs out of the others' memory (process_vm_readv)"
            }
            (Path::PutUp(_), Step::Divided { .. }) => {
                "every rank puts its data up, and combines what it needs of what all have put up"
            }
            (Path::PutUp(_), _) => "data are put up, and who needs them reads them there",
            (Path::Blocks(_), _) => {
                "every rank puts up what the others fold, folds its own block, and puts that up for those who receive"
            }
        }
    }

    /// Where the data are when another rank reads them.
    fn memory(&self) -> &'static str {
        match (self.path, self.question.transport) {
            (Path::Card, _) => "the arrival line of each rank",
            (Path::InPlace, Transport::Threads) => "the buffers themselves, in the memory of the one process",
            (Path::InPlace, _) => "the buffers themselves, in memory from Communicator::alloc",
            (Path::Read, _) => "the buffers themselves, in the memory of each process",
            (Path::PutUp(_) | Path::Blocks(_), _) => "copies in memory that the processes share",
        }
    }

    /// As a JSON object; what there is not is null.
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
            "op": case.collective.reduces().then(|| case.op.name()),
            "memory": memory.name(),
            "in_place": case.in_place,
            "path": self.name(),
            "algorithm": self.algorithm(),
            "windows": self.windows().map(|windows| windows.count),
            "window_bytes": self.windows().map(|windows| windows.blocks * windows.stride),
            "isa": self.isa.map(Isa::name),
            "memory_path": self.memory(),
            "past_caches": Traffic::goes_past_caches(&case, self.path),
            "rank": rank,
            "read_bytes": read,
            "written_bytes": written,
            "across_bytes": across,
            "limit_us": self.limit.map(|limit| limit.time_us()),
            "one_way_us": self.limit.and_then(|limit| limit.one_way_us),
            "thresholds": thresholds.map(|threshold| json!({ "bytes": threshold.bytes, "path": threshold.name })).collect::<Vec<_>>(),
        })
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Question { case, transport, memory } = self.question;
        let Traffic { rank, read, written, across } = self.traffic;
        let what =
            if case.collective.reduces() { format!("{}, {}", case.op, case.dtype) } else { case.dtype.to_string() };
        let place = if case.in_place { ", in place" } else { "" };
        let ranks = match case.ranks {
            1 => format!("1 rank ({})", transport.name()),
            ranks => format!("{ranks} {}", transport.name()),
        };
        writeln!(f, "{}({what}) of {}, {ranks}, {}{place}", case.collective, size(case.bytes()), memory.name())?;
        let mut line = |name: &str, text: String| writeln!(f, "  {name:<10} {text}");
        line("path", format!("{}: {}", self.name(), self.algorithm()))?;
        if case.collective == Collective::AllToAllV {
            line("before it", "one more step brings every rank's counts to all".to_owned())?;
        }
        if let Some(Windows { count, blocks, stride }) = self.windows() {
            line("windows", format!("{count} of at most {}", size(blocks * stride)))?;
        }
        line("memory", self.memory().to_owned())?;
        if Traffic::goes_past_caches(&case, self.path) {
            line("stores", "results go past the caches, which the call as a whole overflows".to_owned())?;
        }
        if let Some(isa) = self.isa {
            line("kernel", format!("{} of {} in {isa}", case.op, case.dtype))?;
        }
        line(
            "moved",
            format!(
                "rank {rank} reads {} and writes {}; {} cross from core to core",
                size(read),
                size(written),
                size(across)
            ),
        )?;
        if let Some(limit) = self.limit {
            let why = match limit.one_way_us {
                Some(time) if time >= limit.copy_us => "half of a cache line's round trip, measured now",
                _ => "a copy of what must at least be moved, measured now",
            };
            line("limit", format!("{:.2} us: {why}", limit.time_us()))?;
        }
        line("thresholds", "(bytes, from which on)".to_owned())?;
        let own = self.thresholds.iter().rposition(|threshold| threshold.bytes <= case.bytes());
        for (index, threshold) in self.thresholds.iter().enumerate() {
            let mark = if Some(index) == own { "  <- this call" } else { "" };
            writeln!(f, "  {:>10}   {}{mark}", threshold.bytes, threshold.name)?;
        }
        Ok(())
    }
}

/// 12 B, 1.5 MiB.
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
    use consonance_harness::counted::pair_of_processes;
    use consonance_spec::{DType, ReduceOp};

    fn question(collective: Collective, transport: Transport) -> Question {
        let case =
            Case { collective, ranks: 2, count: 0, dtype: DType::F32, op: ReduceOp::Sum, in_place: false, spread: 10 };
        Question { case, transport, memory: Memory::Slice }
    }

    #[test]
    fn a_call_goes_the_way_of_the_last_threshold_before_it() {
        let threads = (Transport::Threads, ground_of_threads(2));
        let processes = (Transport::Processes, pair_of_processes()[0].ground(None).expect("ranks that share memory"));
        for collective in Collective::all() {
            for (transport, ground) in [threads, processes] {
                for memory in [Memory::Slice, Memory::Alloc] {
                    let question = Question { memory, ..question(collective, transport) };
                    for power in 0..26 {
                        let explanation = question.explain(&ground, 3 << power, false).expect("a call");
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
        let processes = pair_of_processes()[0].ground(None).expect("ranks that share memory");
        for collective in Collective::all() {
            for ranks in [collective.least_ranks(), 2, 3, 256] {
                for ground in [ground_of_threads(ranks), Ground { ranks, ..processes }] {
                    for (memory, wanted) in [Memory::Slice, Memory::Alloc].into_iter().zip([false, true]) {
                        let Question { case, transport, .. } = question(collective, Transport::Processes);
                        let case = Case { ranks, in_place: collective.in_place(wanted), ..case };
                        let question = Question { case, transport, memory };
                        question.explain(&ground, MOST_IN_ALL / ranks, false).expect("numbers");
                        question.explain(&ground, MOST_IN_ALL / ranks + 1, false).expect_err("too large");
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
