//! Roles of processes: how they meet, and meet again.

use super::{
    chief::Terms,
    generation::Generation,
    link::Link,
    message,
    program::Program,
    server::Server,
    tables::{Served, Tables, parts},
    threads::spawn,
    worker::{self, Orders},
};
use crate::{
    Error, Result, Tensor,
    cluster::{
        pair::{Far, Pair, PairOptions, gate_at},
        server_roles::{Place, ServerRoles},
    },
    nest::NestReader,
    value::nest::sent::malformed,
};
use consonance_kernels::{
    hosts::Gate,
    shm::{PublishedView, SharedFile},
};
use std::{
    io, iter, mem,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        mpsc::{self, Sender},
    },
    thread,
    time::{Duration, Instant},
};

/// The time after which a process that waits for another one looks whether it is to end.
pub(super) const SLICE: Duration = Duration::from_secs(5);

/// The time after which a process that waits for servers looks whether they are to come.
pub(super) const GLANCE: Duration = Duration::from_secs(1);

/// A link to a process that has the same program, and the file that the process gave.
pub(super) struct Met {
    pub(super) link: Link,
    given: Option<SharedFile>,
}

/// The ends of a link, which tell it from others.
pub(super) struct Ends {
    job: String,
    own: String,
    peer: String,
    /// The processes: this one, and the peer.
    places: [Place; 2],
    /// A word for what goes over the link.
    carries: String,
}

/// A process of a cluster, and its role.
#[derive(Clone, Debug)]
pub(super) struct Process {
    pub(super) roles: ServerRoles,
    /// The gate at which processes of other hosts come, once one is to come.
    gate: Arc<OnceLock<Arc<Gate>>>,
}

/// The word to the threads of a server that a generation has ended.
#[derive(Clone, Debug, Default)]
struct Past(Arc<Mutex<bool>>);

impl Process {
    pub(super) fn new(roles: ServerRoles) -> Process {
        Process { roles, gate: Arc::default() }
    }

    /// Serves as a worker or a server, until the chief ends.
    ///
    /// # Errors
    /// [`Error::Meeting`] if a process does not come before the deadline, or declares another
    /// program; [`Error::Aborted`] if the chief is lost.
    pub(super) fn serve(&self, call: &'static str, program: Program, terms: &Terms) -> Result<()> {
        match self.roles.own() {
            Place::Chief => Err(Error::WrongContext { call, problem: "the chief schedules closures".to_owned() }),
            Place::Worker(worker) => self.work(call, worker, &program, terms),
            Place::Server(server) => self.serve_shards(call, server, program, terms),
        }
    }

    fn work(&self, call: &'static str, worker: usize, program: &Program, terms: &Terms) -> Result<()> {
        let mut tables: Option<(u64, Tables)> = None;
        let kept = program.known.kept();
        loop {
            let deadline = Instant::now() + terms.limits.timeout;
            let mut orders = Orders::over(self.meet(call, self.door(Place::Chief), None, program, deadline)?.link);
            let error = loop {
                let of_generation = tables.as_ref().map(|(_, tables)| tables);
                let generation = match worker::work(&mut orders, worker, program, (of_generation, &kept), terms) {
                    Ok(Some(generation)) => generation,
                    Ok(None) => return Ok(()),
                    Err(error) => break error,
                };
                if tables.as_ref().is_none_or(|&(number, _)| number != generation.number) {
                    // The links end, and the servers forget what they had for them.
                    drop(tables.take());
                    let deadline = Instant::now() + terms.limits.timeout;
                    let met = self.tables(call, program, &generation, terms, deadline, || orders.go_on())?;
                    tables = met.map(|tables| (generation.number, tables));
                }
            };
            // Otherwise the chief has taken this worker for lost, which was stopped, and lives.
            if orders.link().has_ended(&error) {
                return Err(error);
            }
        }
    }

    fn serve_shards(&self, call: &'static str, server: usize, mut program: Program, terms: &Terms) -> Result<()> {
        let mut values = mem::take(&mut program.values[server]);
        let program = Arc::new(program);
        let (failed, failure) = mpsc::channel();
        let deadline = Instant::now() + terms.limits.timeout;
        self.open_gate(deadline)?;
        let chief = self.meet(call, self.door(Place::Chief), None, &program, deadline)?;
        let mut past = Past::default();
        let ended = loop {
            let request = match chief.link.request() {
                Ok((_, request)) => request,
                Err(error) => break Err(error),
            };
            let mut reader = NestReader::new(&request);
            match reader.number()? {
                message::END => break Ok(()),
                message::BEGIN => {
                    let generation = Generation::read(&mut reader, program.parts.len())?;
                    past.end();
                    past = Past::default();
                    // Later generations get their values from a checkpoint.
                    let values = mem::take(&mut values);
                    self.keep(call, &generation, (server, values), &program, &past, &failed)?;
                }
                _ => break Err(malformed("there is no such request")),
            }
        };
        past.end();
        // A worker of another program is the worker's error, unless the chief is lost for it.
        ended.map_err(|error| failure.try_recv().unwrap_or(error))
    }

    /// Makes memory for the servers that this process plays, and starts the threads that serve it.
    fn keep(
        &self,
        call: &'static str,
        generation: &Generation,
        (own, mut values): (usize, Vec<Tensor>),
        program: &Arc<Program>,
        past: &Past,
        failed: &Sender<Error>,
    ) -> Result<()> {
        for server in generation.played_by(own) {
            let is_first = generation.number == 0 && server == own;
            let values = if is_first { mem::take(&mut values) } else { Vec::new() };
            let shards = Server::new(program.parts[server].clone(), &values, program.known.update_functions.clone())?;
            let shards = Arc::new(shards);
            for reader in iter::once(Place::Chief).chain((0..program.known.workers).map(Place::Worker)) {
                let (process, program, shards) = (self.clone(), program.clone(), shards.clone());
                let (past, failed, generation) = (past.clone(), failed.clone(), generation.clone());
                spawn(&format!("{}: {reader}", Place::Server(server)), move || {
                    while !past.has_ended() {
                        let file = match shards.file() {
                            Ok(file) => Some(file),
                            Err(error) => return drop(failed.send(error)),
                        };
                        let ends = process.shards(reader, server, &generation);
                        match process.meet(call, ends, file, &program, Instant::now() + SLICE) {
                            // A worker is lost, and another one comes in its place.
                            Ok(met) => drop(shards.serve(&met.link)),
                            Err(error) if may_come(&error) => {}
                            Err(error) => return drop(failed.send(error)),
                        }
                    }
                })?;
            }
        }
        Ok(())
    }

    /// Meets all servers of a generation, and maps their memory. Looks now and then whether to go
    /// on. `None` if not.
    ///
    /// # Errors
    /// [`Error::Meeting`] if a server does not come before the deadline.
    pub(super) fn tables(
        &self,
        call: &'static str,
        program: &Program,
        generation: &Generation,
        terms: &Terms,
        deadline: Instant,
        mut go_on: impl FnMut() -> bool,
    ) -> Result<Option<Tables>> {
        let mut all: Vec<Option<Served>> = generation.players.iter().map(|_| None).collect();
        loop {
            let until = deadline.min(Instant::now() + GLANCE);
            let meet = |server: usize| {
                let ends = self.shards(self.roles.own(), server, generation);
                let met = self.meet(call, ends, None, program, until)?;
                let specs = parts(&program.parts[server]);
                // A server of another host gives none.
                let memory = met.given.map(|file| PublishedView::open(file, &specs).map_err(io::Error::other));
                let memory = memory.transpose().map_err(|error| Error::system("map the memory of a server", error))?;
                Ok(Served::new(met.link, memory))
            };
            thread::scope(|scope| {
                let missing = all.iter_mut().enumerate().filter(|(_, served)| served.is_none());
                let threads: Vec<_> =
                    missing.map(|(server, place)| (place, scope.spawn(move || meet(server)))).collect();
                threads.into_iter().try_for_each(|(place, thread)| match thread.join().expect("no panic") {
                    Ok(served) => {
                        *place = Some(served);
                        Ok(())
                    }
                    Err(error) if may_come(&error) && Instant::now() < deadline => Ok(()),
                    Err(error) => Err(error),
                })
            })?;
            if all.iter().all(Option::is_some) {
                return Ok(Some(Tables::new(all.into_iter().flatten().collect(), terms.limits.timeout)));
            }
            if !go_on() {
                return Ok(None);
            }
        }
    }

    /// Returns the ends of the link on which the chief gives its orders to another process.
    pub(super) fn door(&self, peer: Place) -> Ends {
        let name = |place| self.roles.task(place).described();
        Ends {
            job: self.roles.job(),
            own: name(self.roles.own()),
            peer: name(peer),
            places: [self.roles.own(), peer],
            carries: "orders".to_owned(),
        }
    }

    /// Returns the ends of the link on which a reader and a server speak of shards. This process is
    /// the reader, or plays the server.
    fn shards(&self, reader: Place, server: usize, generation: &Generation) -> Ends {
        let name = |place| self.roles.task(place).described();
        let job = format!("{}\ngeneration {}", self.roles.job(), generation.number);
        let (reads, player) = (name(reader), generation.players[server]);
        let (serves, carries) = match player == server {
            true => (name(Place::Server(server)), "shards".to_owned()),
            false => {
                let lost = &self.roles.task(Place::Server(server)).name;
                let serves = format!("{} in the place of {lost}", name(Place::Server(player)));
                (serves, format!("shards of {}", Place::Server(server)))
            }
        };
        let player = Place::Server(player);
        match self.roles.own() == reader {
            true => Ends { job, own: reads, peer: serves, places: [reader, player], carries },
            false => Ends { job, own: serves, peer: reads, places: [player, reader], carries },
        }
    }

    /// Opens the gate of this process, if another one is to come there.
    ///
    /// # Errors
    /// [`Error::Meeting`] if this process cannot listen at its address.
    pub(super) fn open_gate(&self, deadline: Instant) -> Result<()> {
        let own = self.roles.task(self.roles.own());
        match self.roles.is_called() {
            true => self.gate(&own.address, &own.described(), deadline).map(drop),
            false => Ok(()),
        }
    }

    /// Returns the gate of this process, which is opened in the first call.
    fn gate(&self, address: &str, task: &str, deadline: Instant) -> Result<&Gate> {
        if let Some(gate) = self.gate.get() {
            return Ok(gate);
        }
        let opened = gate_at(address, task, deadline)?;
        Ok(self.gate.get_or_init(|| opened))
    }

    /// Meets another process, and compares the programs.
    pub(super) fn meet(
        &self,
        call: &'static str,
        ends: Ends,
        gives: Option<SharedFile>,
        program: &Program,
        deadline: Instant,
    ) -> Result<Met> {
        let Ends { job, own: own_name, peer: peer_name, places, carries } = ends;
        let [own_role, peer_role] = places.map(|place| place.to_string());
        let addresses = places.map(|place| &*self.roles.task(place).address);
        let is_far = self.roles.is_far(places[1]);
        let gate = match is_far && !Pair::calls(&own_name, &peer_name) {
            true => Some(self.gate(addresses[0], &own_name, deadline)?),
            false => None,
        };
        let far = is_far.then_some(Far { addresses, gate });
        let options = PairOptions {
            job: &job,
            own: &own_name,
            peer: &peer_name,
            roles: [&own_role, &peer_role],
            carries: &carries,
            gives,
            far,
        };
        let mut pair = Pair::meet(options, deadline)?;
        let given = pair.take_given();
        let link = Link::over(pair, &peer_name, index(places[1]));
        let lines = program.lines();
        let mut own = message::request(message::PROGRAM);
        lines.iter().for_each(|line| own.text(line));
        link.ask(&own.into_bytes())?;
        let (_, other) = link.request_until(deadline)?;
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

impl Past {
    fn end(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
    }

    fn has_ended(&self) -> bool {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns whether another process may come in the place of the one that was to be met.
pub(super) fn may_come(error: &Error) -> bool {
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
