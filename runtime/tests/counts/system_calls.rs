//! Counts the system calls of a child process, which this process traces.

use super::strategies::{self, Baseline};
use nix::{
    errno::Errno,
    libc,
    sys::{
        ptrace::{self, Options},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::{Pid, getpgid},
};
use std::{
    env, io,
    process::{Command, Stdio},
    thread,
};

/// Rounds of a row. The one with the fewest calls counts: in the others, a thread that was not
/// there in time was waited for.
const ROUNDS: usize = 20;

/// Calls in a round.
const CALLS: usize = 20;

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

pub(super) fn strategies_ask_the_system_no_more_than_they_did() {
    let counts = match traced() {
        Ok(counts) => counts,
        Err(errno) => {
            println!("skipped: system calls are not counted, since this system allows no trace of a child: {errno}");
            return;
        }
    };
    let mut rounds = counts.chunks(ROUNDS);
    strategies::each(|(name, Baseline { system_calls, wakes, .. }, _)| {
        let count = rounds.next().and_then(|rounds| rounds.iter().min()).expect("the rounds of each row");
        if wakes > 0 && thread::available_parallelism().is_ok_and(|cores| cores.get() == 1) {
            println!("{name}: system calls are not compared: threads that share one core sleep at any time");
            return;
        }
        strategies::compare(name, "system calls", count.all as f64 / CALLS as f64, system_calls);
        strategies::compare(name, "wakes", count.wakes as f64 / CALLS as f64, wakes);
    })
    .unwrap();
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
                // What the result is when a call begins.
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
