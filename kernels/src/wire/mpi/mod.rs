//! Messages by the MPI of the launcher that started this process, for networks that belong to it.
//! It needs that launcher: outside of one, or with an MPI of another kind, there is none.
//!
//! There are three floors:
//!
//! * `sys` declares MPI's functions, and has the constants of each family of MPIs.
//! * `calls` makes the calls. Every status of MPI becomes a [`Result`] there.
//! * `launcher`, `library`, `process`, `stage` and `wire` have what other code uses: a [`Wire`].
//!
//! # How it is used
//!
//! A message is one of MPI: a short body, and behind it a trailer with the head. A long body comes
//! after its trailer at another tag, in one message or in several if it is larger than MPI counts,
//! so that MPI reads and writes the caller's memory. Messages travel in `MPI_COMM_WORLD`, since a
//! communicator of ours would take a call that all processes of the world make. Each wire receives
//! at two tags of its own, of 16384 to 32766: a program that uses MPI beside this must not receive
//! messages of any tag there. The errors of `MPI_COMM_WORLD` are returned from then on, and do not
//! end the program.
//!
//! # Who does what
//!
//! Every call of MPI is made under one lock of the process. MPI has no descriptor: the thread of a
//! wire tests for 50 µs after the last event, and then naps, at most 1 ms at a time.
//!
//! # Start and end
//!
//! There is one MPI in a process. If the program has called `MPI_Init_thread` with
//! `MPI_THREAD_MULTIPLE`, that is used, and the program calls `MPI_Finalize`, after all wires are
//! dropped. Dropping one receives what is on its way, for 200 ms at most. Otherwise a thread of
//! ours calls both: `MPI_Finalize` when the process ends by `exit`, or by the end of `main`, since
//! MPI cannot begin again. It is called when all other processes of the launch have said that they
//! call it, too. It is not called if a peer was lost, if a wire is left, if the status of the
//! process is a failure, or if another process ends without it: each tells the others. A process
//! waits for such words for 5 minutes after the last one, and then for `MPI_Finalize` for a minute.
//! Launchers take a process without it for a failed one.
//!
//! An MPI that starts outside its launcher, or in a child of a process that the launcher has
//! started, may end the process. So it is started only if the variables of a launcher are there,
//! and its socket, and callers compare these variables with what they know: [`world_of_mpi`].
//!
//! MPI cannot take back a send to a process that has ended. Such a buffer stays until the process
//! ends.

mod sys;
mod calls;
mod launcher;
mod library;
mod message;
mod process;
mod last_words;
mod stage;
mod wire;
#[cfg(test)]
mod tests;

pub use launcher::world_of_mpi;
pub use library::mpis_here;
pub(super) use wire::Wire;
