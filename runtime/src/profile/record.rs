//! A record of a profile: a call of a replica, a run, a closure of a worker, the answer of a
//! server to a request, the identity of a GPU, or a comparison of clocks.

use crate::kind::EXTENSIONS;
use consonance_kernels::{
    cuda::Uuid,
    group::plan::Path,
    os::record_file::{Record as Words, WORDS},
    shm::codes::{code_of, kind_of},
};
use consonance_spec::{DType, Kind, ReduceOp};
use std::{fmt, time::Duration};

/// An action of a replica, with its times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// The time at which it began, by the clock of the host.
    pub begin: Duration,
    /// The time at which it ended; `None` if it had not ended when the process did.
    pub end: Option<Duration>,
    /// The replica, or the rank of a communicator.
    pub replica: usize,
    /// The number of replicas.
    pub replicas: usize,
    /// The action.
    pub event: Event,
}

/// An action of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The function that a strategy ran on it.
    Run,
    /// A call of all ranks, or of two.
    Call(CallRecord),
    /// A closure that a worker ran, which is the replica.
    Closure(ClosureRecord),
    /// A request that a server answered.
    Request(RequestRecord),
    /// The identity of a GPU: it comes before the calls on it.
    Gpu(GpuRecord),
    /// A comparison of the clock of the process's host with that of another one, at the time of the
    /// record.
    Clock(ClockRecord),
}

/// A GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuRecord {
    /// Its number in this process.
    pub ordinal: usize,
    /// Its identity, the same in all processes.
    pub uuid: Uuid,
}

/// A comparison of two clocks. A process that is on the host of the other clock says so by an equal
/// place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockRecord {
    /// The number of the process's host. Processes of other hosts have other numbers.
    pub place: u64,
    /// The number of the host of the other clock.
    pub reference: u64,
    /// The nanoseconds of the other clock less those of the own one.
    pub offset: i64,
    /// The limit on the error of the offset, in nanoseconds.
    pub error: u64,
}

/// A closure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClosureRecord {
    /// The name of its function, as far as there is room.
    pub function: Name,
    /// Its number.
    pub number: u64,
    /// Whether it ended with an error.
    pub failed: bool,
}

/// A request to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestRecord {
    /// The name of the request.
    pub name: Name,
    /// Its bytes.
    pub bytes: u64,
    /// Whether it was refused.
    pub failed: bool,
}

/// The beginning of a name, of at most 24 bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Name([u8; NAME]);

/// The bytes of a name.
const NAME: usize = 24;

impl Name {
    /// Takes the characters of a name for which there is room.
    pub fn of(name: &str) -> Name {
        let mut bytes = [0; NAME];
        let end = name.floor_char_boundary(NAME);
        bytes[..end].copy_from_slice(&name.as_bytes()[..end]);
        Name(bytes)
    }

    /// Returns the characters.
    pub fn as_str(&self) -> &str {
        let end = self.0.iter().position(|&byte| byte == 0).unwrap_or(NAME);
        std::str::from_utf8(&self.0[..end]).unwrap_or_default()
    }

    fn words(self) -> [u64; 3] {
        let (words, _) = self.0.as_chunks::<8>();
        [words[0], words[1], words[2]].map(u64::from_le_bytes)
    }

    /// Reads a name. `None` if it is no text.
    fn read(words: [u64; 3]) -> Option<Name> {
        let mut bytes = [0; NAME];
        bytes.copy_from_slice(words.map(u64::to_le_bytes).as_flattened());
        std::str::from_utf8(&bytes).ok().map(|_| Name(bytes))
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}

/// A call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallRecord {
    /// The call that the user made.
    pub name: Kind,
    /// The step of it, such as the exchange by which a merge call begins.
    pub step: Kind,
    /// The operation, if data are combined.
    pub op: Option<ReduceOp>,
    /// The element type, if data move.
    pub dtype: Option<DType>,
    /// The bytes of the larger of this rank's buffers.
    pub bytes: usize,
    /// The transport between the ranks, if the runtime knows the engine.
    pub transport: Option<Transport>,
    /// The way of its data, if ranks of the host moved some. Of several steps it is the last one's
    /// that shared memory. `None` as below.
    pub path: Option<Path>,
    /// The GPU whose memory has data of the call, by its number in this process.
    pub gpu: Option<usize>,
    /// Whether a kernel reduced the values of all ranks on that GPU. Else the data of a call on a
    /// GPU were copied to host memory.
    pub is_fold: bool,
    /// The time that this rank slept until others came or were done. `None` if the engine does
    /// not report it, or the call failed or goes on.
    pub waited: Option<Duration>,
    /// Whether it ended with an error.
    pub failed: bool,
    /// The replica that the error names first, if it names one.
    pub culprit: Option<usize>,
}

/// The transport between the ranks of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Transport {
    /// There is one rank.
    Alone = 1,
    /// Threads of a process.
    Threads = 2,
    /// Processes that share memory.
    Processes = 3,
    /// An engine that carries messages.
    Messages = 4,
}

impl Transport {
    const ALL: [Transport; 4] = [Transport::Alone, Transport::Threads, Transport::Processes, Transport::Messages];

    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Transport::Alone => "alone",
            Transport::Threads => "threads",
            Transport::Processes => "processes",
            Transport::Messages => "messages",
        }
    }
}

/// The time of something that has not ended, or is not known.
const UNKNOWN: u64 = u64::MAX;

/// The codes of events other than calls, in the place of a kind.
const RUN: u8 = u8::MAX;
const CLOSURE: u8 = u8::MAX - 1;
const REQUEST: u8 = u8::MAX - 2;
const GPU: u8 = u8::MAX - 3;
const CLOCK: u8 = u8::MAX - 4;

impl Record {
    /// Encodes the record.
    pub fn to_words(self) -> Words {
        let nanoseconds = |time: Duration| time.as_nanos() as u64;
        let time = |time: Option<Duration>| time.map_or(UNKNOWN, nanoseconds);
        let ids = self.replica as u64 | (self.replicas as u64) << 32;
        let mut words = [0; WORDS];
        words[..4].copy_from_slice(&[nanoseconds(self.begin), time(self.end), ids, RUN.into()]);
        let mut named = |code: u8, failed: bool, number: u64, name: Name| {
            let [first, second, third] = name.words();
            let codes = u64::from_le_bytes([code, 0, 0, 0, 0, failed.into(), 0, 0]);
            words[3..8].copy_from_slice(&[codes, number, first, second, third]);
        };
        match self.event {
            Event::Run => {}
            Event::Gpu(GpuRecord { ordinal, uuid }) => {
                let mut name = Name([0; NAME]);
                name.0[..uuid.0.len()].copy_from_slice(&uuid.0);
                named(GPU, false, ordinal as u64, name);
            }
            Event::Clock(ClockRecord { place, reference, offset, error }) => {
                words[3..8].copy_from_slice(&[CLOCK.into(), place, reference, offset.cast_unsigned(), error]);
            }
            Event::Closure(closure) => named(CLOSURE, closure.failed, closure.number, closure.function),
            Event::Request(request) => named(REQUEST, request.failed, request.bytes, request.name),
            Event::Call(call) => {
                let op = call.op.map_or(0, |op| op as u8 + 1);
                let dtype = call.dtype.map_or(0, |dtype| dtype as u8 + 1);
                let transport = call.transport.map_or(0, |transport| transport as u8);
                let path = call.path.map_or(0, |path| path as u8);
                let codes = [
                    code_of(call.name),
                    code_of(call.step),
                    op,
                    dtype,
                    transport,
                    call.failed.into(),
                    path,
                    call.is_fold.into(),
                ];
                let culprit = call.culprit.map_or(0, |replica| replica as u64 + 1);
                let gpu = call.gpu.map_or(0, |gpu| gpu as u64 + 1);
                let call = [u64::from_le_bytes(codes), call.bytes as u64, time(call.waited), culprit, gpu];
                words[3..8].copy_from_slice(&call);
            }
        }
        words
    }

    /// Decodes a record. `None` if the words are none: the process was killed while it wrote them,
    /// or is of another version.
    pub fn from_words(words: &Words) -> Option<Record> {
        let &[begin, end, ids, codes, bytes, waited, culprit, last] = words;
        let time = |time: u64| (time != UNKNOWN).then(|| Duration::from_nanos(time));
        let [name, step, op, dtype, transport, failed, path, is_fold] = codes.to_le_bytes();
        let begin = time(begin)?;
        let end = time(end);
        let event = match name {
            RUN => Event::Run,
            GPU => {
                let [first, second] = [waited, culprit].map(u64::to_le_bytes);
                let mut uuid = Uuid([0; 16]);
                uuid.0[..8].copy_from_slice(&first);
                uuid.0[8..].copy_from_slice(&second);
                Event::Gpu(GpuRecord { ordinal: bytes as usize, uuid })
            }
            CLOCK => {
                let (place, reference) = (bytes, waited);
                Event::Clock(ClockRecord { place, reference, offset: culprit.cast_signed(), error: last })
            }
            CLOSURE => {
                let function = Name::read([waited, culprit, last])?;
                Event::Closure(ClosureRecord { function, number: bytes, failed: failed != 0 })
            }
            REQUEST => {
                Event::Request(RequestRecord { name: Name::read([waited, culprit, last])?, bytes, failed: failed != 0 })
            }
            name => Event::Call(CallRecord {
                name: kind_of(name, EXTENSIONS)?,
                step: kind_of(step, EXTENSIONS)?,
                op: read(op, &ReduceOp::ALL)?,
                dtype: read(dtype, DType::ALL)?,
                bytes: bytes as usize,
                transport: read(transport, &Transport::ALL)?,
                path: read(path, &Path::ALL)?,
                gpu: last.checked_sub(1).map(|gpu| gpu as usize),
                is_fold: is_fold != 0,
                waited: time(waited),
                failed: failed != 0,
                culprit: culprit.checked_sub(1).map(|replica| replica as usize),
            }),
        };
        let is_valid = end.is_none_or(|end| begin <= end);
        let (replica, replicas) = (ids as u32 as usize, (ids >> 32) as usize);
        is_valid.then_some(Record { begin, end, replica, replicas, event })
    }
}

/// Returns the value with this code, one more than its index, or `None` for 0. The outer `None` is
/// for a code that no value has.
fn read<T: Copy>(code: u8, all: &[T]) -> Option<Option<T>> {
    match code.checked_sub(1) {
        None => Some(None),
        Some(index) => all.get(index as usize).copied().map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_decoded_as_they_were() {
        let call = |name, op, dtype, (transport, path), waited| {
            let step = Kind::AllGather;
            Event::Call(CallRecord {
                name,
                step,
                op,
                dtype,
                bytes: 1 << 40,
                transport,
                path,
                gpu: path.map(|path| path as usize),
                is_fold: path.is_some() && name == step,
                waited,
                failed: name != step,
                culprit: dtype.map(|dtype| dtype as usize),
            })
        };
        let ops = [None].into_iter().chain(ReduceOp::ALL.into_iter().map(Some));
        let dtypes = [None].into_iter().chain(DType::ALL.iter().copied().map(Some)).cycle();
        let paths = [None].into_iter().chain(Path::ALL.map(Some)).cycle();
        let transports = [None].into_iter().chain(Transport::ALL.map(Some)).cycle().zip(paths);
        let kinds = Kind::ALL.iter().copied().chain(EXTENSIONS.iter().map(|extension| Kind::Extension(extension)));
        let calls = kinds.zip(ops.cycle().zip(dtypes).zip(transports));
        let events = calls.map(|(kind, ((op, dtype), transport))| {
            call(kind, op, dtype, transport, op.map(|_| Duration::from_nanos(7)))
        });
        let closure = |function| ClosureRecord { function: Name::of(function), number: 1 << 40, failed: true };
        let request = RequestRecord { name: Name::of("commit"), bytes: 1 << 41, failed: false };
        let others = [
            Event::Run,
            Event::Closure(closure("step")),
            Event::Closure(closure("the gradients of the café of numbers")),
            Event::Request(request),
            Event::Clock(ClockRecord { place: u64::MAX, reference: 1 << 63, offset: -5_000_000_000, error: 70 }),
            Event::Gpu(GpuRecord { ordinal: 300, uuid: Uuid(std::array::from_fn(|byte| 250 - 9 * byte as u8)) }),
        ];
        assert_eq!(closure("the gradients of the café of numbers").function.as_str(), "the gradients of the caf");
        for event in events.chain(others) {
            for end in [None, Some(Duration::from_secs(3))] {
                let record = Record { begin: Duration::from_nanos(5), end, replica: 70_000, replicas: 70_001, event };
                assert_eq!(Record::from_words(&record.to_words()), Some(record));
            }
        }
        let all = Transport::ALL.map(|transport| (transport as u8 as usize, transport.name()));
        assert_eq!(all, [(1, "alone"), (2, "threads"), (3, "processes"), (4, "messages")]);
        let all = Path::ALL.map(|path| (path as u8 as usize, path.name()));
        assert_eq!(all, [(1, "inline"), (2, "in place"), (3, "process read"), (4, "staged"), (5, "two-shot")]);
    }

    #[test]
    fn invalid_records_are_refused() {
        let record = Record {
            begin: Duration::from_nanos(5),
            end: Some(Duration::from_nanos(9)),
            replica: 0,
            replicas: 1,
            event: Event::Run,
        };
        let words = record.to_words();
        let changed = |place: usize, word: u64| {
            let mut changed = words;
            changed[place] = word;
            Record::from_words(&changed)
        };
        assert_eq!(changed(0, u64::MAX), None, "without a begin");
        assert_eq!(changed(0, 10), None, "an end before the begin");
        for codes in [[200, 0, 0, 0], [0, 200, 0, 0], [0, 0, 200, 0], [0, 0, 0, 200]] {
            assert_eq!(changed(3, u32::from_le_bytes(codes).into()), None, "{codes:?}");
        }
        assert!(Record::from_words(&[0; WORDS]).is_some_and(|record| record.replicas == 0), "a record of zeros");
    }
}
