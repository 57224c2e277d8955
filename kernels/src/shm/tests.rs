use super::{
    Area, GroupId, RankCalls, Segment, SegmentError, Shape,
    call_log::{Entry, Outcome},
    file::{NAME, SEALS, in_pieces, memory_file},
    layout::{HEADER_BYTES, Header, Layout},
    mapping::PAGE,
};
use crate::{
    cuda::Uuid,
    sync::atomics::{AtomicU64, Ordering},
    tuning::Tuning,
};
use rustix::{
    fs::SealFlags,
    io::Errno,
    process::{Resource, Rlimit, setrlimit},
};
use std::{
    cell::Cell,
    collections::BTreeSet,
    env,
    fs::{self, File},
    io::{self, BufRead, BufReader, Read, Write},
    mem::offset_of,
    os::fd::OwnedFd,
    process::{Child, ChildStdout, Command, Stdio},
    ptr::NonNull,
    thread,
};

const ID: GroupId = GroupId::from_bytes([7; 16]);

/// A small staging.
const STAGING: usize = 256 << 10;

fn shape(ranks: usize) -> Shape {
    Shape::new(ranks, STAGING).unwrap()
}

/// Opens the same segment again, as a peer does.
fn peer(segment: &Segment) -> Segment {
    Segment::open(segment.file().try_clone_to_owned().unwrap(), ID, segment.shape()).unwrap()
}

fn refused(file: OwnedFd) -> SegmentError {
    Segment::open(file, ID, shape(2)).unwrap_err()
}

/// Returns what differs in a file that is not the segment, and its value there.
#[track_caller]
fn foreign(error: &SegmentError) -> (&'static str, &str) {
    match error {
        SegmentError::Foreign { what, found, .. } => (what, found),
        error => panic!("{error}"),
    }
}

/// Returns what the system refused.
#[track_caller]
fn system(error: SegmentError) -> String {
    match error {
        SegmentError::System { what, .. } => what,
        error => panic!("{error}"),
    }
}

/// Returns a sealed file of this size that begins with these bytes.
fn sealed(size: u64, start: &[u8], seals: SealFlags) -> OwnedFd {
    let file = memory_file(NAME).unwrap();
    rustix::fs::ftruncate(&file, size).unwrap();
    rustix::io::pwrite(&file, start, 0).unwrap();
    rustix::fs::fcntl_add_seals(&file, seals).unwrap();
    file
}

fn atomic(address: NonNull<u8>) -> &'static AtomicU64 {
    // SAFETY: the tests pass addresses of reserved words, and keep the segment while they use the
    // words.
    unsafe { address.cast().as_ref() }
}

/// Returns the area of two ranks of the group of all ranks.
fn pair(lower: usize, higher: usize) -> Area {
    Area::Pair { group: 0, lower, higher }
}

#[test]
fn one_process_reads_the_writes_of_another() {
    let segment = Segment::create(shape(3), ID).unwrap();
    let other = peer(&segment);
    assert_eq!((other.shape(), other.forked()), (shape(3), false));
    // A separate word for each place that two parts must not share.
    let mut words = Vec::new();
    for area in [Area::Root, Area::Split(0), Area::Split(Segment::SPLITS - 1), pair(0, 1), pair(0, 2), pair(1, 2)] {
        segment.reserve_area(area).unwrap();
        let ranks = if matches!(area, Area::Pair { .. }) { 2 } else { 3 };
        let addresses = |segment: &Segment| {
            let (head, lines) = segment.area(area);
            let line = lines.as_ptr().wrapping_add(ranks - 1);
            let mut addresses = vec![head.cast::<u8>(), lines.cast(), NonNull::new(line).unwrap().cast()];
            for rank in 0..ranks {
                let bytes = segment.staging_bytes(area);
                segment.reserve_staging(area, rank, 0..8).unwrap();
                segment.reserve_staging(area, rank, bytes - 8..bytes).unwrap();
                let staging = segment.staging(area, rank);
                let end = NonNull::new(staging.as_ptr().wrapping_add(bytes - 8)).unwrap();
                addresses.extend([staging, end]);
            }
            addresses
        };
        words.extend(addresses(&segment).into_iter().zip(addresses(&other)));
    }
    for (value, (ours, theirs)) in (1..).zip(&words) {
        assert_ne!(ours, theirs, "two mappings");
        assert_eq!(atomic(*theirs).load(Ordering::Relaxed), 0, "new memory is zero");
        atomic(*ours).store(value, Ordering::Relaxed);
    }
    for (value, (_, theirs)) in (1..).zip(&words) {
        assert_eq!(atomic(*theirs).load(Ordering::Relaxed), value);
    }
    for rank in 0..3 {
        assert_eq!(segment.call_log(rank).process(), None);
        segment.call_log(rank).begin(rank as u64 + 1, 0, 0);
        assert_eq!(other.call_log(rank).read(), segment.call_log(rank).read());
    }
    segment.call_log(2).claim();
    assert_eq!((other.call_log(2).process(), other.call_log(1).process()), (Some(std::process::id()), None));
}

#[test]
fn a_segment_outlives_its_maker() {
    let segment = Segment::create(shape(1), ID).unwrap();
    segment.call_log(0).begin(5, 0, 0);
    let other = peer(&segment);
    drop(segment);
    assert_eq!(other.call_log(0).read()[0].number, 5);
}

#[test]
fn a_segment_has_no_place_in_any_folder() {
    let segment = Segment::create(shape(1), ID).unwrap();
    assert_eq!(rustix::fs::fstat(segment.file()).unwrap().st_nlink, 0);
}

#[test]
fn an_idle_segment_is_small() {
    let segment = Segment::create(Shape::new(8, Shape::STAGING_BYTES).unwrap(), ID).unwrap();
    let memory = || rustix::fs::fstat(segment.file()).unwrap().st_blocks * 512;
    let (reserved, least) = (memory(), segment.layout.reserved().len() as i64);
    assert!((least..512 << 10).contains(&reserved), "{reserved} bytes of at least {least}");
    let _peers = [peer(&segment), peer(&segment)];
    assert_eq!(memory(), reserved);
    segment.reserve_staging(Area::Root, 7, 100..5000).unwrap();
    let more = memory();
    assert!(more > reserved && more < 1 << 20, "{more} bytes");
}

#[test]
fn a_dump_of_the_process_has_nothing_of_a_segment() {
    let segment = Segment::create(shape(2), ID).unwrap();
    let maps = fs::read_to_string("/proc/self/smaps").unwrap();
    let start = format!("{:x}-", segment.map.start().addr());
    let flags = maps.lines().skip_while(|line| !line.starts_with(&start)).find(|line| line.starts_with("VmFlags:"));
    let flags: Vec<&str> = flags.expect("the system lists the segment").split_whitespace().collect();
    assert!(flags.contains(&"dd") && flags.contains(&"dc"), "not in a dump, and not in a fork: {flags:?}");
}

#[test]
fn nobody_can_change_the_size() {
    let segment = Segment::create(shape(1), ID).unwrap();
    let size = segment.layout.size as u64;
    for size in [0, size - 1, size + 1] {
        assert_eq!(rustix::fs::ftruncate(segment.file(), size), Err(Errno::PERM));
    }
    assert_eq!(rustix::fs::fcntl_add_seals(segment.file(), SealFlags::WRITE), Err(Errno::PERM));
}

#[test]
fn a_file_without_a_segment_is_refused() {
    let size = Layout::new(shape(2)).size as u64;
    let header = Header::new(ID, shape(2), &Tuning::DEFAULT).to_bytes();
    Segment::open(sealed(size, &header, SEALS), ID, shape(2)).unwrap();

    let another_kind = ("file", "a file of another kind");
    let path = env::temp_dir().join(format!("consonance-segment-{}", std::process::id()));
    let mut file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    file.write_all(&header).unwrap();
    file.set_len(size).unwrap();
    let error = refused(file.into());
    // In a directory of a memory file system, files have seals.
    assert!(foreign(&error) == another_kind || foreign(&error).0 == "seals", "{error}");
    let (reader, writer) = io::pipe().unwrap();
    assert_eq!(foreign(&refused(reader.into())), another_kind);
    assert_eq!(foreign(&refused(writer.into())), another_kind);
    assert_eq!(foreign(&refused(File::open("/dev/null").unwrap().into())), another_kind);
    assert_eq!(foreign(&refused(File::open("/").unwrap().into())), another_kind);

    let unsealed = [SealFlags::empty(), SealFlags::SHRINK, SealFlags::GROW | SealFlags::SEAL, SEALS | SealFlags::WRITE];
    for seals in unsealed {
        assert_eq!(foreign(&refused(sealed(size, &header, seals))).0, "seals", "{seals:?}");
    }
    for other in [0, 1, 63, 4096, size - 1, size + 1] {
        let start = &header[..header.len().min(other as usize)];
        let error = refused(sealed(other, start, SEALS));
        let SegmentError::Foreign { what: "size", expected, found } = &error else { panic!("{error}") };
        assert_eq!([expected, found], [&format!("{size}"), &format!("{other}")]);
    }
    let zero = refused(sealed(size, &[], SEALS));
    assert_eq!(foreign(&zero), ("magic number", "0x0000000000000000"));
}

#[test]
fn an_unwritable_file_is_refused() {
    let segment = Segment::create(shape(2), ID).unwrap();
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&segment.file()));
    let error = refused(File::open(path).unwrap().into());
    assert!(matches!(error, SegmentError::System { .. }), "{error}");
}

#[test]
fn a_corrupted_header_is_refused() {
    let segment = Segment::create(shape(2), ID).unwrap();
    let mut fields = BTreeSet::new();
    for at in 0..HEADER_BYTES {
        // SAFETY: a byte of the header, which is mapped and reserved. Nothing else writes it.
        let flip = || unsafe {
            let byte = segment.at(at).as_ptr();
            byte.write_volatile(byte.read_volatile() ^ 0x10)
        };
        flip();
        let opened = Segment::open(segment.file().try_clone_to_owned().unwrap(), ID, shape(2));
        // A knob may have any value within its limits.
        let is_knob = (offset_of!(Header, tuning)..HEADER_BYTES).contains(&at);
        match opened {
            Ok(_) => assert!(is_knob, "byte {at}"),
            Err(error) => {
                let (field, _) = foreign(&error);
                assert_eq!(is_knob, Tuning::KNOBS.iter().any(|knob| knob.name == field), "{error}");
                fields.extend(Some(field).filter(|_| !is_knob));
            }
        }
        flip();
    }
    assert_eq!(fields.len(), 7, "{fields:?}");
    peer(&segment);
}

#[test]
fn a_segment_of_other_processes_is_refused() {
    let segment = Segment::create(shape(2), GroupId::from_bytes([8; 16])).unwrap();
    let error = refused(segment.file().try_clone_to_owned().unwrap());
    let SegmentError::Foreign { what: "group", expected, found } = &error else { panic!("{error}") };
    assert_eq!([expected, found], [&"07".repeat(16), &"08".repeat(16)]);
    let segment = Segment::create(Shape::new(2, 2 * STAGING).unwrap(), ID).unwrap();
    assert_eq!(foreign(&refused(segment.file().try_clone_to_owned().unwrap())).0, "size");
}

#[test]
fn no_two_groups_have_one_name() {
    let names: BTreeSet<String> = (0..100).map(|_| GroupId::random().unwrap().to_string()).collect();
    assert_eq!(names.len(), 100);
    assert!(names.iter().all(|name| name.len() == 32));
    let name = GroupId::random().unwrap();
    assert_eq!(GroupId::from_bytes(name.to_bytes()), name);
}

#[test]
fn many_threads_reserve_the_same() {
    let segment = Segment::create(shape(2), ID).unwrap();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                segment.reserve_area(Area::Split(3)).unwrap();
                segment.reserve_staging(Area::Split(3), 1, 0..STAGING).unwrap();
                atomic(segment.staging(Area::Split(3), 1)).fetch_add(1, Ordering::Relaxed);
            });
        }
    });
    assert_eq!(atomic(segment.staging(Area::Split(3), 1)).load(Ordering::Relaxed), 4);
}

#[test]
fn a_reservation_goes_on_between_signals() {
    let bytes = 5 * PAGE..(11 << 20) + PAGE;
    // Models a system that reserves 2 MiB between two signals, and nothing of a piece during which
    // a signal comes.
    let (done, left, calls) = (Cell::new(bytes.start), Cell::new(PAGE), Cell::new(0));
    let reserve = |start: u64, length: u64| {
        calls.set(calls.get() + 1);
        assert!(calls.get() < 100, "{} of {bytes:?} are reserved, and no more", done.get());
        let Some(rest) = left.replace(2 << 20).checked_sub(length as usize) else { return Err(Errno::INTR) };
        left.set(rest);
        assert_eq!(start as usize, done.replace(start as usize + length as usize));
        Ok(())
    };
    in_pieces(bytes.clone(), reserve).unwrap();
    assert_eq!(done.get(), bytes.end);
    let refused = in_pieces(bytes, |start, _| if start < 4 << 20 { Ok(()) } else { Err(Errno::NOMEM) });
    assert_eq!(refused.unwrap_err().raw_os_error(), Some(Errno::NOMEM.raw_os_error()));
    in_pieces(PAGE..PAGE, |_, _| unreachable!("there is nothing to reserve")).unwrap();
}

/// The environment variable that makes a test run as its own child.
const CHILD: &str = "CONSONANCE_SEGMENT_TEST";

/// Runs `body`, which has effects that cannot be undone, in a process of its own. The process must
/// succeed.
fn alone(test: &str, body: impl FnOnce()) {
    if env::var(CHILD).as_deref() == Ok(test) {
        return body();
    }
    let mut child = Command::new(env::current_exe().unwrap());
    child.args(["--exact", &format!("shm::tests::{test}"), "--test-threads=1", "--nocapture"]);
    let output = child.env(CHILD, test).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{}: {output:?}", output.status);
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "{output:?}");
}

fn limit(resource: Resource, bytes: u64) {
    setrlimit(resource, Rlimit { current: Some(bytes), maximum: Some(bytes) }).unwrap();
}

#[test]
fn a_limit_on_files_is_an_error_and_no_signal() {
    alone("a_limit_on_files_is_an_error_and_no_signal", || {
        let larger = Segment::create(shape(2), ID).unwrap();
        let size = larger.layout.size as u64;
        limit(Resource::Fsize, size - 1);
        let what = system(Segment::create(shape(2), ID).unwrap_err());
        let limited = format!("a segment of {size} bytes with files limited to {} bytes (RLIMIT_FSIZE)", size - 1);
        assert!(what.ends_with(&limited), "{what}");
        // A peer's larger segment can be used.
        let other = peer(&larger);
        other.reserve_staging(Area::Root, 0, 0..STAGING).unwrap();
        other.reserve_staging(pair(0, 1), 1, 0..STAGING / 4).unwrap();
    });
}

#[test]
fn a_limit_on_addresses_is_an_error() {
    alone("a_limit_on_addresses_is_an_error", || {
        let shape = Shape::new(8, 16 << 20).unwrap();
        let large = Segment::create(shape, ID).unwrap();
        let (file, size) = (large.file().try_clone_to_owned().unwrap(), large.layout.size);
        drop(large);
        limit(Resource::As, 1 << 30);
        for result in [Segment::create(shape, ID), Segment::open(file, ID, shape)] {
            let what = system(result.unwrap_err());
            assert!(what.starts_with(&format!("map a segment of {size} bytes with addresses limited to")), "{what}");
            assert!(what.contains(" 1073741824 bytes ") && what.contains("ulimit -v unlimited"), "{what}");
        }
    });
}

#[test]
fn a_limit_on_open_files_is_an_error() {
    alone("a_limit_on_open_files_is_an_error", || {
        limit(Resource::Nofile, 3);
        assert_eq!(system(Segment::create(shape(2), ID).unwrap_err()), "make an anonymous file");
    });
}

#[test]
fn a_fork_is_detected() {
    alone("a_fork_is_detected", || {
        let segment = Segment::create(shape(2), ID).unwrap();
        // SAFETY: the child may hold locks that no thread will release. It reads a word, drops the
        // segment and ends, none of which takes a lock.
        let child = unsafe {
            match libc::fork() {
                0 => {
                    let forked = segment.forked();
                    // Other memory is mapped where the segment was; the drop must leave it there.
                    let (address, bytes) = (segment.map.start().as_ptr(), PAGE);
                    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
                    let own = libc::mmap(address.cast(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
                    let was_free = own == address.cast();
                    drop(segment);
                    address.write_volatile(1);
                    libc::_exit(if forked && was_free { 17 } else { 1 })
                }
                child => child,
            }
        };
        assert!(child > 0, "{}", io::Error::last_os_error());
        let mut status = 0;
        // SAFETY: waits for the child made above, and writes its status.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert!(libc::WIFEXITED(status), "ended by signal {}", libc::WTERMSIG(status));
        assert_eq!(libc::WEXITSTATUS(status), 17);
        assert!(!segment.forked(), "the parent is none");
        segment.call_log(0).begin(1, 0, 0);
    });
}

/// Another process that has a segment in which rank 0 made two calls. It ends when this value is
/// dropped.
struct Holder {
    child: Child,
    /// Kept open for the child's output at its end.
    _output: BufReader<ChildStdout>,
}

impl Holder {
    fn start(test: &str) -> Holder {
        let mut child = Command::new(env::current_exe().unwrap());
        child.args(["--exact", &format!("shm::tests::{test}"), "--test-threads=1", "--nocapture"]);
        let mut child = child.env(CHILD, test).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        assert!(output.by_ref().lines().any(|line| line.unwrap().contains("ready")));
        Holder { child, _output: output }
    }

    /// The body of the process. Returns when its parent is gone or done.
    fn hold() {
        let segment = Segment::create(shape(2), ID).unwrap();
        let _again = segment.file().try_clone_to_owned().unwrap();
        let call_log = segment.call_log(0);
        call_log.claim();
        call_log.say_gpu(3, [7; 16]);
        let entry_id = call_log.begin(1, 0, 0);
        call_log.end(entry_id, Outcome::Done);
        call_log.begin(2, 0, 16);
        println!("ready");
        io::stdin().read_line(&mut String::new()).unwrap();
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

#[test]
fn another_process_is_inspected() {
    let test = "another_process_is_inspected";
    if env::var(CHILD).as_deref() == Ok(test) {
        return Holder::hold();
    }
    let holder = Holder::start(test);
    let pid = holder.child.id();
    let inspections = Segment::inspect(pid).unwrap();
    let [inspection] = &inspections[..] else { panic!("one segment, found twice: {inspections:?}") };
    assert_eq!((inspection.group, inspection.shape), (ID, shape(2)));
    let call = |number, bytes, outcome| Entry { number, head: 0, bytes, outcome };
    let calls = vec![call(1, 0, Outcome::Done), call(2, 16, Outcome::Begun)];
    assert_eq!(inspection.ranks[0], RankCalls { rank: 0, process: Some(pid), gpu: Some((3, Uuid([7; 16]))), calls });
    assert_eq!(inspection.ranks[1], RankCalls { rank: 1, process: None, gpu: None, calls: Vec::new() });
    let id = ID;
    let both = format!(
        "group {id} of 2 ranks\nrank 0, process {pid}, on cuda:3, GPU-07070707-0707-0707-0707-070707070707\n  \
         call 1: all_reduce(), 0 bytes, done\n  call 2: all_reduce(), 16 bytes, not ended\nrank 1, in no process"
    );
    assert_eq!([2, 64].map(|calls| inspection.text(calls, &[])), [both.clone(), both]);
    let last = inspection.text(1, &[]);
    assert!(last.contains("call 2: all_reduce()") && !last.contains("call 1"), "{last}");
}

#[test]
fn a_look_at_ones_own_is_the_same() {
    alone("a_look_at_ones_own_is_the_same", || {
        let segment = Segment::create(shape(2), ID).unwrap();
        segment.call_log(1).begin(9, 0, 0);
        let look = segment.look();
        assert_eq!(look.ranks[1].calls[0].number, 9);
        assert_eq!(Segment::inspect(std::process::id()).unwrap(), [look]);
        let other = Segment::create(shape(3), GroupId::random().unwrap()).unwrap();
        assert_eq!(Segment::inspect(std::process::id()).unwrap().len(), 2);
        drop((segment, other));
        assert_eq!(Segment::inspect(std::process::id()).unwrap(), []);
    });
}

#[test]
fn a_file_with_only_the_name_of_a_segment_is_not_inspected() {
    alone("a_file_with_only_the_name_of_a_segment_is_not_inspected", || {
        let size = Layout::new(shape(2)).size as u64;
        let header = Header::new(ID, shape(2), &Tuning::DEFAULT).to_bytes();
        let wrong = |file: OwnedFd| {
            let error = Segment::inspect(std::process::id()).unwrap_err();
            drop(file);
            foreign(&error).0
        };
        assert_eq!(wrong(memory_file(NAME).unwrap()), "seals");
        assert_eq!(wrong(sealed(size, &[], SEALS)), "magic number");
        assert_eq!(wrong(sealed(size - 1, &header, SEALS)), "size");
        assert_eq!(wrong(sealed(0, &[], SEALS)), "magic number");
    });
}

#[test]
fn a_failed_inspection_names_the_reason() {
    // No process has an id this large.
    let Err(SegmentError::System { what, source }) = Segment::inspect(1 << 30) else { panic!("there is a process") };
    assert_eq!((what.as_str(), source.kind()), ("read the open files of process 1073741824", io::ErrorKind::NotFound));
}
