//! Tests with threads, and with other processes: this test binary, started again.

use super::*;
use std::{
    env,
    fs::File,
    io::{BufRead, BufReader, Read, Write},
    os::fd::AsRawFd,
    panic::{AssertUnwindSafe, catch_unwind},
    process::{Child, ChildStdout, Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
};

/// The time limit of a wait that should end: far more than anything here takes.
const LIMIT: Duration = Duration::from_secs(30);

const PARTS: [(DType, usize); 4] = [(DType::U64, 5000), (DType::U8, 3), (DType::Bool, 0), (DType::F32, 777)];

/// The environment variable that makes this binary a child: the process id and the descriptor of
/// what a parent has published, `own` or `fork`.
const CHILD: &str = "CONSONANCE_PUBLISHED_TEST";

fn soon() -> Instant {
    Instant::now() + LIMIT
}

fn view(published: &Published) -> PublishedView {
    PublishedView::open(published.file().unwrap(), &PARTS).unwrap()
}

fn fill(published: &Published, value: u64) {
    published.write(0, |elements| elements.into_mut_slice::<u64>().unwrap().fill(value));
}

/// Reads until elements of `enough` versions were seen, all of one version each time.
fn see_versions(view: &PublishedView, enough: usize) {
    let (deadline, mut seen, mut last) = (soon(), 0, 0);
    let mut all = vec![0u64; 5000];
    while seen < enough {
        assert!(Instant::now() < deadline, "{seen} versions");
        // The ends of the part, all of it, and rows of it.
        let pieces = [4999..5000, 0..1, 2000..2600];
        let count = match seen % 3 {
            0 => view.read(0, pieces, all[..602].as_mut().into(), deadline).eq(&Reading::Done).then_some(602),
            1 => view.read(0, Some(0..5000), all[..].as_mut().into(), deadline).eq(&Reading::Done).then_some(5000),
            _ => view
                .read_rows(0, 50, &[99, 0, 50], all[..150].as_mut().into(), deadline)
                .eq(&Reading::Done)
                .then_some(150),
        };
        let Some(count) = count else { continue };
        assert!(all[..count].iter().all(|&element| element == all[0]), "two versions");
        assert!(all[0] >= last, "an older version than before");
        seen += usize::from(all[0] > last);
        last = all[0];
    }
}

#[test]
fn readers_in_threads_never_see_two_versions() {
    let (published, is_over) = (Published::create(&PARTS).unwrap(), AtomicBool::new(false));
    thread::scope(|scope| {
        let readers = [0, 1].map(|_| scope.spawn(|| see_versions(&view(&published), 100)));
        // Two writers, which exclude each other.
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    published.write(0, |elements| {
                        elements.into_mut_slice::<u64>().unwrap().iter_mut().for_each(|element| *element += 1);
                    });
                    // Leaves the lock and the core to others.
                    thread::sleep(Duration::from_micros(100));
                }
            });
        }
        let seen = readers.map(|reader| reader.join());
        is_over.store(true, Ordering::Relaxed);
        seen.into_iter().for_each(|seen| seen.unwrap());
    });
    published.with(0, |elements| {
        let elements = elements.as_slice::<u64>().unwrap();
        assert!(elements.iter().all(|element| element == &elements[0]));
    });
}

/// A process that runs [`child`]. It is killed when this value is dropped.
struct Process {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Process {
    fn start(role: &str) -> Process {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["shm::published::tests::child", "--exact", "--nocapture", "--test-threads=1"]).env(CHILD, role);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Process { child, output }
    }

    /// Returns the rest of the next line that begins with this word.
    fn line(&mut self, word: &str) -> String {
        let mut lines = self.output.by_ref().lines().map(|line| line.unwrap());
        lines.find_map(|line| Some(line.strip_prefix(word)?.trim().to_owned())).expect("a line of the child")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Opens the descriptor of another process.
fn of_process(process: u32, descriptor: &str) -> OwnedFd {
    File::options().read(true).write(true).open(format!("/proc/{process}/fd/{descriptor}")).unwrap().into()
}

fn say(line: &str) {
    writeln!(io::stdout().lock(), "\n{line}").unwrap();
}

/// The other process: it reads what its parent has published, stays in a write, or forks.
#[test]
fn child() {
    let Ok(role) = env::var(CHILD) else { return };
    if role == "own" {
        let published = Published::create(&PARTS).unwrap();
        fill(&published, 1);
        say(&format!("file {}", published.file.as_raw_fd()));
        io::stdin().read_line(&mut String::new()).unwrap();
        published.write(0, |elements| {
            elements.into_mut_slice::<u64>().unwrap()[..2500].fill(2);
            say("inside");
            io::stdin().read_line(&mut String::new()).unwrap();
        });
        return;
    }
    if role == "fork" {
        fork();
        return say("forked");
    }
    let (process, descriptor) = role.split_once(' ').unwrap();
    let view = PublishedView::open(of_process(process.parse().unwrap(), descriptor), &PARTS).unwrap();
    see_versions(&view, 100);
    say("seen");
}

#[test]
fn another_process_never_sees_two_versions() {
    let published = Published::create(&PARTS).unwrap();
    let descriptor = published.file.as_raw_fd();
    let mut reader = Process::start(&format!("{} {descriptor}", std::process::id()));
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for value in 1.. {
                fill(&published, value);
                thread::sleep(Duration::from_micros(50));
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let seen = catch_unwind(AssertUnwindSafe(|| reader.line("seen")));
        is_over.store(true, Ordering::Relaxed);
        seen.unwrap();
    });
}

#[test]
fn an_owner_killed_in_a_write_leaves_readers_their_deadline() {
    let mut owner = Process::start("own");
    let file = owner.line("file");
    let view = PublishedView::open(of_process(owner.child.id(), &file), &PARTS).unwrap();
    let mut into = [0u64; 5000];
    assert_eq!(view.read(0, Some(0..5000), into.as_mut_slice().into(), soon()), Reading::Done);
    assert_eq!(into, [1; 5000]);
    writeln!(owner.child.stdin.as_mut().unwrap()).unwrap();
    owner.line("inside");
    drop(owner);
    let begin = Instant::now();
    let deadline = begin + Duration::from_millis(50);
    assert_eq!(view.read(0, Some(0..5000), into.as_mut_slice().into(), deadline), Reading::Overtaken);
    assert!(begin.elapsed() >= Duration::from_millis(50) && begin.elapsed() < LIMIT);
    // The other parts are as they were.
    assert_eq!(view.read(1, Some(0..3), [9u8; 3].as_mut_slice().into(), deadline), Reading::Done);
}

#[test]
fn a_reader_overtaken_in_each_copy_gives_up_before_its_deadline() {
    let published = Published::create(&PARTS).unwrap();
    let view = view(&published);
    // A range that writes whenever it is asked for its next piece.
    let pieces = [0..1, 1..2].into_iter().inspect(|_| fill(&published, 3));
    assert_eq!(view.read(0, pieces, [0u64; 2].as_mut_slice().into(), soon()), Reading::Overtaken);
    published.with(0, |elements| assert_eq!(elements.as_slice::<u64>().unwrap(), [3; 5000]));
}

#[test]
fn a_panic_within_a_write_ends_it() {
    let published = Published::create(&PARTS).unwrap();
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        published.write(3, |elements| {
            elements.into_mut_slice::<f32>().unwrap()[0] = 7.0;
            panic!("midway");
        })
    }));
    panicked.unwrap_err();
    let mut into = [9f32; 2];
    assert_eq!(view(&published).read(3, Some(0..2), into.as_mut_slice().into(), soon()), Reading::Done);
    assert_eq!(into, [7.0, 0.0]);
    published.write(3, |elements| elements.into_mut_slice::<f32>().unwrap()[1] = 8.0);
    published.with(3, |elements| assert_eq!(elements.as_slice::<f32>().unwrap()[..2], [7.0, 8.0]));
}

#[test]
fn nobody_but_the_owner_writes() {
    let published = Published::create(&PARTS).unwrap();
    let file = published.file.as_fd();
    assert!(rustix::io::pwrite(file, &[1], 0).is_err());
    assert!(Mapping::new(file, published.memory.places.bytes).is_err());
    let hole = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    assert!(rustix::fs::fallocate(file, hole, 0, PAGE as u64).is_err());
    for size in [0, 2 * published.memory.places.bytes as u64] {
        assert!(rustix::fs::ftruncate(file, size).is_err());
    }
    fill(&published, 4);
    published.with(0, |elements| assert_eq!(elements.as_slice::<u64>().unwrap(), [4; 5000]));
}

/// Returns what differs in a file that is refused.
fn refused(file: OwnedFd) -> &'static str {
    match PublishedView::open(file, &PARTS).unwrap_err() {
        SegmentError::Foreign { what, .. } => what,
        error => panic!("{error}"),
    }
}

#[test]
fn other_files_are_refused() {
    let bytes = Places::of(&PARTS).unwrap().bytes;
    let sealed = |bytes, seals| {
        let file = sized_file(NAME, bytes).unwrap();
        rustix::fs::fcntl_add_seals(&file, seals).unwrap();
        file
    };
    assert_eq!(refused(sized_file(NAME, bytes).unwrap()), "seals");
    for seal in SEALS.difference(SealFlags::SEAL).iter() {
        assert_eq!(refused(sealed(bytes, SEALS.difference(seal))), "seals", "without {seal:?}");
    }
    assert_eq!(refused(sealed(bytes - PAGE, SEALS)), "size");
    assert_eq!(refused(sealed(bytes + PAGE, SEALS)), "size");
    let other = Published::create(&PARTS[1..]).unwrap();
    assert_eq!(refused(other.file), "size");
    let ordinary = File::open(env::current_exe().unwrap()).unwrap();
    assert!(matches!(PublishedView::open(OwnedFd::from(ordinary), &PARTS), Err(SegmentError::System { .. })));
    assert!(PublishedView::open(sealed(bytes, SEALS), &PARTS).is_ok());
}

#[test]
fn a_false_owner_makes_no_invalid_element() {
    let parts = [(DType::Bool, 300)];
    let file = sized_file(NAME, Places::of(&parts).unwrap().bytes).unwrap();
    rustix::io::pwrite(&file, &[0xfe; 300], 128).unwrap();
    rustix::io::pwrite(&file, &[0xff], 130).unwrap();
    rustix::fs::fcntl_add_seals(&file, SEALS).unwrap();
    let mut into = [true; 300];
    let view = PublishedView::open(file, &parts).unwrap();
    assert_eq!(view.read(0, Some(0..300), into.as_mut_slice().into(), soon()), Reading::Done);
    assert_eq!(into.map(u8::from).iter().map(|&byte| u32::from(byte)).sum::<u32>(), 1);
    assert!(into[2]);
}

#[test]
fn rows_of_any_length_are_read() {
    let published = Published::create(&PARTS).unwrap();
    published.write(0, |elements| {
        (0..).zip(elements.into_mut_slice::<u64>().unwrap()).for_each(|(index, element)| *element = index);
    });
    let view = view(&published);
    for row_count in [1, 2, 3, 100, 600, 2500] {
        let rows = [5000 / row_count - 1, 0, 1, 0];
        let mut into = vec![9; 4 * row_count];
        let read = view.read_rows(0, row_count, &rows, into.as_mut_slice().into(), soon());
        let expected: Vec<u64> =
            rows.iter().flat_map(|row| row * row_count..(row + 1) * row_count).map(|index| index as u64).collect();
        assert_eq!((read, into), (Reading::Done, expected), "rows of {row_count}");
        let absent = [5000 / row_count];
        let mut one = vec![0u64; row_count];
        let read = || view.read_rows(0, row_count, &absent, one.as_mut_slice().into(), soon());
        catch_unwind(AssertUnwindSafe(read)).unwrap_err();
    }
    assert_eq!(view.read_rows(0, 0, &[7, 8], [0u64; 0].as_mut_slice().into(), soon()), Reading::Done);
}

#[test]
fn reads_of_other_elements_are_refused() {
    let view = view(&Published::create(&PARTS).unwrap());
    let is_refused = |read: &mut dyn FnMut() -> Reading| catch_unwind(AssertUnwindSafe(read)).is_err();
    assert!(is_refused(&mut || view.read(1, Some(0..3), [0i8; 3].as_mut_slice().into(), soon())), "another type");
    assert!(is_refused(&mut || view.read(1, Some(1..4), [0u8; 3].as_mut_slice().into(), soon())), "past the end");
    assert!(is_refused(&mut || view.read(1, Some(0..2), [0u8; 3].as_mut_slice().into(), soon())), "too few");
    assert!(is_refused(&mut || view.read(4, Some(0..3), [0u8; 3].as_mut_slice().into(), soon())), "another part");
    assert!(!is_refused(&mut || view.read(1, Some(0..3), [0u8; 3].as_mut_slice().into(), soon())));
}

#[test]
fn more_bytes_than_addresses_are_an_error() {
    for parts in [&[(DType::U64, usize::MAX / 8)][..], &[(DType::U8, usize::MAX)], &[(DType::U8, usize::MAX / 4); 5]] {
        assert!(matches!(Published::create(parts), Err(SegmentError::System { .. })), "{parts:?}");
    }
    assert!(Published::create(&[]).is_ok());
}

#[test]
fn a_fork_uses_nothing_of_its_parent() {
    Process::start("fork").line("forked");
}

/// Forks, in a process without threads that could hold a lock meanwhile.
fn fork() {
    let published = Published::create(&PARTS).unwrap();
    let view = view(&published);
    // SAFETY: the child makes only calls that panic before they touch anything, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let write = catch_unwind(AssertUnwindSafe(|| published.with(0, |elements| elements.count())));
        let read = AssertUnwindSafe(|| view.read(1, Some(0..3), [0u8; 3].as_mut_slice().into(), soon()));
        let code = if write.is_err() && catch_unwind(read).is_err() { 7 } else { 8 };
        drop((published, view));
        // SAFETY: `_exit` takes a number.
        unsafe { libc::_exit(code) }
    }
    let mut status = 0;
    // SAFETY: waits for the child made above, and writes its status.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!((libc::WIFEXITED(status), libc::WEXITSTATUS(status)), (true, 7));
}
