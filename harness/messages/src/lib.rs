//! Two carriers of letters, outside of the crate `consonance`: between threads, and between
//! processes over TCP.
//!
//! They depend only on that crate, and move letters between two ranks at a time, as
//! [`Carrier`] requires. The runtime builds all collectives on this. [`threads`] makes the engines
//! of a group of threads, [`processes`] the engine of a process that is connected to the others by
//! sockets. They test the seam; they are not fast.
//!
//! A thread stores its letters in the receiver's inbox itself. A process has a thread for each
//! connection, which stores the letters that arrive.
//!
//! ```
//! use consonance::{Communicator, ReduceOp, Result};
//! let ranks = consonance_messages::threads(3).into_iter().map(Communicator::from_engine);
//! let sums = std::thread::scope(|scope| -> Result<Vec<[f32; 2]>> {
//!     let sum = |mut rank: Communicator| -> Result<[f32; 2]> {
//!         let mut data = [rank.rank() as f32, 1.0];
//!         rank.all_reduce(ReduceOp::Sum, &mut data).map(|()| data)
//!     };
//!     let threads: Vec<_> = ranks.map(|rank| scope.spawn(move || sum(rank))).collect();
//!     threads.into_iter().map(|thread| thread.join().unwrap()).collect()
//! })?;
//! assert_eq!(sums, [[3.0, 3.0]; 3]);
//! # Ok::<(), consonance::Error>(())
//! ```

#![forbid(unsafe_code)]

mod sockets;
mod deviation;

pub use deviation::{Deviation, Plain, Wrapped};
pub use sockets::processes;

use consonance::{
    World,
    raw::{Carrier, Engine, Inbox, Letter},
};
use std::sync::Arc;

/// The inboxes of threads.
struct Threads(Vec<Arc<Inbox>>);

impl Carrier for Threads {
    fn carry(&self, from: usize, to: usize, letter: Letter) {
        self.0[to].put(from, letter);
    }
}

/// Makes the engines of a new group of `size` threads, in rank order.
pub fn threads(size: usize) -> Vec<Box<dyn Engine>> {
    let inboxes: Vec<Arc<Inbox>> = (0..size).map(|rank| Arc::new(Inbox::new(rank, size))).collect();
    let carrier: Arc<dyn Carrier> = Arc::new(Threads(inboxes.clone()));
    let engine = |(rank, inbox): (usize, Arc<Inbox>)| {
        let world = World::new(rank, size).expect("there are as many inboxes");
        inbox.engine(world, carrier.clone())
    };
    inboxes.into_iter().enumerate().map(engine).collect()
}
