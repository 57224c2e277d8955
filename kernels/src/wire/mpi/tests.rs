//! A wire is its own peer, in a process that has called `MPI_Init_thread` itself: this takes no
//! launcher. Without MPI each test is skipped with a line.

use super::{
    Wire,
    calls::Calls,
    last_words::{Ending, LastWords, exchange},
    library::Library,
    message::{Address, LAST_TAG, SHORT, tags},
    process::Mpi,
    sys::Constants,
};
use crate::wire::{Arrived, HEAD, Kind, Medium, WireError};
use std::{
    env, fs,
    io::{self, Write},
    path::{Path, PathBuf},
    process::Command,
    ptr, thread,
    time::{Duration, Instant},
};

const LIMIT: Duration = Duration::from_secs(60);

/// Set in processes that a test starts as its other part.
const PART: &str = "CONSONANCE_TEST_OF_WIRES";

/// The word of a part whose MPI is not here.
const ABSENT: &str = "absent here";

/// The variables of launchers, which the tests may have been started by.
const LAUNCHERS: [&str; 4] = ["OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMI_FD", "PMIX_RANK"];

/// Returns the variables of a launcher that has started a process alone with this MPI, which takes
/// it for a process without one.
fn alone(library: &str) -> [(&'static str, &'static str); 2] {
    match library.contains("libmpi.so.40") {
        true => [("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "1")],
        false => [("PMI_RANK", "0"), ("PMI_SIZE", "1")],
    }
}

/// Runs a test of this file in a process of its own, with the name of each MPI that is here.
fn with_each_mpi(test: &str, part: impl Fn()) {
    if let Ok(library) = env::var(PART) {
        // SAFETY: the code that runs is that of an MPI, in a process of its own.
        let loaded = unsafe { libloading::Library::new(&library) };
        return if loaded.is_ok() { part() } else { println!("{ABSENT}") };
    }
    let named = env::var("CONSONANCE_MPI").ok();
    let names = ["libmpi.so.40", "libmpi.so.12", "libmpich.so.12", "libmpi_abi.so.1"].map(str::to_owned);
    let mut found = 0;
    for library in named.into_iter().chain(names) {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", "--nocapture", "--test-threads=1", &format!("wire::mpi::tests::{test}")]);
        LAUNCHERS.iter().for_each(|variable| _ = command.env_remove(variable));
        // Open MPI starts no program as root but if it is told to.
        for variable in ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] {
            command.env(variable, "1");
        }
        // Others are found by their names.
        match library.contains('/') {
            true => command.env("CONSONANCE_MPI", &library),
            false => command.env_remove("CONSONANCE_MPI"),
        };
        let output = command.env(PART, &library).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(output.status.success(), "{library}: {}{}", text(&output.stdout), text(&output.stderr));
        found += usize::from(!text(&output.stdout).contains(ABSENT));
    }
    if found == 0 {
        let words = "skipped: messages by MPI; \"pip install mpich\" and CONSONANCE_MPI enable it";
        let _ = writeln!(io::stderr(), "{words}");
    }
}

/// Calls `MPI_Init_thread` with this level, as a program does that is linked with MPI.
fn initialize(level: impl Fn(&Constants) -> i32) -> Calls {
    let Library { calls, .. } = super::library::Library::load(None).unwrap();
    let mut given = 0;
    // SAFETY: once in this process. Writes a number.
    let status =
        unsafe { (calls.functions.init_thread)(ptr::null_mut(), ptr::null_mut(), level(&calls.constants), &mut given) };
    assert_eq!((status, given), (0, level(&calls.constants)));
    calls
}

fn finalize(calls: &Calls) {
    // SAFETY: MPI runs, and nobody else uses it.
    assert_eq!(unsafe { (calls.functions.finalize)() }, 0);
}

fn receive(wire: &Wire, count: usize) -> Vec<Arrived> {
    let (begin, mut arrived) = (Instant::now(), Vec::new());
    while arrived.len() < count {
        arrived.append(&mut wire.progress());
        assert_eq!(wire.fault(), None);
        assert!(begin.elapsed() < LIMIT, "{} of {count} messages arrived", arrived.len());
    }
    arrived
}

fn body(seed: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 11 ^ seed.wrapping_mul(31)) as u8).collect()
}

#[test]
fn messages_of_all_sizes_arrive_as_they_were_sent_and_only_at_their_wire() {
    with_each_mpi("messages_of_all_sizes_arrive_as_they_were_sent_and_only_at_their_wire", || {
        let calls = initialize(|constants| constants.multiple);
        let [wire, other] = [(), ()].map(|()| Wire::open(LIMIT).unwrap().with(1 << 20, Duration::ZERO));
        println!("{} {:?} {}", wire.name(), wire.version(), wire.library());
        assert_eq!((wire.kind(), other.address().len()), (Kind::Mpi, wire.address().len()));
        wire.connect(7, wire.address()).unwrap();
        wire.connect(8, other.address()).unwrap();
        // Those above `SHORT` follow their trailers, and the last ones travel in parts.
        let sizes = [0, 1, 95, SHORT, SHORT + 1, 65_536, 1 << 20, (1 << 20) + 1, (5 << 20) + 3];
        for (seed, bytes) in sizes.into_iter().enumerate() {
            for (peer, to) in [(7, &wire), (8, &other)] {
                wire.send(peer, [seed as u8; HEAD], body(seed, bytes)).unwrap();
                // The sender has to go on with it.
                let begin = Instant::now();
                let arrived = loop {
                    let own = wire.progress();
                    let arrived = if peer == 7 { own } else { to.progress() };
                    if !arrived.is_empty() {
                        break arrived;
                    }
                    assert!(begin.elapsed() < LIMIT, "{bytes} bytes");
                };
                assert_eq!(arrived[0].head, [seed as u8; HEAD]);
                assert!(arrived[0].body == body(seed, bytes), "a body of {bytes} bytes");
            }
        }
        thread::scope(|scope| {
            for sender in 0..3u8 {
                let wire = &wire;
                scope.spawn(move || {
                    for _ in 0..200 {
                        wire.send(7, [sender; HEAD], body(sender.into(), 7000 * usize::from(sender))).unwrap();
                    }
                });
            }
            for Arrived { head, body: found } in receive(&wire, 600) {
                assert!(found == body(head[0].into(), 7000 * usize::from(head[0])));
            }
        });
        while wire.pending() > 0 {
            assert_eq!(wire.progress(), []);
        }
        drop((wire, other));
        finalize(&calls);
    });
}

#[test]
fn an_idle_wire_naps_longer_and_longer_but_not_after_an_event() {
    with_each_mpi("an_idle_wire_naps_longer_and_longer_but_not_after_an_event", || {
        let calls = initialize(|constants| constants.multiple);
        let wire = Wire::open(LIMIT).unwrap().with(1 << 20, LIMIT);
        wire.connect(0, wire.address()).unwrap();
        assert_eq!((wire.descriptor().is_none(), wire.arm()), (true, Ok(false)));
        let wire = wire.with(1 << 20, Duration::ZERO);
        let naps = [(); 8].map(|()| {
            assert_eq!((wire.progress(), wire.arm()), (Vec::new(), Ok(true)));
            wire.nap().unwrap()
        });
        assert!(naps.is_sorted(), "{naps:?}");
        assert_eq!((naps[0], naps[7]), (Duration::from_micros(50), Duration::from_millis(1)));
        let wire = wire.with(1 << 20, LIMIT);
        wire.send(0, [0; HEAD], vec![1]).unwrap();
        assert_eq!((receive(&wire, 1).len(), wire.arm()), (1, Ok(false)));
        drop(wire);
        finalize(&calls);
    });
}

#[test]
fn addresses_of_another_mpi_or_launch_are_refused() {
    with_each_mpi("addresses_of_another_mpi_or_launch_are_refused", || {
        let calls = initialize(|constants| constants.multiple);
        let wire = Wire::open(LIMIT).unwrap();
        let own = Address::read(wire.address()).unwrap();
        let refused = |address: Address| match wire.connect(3, &address.bytes()) {
            Err(WireError::Foreign { peer: 3, why }) => why,
            other => panic!("{other:?}"),
        };
        assert!(refused(Address { library: own.library ^ 1, ..own }).contains("another MPI than MPI of"));
        assert!(refused(Address { launch: own.launch ^ 1, ..own }).contains("another launch"));
        assert!(refused(Address { rank: 1, ..own }).contains("another launch"));
        assert!(refused(Address { process: own.process ^ 1, ..own }).contains("rank 0"));
        assert_eq!(wire.connect(3, &wire.address()[1..]), Err(WireError::Address));
        wire.connect(3, wire.address()).unwrap();
        assert_eq!(wire.connect(3, wire.address()), Err(WireError::Connected { peer: 3 }));
        assert_eq!(wire.send(4, [0; HEAD], Vec::new()), Err(WireError::NotConnected { peer: 4 }));
        wire.part(3, false);
        let lost = WireError::Lost { peer: 3, why: "it has left".to_owned() };
        assert_eq!((wire.send(3, [0; HEAD], Vec::new()), wire.pending()), (Err(lost), 0));
        drop(wire);
        finalize(&calls);
    });
}

#[test]
fn an_mpi_with_too_low_a_thread_level_is_an_absence_and_one_at_its_end_an_error() {
    with_each_mpi("an_mpi_with_too_low_a_thread_level_is_an_absence_and_one_at_its_end_an_error", || {
        let is_low = env::var_os("CONSONANCE_TEST_LEVEL").is_some();
        if !is_low {
            // The same in one more process.
            let mut command = Command::new(env::current_exe().unwrap());
            command.args(env::args().skip(1)).env("CONSONANCE_TEST_LEVEL", "low");
            assert!(command.status().unwrap().success());
        }
        let calls = initialize(|constants| if is_low { constants.serialized } else { constants.multiple });
        if is_low {
            let absent = Wire::open(LIMIT).unwrap_err();
            assert!(absent.to_string().contains("call MPI_Init_thread with MPI_THREAD_MULTIPLE"), "{absent}");
            return finalize(&calls);
        }
        let wire = Wire::open(LIMIT).unwrap();
        wire.connect(0, wire.address()).unwrap();
        finalize(&calls);
        assert_eq!(wire.send(0, [0; HEAD], Vec::new()), Err(WireError::Ended));
        assert_eq!((wire.progress(), wire.pending(), wire.arm()), (Vec::new(), 0, Err(WireError::Ended)));
        drop(wire);
        let absent = Wire::open(LIMIT).unwrap_err();
        assert!(absent.to_string().contains("the program has called MPI_Finalize"), "{absent}");
    });
}

#[test]
fn a_process_of_no_launcher_has_no_mpi() {
    with_each_mpi("a_process_of_no_launcher_has_no_mpi", || {
        let absent = Wire::open(LIMIT).unwrap_err();
        assert_eq!(absent.kinds, [Kind::Mpi]);
        assert!(absent.to_string().contains("was started by no launcher of an MPI"), "{absent}");
    });
}

#[test]
fn a_forked_child_is_refused_and_leaves_the_wire_to_its_parent() {
    with_each_mpi("a_forked_child_is_refused_and_leaves_the_wire_to_its_parent", || {
        let calls = initialize(|constants| constants.multiple);
        let wire = Wire::open(LIMIT).unwrap();
        wire.connect(0, wire.address()).unwrap();
        // SAFETY: the child only calls functions that return at once, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let refused = [wire.send(0, [0; HEAD], Vec::new()), wire.arm().map(|_| ())];
            let refused = refused.iter().all(|result| *result == Err(WireError::Forked));
            let silent = wire.fault().is_none() && wire.pending() == 0 && wire.progress().is_empty();
            let is_absent = Wire::open(LIMIT).is_err();
            drop(wire);
            // SAFETY: ends the child without the parent's handlers.
            unsafe { libc::_exit(if refused && silent && is_absent { 17 } else { 1 }) };
        }
        let mut status = 0;
        // SAFETY: waits for the child, and writes a number.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!((libc::WIFEXITED(status), libc::WEXITSTATUS(status)), (true, 17));
        wire.send(0, [0; HEAD], vec![1]).unwrap();
        receive(&wire, 1);
        drop(wire);
        finalize(&calls);
    });
}

#[test]
fn a_failed_message_of_a_dropped_wire_is_a_failure_of_the_process_and_kept_no_longer() {
    with_each_mpi("a_failed_message_of_a_dropped_wire_is_a_failure_of_the_process_and_kept_no_longer", || {
        let calls = initialize(|constants| constants.multiple);
        let mpi = Mpi::of(Library::load(None).unwrap(), false, None).unwrap();
        let [tag, _] = tags(0);
        let begin = Instant::now();
        let mut locked = mpi.lock().unwrap();
        let sent = locked.calls.send(0, 0, tag, vec![1; 100], usize::MAX).unwrap();
        // The receiver expects more.
        let received = locked.calls.receive_from(0, 0, tag, 200, usize::MAX, Vec::with_capacity(200)).unwrap();
        locked.leave([sent, received]);
        while !locked.state.left.is_empty() {
            locked.sweep();
            assert!(begin.elapsed() < LIMIT, "{:?}", locked.state);
        }
        assert!(locked.state.has_failed);
        drop(locked);
        assert_eq!(exchange(&mpi, LIMIT), Ending::Unclean);
        finalize(&calls);
    });
}

#[test]
fn a_process_waits_for_the_last_words_of_another_one_no_longer_than_its_patience() {
    with_each_mpi("a_process_waits_for_the_last_words_of_another_one_no_longer_than_its_patience", || {
        let calls = initialize(|constants| constants.multiple);
        let alone = Mpi::of(Library::load(None).unwrap(), false, None).unwrap();
        assert_eq!(exchange(&alone, Duration::ZERO), Ending::Whole, "nobody is missing");
        let begin = Instant::now();
        let mut words = LastWords::say(&alone, Ending::Whole).unwrap();
        words.silent = 1;
        assert_eq!(words.hear(Duration::from_millis(20)), Ending::Unclean);
        // The word of a process without `MPI_Finalize` ends the wait.
        words.silent = 1;
        let unclean = alone.lock().unwrap().calls.send(0, 0, LAST_TAG, vec![0; 2], usize::MAX).unwrap();
        assert_eq!(words.hear(LIMIT), Ending::Unclean);
        alone.lock().unwrap().leave([unclean]);
        assert!(begin.elapsed() < LIMIT);
        finalize(&calls);
    });
}

#[test]
fn a_stray_message_of_a_dropped_wire_leaves_the_end_of_the_program_s_own_mpi_whole() {
    with_each_mpi("a_stray_message_of_a_dropped_wire_leaves_the_end_of_the_program_s_own_mpi_whole", || {
        let calls = initialize(|constants| constants.multiple);
        let [wire, other] = [(), ()].map(|()| Wire::open(LIMIT).unwrap());
        wire.connect(0, other.address()).unwrap();
        for bytes in [1, SHORT, SHORT + 1, 3 << 20] {
            wire.send(0, [0; HEAD], body(1, bytes)).unwrap();
        }
        drop(other);
        drop(wire);
        finalize(&calls);
    });
}

#[test]
fn an_mpi_of_ours_starts_without_a_change_of_the_c_library_s_code_and_ends_with_the_process() {
    let test = "an_mpi_of_ours_starts_without_a_change_of_the_c_library_s_code_and_ends_with_the_process";
    with_each_mpi(test, || {
        let is_alone = env::var_os("CONSONANCE_TEST_ALONE").is_some();
        if !is_alone {
            let mut command = Command::new(env::current_exe().unwrap());
            command.args(env::args().skip(1)).env("CONSONANCE_TEST_ALONE", "yes").envs(alone(&env::var(PART).unwrap()));
            assert!(command.status().unwrap().success());
            return;
        }
        let code = || {
            [libc::mmap as *const u8, libc::munmap as *const u8, libc::madvise as *const u8].map(|function| {
                // SAFETY: a function has as many bytes of code.
                unsafe { function.cast::<[u8; 16]>().read_volatile() }
            })
        };
        let before = code();
        let wire = Wire::open(LIMIT).unwrap();
        assert!(code() == before, "another thread may run this code now");
        wire.connect(0, wire.address()).unwrap();
        wire.send(0, [0; HEAD], body(1, 100_000)).unwrap();
        receive(&wire, 1);
        drop(wire);
    });
}

/// Returns the command of the launcher of an MPI, if it is here.
fn launcher(library: &str) -> Option<Command> {
    match Path::new(library).parent().filter(|folder| folder.is_absolute()) {
        Some(folder) => {
            let launcher = folder.join("../bin/mpiexec.hydra");
            launcher.exists().then(|| Command::new(launcher))
        }
        None if library == "libmpi.so.40" => {
            let mut launcher = Command::new("mpirun");
            let is_open_mpi = |version: &[u8]| String::from_utf8_lossy(version).contains("Open MPI");
            let output = launcher.arg("--version").output();
            output.is_ok_and(|output| is_open_mpi(&output.stdout)).then(|| {
                let mut launcher = Command::new("mpirun");
                launcher.args(["--allow-run-as-root", "--oversubscribe"]);
                launcher
            })
        }
        None => None,
    }
}

#[test]
fn two_programs_with_mpi_of_their_own_exchange_messages_and_end_it() {
    with_each_mpi("two_programs_with_mpi_of_their_own_exchange_messages_and_end_it", || {
        let Some(folder) = env::var_os("CONSONANCE_TEST_FOLDER").map(PathBuf::from) else {
            let Some(mut command) = launcher(&env::var(PART).unwrap()) else { return };
            let folder = env::temp_dir().join(format!("consonance-wire-{}", std::process::id()));
            fs::create_dir(&folder).unwrap();
            command.args(["-n", "2"]).arg(env::current_exe().unwrap()).args(env::args().skip(1));
            let output = command.env("CONSONANCE_TEST_FOLDER", &folder).output().unwrap();
            fs::remove_dir_all(&folder).unwrap();
            return assert!(output.status.success(), "{output:?}");
        };
        let calls = initialize(|constants| constants.multiple);
        let wire = Wire::open(LIMIT).unwrap();
        let own = Address::read(wire.address()).unwrap().rank;
        let begin = Instant::now();
        fs::write(folder.join(format!("{own}.new")), wire.address()).unwrap();
        fs::rename(folder.join(format!("{own}.new")), folder.join(format!("{own}"))).unwrap();
        let address = loop {
            assert!(begin.elapsed() < LIMIT, "the other one does not come");
            if let Ok(address) = fs::read(folder.join(format!("{}", 1 - own))) {
                break address;
            }
        };
        wire.connect(1, &address).unwrap();
        let sizes = [0, SHORT, SHORT + 1, 300_000, 3 << 20];
        for (seed, bytes) in sizes.into_iter().enumerate() {
            wire.send(1, [seed as u8; HEAD], body(seed, bytes)).unwrap();
        }
        for Arrived { head, body: found } in receive(&wire, sizes.len()) {
            assert!(found == body(head[0].into(), sizes[usize::from(head[0])]));
        }
        while wire.pending() > 0 {
            assert_eq!(wire.progress(), []);
            assert!(begin.elapsed() < LIMIT, "the other one receives no more");
        }
        drop(wire);
        finalize(&calls);
    });
}
