//! The variables as a worker or the chief reads them: in place, in the memory of the servers of
//! this host. Those of other hosts send what is read.

use super::{
    effect::{Effect, PartSpec},
    link::{Handle, Link},
    message,
    variable::{Asked, Layout, Shard},
};
use crate::{
    DType, Error, Result, Tensor,
    nest::{NestReader, NestWriter},
    profile::{Event, Name, RequestRecord, Span, is_on},
    value::nest::sent::malformed,
};
use consonance_kernels::{
    cpu::copy::copy_own,
    memory::{HostBufMut, HostMemory},
    shm::{PublishedView, Reading},
};
use std::{
    iter,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// The memory of the servers of this host, and the links to all servers.
#[derive(Debug)]
pub(super) struct Tables {
    servers: Vec<Served>,
    timeout: Duration,
}

/// A server, as its readers know it.
#[derive(Debug)]
pub(super) struct Served {
    /// The link. Whoever sends a request on it holds the lock until the reply.
    link: Mutex<Link>,
    pub(super) handle: Handle,
    /// Its memory, if it is on this host.
    memory: Option<PublishedView>,
}

/// The time for which a reader that is overtaken again and again reads by itself. Then the server
/// reads for it, which it does between two writes.
const ALONE: Duration = Duration::from_millis(20);

impl Served {
    pub(super) fn new(link: Link, memory: Option<PublishedView>) -> Served {
        Served { handle: link.handle(), link: Mutex::new(link), memory }
    }

    pub(super) fn link(&self) -> MutexGuard<'_, Link> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tables {
    pub(super) fn new(servers: Vec<Served>, timeout: Duration) -> Tables {
        Tables { servers, timeout }
    }

    pub(super) fn servers(&self) -> &[Served] {
        &self.servers
    }

    /// Sends a request to a server and returns its reply.
    ///
    /// # Errors
    /// [`Error::Aborted`] if the server is lost, [`Error::Timeout`] if it does not reply.
    pub(super) fn call(&self, server: usize, request: &[u8]) -> Result<Vec<u8>> {
        self.servers[server].link().call(request, self.timeout)
    }

    /// Returns the request of each server that has pieces of these effects: they follow `begun`.
    ///
    /// # Errors
    /// None for tensors in host memory.
    pub(super) fn requests<'e>(
        &self,
        begun: &NestWriter,
        effects: impl IntoIterator<Item = &'e Effect>,
    ) -> Result<Vec<(usize, Vec<u8>)>> {
        let mut requests = vec![begun.clone(); self.servers.len()];
        effects.into_iter().try_for_each(|effect| effect.split(&mut requests))?;
        let requests = requests.into_iter().enumerate().filter(|(_, request)| request.bytes() > begun.bytes());
        Ok(requests.map(|(server, request)| (server, request.into_bytes())).collect())
    }

    /// Sends requests to servers, in order of their numbers, and waits for all replies. So servers
    /// work at the same time.
    ///
    /// # Errors
    /// As [`call`](Self::call), of the first server.
    pub(super) fn call_each(&self, requests: &[(usize, Vec<u8>)]) -> Result<()> {
        self.call_each_until(requests, Instant::now() + self.timeout)
    }

    /// As [`call_each`](Self::call_each), with a deadline.
    ///
    /// # Errors
    /// As [`call`](Self::call), of the first server.
    pub(super) fn call_each_until(&self, requests: &[(usize, Vec<u8>)], deadline: Instant) -> Result<()> {
        let span = is_on().then(|| {
            let kind = requests.first().and_then(|(_, request)| NestReader::new(request).number().ok());
            let bytes = requests.iter().map(|(_, request)| request.len() as u64).sum();
            let request = RequestRecord { name: Name::of(kind.map_or("", message::name)), bytes, failed: false };
            (Span::begin(0, 1, Event::Request(request)), request)
        });
        let called = self.call_all(requests, deadline);
        if let Some((span, request)) = span {
            span.end(Event::Request(RequestRecord { failed: called.is_err(), ..request }));
        }
        called
    }

    fn call_all(&self, requests: &[(usize, Vec<u8>)], deadline: Instant) -> Result<()> {
        let links: Vec<_> = requests.iter().map(|&(server, _)| self.servers[server].link()).collect();
        let asked: Vec<Result<()>> =
            links.iter().zip(requests).map(|(link, (_, request))| link.begin(request)).collect();
        let replies: Vec<Result<Vec<u8>>> =
            links.iter().zip(asked).map(|(link, asked)| asked.and_then(|()| link.finish(deadline))).collect();
        replies.into_iter().try_for_each(|reply| reply.map(drop))
    }

    /// Reads rows of a variable, each shard as of one moment.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub(super) fn read(&self, layout: &Layout, asked: Asked<'_>) -> Result<HostMemory> {
        let shape = layout.shape_of(asked);
        let count = shape.iter().product();
        let mut memory =
            HostMemory::try_unspecified(layout.dtype, count).map_err(Error::no_memory(layout.dtype, count))?;
        let mut target = memory.as_buf_mut();
        let row = layout.row_count();
        match asked {
            Asked::All => {
                for shard in &layout.shards {
                    let elements = shard.rows.start * row..shard.rows.end * row;
                    self.read_shard(shard, None, row, target.reborrow().slice(elements))?;
                }
            }
            Asked::Rows(rows) => {
                let first = rows.first().map_or(0, |&row| layout.shard_of(row));
                if let Some(shard) =
                    layout.shards.get(first).filter(|shard| rows.iter().all(|row| shard.rows.contains(row)))
                {
                    let within: Vec<usize> = rows.iter().map(|row| row - shard.rows.start).collect();
                    self.read_shard(shard, Some(&within), row, target)?;
                } else {
                    self.read_from_several(layout, rows, &mut target)?;
                }
            }
        }
        Ok(memory)
    }

    fn read_from_several(&self, layout: &Layout, rows: &[usize], target: &mut HostBufMut<'_>) -> Result<()> {
        let row = layout.row_count();
        let mut of_shard = vec![(Vec::new(), Vec::new()); layout.shards.len()];
        for (place, &row) in rows.iter().enumerate() {
            let shard = layout.shard_of(row);
            of_shard[shard].0.push(place);
            of_shard[shard].1.push(row - layout.shards[shard].rows.start);
        }
        for (shard, (places, within)) in
            layout.shards.iter().zip(of_shard).filter(|(_, (places, _))| !places.is_empty())
        {
            let count = within.len() * row;
            let mut read =
                HostMemory::try_unspecified(layout.dtype, count).map_err(Error::no_memory(layout.dtype, count))?;
            self.read_shard(shard, Some(&within), row, read.as_buf_mut())?;
            let elements = |at: usize| at * row..(at + 1) * row;
            for (from, to) in places.into_iter().enumerate() {
                let mut target = target.reborrow().slice(elements(to));
                copy_own(read.as_buf().slice(elements(from)), &mut target);
            }
        }
        Ok(())
    }

    /// Reads rows of a shard, or all of it.
    fn read_shard(&self, shard: &Shard, rows: Option<&[usize]>, row: usize, mut target: HostBufMut<'_>) -> Result<()> {
        let deadline = Instant::now() + ALONE;
        if let Some(memory) = &self.servers[shard.server].memory {
            let reading = match rows {
                None => memory.read(shard.part, iter::once(0..shard.rows.len() * row), target.reborrow(), deadline),
                Some(rows) => memory.read_rows(shard.part, row, rows, target.reborrow(), deadline),
            };
            match reading {
                Reading::Done => return Ok(()),
                Reading::Overtaken => {}
            }
        }
        let mut request = message::request(message::READ);
        request.number(shard.part as u64);
        request.number(u64::from(rows.is_some()));
        if let Some(rows) = rows {
            request.numbers(rows);
        }
        let reply = self.call(shard.server, &request.into_bytes())?;
        let tensor = NestReader::new(&reply).tensor()?;
        if (tensor.dtype(), tensor.count()) != (target.dtype(), target.count()) {
            return Err(malformed("a server sends other rows than it was asked for"));
        }
        copy_own(tensor.host()?, &mut target);
        Ok(())
    }
}

/// Makes a tensor of rows that were read.
pub(super) fn tensor(layout: &Layout, asked: Asked<'_>, memory: HostMemory) -> Result<Tensor> {
    Tensor::from_memory(layout.shape_of(asked), memory)
}

/// Returns the parts of a server's memory for these specs.
pub(super) fn parts(specs: &[PartSpec]) -> Vec<(DType, usize)> {
    specs.iter().map(|spec| (spec.dtype, spec.count())).collect()
}
