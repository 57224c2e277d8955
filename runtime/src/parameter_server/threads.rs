//! All roles, played by threads of one process.

use super::{
    chief::{Chief, Terms},
    link::Link,
    program::Program,
    schedule::Schedule,
    server::Server,
    tables::{Served, Tables, parts},
    worker::{self, Orders},
};
use crate::{Error, Result, Tensor, cluster::server_roles::Place};
use consonance_kernels::shm::PublishedView;
use std::{io, mem, sync::Arc, thread};

/// Starts servers, workers and the chief's threads.
///
/// # Errors
/// [`Error::System`] if the system has no memory or no threads.
pub(super) fn start(mut program: Program, terms: &Terms) -> Result<Arc<Chief>> {
    let values = mem::take(&mut program.values);
    let program = Arc::new(program);
    let server = |(specs, values): (&Vec<_>, Vec<Tensor>)| {
        Server::new(specs.clone(), &values, program.known.update_functions.clone()).map(Arc::new)
    };
    let servers = program.parts.iter().zip(values).map(server).collect::<Result<Vec<_>>>()?;
    // Returns the memory of all servers and links to them, for the thread of a role.
    let tables = |reader: Place| {
        let (name, index) = named(reader);
        let served = servers.iter().zip(&program.parts).enumerate().map(|(number, (server, specs))| {
            let [link, end] = Link::between([(&name, index), (&named(Place::Server(number)).0, number)])?;
            let server = server.clone();
            let memory = PublishedView::open(server.file()?, &parts(specs)).map_err(io::Error::other);
            let memory = memory.map_err(|error| Error::system("map the memory of a server", error))?;
            spawn(&format!("{}: {reader}", Place::Server(number)), move || drop(server.serve(&end)))?;
            Ok(Served::new(link, Some(memory)))
        });
        Ok::<Tables, Error>(Tables::new(served.collect::<Result<_>>()?, terms.limits.timeout))
    };
    let workers = program.known.workers;
    let schedule = Schedule::new(terms.order, terms.on_error, workers, program.known.datasets.len());
    let chief = Arc::new(Chief::new(program.clone(), tables(Place::Chief)?, schedule, terms.limits));
    for worker in 0..workers {
        let place = Place::Worker(worker);
        let [link, end] = Link::between([("chief", 0), (&named(place).0, worker)])?;
        let (tables, program, terms) = (tables(place)?, program.clone(), *terms);
        spawn(&place.to_string(), move || {
            drop(worker::work(
                &mut Orders::over(end),
                worker,
                &program,
                (Some(&tables), &program.known.kept()),
                &terms,
            ));
        })?;
        let chief = chief.clone();
        chief.found(worker, &link);
        spawn(&format!("chief: {place}"), move || drop(chief.dispatch(worker, &link)))?;
    }
    Ok(chief)
}

/// Returns the name of a role on its links, and its number.
fn named(place: Place) -> (String, usize) {
    match place {
        Place::Chief => ("chief".to_owned(), 0),
        Place::Worker(index) => (format!("worker[{index}]"), index),
        Place::Server(index) => (format!("ps[{index}]"), index),
    }
}

/// Starts a thread.
///
/// # Errors
/// [`Error::System`] if there is none.
pub(super) fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<()> {
    let started = thread::Builder::new().name(name.to_owned()).spawn(run);
    started.map(drop).map_err(|error| Error::system("start a thread", error))
}
