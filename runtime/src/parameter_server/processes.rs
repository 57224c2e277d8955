//! Roles of processes: how they meet, and meet again.

use super::{
    chief::{Chief, Terms},
    kept::Kept,
    link::Link,
    message,
    program::Program,
    schedule::Schedule,
    server::Server,
    tables::{Served, Tables, parts},
    threads::spawn,
    worker,
};
use crate::{
    Error, Result,
    cluster::{
        pair::{Pair, PairOptions},
        server_roles::{Place, ServerRoles},
    },
    nest::NestReader,
};
use consonance_kernels::shm::{PublishedView, SharedFile};
use std::{
    io, mem,
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{self, Sender},
    },
    thread,
    time::{Duration, Instant},
};

/// The time after which a process that waits for another one looks whether it is to end.
const SLICE: Duration = Duration::from_secs(5);

/// A link to a process that has the same program, and the file that the process gave.
struct Met {
    link: Link,
    given: Option<SharedFile>,
}

/// A process of a cluster, and its role.
#[derive(Clone, Debug)]
pub(super) struct Process(pub(super) ServerRoles);

impl Process {
    /// Starts the chief: it meets all others. Later it meets processes in the place of workers that
    /// are lost.
    ///
    /// # Errors
    /// [`Error::Meeting`] if a process does not come before the deadline, or declares another
    /// program.
    pub(super) fn start(&self, call: &'static str, mut program: Program, terms: &Terms) -> Result<Arc<Chief>> {
        drop(mem::take(&mut program.values));
        let program = Arc::new(program);
        let deadline = Instant::now() + terms.limits.timeout;
        let workers = program.workers;
        let schedule = Schedule::new(terms.order, terms.on_error, workers, program.datasets.len());
        let tables = self.tables(call, &program, terms, deadline)?;
        let chief = Arc::new(Chief::new(program, tables, schedule, terms.limits));
        for served in chief.tables.servers() {
            let (chief, link) = (chief.clone(), served.link().handle());
            spawn("consonance-watch", move || drop(chief.break_off(link.lost())))?;
        }
        let (met, all) = mpsc::channel();
        for worker in 0..workers {
            let (process, chief, met) = (self.clone(), chief.clone(), met.clone());
            spawn("consonance-chief", move || process.dispatch(call, &chief, worker, deadline, met))?;
        }
        drop(met);
        all.into_iter().collect::<Result<()>>().inspect_err(|_| chief.end())?;
        Ok(chief)
    }

    /// Brings closures to the processes of a worker, one after the other. Says when it has met the
    /// first one.
    fn dispatch(&self, call: &'static str, chief: &Arc<Chief>, worker: usize, first: Instant, met: Sender<Result<()>>) {
        let mut met = Some(met);
        while !chief.has_ended() {
            let deadline = met.as_ref().map_or_else(|| Instant::now() + SLICE, |_| first);
            let link = match (self.meet(call, Place::Worker(worker), None, &chief.program, deadline), met.take()) {
                (Ok(of), told) => {
                    told.map(|met| met.send(Ok(())));
                    of.link
                }
                (Err(error), told) if may_come(&error) && Instant::now() < deadline => {
                    met = told;
                    continue;
                }
                (Err(error), Some(met)) => return drop(met.send(Err(error))),
                // A process of another program is no replacement, and none is nothing new.
                (Err(_), None) => continue,
            };
            let (lost, handle, number) = (chief.clone(), link.handle(), chief.found(worker, &link));
            // Without this thread its loss is seen with its next closure.
            let _ = spawn("consonance-watch", move || lost.misses(worker, number, handle.lost()));
            if chief.dispatch(worker, &link).is_ok() {
                return;
            }
        }
    }

    /// Serves as a worker or a server, until the chief ends.
    ///
    /// # Errors
    /// [`Error::Meeting`] as for [`start`](Self::start); [`Error::Aborted`] if the chief is lost.
    pub(super) fn serve(&self, call: &'static str, program: Program, terms: &Terms) -> Result<()> {
        match self.0.own() {
            Place::Chief => Err(Error::WrongContext { call, problem: "the chief schedules closures".to_owned() }),
            Place::Worker(worker) => self.work(call, worker, &program, terms),
            Place::Server(server) => self.serve_shards(call, server, program, terms),
        }
    }

    fn work(&self, call: &'static str, worker: usize, program: &Program, terms: &Terms) -> Result<()> {
        let deadline = Instant::now() + terms.limits.timeout;
        let tables = self.tables(call, program, terms, deadline)?;
        let kept = Kept::new(program);
        loop {
            let chief = self.meet(call, Place::Chief, None, program, Instant::now() + terms.limits.timeout)?;
            match worker::work(&chief.link, worker, program, (&tables, &kept), terms) {
                // The chief has taken this worker for lost, which was stopped, and lives.
                Err(error) if !chief.link.has_ended(&error) => {}
                ended => return ended,
            }
        }
    }

    fn serve_shards(&self, call: &'static str, server: usize, mut program: Program, terms: &Terms) -> Result<()> {
        let values = mem::take(&mut program.values[server]);
        let shards = Arc::new(Server::new(program.parts[server].clone(), &values, program.update_functions.clone())?);
        drop(values);
        let program = Arc::new(program);
        let ends = Arc::new(Mutex::new(false));
        let (failed, failure) = mpsc::channel();
        for worker in 0..program.workers {
            let (process, program, shards) = (self.clone(), program.clone(), shards.clone());
            let (ends, failed) = (ends.clone(), failed.clone());
            spawn("consonance-ps", move || {
                while !*ends.lock().unwrap_or_else(PoisonError::into_inner) {
                    let file = match shards.file() {
                        Ok(file) => Some(file),
                        Err(error) => return drop(failed.send(error)),
                    };
                    match process.meet(call, Place::Worker(worker), file, &program, Instant::now() + SLICE) {
                        // A worker is lost, and another one comes in its place.
                        Ok(met) => drop(shards.serve(&met.link)),
                        Err(error) if may_come(&error) => {}
                        Err(error) => return drop(failed.send(error)),
                    }
                }
            })?;
        }
        let deadline = Instant::now() + terms.limits.timeout;
        let chief = self.meet(call, Place::Chief, Some(shards.file()?), &program, deadline);
        let served = chief.and_then(|chief| shards.serve(&chief.link));
        *ends.lock().unwrap_or_else(PoisonError::into_inner) = true;
        drop(failed);
        // A worker of another program is the worker's error, unless the chief is lost for it.
        served.map_err(|error| failure.try_recv().unwrap_or(error))
    }

    /// Meets all servers, and maps their memory.
    fn tables(&self, call: &'static str, program: &Program, terms: &Terms, deadline: Instant) -> Result<Tables> {
        let served = thread::scope(|scope| {
            let meet = |server: usize| {
                let met = self.meet(call, Place::Server(server), None, program, deadline)?;
                let missing = || io::Error::new(io::ErrorKind::InvalidData, "a server gives no memory");
                let memory = met.given.ok_or_else(missing);
                let specs = parts(&program.parts[server]);
                let memory = memory.and_then(|file| PublishedView::open(file, &specs).map_err(io::Error::other));
                let memory = memory.map_err(|error| Error::system("map the memory of a server", error))?;
                Ok(Served::new(met.link, memory))
            };
            let threads: Vec<_> = (0..self.0.servers().len()).map(|server| scope.spawn(move || meet(server))).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect::<Result<Vec<_>>>()
        })?;
        Ok(Tables::new(served, terms.limits.timeout))
    }

    /// Meets another process, and compares the programs.
    fn meet(
        &self,
        call: &'static str,
        peer: Place,
        gives: Option<SharedFile>,
        program: &Program,
        deadline: Instant,
    ) -> Result<Met> {
        let name = |place: Place| self.0.task(place).described();
        let (own_name, peer_name) = (name(self.0.own()), name(peer));
        let options = PairOptions { job: &self.0.job(), own: &own_name, peer: &peer_name, gives };
        let mut pair = Pair::meet(options, deadline)?;
        let given = pair.take_given();
        let link = Link::over(pair, &peer_name, index(peer));
        let lines = program.lines();
        let mut own = message::request(message::PROGRAM);
        lines.iter().for_each(|line| own.text(line));
        link.ask(&own.into_bytes())?;
        let other = link.request_until(deadline)?;
        let mut reader = NestReader::new(&other);
        reader.number()?;
        for place in 0.. {
            let (own, other) = (lines.get(place), if reader.is_empty() { None } else { Some(reader.text()?) });
            match (own, other) {
                (None, None) => break,
                (Some(own), Some(other)) if own == other => {}
                (own, other) => {
                    let shown = |line: Option<&str>| line.unwrap_or("no further declaration").to_owned();
                    let (own, other) = (shown(own.map(String::as_str)), shown(other));
                    let problem = format!("declaration {place} is {own}, and that of {peer_name} is {other}");
                    return Err(Error::Meeting { call, task: own_name, problem, missing: Vec::new() });
                }
            }
        }
        Ok(Met { link, given })
    }
}

/// Returns whether another process may come in the place of the one that was to be met.
fn may_come(error: &Error) -> bool {
    match error {
        Error::Meeting { missing, .. } => !missing.is_empty(),
        error => error.is_loss() || matches!(error, Error::Timeout { .. }),
    }
}

/// Returns the number of a task in its job.
fn index(place: Place) -> usize {
    match place {
        Place::Chief => 0,
        Place::Worker(index) | Place::Server(index) => index,
    }
}
