//! The judgement of cases: each is executed by a subject and by the spec, and the results are
//! compared.

mod script;
mod nest;
mod deviation;
mod messages;
mod file;
mod checkpoint;
#[cfg(target_os = "linux")]
pub(crate) mod corrupted_calls;
mod pool;

pub use checkpoint::{checkpoint, checkpoints};
pub use deviation::{rank_deviation, replica_deviation};
pub use file::file;
pub use messages::messages;
pub use nest::{axes, nest};
pub use pool::forget;
pub use script::script;
#[cfg(target_os = "linux")]
pub use script::{Part, given, parts, start_all};

use crate::cases::{Case, Source};
use std::{any::Any, collections::BTreeMap, fmt::Debug, fs, time::Duration};

/// `Err` describes the fault of a subject.
pub type Verdict = Result<(), String>;

/// A case that takes longer hangs, because every wait in a case has a deadline of a few seconds.
const HANGS: Duration = Duration::from_secs(120);

/// Judges the case that `bytes` encode. The first byte chooses one of `subjects`.
///
/// # Errors
/// The fault, with the case.
pub fn check<S: Subject, C: Case>(bytes: &[u8], subjects: &[S], judge: fn(S, &C) -> Verdict) -> Verdict {
    let mut source = Source::new(bytes);
    let subject = source.pick(subjects);
    check_case(subject, &C::read(&mut source), judge)
}

/// Judges one case on its own thread, so that a case that hangs is detected.
///
/// # Errors
/// The fault, with the case.
pub fn check_case<S: Subject, C: Case>(subject: S, case: &C, judge: fn(S, &C) -> Verdict) -> Verdict {
    let owned = case.clone();
    let judged = pool::on_judge(move || judge(subject, &owned)).recv_timeout(HANGS);
    let verdict = judged.unwrap_or_else(|_| Err(format!("hangs: {}", threads())));
    verdict.map_err(|wrong| format!("{subject:?}: {wrong}\nin {case:?}"))
}

/// Returns the threads of this process in words: how many have which name, state and system call,
/// and the ticks of the processor that they took. Those that wait for work are among them.
fn threads() -> String {
    let mut seen = BTreeMap::<String, (usize, u64)>::new();
    for task in fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        let read = |file: &str| fs::read_to_string(task.path().join(file)).unwrap_or_default();
        let (stat, call) = (read("stat"), read("syscall"));
        let rest: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let ticks = |place: usize| rest.get(place).and_then(|ticks| ticks.parse::<u64>().ok()).unwrap_or_default();
        let state = rest.first().copied().unwrap_or("?");
        let call = call.split_whitespace().next().unwrap_or("?");
        let (count, taken) = seen.entry(format!("{} {state} {call}", read("comm").trim_end())).or_default();
        (*count, *taken) = (*count + 1, *taken + ticks(11) + ticks(12));
    }
    let words = seen.into_iter().map(|(what, (count, taken))| format!("{count} x {what} ({taken} ticks)"));
    words.collect::<Vec<_>>().join(", ")
}

/// An implementation under test.
pub trait Subject: Copy + Debug + Send + 'static {}

impl<S: Copy + Debug + Send + 'static> Subject for S {}

/// Returns the message of a panic.
pub fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("panicked: {}", text.unwrap_or("without words"))
}

/// `for_each_dtype!(with_type dtype, function(arguments);)` calls `function::<T>(arguments)` with
/// the Rust type `T` of `dtype`.
macro_rules! with_type {
    ($dtype:expr, $function:ident $arguments:tt; $({ type: $type:ty, variant: $variant:ident, $($more:tt)* })*) => {
        match $dtype { $(DType::$variant => $function::<$type> $arguments,)* }
    };
}
pub(crate) use with_type;
