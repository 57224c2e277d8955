//! Ranks that share memory: threads of one process, or of several on one host.

use super::{Arguments, Backend, Configuration};
use crate::{
    Error, Result,
    algorithm::{self, Failure, Scratch},
    call::Call,
};
use consonance_kernels::{
    buffer::{Buf, Memory},
    plan::{Cut, Ground},
    segment::Segment,
    step::{Aborter, End, Fault, LastCall, Reason, Seat},
};
use consonance_spec::{DType, Kind, Signature, World};
use std::{io, ops::Range, sync::Arc};

/// One rank.
pub(crate) struct Host {
    seat: Seat,
    /// A seat in the group of two with each peer that this rank has sent to or received from; empty before the first, since most
    /// ranks of a large group never do.
    pairs: Vec<Option<Seat>>,
    scratch: Scratch,
    configuration: Configuration,
    /// The processes of the ranks, if they are in several. Given up after the seats: a process that has left is not lost.
    processes: Option<Arc<dyn Processes>>,
}

/// The processes that the ranks of a group are in.
pub(crate) trait Processes: Send + Sync {
    /// The process of a rank, in words: who it is and how it is now.
    fn describe(&self, rank: usize) -> String;
}

impl Host {
    pub(crate) fn new(mut seat: Seat, configuration: Configuration, processes: Option<Arc<dyn Processes>>) -> Host {
        seat.set_timeout(configuration.timeout);
        Host { seat, pairs: Vec::new(), scratch: Scratch::default(), configuration, processes }
    }

    /// A step of this rank and `peer` alone, whose errors name the two by their ranks in the whole group.
    fn with_peer(
        &mut self,
        peer: usize,
        signature: &Signature,
        arguments: &Arguments<'_>,
        step: impl FnOnce(&mut Seat) -> Result<(), Fault>,
    ) -> Result<()> {
        let rank = self.seat.world().rank();
        let members = [rank.min(peer), rank.max(peer)];
        self.pairs.resize_with(self.seat.world().size(), || None);
        if self.pairs[peer].is_none() {
            match self.seat.pair(peer) {
                Ok(pair) => self.pairs[peer] = Some(pair),
                Err(fault) => {
                    return Err(report(&mut self.seat, self.processes.as_deref(), fault, &lines(signature, arguments)));
                }
            }
        }
        let seat = self.pairs[peer].as_mut().expect("made above");
        let Err(fault) = step(seat) else { return Ok(()) };
        let lines = lines(signature, arguments);
        let mut error = report(seat, self.processes.as_deref(), fault, &lines);
        // What ended the whole group is told in its own numbers.
        if let (Error::Aborted { .. }, Some(abort)) = (&error, self.seat.aborter().aborted()) {
            return Err(report(&mut self.seat, self.processes.as_deref(), Fault::Aborted(abort), &lines));
        }
        // What is told of the two has their ranks in the group of two.
        let rename = |replica: &mut usize| *replica = members.get(*replica).copied().unwrap_or(*replica);
        match &mut error {
            Error::Mismatch { replica, .. } | Error::Left { replica, .. } => rename(replica),
            Error::Timeout { missing, .. } => missing.iter_mut().for_each(|(replica, _)| rename(replica)),
            Error::Aborted { replica, calls, .. } => {
                rename(replica);
                calls.iter_mut().for_each(|(replica, _)| rename(replica));
            }
            _ => {}
        }
        Err(error)
    }
}

impl Backend for Host {
    fn world(&self) -> World {
        self.seat.world()
    }

    fn execute(&mut self, call: Call<'_>, signature: &Signature, arguments: &Arguments<'_>) -> Result<()> {
        match call {
            Call::Send { data, to } => {
                self.with_peer(to, signature, arguments, |seat| algorithm::send(seat, signature, data))
            }
            Call::Recv { data, from } => {
                self.with_peer(from, signature, arguments, |seat| algorithm::recv(seat, signature, data))
            }
            call => {
                let Host { seat, scratch, configuration, processes, .. } = self;
                algorithm::run(seat, signature, call, scratch, configuration).map_err(|failure| match failure {
                    Failure::Fault(fault) => {
                        let mut lines = lines(signature, arguments);
                        if signature.kind == Kind::AllReduce {
                            let implementation = format!("{:?}", configuration.implementation);
                            lines.push(("implementation".to_owned(), implementation));
                        }
                        report(seat, processes.as_deref(), fault, &lines)
                    }
                    Failure::Counts { from, to, sent, expected } => Error::Mismatch {
                        call: signature.kind.to_string(),
                        replica: to,
                        argument: format!("recv_counts[{from}]"),
                        expected: sent.to_string(),
                        found: expected.to_string(),
                    },
                })
            }
        }
    }

    fn refuse(&mut self, signature: &Signature, why: &str) -> Result<()> {
        // No other call's detail is this one (up to one chance in 2^64).
        let refused = Signature { detail: consonance_spec::call::digest(why) | 1, ..*signature };
        let lines = [("call".to_owned(), signature.kind.to_string()), (REFUSED.to_owned(), why.to_owned())];
        let told = match self.seat.exchange(&refused, None).map(drop) {
            Err(Fault::Mismatch) => explain(&mut self.seat, &lines).map(drop),
            told => told,
        };
        told.map_err(|fault| report(&mut self.seat, self.processes.as_deref(), fault, &lines[..1]))
    }

    fn split(&mut self, color: Option<u32>, key: i32) -> Result<Option<Box<dyn Backend>>> {
        let signature = Signature { dtype: Some(DType::I64), ..Signature::new(Kind::Split) };
        let world = self.seat.world();
        let own = [color.map_or(-1, i64::from), key.into()];
        let mut all = vec![[0i64; 2]; world.size()];
        let heard = self.seat.exchange(&signature, Some(own.as_slice().into())).and_then(|payloads| {
            let mut places = all.iter_mut().enumerate();
            places.try_for_each(|(rank, place)| payloads.copy(rank, 0, &mut place.as_mut_slice().into()))
        });
        if let Err(fault) = heard {
            let lines = lines(&signature, &Arguments::NONE);
            return Err(report(&mut self.seat, self.processes.as_deref(), fault, &lines));
        }
        let mut members: Vec<usize> = (0..world.size()).filter(|&rank| all[rank][0] == own[0]).collect();
        members.sort_by_key(|&rank| all[rank][1]);
        if color.is_none() {
            members.clear();
        }
        match self.seat.split(&signature, &members) {
            Ok(seat) => {
                let host = |seat| Host::new(seat, self.configuration, self.processes.clone());
                Ok(seat.map(|seat| Box::new(host(seat)) as Box<dyn Backend>))
            }
            Err(fault) => {
                let lines = lines(&signature, &Arguments::NONE);
                Err(report(&mut self.seat, self.processes.as_deref(), fault, &lines))
            }
        }
    }

    fn configure(&mut self, configuration: &Configuration) {
        self.configuration = *configuration;
        for seat in self.pairs.iter_mut().flatten().chain([&mut self.seat]) {
            seat.set_timeout(configuration.timeout);
        }
    }

    fn alloc(&self, dtype: DType, count: usize) -> Result<Memory> {
        let what = || format!("allocate {count} elements of {dtype} that all ranks share");
        self.seat.alloc(dtype, count).map_err(|source| Error::System { what: what(), source })
    }

    fn ground(&self, peer: Option<usize>) -> Ground {
        peer.and_then(|peer| self.pairs.get(peer)?.as_ref()).unwrap_or(&self.seat).ground()
    }

    fn aborter(&self) -> Aborter {
        self.seat.aborter()
    }

    fn renew(&mut self) -> Result<()> {
        if self.seat.aborter().aborted().is_none() {
            return Ok(());
        }
        // They ended with the round.
        self.pairs.clear();
        let renewed = self.seat.renew();
        let lines = [("call".to_owned(), "the next run".to_owned())];
        renewed.map_err(|fault| report(&mut self.seat, self.processes.as_deref(), fault, &lines))
    }

    fn rest(&mut self, company: Range<usize>, resting: bool) {
        self.seat.rest(company, resting);
    }
}

/// The argument under which a rank tells that its own call cannot be right.
const REFUSED: &str = "refused";

/// A call in words, one argument a line, so that two calls can be compared argument by argument.
type Lines = [(String, String)];

fn lines(signature: &Signature, arguments: &Arguments<'_>) -> Vec<(String, String)> {
    let mut lines = vec![("call".to_owned(), arguments.call.unwrap_or(signature.kind).to_string())];
    lines.extend((arguments.describe)());
    let mut say = |argument: &str, value: Option<String>| lines.extend(value.map(|value| (argument.to_owned(), value)));
    say("op", signature.op.map(|op| op.to_string()));
    let root = if signature.kind == Kind::SendRecv { "sender" } else { "root" };
    say(root, signature.root.map(|root| root.to_string()));
    // What a call on a nest describes says more than the dtype and count of the step at hand.
    if arguments.call.is_none() {
        say("dtype", signature.dtype.map(|dtype| dtype.to_string()));
        say("count", signature.count.map(|count| count.to_string()));
    }
    lines
}

/// The error for `fault` in the call that `lines` begin with; after a mismatch the ranks tell each other what they called.
fn report(seat: &mut Seat, processes: Option<&dyn Processes>, fault: Fault, lines: &Lines) -> Error {
    let call = lines[0].1.clone();
    let process = |rank| processes.map(|processes| processes.describe(seat.top_rank(rank)));
    let said = |rank| {
        let last = last_words(seat.last_call(rank));
        process(rank).map_or(last.clone(), |process| format!("{last}; {process}"))
    };
    match fault {
        Fault::Mismatch => match explain(seat, lines) {
            Ok(texts) => compare(&texts),
            Err(fault) => report(seat, processes, fault, &[("call".to_owned(), Kind::Explain.to_string())]),
        },
        Fault::Left(replica) => {
            let lost = seat.is_lost(replica);
            let last = if lost { said(replica) } else { last_words(seat.last_call(replica)) };
            Error::Left { call, replica, last, lost }
        }
        Fault::Missing(ranks) => Error::Timeout {
            call,
            waited: seat.timeout(),
            missing: ranks.into_iter().map(|rank| (rank, said(rank))).collect(),
        },
        Fault::Aborted(abort) => {
            // It is there, unless a process writes where it must not.
            let end = seat.end().unwrap_or(End { abort, inherited: false, calls: Vec::new() });
            let reason = match end.abort.reason {
                Reason::Deadline => "gave up waiting at its deadline",
                Reason::Panic => "panicked",
                Reason::Failure => "failed",
                Reason::Memory => "got no memory for its data",
                Reason::Departure => "left with its process",
                Reason::Death => "was lost with its process",
                Reason::Return => "returned while another waited for it",
            };
            let group = if end.inherited { "of a group that this one was split from " } else { "" };
            let describe = |top_rank| processes.map(|processes| processes.describe(top_rank));
            let calls = end.calls.into_iter().map(|(top_rank, last)| (top_rank, last_words(last)));
            let (lost_process, calls): (_, Vec<String>) = match end.abort.reason {
                // A process is lost to the group of all ranks, and named by its rank there.
                Reason::Death => (describe(end.abort.rank), calls.map(|(_, last)| last).collect()),
                // One rank saw who is missing; the others find it here.
                Reason::Deadline => {
                    let told = |(top_rank, last): (usize, String)| match describe(top_rank) {
                        Some(process) => format!("{last}; {process}"),
                        None => last,
                    };
                    (None, calls.map(told).collect())
                }
                _ => Default::default(),
            };
            let lost_process = lost_process.map_or_else(String::new, |process| format!(" ({process})"));
            let calls = calls.into_iter().enumerate();
            let lost = matches!(end.abort.reason, Reason::Death | Reason::Departure);
            let (replica, reason) = (end.abort.rank, format!("{group}{reason}{lost_process}"));
            Error::Aborted { call, replica, reason, lost, calls: calls.collect() }
        }
        Fault::NoMemory { bytes, code } => Error::System {
            what: format!("{call}: reserve {bytes} bytes of the memory that processes share"),
            source: code.map_or(io::ErrorKind::OutOfMemory.into(), io::Error::from_raw_os_error),
        },
        Fault::Nonsense(rank) => Error::System {
            what: format!("{call}: read what replica {rank} says of its call"),
            source: io::Error::new(
                io::ErrorKind::InvalidData,
                "it cannot be: its process wrote where it must not in the memory that processes share",
            ),
        },
        Fault::Forked => Error::WrongContext {
            call: "a collective",
            problem: format!(
                "{call} in a process made by fork after it joined the group: join anew in the new process"
            ),
        },
        Fault::NoRoom => {
            let groups = format!("at most {} groups split off at a time", Segment::SPLITS);
            Error::invalid("Communicator::split", "color", groups, "one more")
        }
    }
}

fn last_words(last: LastCall) -> String {
    match last.signature {
        Some(signature) => format!("its last call was number {}, {signature}, {} bytes", last.number, last.bytes),
        None => "it has made no call of this group".to_owned(),
    }
}

/// The most bytes of a call in words that are read: no other process's word is a bound of what is allocated.
const EXPLAIN_BYTES: usize = 64 << 20;

/// Every rank tells every other what it called.
fn explain(seat: &mut Seat, lines: &Lines) -> Result<Vec<String>, Fault> {
    let own: String = lines.iter().map(|(argument, value)| format!("{argument}\t{value}\n")).collect();
    let mut texts = vec![Vec::<u8>::new(); seat.world().size()];
    let signature = Signature { dtype: Some(DType::U8), ..Signature::new(Kind::Explain) };
    seat.published(&signature, Some(Buf::from(own.as_bytes())), Cut::WHOLE, |peers| {
        texts.iter_mut().enumerate().try_for_each(|(rank, text)| {
            text.resize(peers.bytes(rank).min(EXPLAIN_BYTES), 0);
            peers.copy(rank, 0..text.len(), &mut text.as_mut_slice().into())
        })
    })?;
    Ok(texts.iter().map(|text| String::from_utf8_lossy(text).into_owned()).collect())
}

/// The first argument in which the first odd rank differs from what most ranks called; the same on every rank.
fn compare(texts: &[String]) -> Error {
    let votes = |text: &String| texts.iter().filter(|other| *other == text).count();
    let refused = |text: &str| text.lines().any(|line| line.starts_with(REFUSED));
    // The most votes win, and of equals the lowest rank; a call that cannot be right is never the one expected.
    let common = (0..texts.len()).rev().max_by_key(|&rank| (!refused(&texts[rank]), votes(&texts[rank]))).unwrap_or(0);
    let odd = texts.iter().position(|text| *text != texts[common]).unwrap_or(common);
    let split = |text: &'_ str| -> Vec<(String, String)> {
        text.lines().filter_map(|line| line.split_once('\t')).map(|(a, v)| (a.to_owned(), v.to_owned())).collect()
    };
    let (expected, found) = (split(&texts[common]), split(&texts[odd]));
    let call = expected.first().map_or_else(String::new, |(_, call)| call.clone());
    if let Some((_, why)) = found.iter().find(|(argument, _)| argument == REFUSED) {
        let (expected, found) = ("a valid call".to_owned(), why.clone());
        return Error::Mismatch { call, replica: odd, argument: "the call".to_owned(), expected, found };
    }
    let nothing = || "nothing".to_owned();
    let value = |lines: &[(String, String)], argument: &str| {
        lines.iter().find(|(other, _)| other == argument).map_or_else(nothing, |(_, value)| value.clone())
    };
    let argument = (expected.iter().chain(&found))
        .map(|(argument, _)| argument)
        .find(|argument| value(&expected, argument) != value(&found, argument))
        .map_or_else(|| "counts".to_owned(), String::clone);
    let (expected, found) = (value(&expected, &argument), value(&found, &argument));
    Error::Mismatch { call, replica: odd, argument, expected, found }
}
