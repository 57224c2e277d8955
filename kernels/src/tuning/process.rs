//! The values of this process.

use super::{
    knobs::{Knob, Scope, Tuning},
    machine::Machine,
    pipeline_choice::Choice,
    text::{TuningError, parse},
    value::Value,
    way::Way,
};
use crate::sync::{
    fork::PerProcess,
    plain::{AtomicBool, AtomicPtr, Ordering},
};
use std::{
    collections::BTreeMap,
    env, fmt,
    fs::{self, File},
    io::{self, Read},
    ptr,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// The environment variable that has the path of a file of knobs, or `off` for the defaults.
pub const VARIABLE: &str = "CONSONANCE_TUNING";

/// Limit on the bytes of a file of knobs, so that the wrong file does not fill the memory. A file
/// of all knobs has a small part of them.
const MOST_BYTES: u64 = 64 << 10;

/// The origin of a knob's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The table.
    Default,
    /// The system's words about the machine.
    Machine,
    /// The measurement after the first large call of a group.
    Measured,
    /// Another process of a group, which had chosen before.
    Peer,
    /// The file that [`VARIABLE`] names.
    File,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Origin::Default => "default",
            Origin::Machine => "machine",
            Origin::Measured => "measured",
            Origin::Peer => "peer",
            Origin::File => "file",
        })
    }
}

/// The time that data took with a value of a knob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trial {
    /// The knob.
    pub knob: &'static str,
    /// The value.
    pub value: Value,
    /// The bytes of a rank's data in each of the calls that take this time together.
    pub bytes: usize,
    /// The median time.
    pub time: Duration,
}

/// The values of this process, and where they come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settled {
    /// The values.
    pub tuning: Tuning,
    /// The path of the file, if there is one.
    pub file: Option<String>,
    /// Whether the defaults were asked for.
    pub is_off: bool,
    /// Whether a measurement may still change some of them.
    pub measures: bool,
    /// Whether a measurement may still change the way of a rank's own data.
    measures_own: bool,
    /// The times of what this process has measured as rank 0 of a group.
    pub trials: Vec<Trial>,
    /// The origins of knobs whose values are not the table's, by name.
    origins: BTreeMap<&'static str, Origin>,
}

impl Settled {
    /// Returns the values for a machine and the value of [`VARIABLE`].
    ///
    /// # Errors
    /// If the variable names a file that cannot be read, or is malformed.
    pub fn new(variable: Option<&str>, machine: &Machine) -> Result<Settled, TuningError> {
        let (tuning, origins) = (Tuning::DEFAULT, BTreeMap::new());
        let mut settled = Settled {
            tuning,
            file: None,
            is_off: false,
            measures: false,
            measures_own: false,
            trials: Vec::new(),
            origins,
        };
        match variable.filter(|text| !text.is_empty()) {
            Some("off") => {
                settled.is_off = true;
                return Ok(settled);
            }
            file => settled.file = file.map(str::to_owned),
        }
        settled.measures = settled.file.is_none();
        settled.measures_own = settled.measures;
        settled.adopt(&Tuning::of(machine), Origin::Machine);
        let Some(file) = &settled.file else { return Ok(settled) };
        let text = read(file).map_err(|error| TuningError {
            file: format!("{VARIABLE}={file}"),
            line: 0,
            knob: None,
            expected: "a file that `consonance tune` wrote, or off".to_owned(),
            found: error.to_string(),
        })?;
        for (knob, value) in parse(&format!("{VARIABLE}={file}"), &text)? {
            settled.tuning.set(knob, value).expect("a value that was parsed is allowed");
            settled.origins.insert(knob.name, Origin::File);
        }
        Ok(settled)
    }

    /// Takes the values in which `tuning` differs.
    fn adopt(&mut self, tuning: &Tuning, origin: Origin) {
        for knob in Tuning::KNOBS.iter().filter(|knob| tuning.get(knob) != self.tuning.get(knob)) {
            self.origins.insert(knob.name, origin);
        }
        self.tuning = *tuning;
    }

    /// Returns where the value of a knob comes from.
    pub fn origin(&self, knob: &Knob) -> Origin {
        self.origins.get(knob.name).copied().unwrap_or(Origin::Default)
    }
}

/// Reads a file of knobs. A pipe would wait for a writer, and a device may have no end.
fn read(path: &str) -> io::Result<String> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("something other than a regular file"));
    }
    let mut text = String::new();
    match File::open(path)?.take(MOST_BYTES + 1).read_to_string(&mut text)? as u64 {
        ..=MOST_BYTES => Ok(text),
        _ => Err(io::Error::other(format!("a file of more than {MOST_BYTES} bytes"))),
    }
}

static DEFAULT: Tuning = Tuning::DEFAULT;

/// The values of this process: always a value that lives as long as the process.
static CURRENT: AtomicPtr<Tuning> = AtomicPtr::new((&raw const DEFAULT).cast_mut());

/// Whether a measurement may still change the way of a rank's own data: a guess, without a lock.
static IS_OWN_DUE: AtomicBool = AtomicBool::new(false);

/// The knobs that one process has settled.
#[derive(Default)]
struct Locked {
    settled: Mutex<Option<Result<Settled, TuningError>>>,
    /// The values that were ever used. They are few: a group has those of its process or, between
    /// processes, those of the process that made its segment, and tries out some others.
    kept: Mutex<Vec<&'static Tuning>>,
    /// The key of the group that tries out values, and how many of its ranks do.
    trying: Mutex<(u64, usize)>,
}

static LOCKED: PerProcess<Locked> = PerProcess::new(Locked::default);

/// Returns the values of this process. It costs two loads. Before [`settle`] they are the defaults.
#[inline]
pub fn current() -> &'static Tuning {
    // SAFETY: the word is the address of a static or of a value that `keep` leaked: neither is ever
    // written or freed again. Acquire: the value was written before its address.
    unsafe { &*CURRENT.load(Ordering::Acquire) }
}

/// Returns the values for a new group of `ranks` ranks in processes that may use `cores` cores
/// together.
pub fn for_ranks(ranks: usize, cores: usize) -> Tuning {
    let tuning = Choice::of(current()).of_group(*current());
    // The system may not tell the cores.
    if cores > 0 && ranks > cores { tuning.crowded() } else { tuning }
}

/// Returns the values for a group whose segment another process has made with the values `theirs`.
pub fn join(theirs: &Tuning) -> Tuning {
    current().with(Scope::Group, theirs)
}

/// Returns what this process has chosen, and whether a measurement may still change it.
pub(crate) fn choice() -> (Choice, bool) {
    let of = |settled: &Settled| (Choice::of(&settled.tuning), settled.measures);
    with_settled(of).unwrap_or((Choice::of(&Tuning::DEFAULT), false))
}

/// Begins trials of values by a rank of the group with this key. Returns false while another group
/// of this process tries out values.
pub(crate) fn begin_trial(key: u64) -> bool {
    let mut trying = lock(&LOCKED.get().trying);
    let (of, ranks) = *trying;
    let is_free = ranks == 0 || of == key;
    if is_free {
        *trying = (key, ranks + 1);
    }
    is_free
}

/// Uses these values in this process, until the trials end.
pub(crate) fn try_out(tuning: &Tuning) {
    store(*tuning);
}

/// Ends the trials of a rank. After those of the last one the process has its values again.
pub(crate) fn end_trial() {
    change(|_| {
        lock(&LOCKED.get().trying).1 -= 1;
    });
}

/// Takes this choice, unless this process has one, or its values are fixed.
pub(crate) fn choose(choice: Choice, origin: Origin) {
    change(|settled| {
        if settled.measures {
            settled.adopt(&choice.of_process(settled.tuning), origin);
            settled.measures = false;
        }
    });
}

/// Whether a measurement may still change the way of a rank's own data. It costs a load.
#[inline]
pub(crate) fn is_own_due() -> bool {
    // Relaxed: the flag stands for itself.
    IS_OWN_DUE.load(Ordering::Relaxed)
}

/// Takes the way of a rank's own data that `measure` returns, if it is still due. Other threads go
/// on with the way of before meanwhile.
pub(crate) fn choose_own(measure: impl FnOnce() -> Option<Way>) {
    if !IS_OWN_DUE.swap(false, Ordering::Relaxed) {
        return;
    }
    let own = measure();
    change(|settled| {
        if let Some(own) = own.filter(|_| settled.measures_own) {
            settled.adopt(&Tuning { own, ..settled.tuning }, Origin::Measured);
        }
        settled.measures_own = false;
    });
}

/// Changes the values of this process, if it has any. Values that are tried out are used on.
fn change(make: impl FnOnce(&mut Settled)) {
    if let Some(Ok(settled)) = &mut *lock(&LOCKED.get().settled) {
        make(settled);
        if lock(&LOCKED.get().trying).1 == 0 {
            store(settled.tuning);
        }
    }
}

/// Keeps the times of trials, for reports.
pub(crate) fn note(trials: impl IntoIterator<Item = Trial>) {
    if let Some(Ok(settled)) = &mut *lock(&LOCKED.get().settled) {
        settled.trials.extend(trials);
    }
}

/// Returns these values for the rest of the process.
pub fn keep(tuning: Tuning) -> &'static Tuning {
    let mut kept = lock(&LOCKED.get().kept);
    if let Some(&same) = kept.iter().find(|&&other| *other == tuning) {
        return same;
    }
    let value: &'static Tuning = Box::leak(Box::new(tuning));
    kept.push(value);
    value
}

/// Sets the values of this process by the machine and by [`VARIABLE`], at the first call. Every
/// process calls this before it makes a group.
///
/// # Errors
/// If the variable names a file that cannot be read, or is malformed: at each call. The process
/// then has the defaults.
pub fn settle() -> Result<(), TuningError> {
    with_settled(|_| ())
}

/// Returns the values of this process, and where they come from, after [`settle`].
///
/// # Errors
/// As [`settle`].
pub fn settled() -> Result<Settled, TuningError> {
    with_settled(Settled::clone)
}

fn with_settled<T>(answer: impl FnOnce(&Settled) -> T) -> Result<T, TuningError> {
    let mut settled = lock(&LOCKED.get().settled);
    if let Some(settled) = &*settled {
        return settled.as_ref().map(answer).map_err(TuningError::clone);
    }
    let variable = env::var_os(VARIABLE).map(|text| text.to_string_lossy().into_owned());
    // `off` also spares the reading of the machine.
    let machine = if variable.as_deref() == Some("off") { Machine::default() } else { Machine::this() };
    let new = Settled::new(variable.as_deref(), &machine);
    if let Ok(Settled { tuning, measures, .. }) = &new {
        store(*tuning);
        IS_OWN_DUE.store(*measures, Ordering::Relaxed);
    }
    settled.insert(new).as_ref().map(answer).map_err(|error| error.clone())
}

/// Replaces the values of this process by `tuning`, whose values come from `origin`. Groups that
/// were made before keep the [knobs of a group](Scope::Group).
pub fn adopt(tuning: &Tuning, origin: Origin) {
    // The first call of `settle` would replace these values.
    let _ = settle();
    let mut settled = lock(&LOCKED.get().settled);
    let new = *tuning;
    if let Some(Ok(settled)) = &mut *settled {
        settled.adopt(&new, origin);
        (settled.measures, settled.measures_own) = (false, false);
        IS_OWN_DUE.store(false, Ordering::Relaxed);
    }
    store(new);
}

fn store(tuning: Tuning) {
    CURRENT.store(ptr::from_ref(keep(tuning)).cast_mut(), Ordering::Release);
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The content of these locks is whole at any time.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tuning::{machine::Cache, to_text};

    #[test]
    fn each_value_has_its_origin() {
        let caches = vec![Cache { level: 2, bytes: 1 << 20, cores: vec![0] }];
        let machine = Machine { caches };
        let origin = |settled: &Settled, name| settled.origin(Knob::named(name).unwrap());
        let plain = Settled::new(None, &machine).unwrap();
        assert_eq!(plain.tuning, Tuning::of(&machine));
        assert_eq!((origin(&plain, "window_bytes"), origin(&plain, "read_bytes")), (Origin::Machine, Origin::Default));
        let off = Settled::new(Some("off"), &machine).unwrap();
        assert_eq!((off.tuning, off.measures), (Tuning::DEFAULT, false));

        let path = std::env::temp_dir().join(format!("consonance-tuning-{}", std::process::id()));
        fs::write(&path, "consonance tuning 1\nread_bytes = 1000\n").unwrap();
        let file = Settled::new(path.to_str(), &machine).unwrap();
        assert_eq!(file.tuning, Tuning { read_bytes: 1000, ..Tuning::of(&machine) });
        assert_eq!((origin(&file, "window_bytes"), origin(&file, "read_bytes")), (Origin::Machine, Origin::File));
        fs::write(&path, format!("{}\nread_bytes = 1\n", to_text(&Tuning::DEFAULT))).unwrap();
        let error = Settled::new(path.to_str(), &machine).unwrap_err();
        assert_eq!(error.knob.as_deref(), Some("read_bytes"));
        fs::remove_file(&path).unwrap();
        let error = Settled::new(path.to_str(), &machine).unwrap_err();
        assert_eq!((error.line, &error.knob), (0, &None));
        assert_eq!(error.found, fs::read_to_string(&path).unwrap_err().to_string());
    }

    /// Found by a trial: the memory was filled with zeros, and a pipe was waited for without end.
    #[test]
    fn a_file_of_knobs_is_regular_and_small() {
        let path = std::env::temp_dir().join(format!("consonance-large-tuning-{}", std::process::id()));
        let found = |path: &str| Settled::new(Some(path), &Machine::default()).unwrap_err().found;
        let text = to_text(&Tuning::DEFAULT);
        let filled = |bytes: usize| format!("{text}#{}", "x".repeat(bytes - text.len() - 1));
        fs::write(&path, filled(MOST_BYTES as usize)).unwrap();
        Settled::new(path.to_str(), &Machine::default()).unwrap();
        fs::write(&path, filled(MOST_BYTES as usize + 1)).unwrap();
        assert_eq!(found(path.to_str().unwrap()), "a file of more than 65536 bytes");
        fs::remove_file(&path).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0).unwrap();
        let pipe = found(path.to_str().unwrap());
        fs::remove_file(&path).unwrap();
        for found in [pipe, found("/dev/zero"), found("/")] {
            assert_eq!(found, "something other than a regular file");
        }
    }

    #[test]
    fn windows_are_larger_where_ranks_outnumber_cores() {
        let crowded = Tuning::DEFAULT.crowded();
        let Tuning { window_bytes, whole_window_bytes, crowded_window_bytes, .. } = crowded;
        assert_eq!([window_bytes, whole_window_bytes], [crowded_window_bytes; 2]);
        let large = Tuning { window_bytes: 2 * crowded_window_bytes, ..Tuning::DEFAULT };
        assert_eq!(large.crowded().window_bytes, 2 * crowded_window_bytes, "never smaller");
        let Tuning { window_bytes, crowded_window_bytes, .. } = for_ranks(3, 2);
        assert!(window_bytes >= crowded_window_bytes);
        assert!(for_ranks(3, 0).window_bytes < crowded_window_bytes, "unknown");
    }

    #[test]
    fn equal_values_are_kept_once() {
        let tuning = Tuning { fetched_bytes: 12345, ..Tuning::DEFAULT };
        assert!(std::ptr::eq(keep(tuning), keep(tuning)));
    }

    /// A fork has only the thread that made it: a lock that another thread held is never released.
    #[test]
    fn a_fork_settles_while_another_thread_of_its_parent_holds_the_locks() {
        let before = LOCKED.get();
        let (settled, kept) = (lock(&before.settled), lock(&before.kept));
        // SAFETY: the child takes no lock but its own and those of the allocator, which `fork` has
        // put in order. The alarm ends it if it waits.
        let child = unsafe {
            match libc::fork() {
                0 => {
                    libc::alarm(20);
                    let right = settle().is_ok() && keep(*current()) == current() && !ptr::eq(LOCKED.get(), before);
                    libc::_exit(if right { 17 } else { 1 })
                }
                child => child,
            }
        };
        assert!(child > 0, "{}", std::io::Error::last_os_error());
        let mut status = 0;
        // SAFETY: waits for the child made above, and writes its status.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 17, "{status:#x}");
        drop((settled, kept));
        assert!(ptr::eq(LOCKED.get(), before), "the parent goes on with its own");
    }
}
