//! A server: the memory of its shards, and the threads that serve the chief and the workers.

use super::{
    effect::{PartSpec, Piece, Write},
    link::Link,
    message::{self, Attempt},
    staged::Staged,
    tables::parts,
    update_function::DeclaredUpdate,
    variable::Asked,
};
use crate::{
    Error, Result, Tensor,
    nest::{NestReader, NestWriter},
    profile::{Event, Name, RequestRecord, Span, is_on},
    value::nest::sent::malformed,
};
use consonance_kernels::{
    cpu::copy::copy_own,
    memory::HostMemory,
    shm::{Published, SharedFile},
};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The shards of a server, and the effects that have not committed.
#[derive(Debug)]
pub(super) struct Server {
    memory: Published,
    specs: Vec<PartSpec>,
    functions: Vec<DeclaredUpdate>,
    /// The number of slots of each of them.
    slots: Vec<usize>,
    /// Excludes changes of shards from each other: an update function reads and writes.
    changes: Mutex<()>,
    staged: Mutex<Staged<Vec<Piece>>>,
}

impl Server {
    /// Makes a server with these shards, their values, and functions that update them.
    ///
    /// # Errors
    /// [`Error::System`] if the system has no memory for the shards.
    pub(super) fn new(specs: Vec<PartSpec>, values: &[Tensor], functions: Vec<DeclaredUpdate>) -> Result<Server> {
        let memory = Published::create(&parts(&specs))
            .map_err(|error| Error::system("make the memory of a server", std::io::Error::other(error)))?;
        for (part, value) in values.iter().enumerate() {
            let value = value.host()?;
            memory.write(part, |mut shard| copy_own(value, &mut shard));
        }
        let slots = functions.iter().map(|function| function.slots).collect();
        Ok(Server { memory, specs, functions, slots, changes: Mutex::default(), staged: Mutex::default() })
    }

    /// Returns the file of the memory, for readers.
    ///
    /// # Errors
    /// [`Error::System`] if this process has no more descriptors.
    pub(super) fn file(&self) -> Result<SharedFile> {
        self.memory.file().map_err(|error| Error::system("share the memory of a server", error))
    }

    /// Answers the requests on a link, until the chief says that it ends.
    ///
    /// # Errors
    /// That of the link, which names the peer.
    pub(super) fn serve(&self, link: &Link) -> Result<()> {
        loop {
            let (number, request) = link.request()?;
            let mut reader = NestReader::new(&request);
            let kind = reader.number();
            if matches!(kind, Ok(message::END)) {
                return Ok(());
            }
            let span = is_on().then(|| {
                let name = kind.as_ref().map_or("", |&kind| message::name(kind));
                let request = RequestRecord { name: Name::of(name), bytes: request.len() as u64, failed: false };
                (Span::begin(0, 1, Event::Request(request)), request)
            });
            let mut reply = NestWriter::default();
            reply.number(1);
            let answered = kind.and_then(|kind| self.answer(kind, &mut reader, &mut reply));
            if let Some((span, request)) = span {
                span.end(Event::Request(RequestRecord { failed: answered.is_err(), ..request }));
            }
            if let Err(error) = answered {
                reply = NestWriter::default();
                reply.number(0);
                reply.text(&error.to_string());
            }
            link.reply(number, &reply.into_bytes())?;
        }
    }

    fn answer(&self, kind: u64, from: &mut NestReader<'_>, reply: &mut NestWriter) -> Result<()> {
        match kind {
            message::STAGE => {
                let attempt = Attempt::read(from)?;
                let pieces = self.pieces(from)?;
                self.lock().stage(attempt, pieces);
            }
            message::COMMIT => {
                let first = from.number()?;
                while !from.is_empty() {
                    let attempt = Attempt::read(from)?;
                    let pieces = self.lock().take(attempt);
                    self.apply(pieces.ok_or_else(|| malformed("the effects of a closure are not there"))?)?;
                }
                self.lock().forget_before(first);
            }
            message::FORGET => {
                let attempt = Attempt::read(from)?;
                self.lock().forget(attempt);
            }
            message::APPLY => {
                let pieces = self.pieces(from)?;
                self.apply(pieces)?;
            }
            message::READ => {
                let part = from.count()?;
                let spec = self.specs.get(part).ok_or_else(|| malformed("there is no such shard"))?;
                let rows = if from.flag()? { Some(from.numbers_below(spec.rows())?) } else { None };
                let memory = self.read(part, rows.as_deref())?;
                reply.tensor(&Tensor::from_memory(spec.shape_of(rows.as_deref()), memory)?)?;
            }
            _ => return Err(malformed("there is no such request")),
        }
        Ok(())
    }

    fn pieces(&self, from: &mut NestReader<'_>) -> Result<Vec<Piece>> {
        let mut pieces = Vec::new();
        while !from.is_empty() {
            pieces.push(Piece::read(from, &self.specs, &self.slots)?);
        }
        Ok(pieces)
    }

    /// Changes shards, each once for all of its pieces: a reader sees all of them or none.
    ///
    /// # Errors
    /// That of an update function. Then nothing has changed.
    fn apply(&self, pieces: Vec<Piece>) -> Result<()> {
        let _order = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        let writes = self.writes(pieces)?;
        let mut parts: Vec<usize> = writes.iter().map(|&(part, _)| part).collect();
        parts.sort_unstable();
        parts.dedup();
        for part in parts {
            let row = self.specs[part].row();
            self.memory.write(part, |mut shard| {
                let of_part = writes.iter().filter(|&&(of, _)| of == part);
                of_part.for_each(|(_, write)| write.apply(row, shard.reborrow()));
            });
        }
        Ok(())
    }

    /// Returns the writes of pieces. Update functions run here, on copies of their rows.
    fn writes(&self, pieces: Vec<Piece>) -> Result<Vec<(usize, Write)>> {
        let mut writes = Vec::new();
        for piece in pieces {
            let call = match piece {
                Piece::Write(part, write) => {
                    writes.push((part, write));
                    continue;
                }
                Piece::Call(call) => call,
            };
            let rows = call.rows.as_deref();
            let read = |&part: &usize| {
                let spec = &self.specs[part];
                let mut memory = self.read(part, rows)?;
                for (_, write) in writes.iter().filter(|&&(of, _)| of == part) {
                    write.show(rows.map_or(Asked::All, Asked::Rows), spec.row(), &mut memory)?;
                }
                Tensor::from_memory(spec.shape_of(rows), memory)
            };
            let mut tensors = call.parts.iter().map(read).collect::<Result<Vec<_>>>()?;
            self.functions[call.function].run(&mut tensors, &call.gradient)?;
            let written = tensors.into_iter().map(|tensor| Write::assign(call.rows.clone(), tensor));
            writes.extend(call.parts.iter().copied().zip(written));
        }
        Ok(writes)
    }

    fn read(&self, part: usize, rows: Option<&[usize]>) -> Result<HostMemory> {
        let spec = &self.specs[part];
        let count = rows.map_or(spec.rows(), <[usize]>::len) * spec.row();
        let mut memory = HostMemory::try_unspecified(spec.dtype, count).map_err(Error::no_memory(spec.dtype, count))?;
        self.memory.with(part, |shard| {
            let mut target = memory.as_buf_mut();
            match rows {
                None => copy_own(shard, &mut target),
                Some(rows) => {
                    let elements = |row: usize| row * spec.row()..(row + 1) * spec.row();
                    for (place, &row) in rows.iter().enumerate() {
                        copy_own(shard.slice(elements(row)), &mut target.reborrow().slice(elements(place)));
                    }
                }
            }
        });
        Ok(memory)
    }

    fn lock(&self) -> MutexGuard<'_, Staged<Vec<Piece>>> {
        self.staged.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;
    use quickcheck::{Arbitrary, Gen, QuickCheck};

    /// Requests of a peer: bytes of real ones, of which one is replaced and some are cut off.
    #[derive(Clone, Debug)]
    struct Lies(Vec<Vec<u8>>);

    impl Arbitrary for Lies {
        fn arbitrary(g: &mut Gen) -> Lies {
            let lie = |g: &mut Gen| {
                let mut bytes = g.choose(&requests()).unwrap().clone();
                if bool::arbitrary(g) {
                    // Mostly small numbers: they pass the first checks.
                    let byte = if bool::arbitrary(g) { u8::arbitrary(g) % 8 } else { u8::arbitrary(g) };
                    let place = usize::arbitrary(g) % bytes.len();
                    bytes[place] = byte;
                }
                if u8::arbitrary(g).is_multiple_of(8) {
                    bytes.truncate(usize::arbitrary(g) % bytes.len());
                }
                bytes
            };
            Lies((0..usize::arbitrary(g) % 8).map(|_| lie(g)).collect())
        }
    }

    fn specs() -> Vec<PartSpec> {
        let spec = |dtype, shape: &[usize]| PartSpec { dtype, shape: shape.to_vec() };
        vec![spec(DType::I32, &[3, 2]), spec(DType::Bool, &[4]), spec(DType::I64, &[3]), spec(DType::F32, &[])]
    }

    fn server() -> Server {
        let values: Vec<Tensor> = specs().into_iter().map(|spec| Tensor::zeros(spec.dtype, spec.shape)).collect();
        let add = |table: &mut Tensor, [count]: &mut [Tensor; 1], gradient: &Tensor| -> Result<()> {
            let sums = table.as_mut_slice::<i32>()?.iter_mut().zip(gradient.as_slice::<i32>()?);
            sums.for_each(|(sum, gradient)| *sum = sum.wrapping_add(*gradient));
            count.as_mut_slice::<i64>()?.iter_mut().for_each(|count| *count += 1);
            Ok(())
        };
        Server::new(specs(), &values, vec![DeclaredUpdate::new(&"add".into(), add)]).unwrap()
    }

    /// Returns a request of each kind, and pieces of each kind.
    fn requests() -> Vec<Vec<u8>> {
        let attempt = Attempt { number: 1, id: 2 };
        let begun = |kind: u64| {
            let mut request = message::request(kind);
            attempt.write(&mut request);
            request
        };
        let pieces = |request: &mut NestWriter| {
            for (numbers, rows, values) in [
                (&[0u64, 1][..], None, Tensor::from([true, false, true, true])),
                (&[2, 0], Some(vec![2, 0, 2]), Tensor::from([[1, 2], [3, 4], [5, 6]])),
                (&[1, 3], None, Tensor::from(0.5f32)),
                (&[3, 0, 2, 0, 2], Some(vec![0, 2]), Tensor::from([[1, 2], [3, 4]])),
            ] {
                numbers.iter().for_each(|&number| request.number(number));
                request.number(u64::from(rows.is_some()));
                rows.iter().for_each(|rows: &Vec<usize>| request.numbers(rows));
                request.tensor(&values).unwrap();
            }
        };
        let (mut stage, mut apply, mut read) =
            (begun(message::STAGE), message::request(message::APPLY), message::request(message::READ));
        pieces(&mut stage);
        pieces(&mut apply);
        [0, 1].into_iter().for_each(|number| read.number(number));
        read.numbers(&[2, 0]);
        let mut commit = message::request(message::COMMIT);
        commit.number(attempt.id);
        attempt.write(&mut commit);
        let all = [stage, apply, read, commit, begun(message::FORGET)];
        all.into_iter().map(NestWriter::into_bytes).collect()
    }

    fn answered(server: &Server, request: &[u8]) -> Result<Vec<u8>> {
        let mut reader = NestReader::new(request);
        let mut reply = NestWriter::default();
        server.answer(reader.number()?, &mut reader, &mut reply)?;
        Ok(reply.into_bytes())
    }

    #[test]
    fn any_requests_are_answered_or_refused() {
        fn holds(Lies(lies): Lies) -> bool {
            let server = server();
            lies.iter().for_each(|request| drop(answered(&server, request)));
            // All shards are still of their types, and requests are answered.
            (0..specs().len()).all(|part| server.read(part, None).is_ok())
                && requests()[..3].iter().all(|request| answered(&server, request).is_ok())
        }
        QuickCheck::new().tests(2000).quickcheck(holds as fn(Lies) -> bool);
    }

    /// A worker that was taken for lost goes on, and brings effects of a closure that has
    /// committed.
    #[test]
    fn effects_of_attempts_before_the_first_open_one_are_forgotten() {
        let server = server();
        let stage = |number: u64, id: u64| {
            let mut request = message::request(message::STAGE);
            Attempt { number, id }.write(&mut request);
            [0, 1, 0].into_iter().for_each(|number| request.number(number));
            request.tensor(&Tensor::from([true; 4])).unwrap();
            answered(&server, &request.into_bytes()).unwrap();
        };
        let commit = |first: u64, attempts: &[(u64, u64)]| {
            let mut request = message::request(message::COMMIT);
            request.number(first);
            attempts.iter().for_each(|&(number, id)| Attempt { number, id }.write(&mut request));
            answered(&server, &request.into_bytes())
        };
        let left = || {
            let attempts = server.lock().attempts();
            attempts.into_iter().map(|attempt| (attempt.number, attempt.id)).collect::<Vec<_>>()
        };
        // Closure 0 runs as attempt 1, and again as 3; 2 is an attempt to run closure 1.
        stage(0, 3);
        stage(1, 2);
        stage(0, 1);
        assert_eq!(left(), [(0, 3), (1, 2)]);
        commit(2, &[(0, 3)]).unwrap();
        stage(0, 1);
        assert_eq!(left(), [(1, 2)]);
        // An attempt to run closure 2 was lost after it had brought its effects, and the next one
        // has none here.
        stage(2, 4);
        commit(6, &[(1, 2)]).unwrap();
        assert_eq!(left(), []);
        stage(3, 6);
        // A number that comes late, of another thread of the chief, changes nothing.
        commit(5, &[]).unwrap();
        stage(4, 5);
        assert_eq!(left(), [(3, 6)]);
        commit(7, &[(3, 6)]).unwrap();
        assert!(commit(7, &[(3, 6)]).is_err());
    }

    #[test]
    fn requests_without_a_lie_change_the_shards() {
        let server = server();
        let mut requests = requests();
        let forget = requests.pop().unwrap();
        let replies: Vec<Vec<u8>> = requests.iter().map(|request| answered(&server, request).unwrap()).collect();
        assert!(answered(&server, &requests[3]).is_err(), "the effects have committed");
        assert!(answered(&server, &forget).is_ok());
        let read = NestReader::new(&replies[2]).tensor().unwrap();
        assert_eq!(read, Tensor::from([[-3, -4], [-2, -2]]));
        let read =
            |part: usize| Tensor::from_memory(specs()[part].shape.clone(), server.read(part, None).unwrap()).unwrap();
        assert_eq!(read(0), Tensor::from([[-4, -4], [0, 0], [-6, -8]]));
        assert_eq!((read(1), read(3)), (Tensor::from([true, false, true, true]), Tensor::from(1.0f32)));
        assert_eq!(read(2), Tensor::from([2i64, 0, 2]));
    }
}
