//! The other processes, as the chief knows them: who is there, and which generation they are of.

use super::{
    chief::{Chief, Terms},
    declarations::Known,
    effect::Effect,
    generation::Generation,
    link::{Handle, Link},
    processes::{Met, Process, SLICE, may_come},
    program::Program,
    schedule::Schedule,
    threads::spawn,
    variable::Layout,
};
use crate::{Error, Result, Tensor, cluster::server_roles::Place, variable::update::Update};
use std::{
    mem,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// The time in which threads leave their links at the end.
const END: Duration = Duration::from_secs(2);

/// The workers and the servers of a chief. A thread for each place meets the processes that come
/// there, one after the other.
#[derive(Debug)]
pub(super) struct Others {
    call: &'static str,
    pub(super) process: Process,
    program: Arc<Program>,
    terms: Terms,
    state: Mutex<State>,
    pub(super) changed: Condvar,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) generation: Generation,
    /// The chief of the last generation that has begun.
    chief: Option<Arc<Chief>>,
    pub(super) servers: Vec<ServerProcess>,
    /// The last process that has come for each worker.
    workers: Vec<Option<Handle>>,
    /// The links to workers that threads have.
    links: usize,
    /// The error for which the chief does not start.
    failed: Option<Error>,
    /// Whether the strategy is dropped.
    ends: bool,
}

/// The link to the process at the place of a server, if there is one.
pub(super) type ServerLink = Option<Arc<Mutex<Link>>>;

/// The process at the place of a server.
#[derive(Debug, Default)]
pub(super) struct ServerProcess {
    link: ServerLink,
    /// The generation that it was told of.
    generation: Option<u64>,
    /// The error that told of the loss of the last one.
    lost: Option<Error>,
}

impl Others {
    /// Meets all others, and begins the first generation.
    ///
    /// # Errors
    /// [`Error::Meeting`] if a process does not come before the deadline, or declares another
    /// program.
    pub(super) fn meet(
        call: &'static str,
        process: Process,
        program: Arc<Program>,
        terms: Terms,
    ) -> Result<(Arc<Chief>, Arc<Others>)> {
        let (workers, servers) = (program.known.workers, program.parts.len());
        let state = State {
            generation: Generation::first(servers),
            chief: None,
            servers: (0..servers).map(|_| ServerProcess::default()).collect(),
            workers: (0..workers).map(|_| None).collect(),
            links: 0,
            failed: None,
            ends: false,
        };
        let changed = Condvar::new();
        let others = Arc::new(Others { call, process, program, terms, state: Mutex::new(state), changed });
        let started = others.start(Instant::now() + terms.limits.timeout);
        started.inspect_err(|_| others.end()).map(|chief| (chief, others))
    }

    fn start(self: &Arc<Self>, deadline: Instant) -> Result<Arc<Chief>> {
        self.process.open_gate(deadline)?;
        let (workers, servers) = (self.program.known.workers, self.program.parts.len());
        for server in 0..servers {
            let others = self.clone();
            spawn("consonance-watch", move || others.attend_server(server, deadline))?;
        }
        for worker in 0..workers {
            let others = self.clone();
            spawn(&format!("chief: {}", Place::Worker(worker)), move || others.attend_worker(worker, deadline))?;
        }
        self.wait_for(|state| state.servers.iter().all(|server| server.link.is_some()))?;
        let generation = self.lock().generation.clone();
        let chief = self.begin(self.call, &generation, &[], deadline)?;
        self.wait_for(|state| state.workers.iter().all(Option::is_some))?;
        Ok(chief)
    }

    /// Waits until others have come, or one of them does not.
    fn wait_for(&self, have_come: impl Fn(&State) -> bool) -> Result<()> {
        let mut state = self.lock();
        loop {
            if let Some(error) = &state.failed {
                return Err(error.clone());
            }
            if have_come(&state) {
                return Ok(());
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Tells the servers that a generation begins, meets them, sets variables, and lets workers go
    /// on.
    ///
    /// # Errors
    /// As [`meet`](Self::meet); [`Error::Aborted`] if a server is lost.
    pub(super) fn begin(
        &self,
        call: &'static str,
        generation: &Generation,
        values: &[(Arc<Layout>, Tensor)],
        deadline: Instant,
    ) -> Result<Arc<Chief>> {
        let links: Vec<(ServerLink, bool)> =
            self.server_links().into_iter().map(|link| (link.clone(), is_present(&link))).collect();
        let mut state = self.lock();
        for (server, (link, is_present)) in state.servers.iter_mut().zip(links) {
            // Another process may have come there meanwhile.
            let link = link.filter(|link| is_present && server.link.as_ref().is_some_and(|now| Arc::ptr_eq(link, now)));
            if let Some(link) = link {
                // A loss is seen below.
                let _ = lock(&link).ask(&generation.word());
                server.generation = Some(generation.number);
            }
        }
        drop(state);
        let go_on = || self.lock().check_players().is_ok();
        let Terms { order, on_error, limits, .. } = self.terms;
        let tables = self.process.tables(call, &self.program, generation, &self.terms, deadline, go_on)?;
        let Some(tables) = tables else {
            let lost = self.lock().check_players();
            return Err(lost.expect_err("a server is lost"));
        };
        let Known { workers, datasets, .. } = &self.program.known;
        let schedule = Schedule::new(order, on_error, *workers, datasets.len());
        let schedule = schedule.beginning_at(generation.first_attempt());
        let chief = Arc::new(Chief::new(self.program.clone(), tables, schedule, limits));
        for (layout, value) in values {
            chief.apply_until(&Effect::all(layout, Update::Assign, value), deadline)?;
        }
        let mut state = self.lock();
        // Whoever is lost from here on breaks the new chief off.
        state.check_players()?;
        state.chief = Some(chief.clone());
        drop(state);
        self.changed.notify_all();
        Ok(chief)
    }

    /// Meets the processes at the place of a server, one after the other, and sees their loss.
    fn attend_server(&self, server: usize, deadline: Instant) {
        let mut first = Some(deadline);
        while let Some(met) = self.next_at(Place::Server(server), &mut first) {
            let (handle, link) = (met.link.handle(), Arc::new(Mutex::new(met.link)));
            self.lock().servers[server] = ServerProcess { link: Some(link), generation: None, lost: None };
            self.changed.notify_all();
            let error = handle.lost();
            let mut state = self.lock();
            let generation = state.servers[server].generation;
            let lost = ServerProcess { link: None, generation: None, lost: Some(error.clone()) };
            let former = mem::replace(&mut state.servers[server], lost);
            let plays = generation == Some(state.generation.number);
            let chief = state.chief.clone().filter(|_| plays);
            drop(state);
            self.changed.notify_all();
            chief.map(|chief| chief.break_off(error));
            // The end of a network may take seconds.
            drop(former);
        }
    }

    /// Brings closures to the processes of a worker, one after the other.
    fn attend_worker(self: &Arc<Self>, worker: usize, deadline: Instant) {
        let mut first = Some(deadline);
        while let Some(met) = self.next_at(Place::Worker(worker), &mut first) {
            let link = met.link;
            let mut state = self.lock();
            state.workers[worker] = Some(link.handle());
            state.links += 1;
            drop(state);
            self.changed.notify_all();
            while let Some((generation, chief)) = self.working() {
                chief.found(worker, &link);
                if let Err(error) = link.ask(&generation.word()) {
                    chief.loses(worker, &error);
                    break;
                }
                if chief.dispatch(worker, &link).is_err() {
                    break;
                }
            }
            drop(link);
            self.lock().links -= 1;
            self.changed.notify_all();
        }
    }

    /// Waits for the next process at a place; the first one comes before its deadline. `None` at
    /// the end.
    fn next_at(&self, place: Place, first: &mut Option<Instant>) -> Option<Met> {
        while !self.lock().ends {
            let deadline = first.unwrap_or_else(|| Instant::now() + SLICE);
            match self.process.meet(self.call, self.process.door(place), None, &self.program, deadline) {
                Ok(met) => {
                    *first = None;
                    return Some(met);
                }
                Err(error) if may_come(&error) && Instant::now() < deadline => {}
                Err(error) if first.is_some() => {
                    self.lock().failed.get_or_insert(error);
                    self.changed.notify_all();
                    return None;
                }
                // A process of another program is no replacement, and none is nothing new.
                Err(_) => {}
            }
        }
        None
    }

    /// Waits for a generation in which no server is lost. `None` at the end.
    fn working(&self) -> Option<(Generation, Arc<Chief>)> {
        let mut state = self.lock();
        loop {
            if state.ends {
                return None;
            }
            if let Some(chief) = state.chief.as_ref().filter(|chief| chief.loss().is_none()) {
                return Some((state.generation.clone(), chief.clone()));
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Tells workers and servers that the chief ends, and leaves the links. The word of a process
    /// that ends before it leaves them is lost.
    pub(super) fn end(&self) {
        let deadline = Instant::now() + END;
        let mut state = self.lock();
        // The word first: threads that see the end drop their links, which carry it.
        state.workers.iter().flatten().for_each(Handle::end);
        state.servers.iter().filter_map(|server| server.link.as_ref()).for_each(|link| lock(link).handle().end());
        let links: Vec<_> = state.servers.iter_mut().filter_map(|server| server.link.take()).collect();
        state.ends = true;
        let chief = state.chief.clone();
        drop(state);
        self.changed.notify_all();
        drop(links);
        chief.iter().for_each(|chief| chief.end());
        let mut state = self.lock();
        while state.links > 0 && Instant::now() < deadline {
            let left = deadline.saturating_duration_since(Instant::now());
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Returns the links to the processes at the places of servers.
    pub(super) fn server_links(&self) -> Vec<ServerLink> {
        self.lock().servers.iter().map(|server| server.link.clone()).collect()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Checks that the processes are there that play the servers of the generation.
    ///
    /// # Errors
    /// The error that told of the loss of one.
    pub(super) fn check_players(&self) -> Result<()> {
        for &player in &self.generation.players {
            let process = &self.servers[player];
            if process.generation != Some(self.generation.number) {
                let lost = process.lost.clone();
                return Err(lost.unwrap_or_else(|| Error::other(format!("ps[{player}] was lost, and came back"))));
            }
        }
        Ok(())
    }
}

/// Returns whether there is a process that is not stopped. The link may not know its end yet. May
/// wait for the answer of a process of another host.
pub(super) fn is_present(link: &ServerLink) -> bool {
    link.as_ref().is_some_and(|link| lock(link).is_alive())
}

fn lock(link: &Mutex<Link>) -> MutexGuard<'_, Link> {
    link.lock().unwrap_or_else(PoisonError::into_inner)
}
