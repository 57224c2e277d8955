//! A server: the memory of its shards, and the threads that serve the chief and the workers.

use super::{
    effect::{PartSpec, Piece},
    link::Link,
    message::{self, Attempt},
    tables::parts,
};
use crate::{
    Error, Result, Tensor,
    nest::{NestReader, NestWriter},
    value::nest::sent::malformed,
};
use consonance_kernels::{
    cpu::copy::copy_own,
    memory::HostMemory,
    shm::{Published, SharedFile},
};
use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// The shards of a server, and the effects that have not committed.
#[derive(Debug)]
pub(super) struct Server {
    memory: Published,
    specs: Vec<PartSpec>,
    /// The effects of the newest attempt to run each closure. They commit when the chief says so,
    /// and are forgotten when it commits another attempt or says that the closure has failed.
    staged: Mutex<HashMap<u64, (u64, Vec<Piece>)>>,
}

impl Server {
    /// Makes a server with these shards, and their values.
    ///
    /// # Errors
    /// [`Error::System`] if the system has no memory for them.
    pub(super) fn new(specs: Vec<PartSpec>, values: &[Tensor]) -> Result<Server> {
        let memory = Published::create(&parts(&specs))
            .map_err(|error| Error::system("make the memory of a server", std::io::Error::other(error)))?;
        for (part, value) in values.iter().enumerate() {
            let value = value.host()?;
            memory.write(part, |mut shard| copy_own(value, &mut shard));
        }
        Ok(Server { memory, specs, staged: Mutex::default() })
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
            let mut reply = NestWriter::default();
            reply.number(1);
            if let Err(error) = kind.and_then(|kind| self.answer(kind, &mut reader, &mut reply)) {
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
                let mut staged = self.lock();
                // The request of an attempt that was given up may come after that of the next one.
                if staged.get(&attempt.number).is_none_or(|&(id, _)| id < attempt.id) {
                    staged.insert(attempt.number, (attempt.id, pieces));
                }
            }
            message::COMMIT => {
                while !from.is_empty() {
                    let attempt = Attempt::read(from)?;
                    let staged = self.lock().remove(&attempt.number).filter(|&(id, _)| id == attempt.id);
                    let (_, pieces) = staged.ok_or_else(|| malformed("the effects of a closure are not there"))?;
                    self.apply(&pieces);
                }
            }
            message::FORGET => {
                let attempt = Attempt::read(from)?;
                self.lock().retain(|&number, &mut (id, _)| (number, id) != (attempt.number, attempt.id));
            }
            message::APPLY => {
                let pieces = self.pieces(from)?;
                self.apply(&pieces);
            }
            message::READ => {
                let part = from.count()?;
                let spec = *self.specs.get(part).ok_or_else(|| malformed("there is no such shard"))?;
                let rows = if from.flag()? { Some(from.numbers_below(spec.rows)?) } else { None };
                reply.tensor(&self.read(part, spec, rows.as_deref())?)?;
            }
            _ => return Err(malformed("there is no such request")),
        }
        Ok(())
    }

    fn pieces(&self, from: &mut NestReader<'_>) -> Result<Vec<Piece>> {
        let mut pieces = Vec::new();
        while !from.is_empty() {
            pieces.push(Piece::read(from, &self.specs)?);
        }
        Ok(pieces)
    }

    /// Changes shards, each once for all of its pieces: a reader sees all of them or none.
    fn apply(&self, pieces: &[Piece]) {
        let mut parts: Vec<usize> = pieces.iter().map(|piece| piece.part).collect();
        parts.sort_unstable();
        parts.dedup();
        for part in parts {
            let row = self.specs[part].row;
            self.memory.write(part, |mut shard| {
                pieces.iter().filter(|piece| piece.part == part).for_each(|piece| piece.apply(row, shard.reborrow()));
            });
        }
    }

    fn read(&self, part: usize, spec: PartSpec, rows: Option<&[usize]>) -> Result<Tensor> {
        let count = rows.map_or(spec.rows, <[usize]>::len) * spec.row;
        let mut memory = HostMemory::try_unspecified(spec.dtype, count).map_err(Error::no_memory(spec.dtype, count))?;
        self.memory.with(part, |shard| {
            let mut target = memory.as_buf_mut();
            match rows {
                None => copy_own(shard, &mut target),
                Some(rows) => {
                    let elements = |row: usize| row * spec.row..(row + 1) * spec.row;
                    for (place, &row) in rows.iter().enumerate() {
                        copy_own(shard.slice(elements(row)), &mut target.reborrow().slice(elements(place)));
                    }
                }
            }
        });
        Tensor::from_memory(vec![count], memory)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, (u64, Vec<Piece>)>> {
        self.staged.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
