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
use crate::{Error, Result, Tensor};
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
    // Returns the memory of all servers and links to them, for a thread of this name.
    let tables = |name: &str, index: usize| {
        let served = servers.iter().zip(&program.parts).enumerate().map(|(number, (server, specs))| {
            let [link, end] = Link::between([(name, index), (&format!("ps[{number}]"), number)])?;
            let server = server.clone();
            let memory = PublishedView::open(server.file()?, &parts(specs)).map_err(io::Error::other);
            let memory = memory.map_err(|error| Error::system("map the memory of a server", error))?;
            spawn(&format!("consonance-ps{number}"), move || drop(server.serve(&end)))?;
            Ok(Served::new(link, memory))
        });
        Ok::<Tables, Error>(Tables::new(served.collect::<Result<_>>()?, terms.limits.timeout))
    };
    let workers = program.known.workers;
    let schedule = Schedule::new(terms.order, terms.on_error, workers, program.known.datasets.len());
    let chief = Arc::new(Chief::new(program.clone(), tables("chief", 0)?, schedule, terms.limits));
    for worker in 0..workers {
        let name = format!("worker[{worker}]");
        let [link, end] = Link::between([("chief", 0), (&name, worker)])?;
        let (tables, program, terms) = (tables(&name, worker)?, program.clone(), *terms);
        spawn(&format!("consonance-worker{worker}"), move || {
            drop(worker::work(
                &mut Orders::over(end),
                worker,
                &program,
                (Some(&tables), &program.known.kept()),
                &terms,
            ));
        })?;
        let chief = chief.clone();
        chief.found(worker, 1, &link);
        spawn("consonance-chief", move || drop(chief.dispatch(worker, &link)))?;
    }
    Ok(chief)
}

/// Starts a thread.
///
/// # Errors
/// [`Error::System`] if there is none.
pub(super) fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<()> {
    let started = thread::Builder::new().name(name.to_owned()).spawn(run);
    started.map(drop).map_err(|error| Error::system("start a thread", error))
}
