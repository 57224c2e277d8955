//! A rank's side of the bench: it executes requests from a socket, and sleeps between them.
//!
//! Ranks of other libraries, in `rivals/`, use the same protocol, a line for each message:
//!
//! * At the beginning the rank sends `rank RANK gate`, or `rank RANK` if it will not meet the
//!   others at the gate: ranks of gloo, of builds from before the gate, and of benches that make no
//!   gate.
//! * `case COLLECTIVE DTYPE OP IN_PLACE RANKS COUNT SETS SPREAD` makes `SETS` sets of buffers. The
//!   answer is `ok`, or `none WHY` if the library has no such call.
//! * `run BATCHES TURN` fills all sets, makes a call with each and checks each, `BATCHES` times.
//!   The answer is `done CALLS CPU_SECONDS WRONG`, then the seconds of each call as a native `f64`.
//! * `steps BATCHES TURN ROUNDS` fills all sets, makes `BATCHES` calls with each, back to back,
//!   each after a computation of so many rounds, and checks each set. The answer is that of a run
//!   with one call, whose time is the mean of a step.
//!
//! If a call fails, the rank answers `failed WHY` and ends. It also ends when the socket is closed.
//!
//! Before each call of a run, and once before steps, the ranks meet at the gate, a file beside the
//! socket (`kernels/src/os/gate.rs`). It is no part of any library, so that no library's own
//! barrier takes a part of the call's time. Without a gate they meet at the library's barrier.

use super::{
    Memory,
    case::{Case, Collective},
    crossing::least,
    leaves::{LeafBuffers, Leaves},
    limits,
    link::Link,
    pace::compute,
    prepared_case::{Meeting, Prepared, Run, Steps, room},
    tile::{Habit, Layout, Segment, Small, Tiles, count},
};
use consonance::{Communicator, DType};
use consonance_harness::calls::{Call, Counts, Elements};
use consonance_kernels::{
    cpu::ways::{copy_by, rewrite_by},
    memory::{HostBuf, HostBufMut},
    os::gate::Gate,
    tuning::Way,
};
use consonance_spec::Kind;
use rustix::time::ClockId;
use std::{
    error::Error,
    io::{self, BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

/// The work that a rank does as the call.
#[derive(Clone)]
pub(super) enum Subject {
    /// The collective.
    Collective,
    /// The collective, on memory that the communicator allocates.
    Allocated,
    /// A reduction of several leaves a rank.
    Leaves(Leaves),
    /// A copy of the bytes that the collective must move at least.
    Limit,
    /// The bytes that the collective must move between hosts at least, on this link; `None` for a
    /// rank that has none.
    Linked(Option<Arc<Mutex<Link>>>),
}

/// Returns the path of the gate of the ranks that connect to this socket.
pub(super) fn gate_beside(socket: &Path) -> PathBuf {
    socket.with_file_name("gate")
}

/// Opens the gate beside the socket, if there is one: a bench from before the gate makes none.
///
/// # Errors
/// If the file cannot be opened, or is no gate.
pub(super) fn open_gate(socket: &Path, rank: usize) -> io::Result<Option<Gate>> {
    match Gate::open(&gate_beside(socket), rank) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        gate => gate.map(Some),
    }
}

/// Executes requests until the socket is closed. `clock` counts the CPU time of the rank's thread
/// or process.
///
/// # Errors
/// If the socket fails.
pub(super) fn serve(
    link: UnixStream,
    mut communicator: Communicator,
    mut gate: Option<Gate>,
    subject: Subject,
    clock: ClockId,
) -> io::Result<()> {
    let mut link = BufReader::new(link);
    writeln!(link.get_mut(), "rank {}{}", communicator.rank(), if gate.is_some() { " gate" } else { "" })?;
    let (mut prepared, mut line) = (None::<Box<dyn Prepared>>, String::new());
    loop {
        line.clear();
        if link.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let link = link.get_mut();
        match (&words[..], &mut prepared) {
            (["case", words @ ..], prepared) => {
                let Some((case, sets)) = read_case(words) else { return Err(nonsense(&line)) };
                // The buffers of the case before are freed first.
                *prepared = None;
                match prepare(case, &mut communicator, subject.clone(), sets) {
                    Ok(buffers) => *prepared = Some(buffers),
                    Err(error) => return writeln!(link, "failed {error}"),
                }
                writeln!(link, "ok")?;
            }
            (["run" | "steps", batches, turn, more @ ..], Some(prepared)) => {
                let (Ok(batches), Ok(turn)) = (batches.parse(), turn.parse()) else { return Err(nonsense(&line)) };
                let rounds: Option<u64> = match more {
                    [] => None,
                    [rounds, ..] => Some(rounds.parse().map_err(|_| nonsense(&line))?),
                };
                let mut run = Run { clock, seconds: Vec::new(), cpu_seconds: 0.0, wrong: 0 };
                let meet = &mut |communicator: &mut Communicator| match &mut gate {
                    Some(gate) => Ok(gate.wait()?),
                    None => Ok(communicator.barrier()?),
                };
                let measured = match rounds {
                    None => prepared.run(&mut communicator, meet, batches, turn, &mut run),
                    Some(rounds) => prepared.steps(&mut communicator, meet, Steps { batches, rounds, turn }, &mut run),
                };
                if let Err(error) = measured {
                    return writeln!(link, "failed {error}");
                }
                let mut answer =
                    format!("done {} {:e} {}\n", run.seconds.len(), run.cpu_seconds, run.wrong).into_bytes();
                answer.extend(run.seconds.iter().flat_map(|seconds| seconds.to_ne_bytes()));
                link.write_all(&answer)?;
            }
            _ => return Err(nonsense(&line)),
        }
    }
}

/// Returns the words after `case`.
pub(super) fn write_case(case: &Case, sets: usize) -> String {
    let Case { collective, ranks, count, dtype, op, in_place, spread } = case;
    format!("{collective} {dtype} {op} {} {ranks} {count} {sets} {spread}", u8::from(*in_place))
}

fn read_case(words: &[&str]) -> Option<(Case, usize)> {
    let &[collective, dtype, op, in_place, ranks, count, sets, spread] = words else { return None };
    let case = Case {
        collective: collective.parse().ok()?,
        dtype: *DType::ALL.iter().find(|other| other.name() == dtype)?,
        op: op.parse().ok()?,
        in_place: in_place == "1",
        ranks: ranks.parse().ok()?,
        count: count.parse().ok()?,
        spread: spread.parse().ok()?,
    };
    Some((case, sets.parse().ok()?))
}

fn nonsense(line: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("expected a case or a run, found {line:?}"))
}

/// Makes the call of `case` once. Its buffers hold zeros.
///
/// # Errors
/// If there is no memory, or the call fails.
pub(crate) fn make_once(case: Case, communicator: &mut Communicator) -> Result<(), Box<dyn Error>> {
    prepare(case, communicator, Subject::Collective, 1)?.once(communicator)
}

fn prepare(
    case: Case,
    communicator: &mut Communicator,
    subject: Subject,
    sets: usize,
) -> Result<Box<dyn Prepared>, Box<dyn Error>> {
    if let Subject::Leaves(leaves) = subject {
        return Ok(Box::new(LeafBuffers::new(case, communicator, leaves, sets)?));
    }
    macro_rules! of_dtype {
        ($({ type: $type:ty, variant: $variant:ident, $($more:tt)* })*) => {
            match case.dtype {
                $(DType::$variant => Ok(Box::new(Buffers::<$type>::new(case, communicator, subject, sets)?)),)*
            }
        };
    }
    consonance_spec::for_each_dtype!(of_dtype)
}

struct Buffers<T> {
    case: Case,
    subject: Subject,
    layout: Layout,
    tiles: Tiles<T>,
    counts: Vec<usize>,
    /// For each set, the buffer that is sent, and the other buffer.
    sets: Vec<(Elements<T>, Elements<T>)>,
    /// The way to copy for the limit.
    way: Way,
}

impl<T: Small> Buffers<T> {
    fn new(
        case: Case,
        communicator: &Communicator,
        subject: Subject,
        sets: usize,
    ) -> Result<Buffers<T>, Box<dyn Error>> {
        let rank = communicator.rank();
        let layout = match &subject {
            Subject::Collective | Subject::Allocated => Layout::of(&case, rank, Habit::Ours),
            Subject::Linked(_) | Subject::Leaves(_) => {
                Layout { send: Vec::new(), recv: Vec::new(), expect: Vec::new() }
            }
            Subject::Limit => {
                let copied = |tile| vec![Segment { tile, shift: 0, count: case.data(rank).least().div_ceil(2) }];
                match case.reduces_in_place() {
                    true => Layout { send: Vec::new(), recv: copied(rank), expect: copied(rank) },
                    false => Layout { send: copied(rank), recv: copied(case.ranks + 1), expect: copied(rank) },
                }
            }
        };
        let memory = if let Subject::Allocated = subject { Memory::Alloc } else { Memory::Slice };
        let room = |segments: &[Segment]| room(communicator, memory, count(segments));
        let mut sets = (0..sets)
            .map(|_| Ok((room(&layout.send)?, room(&layout.recv)?)))
            .collect::<Result<Vec<_>, Box<dyn Error>>>()?;
        let way = match (&subject, sets.first_mut()) {
            (Subject::Limit, Some((send, recv))) => limits::fastest(|way| copy_at_least(&case, way, send, recv)),
            _ => Way::Vector,
        };
        Ok(Buffers { case, subject, tiles: Tiles::new(&case), counts: case.counts(rank), sets, layout, way })
    }
}

impl<T: Small> Prepared for Buffers<T> {
    fn run(
        &mut self,
        communicator: &mut Communicator,
        meet: Meeting<'_>,
        batches: usize,
        turn: usize,
        run: &mut Run,
    ) -> Result<(), Box<dyn Error>> {
        let Buffers { case, subject, layout, tiles, counts, sets, way } = self;
        let warm_up = usize::from(batches > 1);
        let hosts = match subject {
            Subject::Linked(Some(link)) => link.lock().unwrap_or_else(PoisonError::into_inner).hosts(),
            _ => 1,
        };
        let crossings = &least(case, hosts);
        for batch in 0..batches + warm_up {
            let turn = turn + batch * sets.len();
            for (set, (send, recv)) in sets.iter_mut().enumerate() {
                tiles.fill(send, &layout.send, turn + set);
                tiles.fill(recv, &layout.recv, turn + set);
            }
            let (before, calls) = (run.cpu(), run.seconds.len());
            for (send, recv) in sets.iter_mut() {
                meet(communicator)?;
                let begin;
                match subject {
                    Subject::Leaves(_) => unreachable!("has buffers of its own"),
                    Subject::Collective | Subject::Allocated => {
                        let call = as_call(case, communicator.rank(), counts, send, recv);
                        begin = Instant::now();
                        call.make(communicator)?;
                    }
                    Subject::Limit => {
                        begin = Instant::now();
                        copy_at_least(case, *way, send, recv);
                    }
                    Subject::Linked(link) => {
                        begin = Instant::now();
                        if let Some(link) = link {
                            link.lock().unwrap_or_else(PoisonError::into_inner).exchange(crossings)?;
                        }
                    }
                }
                run.seconds.push(begin.elapsed().as_secs_f64());
            }
            if batch < warm_up {
                run.seconds.truncate(calls);
            } else {
                run.cpu_seconds += run.cpu() - before;
            }
            for (set, (_, recv)) in sets.iter().enumerate() {
                run.wrong += tiles.wrong(recv, &layout.expect, turn + set);
            }
        }
        Ok(())
    }

    fn steps(
        &mut self,
        communicator: &mut Communicator,
        meet: Meeting<'_>,
        Steps { batches, rounds, turn }: Steps,
        run: &mut Run,
    ) -> Result<(), Box<dyn Error>> {
        let Buffers { case, layout, tiles, counts, sets, .. } = self;
        for (set, (send, recv)) in sets.iter_mut().enumerate() {
            tiles.fill(send, &layout.send, turn + set);
            tiles.fill(recv, &layout.recv, turn + set);
        }
        let before = run.cpu();
        meet(communicator)?;
        let begin = Instant::now();
        for _ in 0..batches {
            for (send, recv) in sets.iter_mut() {
                compute(rounds);
                as_call(case, communicator.rank(), counts, send, recv).make(communicator)?;
            }
        }
        run.seconds.push(begin.elapsed().as_secs_f64() / (batches * sets.len()) as f64);
        run.cpu_seconds += (run.cpu() - before) / (batches * sets.len()) as f64;
        for (set, (_, recv)) in sets.iter().enumerate() {
            run.wrong += tiles.wrong(recv, &layout.expect, turn + set);
        }
        Ok(())
    }

    fn once(&mut self, communicator: &mut Communicator) -> Result<(), Box<dyn Error>> {
        let Buffers { case, counts, sets, .. } = self;
        let (send, recv) = sets.first_mut().ok_or("no buffers")?;
        Ok(as_call(case, communicator.rank(), counts, send, recv).make(communicator)?)
    }
}

/// Copies what the call of `case` must move at least.
fn copy_at_least<T: Small>(case: &Case, way: Way, send: &[T], recv: &mut [T]) {
    let mut recv = HostBufMut::from(recv);
    match case.reduces_in_place() {
        true => rewrite_by(way, &mut recv),
        false => copy_by(way, HostBuf::from(send), &mut recv),
    }
}

/// Returns the call of `case` on a rank. Rank 0 is the root, and sends to rank 1.
fn as_call<'a, T>(case: &Case, rank: usize, counts: &'a [usize], send: &'a [T], recv: &'a mut [T]) -> Call<'a, T> {
    let Case { collective, in_place, op, .. } = *case;
    let kind = collective.kind();
    let is_root = rank == 0;
    let (sends, receives) = match kind {
        Kind::Barrier | Kind::Split | Kind::Extension(_) => (false, false),
        Kind::Broadcast => (false, true),
        Kind::AllReduce | Kind::AllGather | Kind::ReduceScatter | Kind::AllToAll => (!in_place, true),
        Kind::Reduce => (!in_place, in_place || is_root),
        Kind::Gather => (!in_place || !is_root, is_root),
        Kind::Scatter => (is_root, !in_place || !is_root),
        Kind::SendRecv => (rank == 0, rank == 1),
    };
    let counts = if collective == Collective::AllToAllV {
        Counts::Pairs(counts, counts)
    } else if collective.is_ragged() || collective == Collective::Gather && in_place {
        // A gather in place has counts.
        Counts::Ragged(counts)
    } else {
        Counts::Even
    };
    let root = usize::from(kind == Kind::SendRecv && is_root);
    let (send, recv) = (sends.then_some(send), receives.then_some(recv));
    Call { kind, op, root, counts, send, recv }
}
