//! A row of results: the measurements of one library for one call.

use super::{
    case::{Case, Collective},
    group::Samples,
    pace::Step,
};
use serde_json::{Value, json};
use std::fmt;

/// The name of the limit among libraries.
pub(super) const LIMIT: &str = "limit";

/// A row of the table.
#[derive(Clone, Debug)]
pub struct Row {
    /// `"consonance"`, a rival's name, or `"limit"`.
    pub library: String,
    /// The library's version; `None` if it is not known.
    pub version: Option<String>,
    /// The kind of its ranks: threads or processes. For a library without figures, `"none: "` and
    /// the reason.
    pub transport: String,
    /// The barrier before each call: `"common"`, the gate of the bench, or `"own"`, the
    /// library's barrier, if its ranks do not know the gate. `None` if there are no ranks.
    pub barrier: Option<&'static str>,
    /// The distance of the cores: the median time that a cache line took from the core
    /// of rank 0 to the core of rank 1 and back, measured right before each turn of this row, in
    /// microseconds. `None` if there is one rank, one core, or no figure.
    pub round_trip_us: Option<f64>,
    /// `"slice"` or `"alloc"`.
    pub memory: &'static str,
    /// The call.
    pub case: Case,
    /// The step that the call was a part of; `None` if calls came apart from each other.
    pub step: Option<Step>,
    /// The measurements; `None` if the library is not installed or has no such call.
    pub figures: Option<Figures>,
    /// Whether the call took less time than the limit, which no call can: a fault of the bench.
    pub is_below_limit: bool,
}

/// The measurements of one call.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// Median time of a call on its slowest rank, in microseconds; of steps, that of turns.
    pub time_us_median: f64,
    /// Mean time of a call on its slowest rank, or of a step, in microseconds.
    pub time_us_mean: f64,
    /// The 99th percentile of that time.
    pub time_us_p99: f64,
    /// Mean CPU seconds of a call and the wait before it, of all ranks together.
    pub cpu_seconds: f64,
    /// The number of wrong elements, in all calls on all ranks.
    pub wrong: usize,
}

impl Figures {
    /// Returns the figures of these calls. There must be at least one call.
    pub(super) fn new(samples: Samples) -> Figures {
        let Samples { mut seconds, cpu_seconds, wrong } = samples;
        seconds.sort_by(f64::total_cmp);
        let calls = seconds.len();
        let time_us_mean = 1e6 * seconds.iter().sum::<f64>() / calls as f64;
        // The smallest sample that at least `share` of all samples do not exceed.
        let quantile = |share: f64| 1e6 * seconds[((share * calls as f64).ceil() as usize).clamp(1, calls) - 1];
        Figures {
            time_us_median: quantile(0.5),
            time_us_mean,
            time_us_p99: quantile(0.99),
            cpu_seconds: cpu_seconds / calls as f64,
            wrong,
        }
    }
}

impl Row {
    /// Marks the rows of one size that took less time than the limit of their call.
    pub(super) fn mark(rows: &mut [Row]) {
        let limits: Vec<(Collective, f64)> = rows
            .iter()
            .filter(|row| row.library == LIMIT)
            .filter_map(|row| Some((row.case.collective, row.figures?.time_us_median)))
            .collect();
        for row in rows {
            let limit = limits.iter().find(|(collective, _)| *collective == row.case.collective);
            let times = row.figures.map(|figures| figures.time_us_median).zip(limit);
            row.is_below_limit = times.is_some_and(|(time, (_, limit))| time < *limit);
        }
    }

    /// Returns the time of the table, in microseconds: the median of calls, or the mean of steps.
    pub fn time_us(&self) -> Option<f64> {
        let Figures { time_us_median, time_us_mean, .. } = self.figures?;
        Some(if self.step.is_some() { time_us_mean } else { time_us_median })
    }

    /// Returns the bytes of the larger buffer divided by the time, in GB/s.
    pub fn algbw(&self) -> Option<f64> {
        self.time_us().map(|time| self.case.bytes() as f64 / time / 1e3)
    }

    /// Returns the bandwidth that the links between the ranks must at least have had, in GB/s, as
    /// nccl-tests defines it.
    pub fn busbw(&self) -> Option<f64> {
        self.algbw().map(|algbw| algbw * self.case.collective.kind().bus_factor(self.case.ranks))
    }

    /// Returns the row as a JSON object. Absent values are null.
    pub fn json(&self) -> Value {
        let Row { library, version, transport, barrier, round_trip_us, memory, case, step, figures, is_below_limit } =
            self;
        json!({
            "collective": case.collective.name(),
            "library": library,
            "version": version,
            "transport": transport,
            "ranks": case.ranks,
            "bytes": case.bytes(),
            "count": case.count,
            "dtype": case.dtype.name(),
            "op": case.collective.kind().combines().then(|| case.op.name()),
            "barrier": barrier,
            "memory": memory,
            "in_place": case.in_place,
            "step_us": step.map(|step| 1e6 * step.computes.as_secs_f64()),
            "beside": step.map(|step| step.beside),
            "time_us_median": figures.map(|figures| figures.time_us_median),
            "time_us_mean": figures.map(|figures| figures.time_us_mean),
            "time_us_p99": figures.map(|figures| figures.time_us_p99),
            "algbw_GBps": self.algbw(),
            "busbw_GBps": self.busbw(),
            "cpu_seconds": figures.map(|figures| figures.cpu_seconds),
            "round_trip_us": round_trip_us,
            "wrong": figures.map(|figures| figures.wrong),
            "below_limit": is_below_limit,
        })
    }

    /// Returns the names of the table's columns, two lines.
    pub fn header() -> String {
        let line = |words: [&str; 15]| {
            let [collective, bytes, count, dtype, op, place, library, version, transport, figures @ ..] = words;
            let [time, p99, algbw, busbw, trip, wrong] = figures;
            format!(
                "# {collective:<14} {bytes:>10} {count:>10} {dtype:>5} {op:>7} {place:>5}  {library:<10} {version:<10} \
                 {transport:<9} {time:>10} {p99:>10} {algbw:>8} {busbw:>8} {trip:>6} {wrong:>6}"
            )
        };
        let columns = [
            ("collective", ""),
            ("bytes", "(B)"),
            ("count", "(elements)"),
            ("dtype", ""),
            ("op", ""),
            ("place", ""),
            ("library", ""),
            ("version", ""),
            ("transport", ""),
            ("time", "(us)"),
            ("p99", "(us)"),
            ("algbw", "(GB/s)"),
            ("busbw", "(GB/s)"),
            ("trip", "(us)"),
            ("wrong", ""),
        ];
        let (names, units) = (columns.map(|(name, _)| name), columns.map(|(_, unit)| unit));
        format!("{}\n{}", line(names), line(units))
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Row { library, version, transport, barrier, round_trip_us, case, step, figures, is_below_limit, .. } = self;
        let version = version.as_deref().unwrap_or("-");
        let Case { collective, count, dtype, .. } = case;
        let op = if case.collective.kind().combines() { case.op.name() } else { "-" };
        let place = if case.in_place { "in" } else { "apart" };
        write!(f, "  {collective:<14} {:>10} {count:>10} {dtype:>5} {op:>7} {place:>5}  ", case.bytes())?;
        write!(f, "{library:<10} {version:<10} ")?;
        let (Some(figures), Some(time)) = (figures, self.time_us()) else {
            return f.write_str(transport);
        };
        let Figures { time_us_p99: p99, wrong, .. } = figures;
        let [algbw, busbw] = [self.algbw(), self.busbw()].map(|bandwidth| bandwidth.unwrap_or(0.0));
        let trip = round_trip_us.map_or("-".to_owned(), |trip| format!("{trip:.3}"));
        write!(f, "{transport:<9} {time:>10.2} {p99:>10.2} {algbw:>8.2} {busbw:>8.2} {trip:>6} {wrong:>6}")?;
        if *barrier == Some("own") {
            f.write_str("  (its own barrier before calls)")?;
        }
        if let Some(step) = step {
            write!(f, "  ({step})")?;
        }
        if *is_below_limit { f.write_str("  (faster than the limit: a fault of the bench)") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use consonance_spec::{DType, ReduceOp};

    #[test]
    fn a_call_faster_than_its_limit_is_a_fault_of_the_bench() {
        let row = |library: &str, collective, time_us_median| Row {
            library: library.to_owned(),
            version: None,
            transport: "threads".to_owned(),
            barrier: Some("common"),
            round_trip_us: None,
            memory: "slice",
            case: Case {
                collective,
                ranks: 2,
                count: 4,
                dtype: DType::F32,
                op: ReduceOp::Sum,
                in_place: false,
                spread: 0,
            },
            step: None,
            figures: Some(Figures { time_us_median, time_us_mean: 9.0, time_us_p99: 9.0, cpu_seconds: 0.0, wrong: 0 }),
            is_below_limit: false,
        };
        let (reduce, gather) = (Collective::AllReduce, Collective::AllGather);
        let mut rows = [
            row("consonance", reduce, 2.0),
            row("mpich", reduce, 1.0),
            row(LIMIT, reduce, 1.5),
            row("mpich", gather, 1.0),
        ];
        Row::mark(&mut rows);
        assert_eq!(rows.each_ref().map(|row| row.is_below_limit), [false, true, false, false]);
        assert!(rows[1].to_string().ends_with("(faster than the limit: a fault of the bench)"));
        assert_eq!(rows[1].json()["below_limit"], true);
    }

    #[test]
    fn quantiles_are_samples() {
        let figures = |calls: usize| {
            let seconds = (1..=calls).rev().map(|call| call as f64 * 1e-6).collect();
            Figures::new(Samples { seconds, cpu_seconds: 4.0, wrong: 3 })
        };
        let of = |calls| (figures(calls).time_us_median.round(), figures(calls).time_us_p99.round());
        assert_eq!([of(1), of(2), of(3), of(100), of(1000)], [(1., 1.), (1., 2.), (2., 3.), (50., 99.), (500., 990.)]);
        assert_eq!((figures(8).cpu_seconds, figures(8).wrong), (0.5, 3));
    }
}
