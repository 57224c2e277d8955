//! Groups of threads, and of processes that threads simulate.

use consonance::{Communicator, raw::Engine};
use std::{
    net::{SocketAddr, TcpListener},
    thread,
    time::Duration,
};

/// Longer than any call takes.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// Runs `work` on a thread for each engine, and returns the results.
pub(crate) fn on_engines<R: Send>(engines: Vec<Box<dyn Engine>>, work: impl Fn(Communicator) -> R + Sync) -> Vec<R> {
    thread::scope(|scope| {
        let threads: Vec<_> = engines
            .into_iter()
            .map(|engine| {
                let work = &work;
                scope.spawn(move || {
                    let mut rank = Communicator::from_engine(engine);
                    rank.set_timeout(TIMEOUT).expect("a timeout that ends");
                    work(rank)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect()
    })
}

/// Returns the engines of processes that threads simulate. Sockets connect them.
pub(crate) fn processes(size: usize) -> Vec<Box<dyn Engine>> {
    let listeners: Vec<TcpListener> =
        (0..size).map(|_| TcpListener::bind("127.0.0.1:0").expect("a port is free")).collect();
    let addresses: Vec<SocketAddr> =
        listeners.iter().map(|listener| listener.local_addr().expect("it is bound")).collect();
    let join = |(rank, listener)| consonance_messages::processes(rank, listener, &addresses, TIMEOUT);
    thread::scope(|scope| {
        let threads: Vec<_> = listeners.into_iter().enumerate().map(|of| scope.spawn(move || join(of))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic").expect("the processes meet")).collect()
    })
}
