//! Counts the system calls of a child process, which this process traces.

use super::strategies::{self, Baseline};
use nix::{
    errno::Errno,
    libc,
    sys::{
        ptrace::{self, Options},
        resource::{UsageWho, getrusage},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::{Pid, getpgid},
};
use std::{
    env, fs, io,
    process::{Command, Stdio},
    thread,
    time::Instant,
};

/// Rounds of a row. The one with the fewest calls counts: in the others, a thread that was not
/// there in time was waited for.
const ROUNDS: usize = 20;

/// Calls in a round.
const CALLS: usize = 20;

/// The number of repetitions of all rounds while a count is too large: beside other programs, all
/// rounds of a row may have such a thread.
const TRIES: usize = 20;

/// The share of one core that other programs may take. Beside a busier machine, threads that wait
/// for each other fall asleep more often than the baselines have it.
const OTHERS_SHARE: f64 = 0.2;

/// The unit of the times in `/proc`.
const TICKS_PER_SECOND: f64 = 100.0;

/// Mark the begin and the end of a round for the tracer, as arguments of `getpgid`. No process has
/// such a number.
const BEGIN: u64 = 1 << 30;
const END: u64 = BEGIN + 1;

/// Child: makes the calls of all rows as soon as there is a line on the standard input.
pub(super) fn make_the_calls() {
    io::stdin().read_line(&mut String::new()).unwrap();
    let mark = |mark: u64| assert_eq!(getpgid(Some(Pid::from_raw(mark as i32))), Err(Errno::ESRCH));
    strategies::each(|(_, _, call)| {
        for _ in 0..ROUNDS {
            strategies::repeat(call, CALLS, || mark(BEGIN), || mark(END));
        }
    })
    .unwrap();
}

/// The system calls of a round.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Count {
    all: usize,
    wakes: usize,
}

impl Count {
    /// Returns the system calls and the wakes of a call, on average.
    fn of_a_call(self) -> [f64; 2] {
        [self.all, self.wakes].map(|count| count as f64 / CALLS as f64)
    }
}

pub(super) fn strategies_ask_the_system_no_more_than_they_did() {
    let (mut rows, mut fewest): (Vec<(&str, Baseline)>, _) = (Vec::new(), Vec::<Option<Count>>::new());
    strategies::each(|(name, baseline, _)| rows.push((name, baseline))).unwrap();
    fewest.resize(rows.len(), None);
    let has_one_core = thread::available_parallelism().is_ok_and(|cores| cores.get() == 1);
    let is_within = |count: Count, baseline: &Baseline| {
        let [all, wakes] = count.of_a_call();
        strategies::is_within(all, baseline.system_calls) && strategies::is_within(wakes, baseline.wakes)
    };
    let is_compared = |baseline: &Baseline| !has_one_core || baseline.wakes == 0;
    let mut others = 0.0;
    for _ in 0..TRIES {
        let (begin, before) = (Instant::now(), time_of_others());
        let counts = match traced() {
            Ok(counts) => counts,
            Err(errno) => {
                println!(
                    "skipped: system calls are not counted, since this system allows no trace of a child: {errno}"
                );
                return;
            }
        };
        assert_eq!(counts.len(), rows.len() * ROUNDS, "the rounds of each row");
        others = (time_of_others() - before) / begin.elapsed().as_secs_f64();
        for (fewest, rounds) in fewest.iter_mut().zip(counts.chunks(ROUNDS)) {
            *fewest = rounds.iter().copied().chain(*fewest).min();
        }
        let compared = fewest.iter().zip(&rows).filter(|(_, (_, baseline))| is_compared(baseline));
        if compared.into_iter().all(|(count, (_, baseline))| count.is_some_and(|count| is_within(count, baseline))) {
            break;
        }
    }
    for (count, (name, baseline)) in fewest.into_iter().zip(rows) {
        if !is_compared(&baseline) {
            println!("{name}: system calls are not compared: threads that share one core sleep at any time");
            continue;
        }
        let count = count.expect("the rounds of each row");
        if baseline.wakes > 0 && others > OTHERS_SHARE && !is_within(count, &baseline) {
            println!("{name}: system calls are not compared: other programs take {others:.1} cores");
            continue;
        }
        let [all, wakes] = count.of_a_call();
        strategies::compare(name, "system calls", all, baseline.system_calls);
        strategies::compare(name, "wakes", wakes, baseline.wakes);
    }
}

/// Returns the seconds of processor time that other programs, or other machines on the same
/// hardware, have taken from all cores.
fn time_of_others() -> f64 {
    let all = fs::read_to_string("/proc/stat").unwrap();
    let ticks: Vec<f64> = all.lines().next().unwrap().split_whitespace().filter_map(|word| word.parse().ok()).collect();
    // user, nice, system, idle, iowait, irq, softirq, steal
    let busy = ticks.iter().take(8).sum::<f64>() - ticks[3] - ticks[4];
    let own = [UsageWho::RUSAGE_SELF, UsageWho::RUSAGE_CHILDREN].map(|who| getrusage(who).unwrap());
    let own = own.iter().flat_map(|usage| [usage.user_time(), usage.system_time()]);
    let own: f64 = own.map(|time| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6).sum();
    busy / TICKS_PER_SECOND - own
}

/// Traces all threads of a child that [makes the calls](make_the_calls). Returns the count of each
/// round of each row.
///
/// # Errors
/// If the system does not allow it.
fn traced() -> Result<Vec<Count>, Errno> {
    let mut command = Command::new(env::current_exe().unwrap());
    let mut child = command.env("PART", "traced").stdin(Stdio::piped()).spawn().unwrap();
    let pid = Pid::from_raw(child.id() as i32);
    let options = Options::PTRACE_O_TRACESYSGOOD | Options::PTRACE_O_TRACECLONE | Options::PTRACE_O_EXITKILL;
    let seized = ptrace::seize(pid, options).and_then(|()| ptrace::interrupt(pid));
    if let Err(errno) = seized {
        child.kill().unwrap();
        child.wait().unwrap();
        return Err(errno);
    }
    io::Write::write_all(&mut child.stdin.take().unwrap(), b"\n").unwrap();
    let counts = follow(pid);
    // Its end has been seen.
    let _ = child.wait();
    Ok(counts)
}

/// Counts the system calls of a traced process until it ends.
fn follow(pid: Pid) -> Vec<Count> {
    let (mut counts, mut current) = (Vec::new(), None::<Count>);
    loop {
        let (thread, signal) = match waitpid(Pid::from_raw(-1), Some(WaitPidFlag::__WALL)).unwrap() {
            WaitStatus::Exited(ended, status) if ended == pid => {
                assert_eq!(status, 0);
                return counts;
            }
            WaitStatus::PtraceSyscall(thread) => {
                let registers = ptrace::getregs(thread).unwrap();
                // The value of the register when a call begins.
                if registers.rax as i64 == -i64::from(libc::ENOSYS) {
                    let mark = (registers.orig_rax == libc::SYS_getpgid as u64).then_some(registers.rdi);
                    match (mark, &mut current) {
                        (Some(BEGIN), _) => current = Some(Count::default()),
                        (Some(END), _) => counts.extend(current.take()),
                        // A yield is a wait, as long as the others take.
                        (_, Some(count)) if registers.orig_rax != libc::SYS_sched_yield as u64 => {
                            count.all += 1;
                            count.wakes += usize::from(wakes(&registers));
                        }
                        (_, _) => {}
                    }
                }
                (thread, None)
            }
            WaitStatus::PtraceEvent(thread, ..) => (thread, None),
            WaitStatus::Stopped(thread, signal) => (thread, Some(signal)),
            _ => continue,
        };
        // A thread may have ended meanwhile.
        let _ = ptrace::syscall(thread, signal);
    }
}

/// Returns whether the call that begins is a futex wake.
fn wakes(registers: &libc::user_regs_struct) -> bool {
    let operation = registers.rsi as i32 & libc::FUTEX_CMD_MASK;
    registers.orig_rax == libc::SYS_futex as u64
        && matches!(
            operation,
            libc::FUTEX_WAKE | libc::FUTEX_WAKE_BITSET | libc::FUTEX_REQUEUE | libc::FUTEX_CMP_REQUEUE
        )
}
