//! Two wires of one process talk over TCP. Without UCX each test is skipped with a line.

use super::Wire;
use crate::wire::{Absent, Arrived, HEAD, Head, Medium, WireError, signals};
use rustix::{
    event::{PollFd, PollFlags, poll},
    fs::Timespec,
};
use std::{
    env,
    io::{self, BufRead, Write},
    process::{self, Command, Stdio},
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

/// The bound on each wait here.
const LIMIT: Duration = Duration::from_secs(60);

/// Returns a wire; none, with a line, if this machine has no UCX.
fn wire() -> Option<Wire> {
    match Wire::open(None) {
        Ok(wire) => Some(wire),
        Err(absent) => {
            let found: Vec<_> = absent.looked.iter().map(|(place, found)| format!("{place}: {found}")).collect();
            // Not by a macro, whose lines of a test that passes are not shown.
            let _ = writeln!(
                io::stderr(),
                "skipped: messages by UCX; \"apt install libucx0\" or \"pip install mpich\" enables it ({})",
                found.join("; ")
            );
            None
        }
    }
}

/// Returns two wires, each of which has the other as peer 0.
fn two() -> Option<[Wire; 2]> {
    let [a, b] = [wire()?, wire()?];
    a.connect(0, b.address()).unwrap();
    b.connect(0, a.address()).unwrap();
    Some([a, b])
}

/// Returns a head with a sender's number and that of its message.
fn head(sender: u64, number: u64) -> Head {
    let mut head = [0x5a; HEAD];
    head[..8].copy_from_slice(&sender.to_le_bytes());
    head[HEAD - 8..].copy_from_slice(&number.to_le_bytes());
    head
}

fn numbers(head: &Head) -> (u64, u64) {
    let word = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().unwrap());
    assert!(head[8..HEAD - 8].iter().all(|&byte| byte == 0x5a));
    (word(0), word(HEAD - 8))
}

/// Returns bytes that differ between messages and places.
fn body(seed: u64, bytes: usize) -> Vec<u8> {
    (0..bytes as u64).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 11 ^ seed.wrapping_mul(31)) as u8).collect()
}

/// Progresses all wires until the last has received as many messages.
fn receive(wires: &[&Wire], count: usize) -> Vec<Arrived> {
    let (begin, mut arrived) = (Instant::now(), Vec::new());
    while arrived.len() < count {
        let (last, others) = wires.split_last().unwrap();
        for other in others {
            assert_eq!(other.progress(), []);
            assert_eq!(other.fault(), None);
        }
        arrived.append(&mut last.progress());
        assert_eq!(last.fault(), None);
        assert!(begin.elapsed() < LIMIT, "{} of {count} messages arrived", arrived.len());
    }
    arrived
}

/// Sleeps until the descriptor is readable. Returns whether it is.
fn sleep(wire: &Wire, limit: Duration) -> bool {
    let descriptor = wire.descriptor().unwrap();
    let limit = Timespec::try_from(limit).unwrap();
    poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&limit)).unwrap() == 1
}

/// Does what a thread with a wire does, until `done`. Passes what arrives on.
fn serve(wire: &Wire, mut done: impl FnMut(Vec<Arrived>) -> bool) {
    let begin = Instant::now();
    while !done(wire.progress()) {
        assert_eq!(wire.fault(), None);
        if wire.arm().unwrap() {
            sleep(wire, Duration::from_secs(1));
        }
        assert!(begin.elapsed() < LIMIT, "{} sends are pending", wire.pending());
    }
}

#[test]
fn heads_and_bodies_of_all_sizes_arrive_as_they_were_sent() {
    let Some([a, b]) = two() else { return };
    let sizes = [0, 1, 95, 4096, 8191, 65_536, 262_145, 1 << 20, (16 << 20) + 3];
    for (number, bytes) in sizes.into_iter().enumerate() {
        for [from, to] in [[&a, &b], [&b, &a]] {
            let number = number as u64;
            from.send(0, head(1, number), body(number, bytes)).unwrap();
            let arrived = receive(&[from, to], 1);
            assert_eq!(numbers(&arrived[0].head), (1, number));
            assert!(arrived[0].body == body(number, bytes), "a body of {bytes} bytes");
        }
    }
    let begin = Instant::now();
    while a.pending() + b.pending() > 0 {
        assert_eq!((a.progress(), b.progress()), (Vec::new(), Vec::new()));
        assert!(begin.elapsed() < LIMIT);
    }
}

#[test]
fn a_wire_is_a_peer_of_itself() {
    let Some(wire) = wire() else { return };
    wire.connect(7, wire.address()).unwrap();
    for bytes in [3, 1 << 20] {
        wire.send(7, head(7, 0), body(1, bytes)).unwrap();
        assert!(receive(&[&wire], 1)[0].body == body(1, bytes));
    }
}

#[test]
fn many_messages_of_several_threads_arrive_once_each_while_both_ends_sleep() {
    const THREADS: u64 = 3;
    const EACH: u64 = 400;
    let Some([a, b]) = two() else { return };
    let bytes = |sender: u64, number: u64| match (sender + number) % 40 {
        0 => 300_000,
        other => other as usize * 700,
    };
    let mut seen = [[false; EACH as usize]; THREADS as usize];
    let mut count = 0;
    thread::scope(|scope| {
        let a = &a;
        for sender in 0..THREADS {
            scope.spawn(move || {
                for number in 0..EACH {
                    a.send(0, head(sender, number), body(sender ^ number, bytes(sender, number))).unwrap();
                    if number % 50 == 0 {
                        thread::sleep(Duration::from_millis(2));
                    }
                }
            });
        }
        scope.spawn(|| {
            // The answer says that all have arrived.
            serve(a, |arrived| !arrived.is_empty());
            assert_eq!(a.pending(), 0);
        });
        serve(&b, |arrived| {
            for Arrived { head, body: found } in arrived {
                let (sender, number) = numbers(&head);
                assert!(found == body(sender ^ number, bytes(sender, number)), "message {number} of {sender}");
                let seen = &mut seen[sender as usize][number as usize];
                assert!(!std::mem::replace(seen, true), "message {number} of {sender} arrived twice");
                count += 1;
            }
            count == THREADS * EACH
        });
        b.send(0, head(0, 0), Vec::new()).unwrap();
        serve(&b, |arrived| {
            assert_eq!(arrived, []);
            b.pending() == 0
        });
    });
}

#[test]
fn a_send_from_another_thread_wakes_the_sleeping_thread() {
    let Some([a, b]) = two() else { return };
    a.send(0, head(0, 0), Vec::new()).unwrap();
    receive(&[&a, &b], 1);
    // Too large to leave at once: the thread that sleeps has to push the rest.
    for round in 1..=3 {
        thread::scope(|scope| {
            let (a, b) = (&a, &b);
            // The answer says that it has arrived.
            scope.spawn(move || serve(a, |arrived| !arrived.is_empty()));
            thread::sleep(Duration::from_millis(30));
            a.send(0, head(0, round), body(round, 8 << 20)).unwrap();
            serve(b, |arrived| arrived.first().is_some_and(|one| one.body == body(round, 8 << 20)));
            b.send(0, head(0, round), Vec::new()).unwrap();
            serve(b, |_| b.pending() == 0);
        });
    }
}

#[test]
fn a_dropped_peer_is_a_fault_once_and_is_refused_from_then_on() {
    let Some([a, b]) = two() else { return };
    a.send(0, head(0, 0), vec![1]).unwrap();
    receive(&[&a, &b], 1);
    drop(b);
    let begin = Instant::now();
    let (peer, why) = loop {
        a.progress();
        if let Some(fault) = a.fault() {
            break fault;
        }
        if a.arm().unwrap() {
            sleep(&a, Duration::from_millis(100));
        }
        assert!(begin.elapsed() < LIMIT);
    };
    assert_eq!(peer, 0);
    assert!(!why.is_empty());
    assert_eq!(a.send(0, head(0, 1), vec![1]), Err(WireError::Lost { peer: 0, why }));
    assert_eq!((a.progress(), a.fault(), a.pending()), (Vec::new(), None, 0));
    assert_eq!(a.connect(0, a.address()), Err(WireError::Connected { peer: 0 }));
    assert_eq!(a.send(1, head(0, 1), vec![1]), Err(WireError::NotConnected { peer: 1 }));
    a.connect(1, a.address()).unwrap();
    a.send(1, head(0, 1), vec![1]).unwrap();
    receive(&[&a], 1);
}

#[test]
fn dropping_a_wire_with_pending_sends_ends_soon() {
    for is_connected in [false, true] {
        let Some([a, b]) = two() else { return };
        if is_connected {
            a.send(0, head(0, 0), Vec::new()).unwrap();
            receive(&[&a, &b], 1);
            b.send(0, head(0, 0), Vec::new()).unwrap();
            receive(&[&b, &a], 1);
        }
        for number in 0..8 {
            a.send(0, head(0, number), body(number, 16 << 20)).unwrap();
            b.send(0, head(0, number), body(number, 100)).unwrap();
        }
        // Some have begun, none is complete.
        for _ in 0..3 {
            a.progress();
            b.progress();
        }
        assert!(a.pending() > 0);
        let begin = Instant::now();
        drop(a);
        assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
        let begin = Instant::now();
        while b.fault().is_none() && is_connected {
            b.progress();
            assert!(begin.elapsed() < LIMIT);
        }
        drop(b);
    }
}

#[test]
fn a_sleeping_thread_uses_almost_no_processor_time() {
    let Some([a, b]) = two() else { return };
    a.send(0, head(0, 0), Vec::new()).unwrap();
    receive(&[&a, &b], 1);
    let time = || {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
    };
    let (begin, before) = (Instant::now(), time());
    while begin.elapsed() < Duration::from_secs(1) {
        assert_eq!(b.progress(), []);
        if b.arm().unwrap() {
            sleep(&b, Duration::from_secs(1));
        }
    }
    let used = time() - before;
    assert!(used < Duration::from_millis(50), "{used:?}");
}

#[test]
fn bytes_other_than_an_address_are_refused() {
    let Some(wire) = wire() else { return };
    let mut damaged = wire.address().to_vec();
    *damaged.last_mut().unwrap() ^= 1;
    let cut = &wire.address()[..wire.address().len() - 1];
    for address in [&damaged[..], cut, &wire.address()[..28], &wire.address()[..16], b"", &[0; 200]] {
        assert_eq!(wire.connect(0, address), Err(WireError::Address));
    }
}

/// Found by a trial: UCX 1.13 ended the process that a wire of 1.20 connected to.
#[test]
fn a_peer_with_another_minor_version_is_refused() {
    let Some(wire) = wire() else { return };
    let mut other = wire.address().to_vec();
    let [own, mut theirs] = [wire.version(); 2];
    theirs[1] += 1;
    other[12..16].copy_from_slice(&theirs[1].to_le_bytes());
    assert_eq!(wire.connect(0, &other), Err(WireError::Version { own, theirs }));
}

#[test]
fn an_interface_of_no_network_is_an_absence_or_cannot_be_reached() {
    let Some(b) = wire() else { return };
    match Wire::open(Some("no-such-interface")) {
        Err(Absent { looked, .. }) => assert!(looked[0].1.contains("ucp_"), "{looked:?}"),
        Ok(a) => assert!(a.connect(0, b.address()).is_err()),
    }
}

#[test]
fn a_forked_child_is_refused_and_leaves_the_wire_to_its_parent() {
    let Some([a, b]) = two() else { return };
    // SAFETY: the child only calls functions that return at once, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused = [a.send(0, [0; HEAD], Vec::new()), a.arm().map(|_| ()), a.connect(1, b.address())];
        let refused = refused.iter().all(|result| *result == Err(WireError::Forked));
        let silent = a.fault().is_none() && a.pending() == 0 && a.progress().is_empty();
        drop(a);
        // SAFETY: ends the child without the parent's handlers.
        unsafe { libc::_exit(if refused && silent { 17 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: waits for the child, and writes a number.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!((libc::WIFEXITED(status), libc::WEXITSTATUS(status)), (true, 17));
    a.send(0, head(0, 0), vec![1]).unwrap();
    receive(&[&a, &b], 1);
}

/// Set in processes that a test starts as its other part.
const PART: &str = "CONSONANCE_TEST_OF_WIRES";

/// Returns a command that runs a test of this file in a process of its own, as its other part.
fn part(test: &str) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "--nocapture", "--test-threads=1", &format!("wire::ucx::tests::{test}")]).env(PART, "1");
    command
}

fn is_part() -> bool {
    env::var_os(PART).is_some()
}

#[test]
fn loading_leaves_signal_handlers_and_the_signal_stack_as_they_were() {
    if !is_part() {
        let output = part("loading_leaves_signal_handlers_and_the_signal_stack_as_they_were").output().unwrap();
        let _ = io::stderr().write_all(&output.stderr);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        return;
    }
    let before = signals::state();
    let Some(wire) = wire() else { return };
    assert_eq!(signals::state(), before);
    drop(wire);
    assert_eq!(signals::state(), before);
}

/// UCX ends the process by a signal if a thread uses a wire then.
#[test]
fn a_process_ends_well_beside_threads_with_wires() {
    if !is_part() {
        for _ in 0..20 {
            let output = part("a_process_ends_well_beside_threads_with_wires").output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
        return;
    }
    // SAFETY: the function drops a wire.
    assert_eq!(unsafe { libc::atexit(drop_kept) }, 0);
    let Some(kept) = wire() else { return };
    *KEPT.lock().unwrap() = Some(kept);
    let begun = Instant::now();
    (0..4).for_each(|_| drop(thread::spawn(|| while two().is_some_and(|wires| has_sent(&wires)) {})));
    while begun.elapsed() < Duration::from_millis(60) {
        thread::yield_now();
    }
    process::exit(0);
}

/// A wire that the program drops when it ends, after the last call of UCX.
static KEPT: Mutex<Option<Wire>> = Mutex::new(None);

extern "C" fn drop_kept() {
    drop(KEPT.lock().unwrap().take());
}

/// Sends a message, and receives it.
fn has_sent([from, to]: &[Wire; 2]) -> bool {
    from.send(0, head(0, 0), body(0, 100)).unwrap();
    while to.progress().is_empty() {
        drop(from.progress());
    }
    true
}

#[test]
fn a_missing_file_is_named_and_no_other_is_looked_for() {
    if !is_part() {
        let mut command = part("a_missing_file_is_named_and_no_other_is_looked_for");
        assert!(command.env("CONSONANCE_UCX", "/nonexistent/libucp.so.0").status().unwrap().success());
        return;
    }
    let absent = Wire::open(None).unwrap_err();
    let looked = ("/nonexistent/libucp.so.0 (from CONSONANCE_UCX)", "there is no such file");
    assert_eq!(absent.looked, [(looked.0.to_owned(), looked.1.to_owned())]);
    let words = absent.to_string();
    assert!(words.contains("apt install libucx0") && words.contains(looked.0), "{words}");
}

#[test]
fn a_killed_peer_is_a_fault_even_with_messages_on_their_way() {
    const TEST: &str = "a_killed_peer_is_a_fault_even_with_messages_on_their_way";
    let Some(wire) = wire() else { return };
    if is_part() {
        let hex: String = wire.address().iter().map(|byte| format!("{byte:02x}")).collect();
        println!("\naddress {hex}");
        let (mut line, mut stdin) = (String::new(), io::stdin().lock());
        stdin.read_line(&mut line).unwrap();
        let byte = |at| u8::from_str_radix(&line[at..at + 2], 16).unwrap();
        let address: Vec<u8> = (0..line.trim().len()).step_by(2).map(byte).collect();
        wire.connect(0, &address).unwrap();
        wire.send(0, head(0, 0), vec![1]).unwrap();
        // Until it is killed.
        serve(&wire, |_| false);
    }
    for (number, is_loaded) in [false, true].into_iter().enumerate() {
        let mut command = part(TEST);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = io::BufReader::new(child.stdout.take().unwrap()).lines();
        let hex = lines.map(Result::unwrap).find_map(|line| line.strip_prefix("address ").map(str::to_owned)).unwrap();
        let address: Vec<u8> =
            (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect();
        let own: String = wire.address().iter().map(|byte| format!("{byte:02x}")).collect();
        writeln!(child.stdin.as_mut().unwrap(), "{own}").unwrap();
        wire.connect(number, &address).unwrap();
        receive(&[&wire], 1);
        if is_loaded {
            // Stopped, so that it does not take what is sent.
            // SAFETY: takes numbers. The child is this test's.
            unsafe { libc::kill(child.id() as i32, libc::SIGSTOP) };
            for place in 0..4 {
                wire.send(number, head(0, place), body(place, 16 << 20)).unwrap();
            }
            assert_eq!(wire.progress(), []);
            assert!(wire.pending() > 0 && wire.fault().is_none());
        }
        child.kill().unwrap();
        let begin = Instant::now();
        let (peer, why) = loop {
            assert_eq!(wire.progress(), []);
            if let Some(fault) = wire.fault() {
                break fault;
            }
            if wire.arm().unwrap() {
                sleep(&wire, Duration::from_secs(1));
            }
            assert!(begin.elapsed() < LIMIT);
        };
        println!("a fault after {:?}: {why}", begin.elapsed());
        child.wait().unwrap();
        assert_eq!(peer, number);
        // All sends end.
        while wire.pending() > 0 {
            assert_eq!(wire.progress(), []);
            assert!(begin.elapsed() < LIMIT, "{} sends are pending", wire.pending());
        }
        assert_eq!(wire.fault(), None);
    }
}

/// UCX would write a jump there, which a thread that runs the function does not survive.
#[test]
fn the_functions_of_the_c_library_stay_as_they_are() {
    if two().is_none() {
        return;
    }
    /// The first byte of the jump.
    const JUMP: u8 = 0xe9;
    // Of the library itself: a sanitizer has functions of these names, too.
    // SAFETY: the library is loaded already.
    let library = unsafe { libloading::Library::new("libc.so.6") }.unwrap();
    for name in [c"mmap", c"munmap", c"madvise", c"brk"] {
        // SAFETY: a function of the library, of which only the first byte is read.
        let first = unsafe { **library.get::<*const u8>(name.to_bytes_with_nul()).unwrap() };
        assert_ne!(first, JUMP, "{name:?}");
    }
    assert!(std::env::var_os("UCX_MEM_EVENTS").is_none());
}
