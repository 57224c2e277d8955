//! Tests with real processes: this test binary, started again as a [`worker`]. Every wait has a
//! deadline.

mod ends;
mod gifts;
mod worker;

use self::worker::{LIMIT, Worker, absent, form_all, job, names, open_all, options, segment};
use super::{
    Gone, Meeting, MeetingError, MeetingOptions, Watch,
    error::system,
    packet::{Hello, MAX_BYTES, Packet, TaskSet},
    socket,
};
use crate::os::process_state::{ProcessState, process_state};
use rustix::{io::Errno, process::Signal};
use std::{
    io::{self, Write},
    os::fd::OwnedFd,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

/// Returns the name of a task.
fn name(task: usize) -> String {
    names(task + 1).remove(task)
}

#[test]
fn workers_start_in_any_order() {
    for order in [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2], [2, 0, 3, 1]] {
        let digest = job();
        let mut workers: Vec<Worker> = Vec::new();
        for task in order {
            let mut worker = Worker::open(task, 4, digest);
            worker.form(0);
            workers.push(worker);
        }
        let formed: Vec<_> = workers.iter().map(Worker::formed).collect();
        assert!(formed.iter().all(|one| *one == formed[0]), "{formed:?}");
        assert_eq!((formed[0].0, &*formed[0].1), (1, &[0, 1, 2, 3][..]));
        assert!(formed[0].2.contains(" 2*3:"), "the replicas of worker 2: {}", formed[0].2);
    }
}

#[test]
fn one_task_is_a_group() {
    assert_eq!(form_all(&mut open_all(1, job()), 0), (1, vec![0]));
}

#[test]
fn a_missing_worker_is_named_while_all_wait_and_at_the_deadline() {
    let digest = job();
    let mut workers = [Worker::open(0, 4, digest), Worker::open(2, 4, digest)];
    // This worker has its socket name, but does not call `form`.
    let other = Worker::open(3, 4, digest);
    workers.iter_mut().for_each(|worker| worker.command("form 2300 0"));
    for worker in &workers {
        assert_eq!(worker.line(), "waiting [1, 3]");
        let error = worker.wait_for("error");
        let missing = [absent(1, None, ProcessState::Gone), absent(3, Some(other.pid()), ProcessState::Running)];
        assert!(error.starts_with("Missing ") && error.contains(&format!(" missing: {missing:?}, ")), "{error}");
    }
    // The packets of the failed attempts do no harm.
    drop(other);
    let (mut one, mut three) = (Worker::open(1, 4, digest), Worker::open(3, 4, digest));
    let (generation, tasks) = form_all(workers.iter_mut().chain([&mut one, &mut three]), 0);
    assert_eq!((generation, tasks), (1, vec![0, 1, 2, 3]));
}

#[test]
fn a_process_waiting_for_another_job_is_named() {
    let (other, mut complete) = (job(), open_all(2, job()));
    form_all(&mut complete, 0);
    let mut workers = [Worker::open(0, 2, job()), Worker::open(1, 2, other)];
    workers.iter_mut().for_each(|worker| worker.command("form 300 0"));
    let errors = [0, 1].map(|index: usize| workers[index].wait_for("error"));
    for (error, elsewhere) in errors.iter().zip([workers[1].pid(), workers[0].pid()]) {
        // Processes of other tests may be named, too.
        let (_, processes) = error.split_once(" elsewhere: [").expect(error);
        let processes = processes.split(']').next().expect(error);
        let processes: Vec<u32> = processes.split(", ").map(|process| process.parse().expect(error)).collect();
        assert!(processes.contains(&elsewhere), "{error}");
        assert!(complete.iter().all(|member| !processes.contains(&member.pid())), "{error}");
    }
}

#[test]
fn two_jobs_never_meet() {
    let (mut one, mut other) = (open_all(2, job()), open_all(2, job()));
    one.iter_mut().chain(&mut other).for_each(|worker| worker.form(0));
    let groups = [one, other].map(|job| {
        let lines: Vec<String> = job.iter().map(|worker| worker.formed().2).collect();
        assert_eq!(lines[0], lines[1]);
        lines[0].clone()
    });
    assert_ne!(groups[0], groups[1]);
}

#[test]
fn a_name_is_taken_once() {
    let digest = job();
    let mut workers = open_all(2, digest);
    let second = Worker::start(1, 2, digest, 1);
    second.expect_error(&MeetingError::Taken { name: name(1), pid: Some(workers[1].pid()) });
    assert_eq!(form_all(&mut workers, 0), (1, vec![0, 1]));
}

#[test]
fn another_build_is_refused() {
    let digest = job();
    let mut workers = [Worker::start(0, 2, digest, 1), Worker::start(1, 2, digest, 2)];
    for worker in &mut workers {
        assert_eq!(worker.line(), "open");
        worker.form(0);
    }
    let other_build = |name, pid| MeetingError::OtherBuild { name, pid: Some(pid) };
    workers[0].expect_error(&other_build(name(1), workers[1].pid()));
    workers[1].expect_error(&other_build(name(0), workers[0].pid()));
}

#[test]
fn a_group_goes_on_without_a_replacement_of_another_build() {
    for lost in [0, 2] {
        let digest = job();
        let mut workers = open_all(3, digest);
        form_all(&mut workers, 0);
        workers.remove(lost).kill();
        let mut other = Worker::start(lost, 3, digest, 2);
        assert_eq!(other.line(), "open");
        other.form(0);
        let tasks: Vec<usize> = (0..3).filter(|&task| task != lost).collect();
        assert_eq!(form_all(&mut workers, 300), (2, tasks));
        assert!(other.wait_for("error").starts_with("OtherBuild "));
    }
}

#[test]
fn garbage_is_survived() {
    let digest = job();
    let mut workers = open_all(3, digest);
    let hello = Hello {
        nonce: 1,
        attempt: 1,
        generation: 0,
        seen: 0,
        used: 0,
        accepted: [0; 16],
        task: 0,
        tasks: 3,
        replicas: 1,
        alive: TaskSet::default(),
        linked: TaskSet::default(),
    };
    let bytes = Packet::Hello(hello).write(digest, 1);
    let nothing: OwnedFd = std::fs::File::open("/dev/null").expect("a file").into();
    let mut open = Vec::new();
    for round in 0..40 {
        for task in 0..3 {
            let name = super::options::name(&options(task, 3, digest), task);
            let Some(socket) = socket::connect(&name).expect("a socket") else { continue };
            let _ = match round % 5 {
                // Send nothing.
                0 => Ok(true),
                1 => socket::send(&socket, b"GET / HTTP/1.1\r\n\r\n", None),
                2 => socket::send(&socket, &bytes[..100], None),
                // A hello of a task below, whose process would not connect; with a descriptor, too.
                3 => socket::send(&socket, &bytes, Some(std::os::fd::AsFd::as_fd(&nothing))),
                _ => socket::send(&socket, &vec![1; 100_000], None),
            };
            // Some connections are closed at once.
            if round % 2 == 0 {
                open.push(socket);
            }
        }
        if round % 10 == 5 {
            assert_eq!(form_all(&mut workers, 0).1, [0, 1, 2]);
        }
    }
}

#[test]
fn a_member_gone_at_the_formation_is_known_by_its_process() {
    let of_task_0 = options(0, 2, job());
    let (digest, name) = (of_task_0.digest, super::options::name(&of_task_0, 0));
    let _listener = socket::listen(&super::options::name(&of_task_0, 1)).unwrap();
    let mut meeting = Meeting::open(of_task_0).unwrap();
    let mut member = socket::connect(&name).unwrap();
    let hello = Hello {
        nonce: 7,
        attempt: 1,
        generation: 0,
        seen: 0,
        used: 0,
        accepted: [0; 16],
        task: 1,
        tasks: 2,
        replicas: 1,
        alive: TaskSet::default(),
        linked: TaskSet::first(1),
    };
    let say = |member: &OwnedFd, hello| {
        assert!(socket::send(member, &Packet::Hello(hello).write(digest, 1), None).unwrap());
    };
    say(member.as_ref().expect("a listener"), hello.clone());
    let create = |group: &super::packet::Group, _: &[u32]| {
        // It accepts, and is gone before the leader reads that.
        let member = member.take().expect("the group is made once");
        say(&member, Hello { accepted: group.id, ..hello.clone() });
        segment(group)
    };
    let formed = meeting.form(Instant::now() + LIMIT, Duration::ZERO, create, |_| ()).unwrap();
    assert_eq!(formed.members[1].pid, Some(std::process::id()));
    let (gone, told) = mpsc::channel();
    let _watch = Watch::start(&formed, None, move |member, how| _ = gone.send((member, how))).unwrap();
    assert_eq!(told.recv_timeout(LIMIT), Ok((1, Gone::Ended)));
}

#[test]
fn a_stranger_of_another_version_ends_no_meeting() {
    let stranger = [b"consmeet".as_slice(), &[9; 100]].concat();
    let form = |meeting: &mut Meeting| {
        let error = meeting.form(Instant::now(), Duration::ZERO, |_, _| unreachable!("no group"), |_| ()).unwrap_err();
        assert!(!matches!(error, MeetingError::OtherBuild { .. }), "{error}");
    };
    // A stranger that connects.
    let of_task_0 = options(0, 2, job());
    let name = super::options::name(&of_task_0, 0);
    let mut meeting = Meeting::open(of_task_0).unwrap();
    let socket = socket::connect(&name).unwrap().expect("a listener");
    assert!(socket::send(&socket, &stranger, None).unwrap());
    form(&mut meeting);
    // A stranger that listens at the name of a task.
    let of_task_1 = options(1, 2, job());
    let listener = socket::listen(&super::options::name(&of_task_1, 0)).unwrap();
    let mut meeting = Meeting::open(of_task_1).unwrap();
    form(&mut meeting);
    let socket = socket::accept(&listener).unwrap().expect("the meeting has connected");
    assert!(socket::send(&socket, &stranger, None).unwrap());
    form(&mut meeting);
}

/// Found by a trial: the digest is in the name of a socket, which all can list.
#[test]
fn a_stranger_with_the_digest_ends_no_meeting() {
    let digest = job();
    let mut workers = open_all(2, digest);
    workers[0].form(0);
    let hello = Hello {
        nonce: 1,
        attempt: 1,
        generation: 0,
        seen: 0,
        used: 0,
        accepted: [0; 16],
        task: 1,
        tasks: 2,
        replicas: 1,
        alive: TaskSet::default(),
        linked: TaskSet::default(),
    };
    let other_build = Packet::Hello(hello.clone()).write(digest, 2);
    let other_size = Packet::Hello(Hello { tasks: 3, ..hello.clone() }).write(digest, 1);
    let member = Packet::Hello(hello).write(digest, 1);
    let name = super::options::name(&options(0, 2, digest), 0);
    // More than are searched for.
    let mut open = Vec::new();
    for bytes in [&other_build, &other_size, &member].into_iter().cycle().take(60) {
        let socket = socket::connect(&name).expect("a socket").expect("a listener");
        assert!(socket::send(&socket, bytes, None).expect("a listener"));
        open.push(socket);
    }
    workers[1].form(0);
    for worker in &workers {
        assert_eq!(worker.formed().1, [0, 1]);
    }
}

#[test]
fn processes_of_another_user_are_refused() {
    if socket::user() != 0 {
        // Not by a macro, whose lines of a test that passes are not shown.
        let _ = writeln!(io::stderr(), "skipped: processes of another user; only the superuser can become one");
        return;
    }
    let digest = job();
    // SAFETY: the calls take numbers. Only this thread becomes another user, and only until the
    // action is done.
    let as_other_user = |action: &mut dyn FnMut()| unsafe {
        let change = |uid: libc::uid_t| libc::syscall(libc::SYS_setresuid, u32::MAX, uid, u32::MAX);
        assert_eq!(change(65534), 0);
        action();
        assert_eq!(change(0), 0);
    };
    let socket_name = super::options::name(&options(0, 2, digest), 0);
    let mut listener = None;
    as_other_user(&mut || listener = Some(socket::listen(&socket_name).expect("a listener")));
    let mut worker = Worker::open(1, 2, digest);
    worker.form(0);
    let pid = Some(std::process::id());
    worker.expect_error(&MeetingError::OtherUser { name: name(0), pid, uid: 65534 });
    drop(listener);
    // A process of another user that connects does no harm.
    let mut zero = Worker::open(0, 2, digest);
    let mut socket = None;
    as_other_user(&mut || socket = socket::connect(&socket_name).expect("a socket"));
    assert_eq!(form_all([&mut zero, &mut worker], 0).1, [0, 1]);
}

#[test]
fn a_failure_of_the_leader_to_make_the_group_reaches_all() {
    let mut workers = open_all(3, job());
    workers.iter_mut().for_each(|worker| worker.command("fail 30000 0"));
    let own = system("make what the group shares", io::Error::other("no memory"));
    workers[0].expect_error(&own);
    for worker in &workers[1..] {
        worker.expect_error(&MeetingError::Failed { name: name(0), why: format!("{own}") });
    }
    assert_eq!(form_all(&mut workers, 0), (1, vec![0, 1, 2]));
}

#[test]
fn a_member_without_a_descriptor_for_the_segment_says_so() {
    let mut workers = open_all(2, job());
    assert_eq!(form_all(&mut workers, 0), (1, vec![0, 1]));
    workers[1].command("crowd");
    workers.iter_mut().for_each(|worker| worker.form(0));
    let own = system("receive what the group shares", Errno::MFILE.into());
    workers[1].expect_error(&own);
    workers[0].expect_error(&MeetingError::Failed { name: name(1), why: format!("{own}") });
    workers[1].command("clear");
    assert_eq!(form_all(&mut workers, 0).1, [0, 1]);
}

#[test]
fn connections_without_an_end_keep_nobody_from_the_deadline() {
    let options = options(0, 2, job());
    let name = super::options::name(&options, 0);
    let mut meeting = Meeting::open(options).unwrap();
    let sockets: Vec<OwnedFd> = (0..250).map(|_| socket::connect(&name).unwrap().expect("a place to wait")).collect();
    let error = meeting.form(Instant::now(), Duration::ZERO, |_, _| unreachable!("no group"), |_| ()).unwrap_err();
    assert!(matches!(error, MeetingError::Missing { .. }), "{error}");
    // Only a bounded number of accepted connections stays open. Connections that came later still
    // wait.
    let mut buffer = vec![0; MAX_BYTES];
    let mut is_closed = |socket| matches!(socket::receive(socket, &mut buffer), socket::Received::Closed);
    let closed = sockets.iter().filter(|socket| is_closed(socket)).count();
    assert!(closed < 100, "{closed} of 250 were taken before the deadline was looked at");
}

#[test]
fn survivors_form_a_new_group() {
    for lost in [0, 1, 3] {
        let digest = job();
        let mut workers = open_all(4, digest);
        assert_eq!(form_all(&mut workers, 0).0, 1);
        workers.remove(lost).kill();
        for worker in &workers {
            assert!(worker.wait_for("gone").starts_with(&format!("{lost} Ended")));
        }
        let left: Vec<usize> = (0..4).filter(|&task| task != lost).collect();
        assert_eq!(form_all(&mut workers, 0), (2, left));
        // A replacement cannot join while the group goes on.
        let mut replacement = Worker::open(lost, 4, digest);
        replacement.command("form 100 0");
        let error = replacement.wait_for("error");
        assert!(error.starts_with("Without "), "{error}");
        // It can when the members form a new group.
        workers.insert(lost, replacement);
        assert_eq!(form_all(&mut workers, 10_000), (3, vec![0, 1, 2, 3]));
    }
}

#[test]
fn a_replacement_comes_in_time_or_not() {
    let digest = job();
    let mut workers = open_all(3, digest);
    form_all(&mut workers, 0);
    workers.remove(0).kill();
    // The replacement starts while the survivors wait for it.
    workers.iter_mut().for_each(|worker| worker.form(LIMIT.as_millis() as u64));
    let mut replacement = Worker::open(0, 3, digest);
    replacement.form(0);
    workers.insert(0, replacement);
    for worker in &workers {
        let (generation, tasks, _) = worker.formed();
        assert_eq!((generation, tasks), (2, vec![0, 1, 2]));
    }
}

#[test]
fn a_stopped_or_busy_survivor_is_waited_for() {
    let digest = job();
    let mut workers = open_all(4, digest);
    form_all(&mut workers, 0);
    workers.remove(1).kill();
    workers[1].signal(Signal::STOP);
    let (stopped, busy) = (Some(workers[1].pid()), Some(workers[2].pid()));
    // Worker 3 runs, but does not call `form`.
    workers[0].command("form 300 0");
    let error = workers[0].wait_for("error");
    let tasks = [absent(2, stopped, ProcessState::Stopped), absent(3, busy, ProcessState::Running)];
    assert!(error.starts_with("Alive ") && error.ends_with(&format!(" absent: {tasks:?} }}")), "{error}");
    workers[1].signal(Signal::CONT);
    assert_eq!(form_all(&mut workers, 0), (2, vec![0, 2, 3]));
}

#[test]
fn forming_a_new_group_leaves_the_last_one() {
    let mut workers = open_all(3, job());
    form_all(&mut workers, 0);
    workers[2].form(0);
    for worker in &workers[..2] {
        assert!(worker.wait_for("gone").starts_with("2 Left"));
    }
    workers[1].form(0);
    assert!(workers[0].wait_for("gone").starts_with("1 Left"));
    workers[0].form(0);
    let formed: Vec<_> = workers.iter().map(Worker::formed).collect();
    assert!(formed.iter().all(|one| *one == formed[0] && one.0 == 2), "{formed:?}");
}

#[test]
fn eight_workers_meet_a_hundred_times() {
    let mut workers = open_all(8, job());
    for generation in 1..=100 {
        assert_eq!(form_all(&mut workers, 0), (generation, (0..8).collect()));
    }
}

#[test]
fn options_out_of_bounds_are_refused() {
    for (task, tasks, replicas) in [(2, 2, 1), (0, 0, 1), (0, 1025, 1), (0, 1, 0), (0, 1, 1025)] {
        let options = MeetingOptions { digest: job(), layout: 1, task, names: names(tasks), replicas };
        assert!(matches!(Meeting::open(options), Err(MeetingError::Options { .. })), "{task} {tasks} {replicas}");
    }
    let digest = job();
    let replicas = move |task| MeetingOptions { replicas: 600, ..options(task, 2, digest) };
    let results = [0, 1].map(|task| {
        thread::spawn(move || {
            let mut meeting = Meeting::open(replicas(task)).expect("a meeting");
            meeting.form(Instant::now() + LIMIT, LIMIT, |_, _| unreachable!("no group"), |_| ()).map(|_| ())
        })
    });
    for error in results.map(|result| result.join().expect("no panic").expect_err("too many")) {
        match error {
            MeetingError::TooManyRanks { found: 1200, most: 1024 } => {}
            // The other one told it first.
            MeetingError::Failed { why, .. } => {
                assert_eq!(why, format!("{}", MeetingError::TooManyRanks { found: 1200, most: 1024 }));
            }
            error => panic!("{error}"),
        }
    }
}

#[test]
fn the_state_of_a_process_shows_a_stop() {
    let worker = Worker::open(0, 1, job());
    assert_eq!(process_state(worker.pid()), ProcessState::Running);
    worker.signal(Signal::STOP);
    let begin = Instant::now();
    while process_state(worker.pid()) != ProcessState::Stopped {
        assert!(begin.elapsed() < LIMIT, "it does not stop");
        thread::sleep(Duration::from_millis(1));
    }
    worker.signal(Signal::CONT);
}

/// Two members in one process: [`Watch`] reports that one of them closes its meeting.
#[test]
fn a_closed_meeting_has_left() {
    let digest = job();
    let (tell, told) = mpsc::channel();
    let join = move |task| {
        let mut meeting = Meeting::open(options(task, 2, digest)).expect("a meeting");
        let create = |group: &super::packet::Group, _: &[u32]| segment(group);
        let formed = meeting.form(Instant::now() + LIMIT, LIMIT, create, |_| ()).expect("a group");
        (meeting, formed)
    };
    let other = thread::spawn(move || join(1));
    let (meeting, formed) = join(0);
    let watch =
        Watch::start(&formed, None, move |member, gone| tell.send((member, gone)).expect("a test")).expect("a thread");
    assert!(told.try_recv().is_err());
    drop(other.join().expect("no panic"));
    assert_eq!(told.recv_timeout(LIMIT), Ok((1, Gone::Left)));
    drop((watch, meeting));
}

#[test]
fn replacements_may_be_waited_for_without_an_end() {
    let mut meeting = Meeting::open(options(0, 2, job())).unwrap();
    let create = |_: &super::packet::Group, _: &[u32]| unreachable!("there is nobody");
    let deadline = Instant::now() + Duration::from_millis(1);
    let error = meeting.form(deadline, Duration::MAX, create, |_| {}).unwrap_err();
    assert!(matches!(error, MeetingError::Missing { .. }), "{error}");
}
