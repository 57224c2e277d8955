//! A row of results: what one library took for one call.

use super::{case::Case, group::Samples};
use serde_json::{Value, json};
use std::fmt;

/// A row.
#[derive(Clone, Debug)]
pub struct Row {
    /// `"consonance"`, a rival's name, or `"limit"`.
    pub library: String,
    /// What its ranks are and how they meet; of a library without figures `"none: "` and the
    /// reason.
    pub transport: String,
    /// `"slice"` or `"alloc"`.
    pub memory: &'static str,
    /// What was called.
    pub case: Case,
    /// What was measured; nothing if the library is not installed or has no such call.
    pub figures: Option<Figures>,
}

/// What was measured.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// Microseconds of a call on its slowest rank: half of the calls took no more.
    pub time_us_median: f64,
    /// 99 of 100 calls took no more.
    pub time_us_p99: f64,
    /// CPU seconds that all ranks together spent on a call and the barrier before it, on average.
    pub cpu_seconds: f64,
    /// Elements that were wrong, in all calls on all ranks.
    pub wrong: usize,
}

impl Figures {
    /// The figures of these calls, of which there is at least one.
    pub(super) fn new(samples: Samples) -> Figures {
        let Samples { mut seconds, cpu_seconds, wrong } = samples;
        seconds.sort_by(f64::total_cmp);
        let calls = seconds.len();
        // The least sample that `share` of all are not above.
        let quantile = |share: f64| 1e6 * seconds[((share * calls as f64).ceil() as usize).clamp(1, calls) - 1];
        Figures {
            time_us_median: quantile(0.5),
            time_us_p99: quantile(0.99),
            cpu_seconds: cpu_seconds / calls as f64,
            wrong,
        }
    }
}

impl Row {
    /// Bytes of the larger buffer by time, in GB/s.
    pub fn algbw(&self) -> Option<f64> {
        self.figures.map(|figures| self.case.bytes() as f64 / figures.time_us_median / 1e3)
    }

    /// The bandwidth that links between the ranks must at least have had, in GB/s, as nccl-tests
    /// define it.
    pub fn busbw(&self) -> Option<f64> {
        self.algbw().map(|algbw| algbw * self.case.collective.kind().bus_factor(self.case.ranks))
    }

    /// The row as a JSON object; what there is not is null.
    pub fn json(&self) -> Value {
        let Row { library, transport, memory, case, figures } = self;
        json!({
            "collective": case.collective.name(),
            "library": library,
            "transport": transport,
            "ranks": case.ranks,
            "bytes": case.bytes(),
            "count": case.count,
            "dtype": case.dtype.name(),
            "op": case.collective.kind().combines().then(|| case.op.name()),
            "memory": memory,
            "in_place": case.in_place,
            "time_us_median": figures.map(|figures| figures.time_us_median),
            "time_us_p99": figures.map(|figures| figures.time_us_p99),
            "algbw_GBps": self.algbw(),
            "busbw_GBps": self.busbw(),
            "cpu_seconds": figures.map(|figures| figures.cpu_seconds),
            "wrong": figures.map(|figures| figures.wrong),
        })
    }

    /// The names of the table's columns, two lines.
    pub fn header() -> String {
        let line = |words: [&str; 13]| {
            let [collective, bytes, count, dtype, op, place, library, transport, time, p99, algbw, busbw, wrong] =
                words;
            format!(
                "# {collective:<14} {bytes:>10} {count:>10} {dtype:>5} {op:>7} {place:>5}  {library:<10} {transport:<9} \
                 {time:>10} {p99:>10} {algbw:>8} {busbw:>8} {wrong:>6}"
            )
        };
        let names = [
            "collective",
            "bytes",
            "count",
            "dtype",
            "op",
            "place",
            "library",
            "transport",
            "time",
            "p99",
            "algbw",
            "busbw",
            "wrong",
        ];
        let units = ["", "(B)", "(elements)", "", "", "", "", "", "(us)", "(us)", "(GB/s)", "(GB/s)", ""];
        format!("{}\n{}", line(names), line(units))
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Row { library, transport, case, figures, .. } = self;
        let Case { collective, count, dtype, .. } = case;
        let op = if case.collective.kind().combines() { case.op.name() } else { "-" };
        let place = if case.in_place { "in" } else { "apart" };
        write!(f, "  {collective:<14} {:>10} {count:>10} {dtype:>5} {op:>7} {place:>5}  {library:<10} ", case.bytes())?;
        let (Some(figures), Some(algbw), Some(busbw)) = (figures, self.algbw(), self.busbw()) else {
            return f.write_str(transport);
        };
        let Figures { time_us_median: time, time_us_p99: p99, wrong, .. } = figures;
        write!(f, "{transport:<9} {time:>10.2} {p99:>10.2} {algbw:>8.2} {busbw:>8.2} {wrong:>6}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
