//! The file to which a thread writes its records.

use super::{ClockRecord, Event, GpuRecord, Record};
use consonance_kernels::{
    os::{
        clock,
        record_file::{self, RecordFile},
    },
    sync::fork::Origin,
};
use std::{
    cell::RefCell,
    collections::BTreeSet,
    env, fmt, io, mem,
    path::{Path, PathBuf},
    process,
    sync::{LazyLock, Mutex, PoisonError},
    thread,
    time::Duration,
};

/// The variable with the folder for the files. The launcher sets it for each worker.
pub const VARIABLE: &str = "CONSONANCE_PROFILE";

/// The ending of the files' names.
pub const EXTENSION: &str = "calls";

/// The limit on the records of a thread: 16 MiB.
const RECORDS: usize = 1 << 18;

/// The limit on the files of a process. Further threads only count what they drop.
const FILES: usize = 1024;

static FOLDER: LazyLock<Option<PathBuf>> =
    LazyLock::new(|| env::var_os(VARIABLE).filter(|folder| !folder.is_empty()).map(PathBuf::from));

/// The files of threads that have ended, for threads of the same name. A fork makes none.
static FILES_OF_PROCESS: LazyLock<Mutex<Files>> = LazyLock::new(Mutex::default);

thread_local!(static STREAM: RefCell<Slot> = const { RefCell::new(Slot(Stream::Unopened)) });

/// Returns whether calls are recorded. The variable is read once.
pub(crate) fn is_on() -> bool {
    FOLDER.is_some()
}

/// A record that is not complete. It is ended on the thread that began it.
pub(crate) struct Span {
    record: Record,
    /// The index of the record in the thread's file, unless it was dropped.
    index: Option<usize>,
}

impl Span {
    /// Begins a record.
    pub(crate) fn begin(replica: usize, replicas: usize, event: Event) -> Span {
        let mut record = Record { begin: Duration::ZERO, end: None, replica, replicas, event };
        let append = |open: &mut OpenFile| {
            // Only now: the file may have been another thread's, whose call ended a moment ago.
            record.begin = clock::now();
            open.file.append(record.to_words())
        };
        let index = with_stream(append).flatten();
        Span { record, index }
    }

    /// Begins the record of a run, if calls are recorded.
    pub(crate) fn of_run(replica: usize, replicas: usize) -> Option<Span> {
        is_on().then(|| Span::begin(replica, replicas, Event::Run))
    }

    /// Completes the record.
    pub(crate) fn end(mut self, event: Event) {
        let Some(index) = self.index else { return };
        self.record.end = Some(clock::now());
        self.record.event = event;
        with_stream(|open| open.file.replace(index, self.record.to_words()));
    }
}

/// Records the identity of a replica's GPU, once a file.
pub(crate) fn name_gpu(replica: usize, replicas: usize, gpu: GpuRecord) {
    with_stream(|open| {
        if open.gpus.insert(gpu.ordinal) {
            let now = clock::now();
            let record = Record { begin: now, end: Some(now), replica, replicas, event: Event::Gpu(gpu) };
            open.file.append(record.to_words());
        }
    });
}

/// Records a comparison of clocks, if any is recorded: at the time `at` of the own clock.
pub(crate) fn tell_clock(at: Duration, replica: usize, replicas: usize, clock: ClockRecord) {
    let record = Record { begin: at, end: Some(at), replica, replicas, event: Event::Clock(clock) };
    with_stream(|open| open.file.append(record.to_words()));
}

/// The place of a thread's file.
struct Slot(Stream);

/// The file of a thread.
enum Stream {
    Unopened,
    Open(Box<OpenFile>),
    /// The file cannot be created, or this process is a fork of the one with the file.
    Closed,
}

struct OpenFile {
    file: RecordFile,
    /// The name of the thread.
    name: String,
    origin: Origin,
    /// The GPUs that it has the identity of.
    gpus: BTreeSet<usize>,
}

#[derive(Default)]
struct Files {
    free: Vec<OpenFile>,
    made: usize,
    has_complained: bool,
}

fn with_stream<R>(work: impl FnOnce(&mut OpenFile) -> R) -> Option<R> {
    // After the thread's values were dropped nothing is recorded.
    let worked = STREAM.try_with(|stream| {
        let Slot(stream) = &mut *stream.borrow_mut();
        if let Stream::Unopened = stream {
            *stream = Stream::open();
        }
        match stream {
            Stream::Open(open) if !open.origin.forked() => Some(work(open)),
            Stream::Open(_) | Stream::Unopened | Stream::Closed => None,
        }
    });
    worked.ok().flatten()
}

impl Stream {
    fn open() -> Stream {
        static HOME: LazyLock<Origin> = LazyLock::new(Origin::here);
        // The lock may be held for ever in a fork.
        if HOME.forked() {
            return Stream::Closed;
        }
        let Some(folder) = &*FOLDER else { return Stream::Closed };
        let name = thread::current().name().unwrap_or_default().to_owned();
        let mut files = FILES_OF_PROCESS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = files.free.iter().position(|file| file.name == name) {
            return Stream::Open(Box::new(files.free.swap_remove(place)));
        }
        let most = if files.made < FILES { RECORDS } else { 0 };
        match create(folder, files.made, &name, most) {
            Ok(file) => {
                files.made += 1;
                Stream::Open(Box::new(OpenFile { file, name, origin: *HOME, gpus: BTreeSet::new() }))
            }
            Err(error) => {
                if !mem::replace(&mut files.has_complained, true) {
                    complain(format_args!("cannot write a profile to {}: {error}", folder.display()));
                }
                Stream::Closed
            }
        }
    }
}

fn create(folder: &Path, number: usize, name: &str, most: usize) -> io::Result<RecordFile> {
    RecordFile::create(
        &folder.join(format!("{}-{:x}-{number}.{EXTENSION}", process::id(), record_file::start())),
        name,
        most,
    )
}

/// Says on standard error why there is no profile. The program goes on.
fn complain(what: fmt::Arguments<'_>) {
    eprintln!("consonance: {what}");
}

/// Leaves the file to later threads of the same name.
impl Drop for Slot {
    fn drop(&mut self) {
        if let Stream::Open(open) = mem::replace(&mut self.0, Stream::Closed)
            && !open.origin.forked()
        {
            FILES_OF_PROCESS.lock().unwrap_or_else(PoisonError::into_inner).free.push(*open);
        }
    }
}
