//! Faults that are planted in the protocol to test that the model finds them.
//!
//! A fault is at one line of the protocol's text. The line is found by its words, so the text stays
//! unchanged.

use std::{
    cell::{Cell, RefCell},
    panic::{self, Location},
    sync::{Once, atomic::Ordering},
};

/// The names and the text of the files that the model checks.
pub const FILES: [(&str, &str); 21] = [
    ("sync/wait.rs", include_str!("../../src/sync/wait.rs")),
    ("shm/records.rs", include_str!("../../src/shm/records.rs")),
    ("shm/call_log.rs", include_str!("../../src/shm/call_log.rs")),
    ("shm/rank_gpu.rs", include_str!("../../src/shm/rank_gpu.rs")),
    ("shm/version.rs", include_str!("../../src/shm/version.rs")),
    ("group/post.rs", include_str!("../../src/group/post.rs")),
    ("group/state/mod.rs", include_str!("../../src/group/state/mod.rs")),
    ("group/state/ends.rs", include_str!("../../src/group/state/ends.rs")),
    ("group/chains.rs", include_str!("../../src/group/chains.rs")),
    ("group/call_context.rs", include_str!("../../src/group/call_context.rs")),
    ("group/member.rs", include_str!("../../src/group/member.rs")),
    ("group/waiter.rs", include_str!("../../src/group/waiter.rs")),
    ("group/meeting.rs", include_str!("../../src/group/meeting.rs")),
    ("group/mail/ring.rs", include_str!("../../src/group/mail/ring.rs")),
    ("group/mail/refusals.rs", include_str!("../../src/group/mail/refusals.rs")),
    ("group/mail/outgoing.rs", include_str!("../../src/group/mail/outgoing.rs")),
    ("group/mail/incoming.rs", include_str!("../../src/group/mail/incoming.rs")),
    ("group/mail/mailbox.rs", include_str!("../../src/group/mail/mailbox.rs")),
    ("group/mail/letters.rs", include_str!("../../src/group/mail/letters.rs")),
    ("group/sharing.rs", include_str!("../../src/group/sharing.rs")),
    ("group/staging/mod.rs", include_str!("../../src/group/staging/mod.rs")),
];

/// A line of the protocol's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceLine {
    /// The file's name.
    pub file: &'static str,
    /// The number of the line, from 1.
    pub number: u32,
}

/// The effect of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The operation is relaxed. A fence is omitted.
    Relaxed,
    /// The value that is loaded, stored or added is larger by this number.
    Offset(i64),
}

/// A fault at a line.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// The line.
    pub line: SourceLine,
    /// The effect.
    pub effect: Effect,
}

thread_local! {
    static PLANTED: Cell<Option<Fault>> = const { Cell::new(None) };
    /// Whether the model has failed. Operations after that are only called while the stack unwinds.
    static OVER: Cell<bool> = const { Cell::new(false) };
    static MORTAL: RefCell<Option<Mortal>> = const { RefCell::new(None) };
}

/// A rank that dies.
struct Mortal {
    thread: loom::thread::ThreadId,
    /// The number of operations before it dies.
    left: u32,
}

/// The panic payload that unwinds the stack of a rank that dies.
struct Death;

impl SourceLine {
    /// Returns the line of `file` that contains `text`.
    ///
    /// # Panics
    /// If there is not exactly one such line.
    pub fn with(file: &'static str, text: &str) -> SourceLine {
        let (_, source) = FILES.iter().find(|(name, _)| *name == file).expect("a file of the protocol");
        let mut lines = source.lines().zip(1..).filter(|(line, _)| line.contains(text));
        let (_, number) = lines.next().unwrap_or_else(|| panic!("{file} has no line with {text:?}"));
        assert!(lines.next().is_none(), "{file} has several lines with {text:?}");
        SourceLine { file, number }
    }

    /// Returns the text of the line.
    pub fn text(self) -> &'static str {
        let (_, source) = FILES.iter().find(|(name, _)| *name == self.file).expect("a file of the protocol");
        source.lines().nth(self.number as usize - 1).unwrap_or_default().trim()
    }
}

/// Returns the lines of the protocol's text on which ranks synchronise, with their names. Each is
/// below a comment `SYNC POINT name`.
pub fn sync_points() -> Vec<(&'static str, SourceLine)> {
    let mut points = Vec::new();
    for (file, source) in FILES {
        let mut name = None;
        for (number, line) in (1..).zip(source.lines()) {
            if let Some((_, said)) = line.split_once("// SYNC POINT ") {
                name = said.split(':').next();
            } else if OPERATIONS.iter().any(|operation| line.contains(operation)) {
                points.extend(name.take().map(|name| (name, SourceLine { file, number })));
            }
        }
    }
    points
}

/// Returns the lines of the protocol's text, without its tests, that have a stronger ordering than
/// relaxed.
pub fn strong_lines() -> Vec<SourceLine> {
    let strong = ["Ordering::Acquire", "Ordering::Release", "Ordering::AcqRel", "Ordering::SeqCst"];
    let lines_of = |(file, source): (&'static str, &'static str)| {
        let code =
            source.lines().zip(1..).take_while(|(line, _)| !line.starts_with("#[cfg(") || !line.contains("test"));
        let lines = code.filter(|(line, _)| strong.iter().any(|order| line.contains(order)));
        lines.map(move |(_, number)| SourceLine { file, number }).collect::<Vec<_>>()
    };
    FILES.into_iter().flat_map(lines_of).collect()
}

/// The beginnings of atomic operations.
const OPERATIONS: [&str; 7] =
    [".load(", ".store(", ".swap(", ".fetch_add(", ".fetch_sub(", ".compare_exchange(", "fence("];

/// Runs `body` with a fault planted in the models of this thread.
pub(crate) fn plant<R>(fault: Option<Fault>, body: impl FnOnce() -> R) -> R {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let report = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            OVER.set(true);
            if PLANTED.get().is_none() {
                report(info);
            }
        }));
    });
    PLANTED.set(fault);
    let result = body();
    PLANTED.set(None);
    result
}

/// Resets the state of a run. Called at the start of each run of a model.
pub(crate) fn begin() {
    OVER.set(false);
    MORTAL.set(None);
}

/// Returns whether the model has failed.
pub(crate) fn over() -> bool {
    OVER.get()
}

/// Runs `body` on the calling thread, which dies before its operation number `left`. Returns
/// whether it died.
pub(crate) fn die_after(left: u32, body: impl FnOnce()) -> bool {
    MORTAL.set(Some(Mortal { thread: loom::thread::current().id(), left }));
    match panic::catch_unwind(panic::AssertUnwindSafe(body)) {
        Ok(()) => false,
        Err(cause) if cause.is::<Death>() => true,
        Err(cause) => panic::resume_unwind(cause),
    }
}

/// Returns whether the calling thread has died.
pub(crate) fn dead() -> bool {
    let of_this_thread = |mortal: &Mortal| mortal.left == 0 && mortal.thread == loom::thread::current().id();
    !over() && MORTAL.with_borrow(|mortal| mortal.as_ref().is_some_and(of_this_thread))
}

/// The change that a fault makes to an operation.
#[derive(Clone, Copy)]
pub(crate) struct Change(Option<Effect>);

impl Change {
    pub(crate) fn order(self, order: Ordering) -> Ordering {
        if self.0 == Some(Effect::Relaxed) { Ordering::Relaxed } else { order }
    }

    pub(crate) fn offset(self) -> i64 {
        if let Some(Effect::Offset(offset)) = self.0 { offset } else { 0 }
    }
}

/// Returns the change that is planted at an operation's place. `None` if the operation must not be
/// executed.
pub(crate) fn at(place: &Location<'_>) -> Option<Change> {
    if OVER.get() || dies() {
        return None;
    }
    let planted =
        PLANTED.get().filter(|fault| place.line() == fault.line.number && place.file().ends_with(fault.line.file));
    Some(Change(planted.map(|fault| fault.effect)))
}

/// Counts an operation of the calling thread, and returns whether the thread is dead. The operation
/// at which it dies unwinds its stack.
fn dies() -> bool {
    let now = MORTAL.with_borrow_mut(|mortal| {
        let mortal = mortal.as_mut().filter(|mortal| mortal.thread == loom::thread::current().id())?;
        let dies = mortal.left == 1;
        mortal.left = mortal.left.saturating_sub(1);
        Some((dies, mortal.left == 0))
    });
    if let Some((true, _)) = now {
        panic::resume_unwind(Box::new(Death));
    }
    now.is_some_and(|(_, dead)| dead)
}
