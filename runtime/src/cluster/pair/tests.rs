//! Tests with threads, and with other processes: this test binary, started again.

use super::*;
use consonance_kernels::shm::{Published, PublishedView, Reading};
use consonance_spec::DType;
use std::{
    env,
    io::{BufRead, BufReader, Write},
    process::{Child, Command, Stdio},
    sync::{
        atomic::{AtomicU64, Ordering},
        mpsc::{self, Receiver},
    },
    thread,
    time::{SystemTime, UNIX_EPOCH},
};

/// The time limit of every wait: far more than anything here takes.
const LIMIT: Duration = Duration::from_secs(30);

/// The environment variable that makes this binary a child: the job, its own name, that of its
/// peer, and the number in the memory that it gives to the peer.
const CHILD: &str = "CONSONANCE_PAIR_TEST";

const PARTS: [(DType, usize); 1] = [(DType::U64, 100)];

fn soon() -> Instant {
    Instant::now() + LIMIT
}

/// Returns the name of a job that no other test has.
fn job() -> String {
    static JOBS: AtomicU64 = AtomicU64::new(1);
    // Relaxed: only the uniqueness of the number matters.
    format!("{}-{}", std::process::id(), JOBS.fetch_add(1, Ordering::Relaxed))
}

fn meet(job: &str, own: &str, peer: &str) -> Result<Pair> {
    Pair::meet(
        PairOptions { job, own, peer, roles: ["own", "peer"], carries: "orders", gives: None, far: None },
        soon(),
    )
}

fn recv(pair: &Pair) -> Result<u64> {
    let mut number = [0u64];
    pair.mailbox().recv(number.as_mut_slice(), Some(pair.peer_rank()), 5, Some(LIMIT))?;
    Ok(number[0])
}

fn send(pair: &Pair, number: u64) -> Result<()> {
    pair.mailbox().send([number].as_slice(), pair.peer_rank(), 5, Some(LIMIT))
}

fn nanoseconds() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos()
}

/// A process that runs [`child`]. It is killed when this value is dropped.
struct Process {
    child: Child,
    lines: Receiver<String>,
}

impl Process {
    fn start(job: &str, own: &str, peer: &str, number: u64) -> Process {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["cluster::pair::tests::child", "--exact", "--nocapture", "--test-threads=1"]);
        command.env(CHILD, format!("{job} {own} {peer} {number}"));
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (tell, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in output.lines().map_while(std::result::Result::ok) {
                if let Some(line) = line.strip_prefix("@ ") {
                    let _ = tell.send(line.to_owned());
                }
            }
        });
        Process { child, lines }
    }

    #[track_caller]
    fn line(&self) -> String {
        self.lines.recv_timeout(LIMIT).expect("a line in time")
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn say(line: &str) {
    // The write fails if the test has ended.
    let _ = writeln!(io::stdout().lock(), "\n@ {line}");
}

fn kind(error: &Error) -> &'static str {
    match error {
        Error::Left { .. } => "left",
        Error::Aborted { .. } => "aborted",
        Error::Meeting { .. } => "not met",
        _ => "another error",
    }
}

/// The other process: it gives memory with its number to its peer, answers each message by the next
/// number, and reports the end of the pair.
#[test]
fn child() {
    let Ok(role) = env::var(CHILD) else { return };
    let [job, own, peer, number] = role.split(' ').collect::<Vec<_>>()[..] else { panic!("{role}") };
    let number: u64 = number.parse().unwrap();
    let published = Published::create(&PARTS).unwrap();
    published.write(0, |elements| elements.into_mut_slice().unwrap().fill(number));
    loop {
        let options = PairOptions {
            job,
            own,
            peer,
            roles: ["own", "peer"],
            carries: "orders",
            gives: Some(published.file().unwrap()),
            far: None,
        };
        let pair = match Pair::meet(options, soon()) {
            Ok(pair) => pair,
            Err(error) => return say(kind(&error)),
        };
        say(&format!("met {}", pair.peer()));
        let end = loop {
            if let Err(error) = recv(&pair).and_then(|number| send(&pair, number + 1)) {
                break error;
            }
        };
        say(kind(&end));
    }
}

/// Reads the number in the memory that the peer gave.
fn number_given(pair: &mut Pair) -> u64 {
    let view = PublishedView::open(pair.take_given().expect("a gift"), &PARTS).unwrap();
    let mut read = [0u64; 100];
    assert_eq!(view.read(0, Some(0..100), read.as_mut_slice().into(), soon()), Reading::Done);
    assert!(read.iter().all(|&number| number == read[0]));
    read[0]
}

/// Names of two processes, in both orders.
const ORDERS: [[&str; 2]; 2] = [["chief[0]", "worker[1]"], ["worker[1]", "chief[0]"]];

#[track_caller]
fn is_lost(error: &Error, peer: &str) {
    assert!(error.is_loss() && format!("{error:?}").contains(peer), "{error:?}");
}

#[test]
fn processes_meet_give_a_file_and_speak() {
    for [own, peer] in ORDERS {
        let job = job();
        let other = Process::start(&job, peer, own, 7);
        let mut pair = meet(&job, own, peer).unwrap();
        assert_eq!((pair.peer(), pair.peer_process()), (peer, Some(other.child.id())));
        assert_eq!(pair.peer_rank(), usize::from(own < peer));
        assert_eq!(other.line(), format!("met {own}"));
        assert_eq!(number_given(&mut pair), 7);
        assert!(pair.take_given().is_none());
        for number in [1, 10, 100] {
            send(&pair, number).unwrap();
            assert_eq!(recv(&pair).unwrap(), number + 1);
        }
    }
}

#[test]
fn a_killed_peer_is_named_at_once_and_replaced() {
    for [own, peer] in ORDERS {
        let job = job();
        let mut times = Vec::new();
        for round in 0..100 {
            let mut other = Process::start(&job, peer, own, round);
            let mut pair = meet(&job, own, peer).unwrap();
            assert_eq!(number_given(&mut pair), round);
            send(&pair, round).unwrap();
            assert_eq!(recv(&pair).unwrap(), round + 1);
            thread::scope(|scope| {
                let received = scope.spawn(|| (recv(&pair), nanoseconds()));
                let killed = nanoseconds();
                other.kill();
                let (error, noticed) = received.join().unwrap();
                is_lost(&error.unwrap_err(), peer);
                times.push(noticed.saturating_sub(killed));
            });
            // A send of one who has not noticed fails, too.
            is_lost(&send(&pair, 1).unwrap_err(), peer);
        }
        times.sort_unstable();
        println!("half of the losses were seen within {} us, all within {} us", times[50] / 1000, times[99] / 1000);
    }
}

#[test]
fn a_survivor_meets_its_peer_again() {
    for [own, peer] in ORDERS {
        let job = job();
        let other = Process::start(&job, peer, own, 3);
        for round in 0..20 {
            let mut pair = meet(&job, own, peer).unwrap();
            assert_eq!(other.line(), format!("met {own}"));
            assert_eq!(number_given(&mut pair), 3);
            send(&pair, round).unwrap();
            assert_eq!(recv(&pair).unwrap(), round + 1);
            let mailbox = pair.mailbox();
            drop(pair);
            // The peer is told, though a mailbox is left here, which does not work.
            assert!(["left", "aborted"].contains(&&*other.line()));
            let error = mailbox.send([0u64].as_slice(), 1, 5, Some(LIMIT)).unwrap_err();
            assert!(matches!(error, Error::WrongContext { .. }), "{error:?}");
        }
    }
}

#[test]
fn a_message_sent_before_the_end_is_received() {
    for [own, peer] in ORDERS {
        for _ in 0..50 {
            let job = job();
            let (mine, yours) = thread::scope(|scope| {
                let other = scope.spawn(|| meet(&job, peer, own).unwrap());
                (meet(&job, own, peer).unwrap(), other.join().unwrap())
            });
            send(&mine, 1).unwrap();
            drop(mine);
            assert_eq!(recv(&yours).unwrap(), 1);
            let error = recv(&yours).unwrap_err();
            assert!(matches!(error, Error::Left { .. } | Error::Aborted { .. }), "{error:?}");
        }
    }
}

#[test]
fn a_loss_disturbs_no_other_pair_of_a_process() {
    let job = job();
    let names = ["worker[0]", "worker[1]", "worker[2]", "ps[0]"];
    let mut others: Vec<Process> = names.iter().map(|name| Process::start(&job, name, "chief[0]", 1)).collect();
    let mut pairs: Vec<Pair> = thread::scope(|scope| {
        let met = names.map(|name| scope.spawn(|| meet(&job, "chief[0]", name).unwrap()));
        met.into_iter().map(|pair| pair.join().unwrap()).collect()
    });
    others[1].kill();
    is_lost(&recv(&pairs[1]).unwrap_err(), "worker[1]");
    for other in [0, 2, 3] {
        send(&pairs[other], 5).unwrap();
        assert_eq!(recv(&pairs[other]).unwrap(), 6);
    }
    others[1] = Process::start(&job, names[1], "chief[0]", 9);
    let gone = pairs.remove(1);
    drop(gone);
    pairs.insert(1, meet(&job, "chief[0]", names[1]).unwrap());
    assert_eq!(number_given(&mut pairs[1]), 9);
    for pair in &pairs {
        send(pair, 8).unwrap();
        assert_eq!(recv(pair).unwrap(), 9);
    }
}

#[test]
fn an_absent_peer_is_named_at_the_deadline() {
    let job = job();
    let options = PairOptions {
        job: &job,
        own: "chief[0]",
        peer: "ps[1]",
        roles: ["own", "peer"],
        carries: "orders",
        gives: None,
        far: None,
    };
    let error = Pair::meet(options, Instant::now() + Duration::from_millis(30)).unwrap_err();
    let Error::Meeting { task, missing, problem, .. } = &error else { panic!("{error:?}") };
    assert_eq!((task.as_str(), &missing[..]), ("chief[0]", &[1][..]));
    assert!(problem.contains("ps[1]"), "{problem}");
    // The name is free again.
    let error = Pair::meet(
        PairOptions {
            job: &job,
            own: "chief[0]",
            peer: "ps[1]",
            roles: ["own", "peer"],
            carries: "orders",
            gives: None,
            far: None,
        },
        Instant::now(),
    );
    assert!(matches!(error, Err(Error::Meeting { missing, .. }) if missing == [1]));
}

#[test]
fn a_name_is_taken_once() {
    let job = job();
    let other = Process::start(&job, "worker[0]", "chief[0]", 1);
    let pair = meet(&job, "chief[0]", "worker[0]").unwrap();
    assert_eq!(other.line(), "met chief[0]");
    let second = Process::start(&job, "worker[0]", "chief[0]", 2);
    assert_eq!(second.line(), "not met");
    send(&pair, 1).unwrap();
    assert_eq!(recv(&pair).unwrap(), 2);
}

#[test]
fn pairs_of_other_jobs_do_not_meet() {
    let (job, other) = (job(), job());
    let _other = Process::start(&other, "worker[0]", "chief[0]", 1);
    let options = PairOptions {
        job: &job,
        own: "chief[0]",
        peer: "worker[0]",
        roles: ["own", "peer"],
        carries: "orders",
        gives: None,
        far: None,
    };
    let error = Pair::meet(options, Instant::now() + Duration::from_millis(300)).unwrap_err();
    assert!(matches!(error, Error::Meeting { missing, .. } if missing == [1]));
}

/// Meets a peer as if it were on another host. The process whose name is less is at `address`.
fn meet_far(job: &str, [own, peer]: [&str; 2], address: &str, deadline: Instant) -> Result<Pair> {
    let is_called = !Pair::calls(own, peer);
    let gate = is_called.then(|| gate_at(address, own, deadline)).transpose()?;
    let addresses = if is_called { [address, ""] } else { ["", address] };
    let far = Some(Far { addresses, gate: gate.as_deref() });
    Pair::meet(PairOptions { job, own, peer, roles: ["own", "peer"], carries: "orders", gives: None, far }, deadline)
}

/// Returns an address of this host that no other test has, if this machine has UCX.
fn far_address() -> Option<String> {
    if let Err(absent) = consonance_kernels::wire::Wire::open(None) {
        println!("skipped: pairs of processes on two hosts: {absent}");
        return None;
    }
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    Some(listener.local_addr().unwrap().to_string())
}

#[test]
fn far_peers_meet_and_leave_again_and_again_at_one_address() {
    let Some(address) = far_address() else { return };
    for [own, peer] in ORDERS {
        let job = job();
        for round in 0..10 {
            let (mine, yours) = thread::scope(|scope| {
                let other = scope.spawn(|| meet_far(&job, [peer, own], &address, soon()).unwrap());
                (meet_far(&job, [own, peer], &address, soon()).unwrap(), other.join().unwrap())
            });
            assert!(!yours.peer_is_stopped());
            send(&mine, round).unwrap();
            let mailbox = mine.mailbox();
            drop(mine);
            assert_eq!(recv(&yours).unwrap(), round);
            let error = recv(&yours).unwrap_err();
            assert!(matches!(error, Error::Left { .. }) && format!("{error:?}").contains(own), "{error:?}");
            assert!(!yours.peer_has_ended(), "it has only left");
            let error = mailbox.send([0u64].as_slice(), 1, 5, Some(LIMIT)).unwrap_err();
            assert!(matches!(error, Error::WrongContext { .. }), "{error:?}");
        }
    }
}

#[test]
fn an_absent_far_peer_is_named_at_the_deadline() {
    let Some(address) = far_address() else { return };
    for ([own, peer], missing) in ORDERS.into_iter().zip([1, 0]) {
        let deadline = Instant::now() + Duration::from_millis(300);
        let error = meet_far(&job(), [own, peer], &address, deadline).unwrap_err();
        let Error::Meeting { task, missing: found, problem, .. } = &error else { panic!("{error:?}") };
        assert_eq!((task.as_str(), &found[..]), (own, &[missing][..]));
        assert!(problem.contains(peer) && problem.contains(&address), "{problem}");
    }
}
