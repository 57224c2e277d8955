//! Parameter servers: asynchronous training with variables on servers, and the coordinator that
//! schedules closures on workers.
//!
//! # The protocol
//!
//! **Roles.** The *chief* runs the program. *Workers* run closures. *Servers* have the variables.
//! Each two of them that speak have a [`link`](self) of their own, which ends with either of them
//! and disturbs nobody else: chief and worker, chief and server, worker and server. A link is a
//! [pair](crate::cluster) in memory, or between hosts on a network of its own.
//!
//! The chief meets the others at their *doors*, by names that stay, and gives its orders there. The
//! other links are those of readers to servers. Their names contain the *generation*.
//!
//! **Generations.** The layout of variables knows servers by number. A generation says which
//! process plays each of them. In the first one each plays its own. The loss of a process that
//! plays a server ends the generation, and all calls at the chief. A recovery begins the next one
//! at the chief (`other_processes.rs`):
//!
//! 1. It waits for processes at the doors of servers, and chooses the players.
//! 2. It tells the servers (`BEGIN`). Each makes new memory for what it plays, and forgets the
//!    effects and the links of the last generation.
//! 3. It meets them by the names of the generation, and sets all variables. Nobody reads meanwhile.
//! 4. It tells the workers (`BEGIN`). Each leaves the links of the last generation, and meets the
//!    servers. Its next order is the first closure of the generation.
//!
//! If a player is lost before step 4, another generation begins. A worker that waits for a lost
//! player sees the next `BEGIN` at its door. The answer to a closure of an earlier generation has
//! the number of an attempt that no later one has.
//!
//! **Reads** need no message on one host: a server's shards lie in memory that it alone writes and
//! others read in place, each shard under a version. A reader that is overtaken again and again
//! asks the server to read for it, and so does every reader on another host.
//!
//! **Effects commit once.** A worker keeps the effects of a closure until it ends. Then it brings
//! them to the servers (`STAGE`), which answer when they have them. Then it tells the chief, which
//! takes the first answer of the newest attempt and no other. It has the servers commit
//! (`COMMIT`): all of them, in one order. So an attempt commits as a whole or not at all. If the
//! worker is lost before the chief has its answer, the closure runs again, as another attempt, and
//! what the lost one has staged is dropped when that one commits. If the worker is lost after it,
//! its effects are at the servers. Each `COMMIT` has the number of the first attempt that may still
//! commit. Servers forget those before it, also such as a worker stages that goes on after it was
//! taken for lost.
//!
//! **Update functions** run at the servers, when the effects commit, on copies of the rows that
//! change. A closure that reads what it has updated runs the function itself.
//!
//! **Orders.** The chief has one closure at a worker at a time. Whoever changes the schedule sends
//! the next closure to a worker that waits: a caller, or the thread that received the end of
//! another one (`worker_process.rs`). It does so under the lock of the chief, so no order follows
//! the end of a generation, and only if the order is short and the worker has taken all before it,
//! so that it waits for nobody. Other orders go from the worker's own thread at the chief, which
//! receives all answers (`dispatch.rs`) and is interrupted to send them, and at the end.
//!
//! **Positions commit with closures.** A worker iterates its own data sets. The chief has, for each
//! worker and data set, the number of elements that closures took which have ended. It goes to the
//! worker with each closure (`RUN`), and the answer has the number of elements that the attempt
//! took. The chief adds it if it takes the answer. So elements of an attempt that fails, is lost or
//! is given up are taken again: the worker keeps those that it has read, and a process in its place
//! iterates anew.
//!
//! **Windows.** In [`Order::Scheduled`] the effects of a window commit when all of its closures
//! have ended, in the order in which they were scheduled, before the next window begins. Nobody
//! reads meanwhile.

mod strategy;
mod roles;
mod variable;
#[cfg(feature = "checkpoint")]
pub(crate) mod saveable;
mod coordinator;
mod argument;
mod dataset;
mod per_worker;
mod remote_value;
mod context;
mod program;
mod chief;
mod dispatch;
mod worker_process;
mod threads;
mod processes;
mod other_processes;
#[cfg(feature = "checkpoint")]
mod recovery;
mod generation;
mod schedule;
mod worker;
mod worker_state;
mod declarations;
mod reference;
mod server;
mod staged;
mod tables;
mod effect;
mod update_function;
mod link;
mod message;
mod failure;
#[cfg(test)]
mod explored;

pub use argument::{Argument, PerWorker};
pub use chief::LostWorker;
pub use consonance_spec::{
    FixedShardsPartitioner, MaxSizePartitioner, MinSizePartitioner, OnError, Order, Partitioner, RefusedPartition,
    Updates,
};
pub use context::WorkerContext;
pub use coordinator::{ClusterCoordinator, Joined};
pub use dataset::PerWorkerDataset;
pub use per_worker::PerWorkerValues;
pub use program::Function;
pub use remote_value::RemoteValue;
pub use strategy::{ParameterServerBuilder, ParameterServerStrategy};
pub use update_function::UpdateFunction;
pub use variable::ShardedVariable;
