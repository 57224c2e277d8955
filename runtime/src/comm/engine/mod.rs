//! The seam between the calls of users and the engines that execute them.

mod abort;
mod gpu;
pub(crate) mod host;
#[cfg(target_os = "linux")]
pub(crate) mod hosts;
mod leaves;
mod letters;
mod lowered;
mod way;

pub use abort::{Abort, AbortHandle};
pub(crate) use gpu::OnGpu;
pub(crate) use host::{AllRanks, Host};
pub use leaves::LeavesStep;
pub(crate) use leaves::{Gap, Known, gap};
pub use letters::{Carrier, Inbox, Letter};
pub(crate) use lowered::Lowered;
pub use way::{Buffers, Copies, Crossing, Place, Way};

use crate::{
    Device, Error, Mailbox, Result,
    comm::{call::Call, options::Configuration},
    device,
    profile::{Path, Transport},
};
use consonance_kernels::{
    cuda::{CallerStream, Uuid},
    group::{KeepWaiting, plan::Topology},
    memory::{HostMemory, Memory, Space},
};
use consonance_spec::{DType, Kind, Signature, World};
use std::{
    ops::Range,
    time::{Duration, Instant},
};

/// Executes the calls of one rank of a group. `&mut self` ensures that it executes one call at a
/// time.
///
/// An engine that executes [every call](Service::Calls) is used as it is. An engine that carries
/// only [messages](Service::Messages) or [letters](Service::Letters) (MPI, a socket, a queue) gets
/// two calls, [`Call::Send`] and [`Call::Recv`]. The runtime builds all others on them: it compares
/// the ranks' calls first, and reduces in the canonical order. So the bits, the checks and the
/// words of errors are the same on every engine.
/// [`Communicator::from_engine`](crate::Communicator::from_engine) makes a communicator of an
/// engine. What is said below of an engine of messages is true of one of letters.
///
/// The [guide](crate::guide::engines) has a working engine of messages.
///
/// Every wait of an engine ends at the deadline of its [`Configuration`]. It then fails with
/// [`Error::Timeout`], which names the missing ranks, and aborts the group, so that no peer waits
/// longer.
pub trait Engine: Send {
    /// Returns this rank and the number of ranks.
    fn world(&self) -> World;

    /// Returns which calls the engine executes itself.
    fn service(&self) -> Service;

    /// Returns whether the engine's calls take buffers in `space`. The communicator refuses a call
    /// with other buffers. By default an engine takes host memory only, as an engine of
    /// [messages](Service::Messages) does.
    fn reaches(&self, space: Space) -> bool {
        space == Space::Host
    }

    /// Begins a call of several messages, whose waits share one deadline. Called only for an engine
    /// of [messages](Service::Messages).
    fn begin_call(&mut self) {}

    /// Waits until a receive from one of these ranks would not wait: a message of that rank has
    /// arrived, or the receive would fail. Returns the rank; `None` if none is ready at `until`,
    /// which is no error and does not abort the group. Called only for an engine of
    /// [messages](Service::Messages).
    ///
    /// By default returns the first of the ranks at once. Then a receive waits for one rank while
    /// others have sent, and in a group of more than two ranks an error at the deadline may name a
    /// rank that waits for the late one.
    fn probe(&mut self, from: &[usize], _until: Instant) -> Option<usize> {
        from.first().copied()
    }

    /// Receives the next message of rank `from`, of any number of bytes, as [`Call::Recv`] does.
    /// Called only for an engine of [letters](Service::Letters).
    ///
    /// # Errors
    /// As [`execute`](Engine::execute). [`Error::WrongContext`] by default.
    fn receive(&mut self, _from: usize, _name: Kind) -> Result<Vec<u8>, Failure> {
        Err(cannot("a call of letters").into())
    }

    /// Executes `call`, whose arguments have been checked on this rank. All ranks must agree on
    /// `signature`: if one differs, no data moves. `name` is the call that the user made, for
    /// errors; the current step may be of another kind.
    ///
    /// A call on host memory is finished when this returns. A call on memory of a device may be
    /// enqueued only, on a stream of the device: then all later accesses to its buffers are ordered
    /// after it on that stream, and an error of it comes from the next call or from
    /// [`synchronize`](Engine::synchronize). Memory of the device may be dropped while the call
    /// uses it: its [block](crate::raw::DeviceBlock) frees it later. Buffers that an asynchronous
    /// call of a [`Scope`](crate::Scope) owns are dropped after `synchronize`, also if this fails.
    ///
    /// # Errors
    /// [`Failure`]: the ranks disagree, or [`Error::Left`], [`Error::Timeout`], [`Error::Aborted`]
    /// or [`Error::System`].
    fn execute(&mut self, call: Call<'_>, signature: &Signature, name: Kind) -> Result<(), Failure>;

    /// Checks the buffers of a call that lie in memory of a device, on this rank alone: that the
    /// device has such memory. Called before [`execute`](Engine::execute). By default nothing is
    /// checked.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] that names the buffer. The other ranks are told.
    fn check(&self, _call: &Call<'_>) -> Result<()> {
        Ok(())
    }

    /// Orders the next calls on memory of a device by a stream of the caller, until this is called
    /// with `None`: see [`Communicator::on_stream`](crate::Communicator::on_stream). By default an
    /// engine knows no streams.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] for a stream of another device, or one that is being captured;
    /// [`Error::WrongContext`] by default.
    /// The calls are then not ordered, and the runtime refuses them.
    fn order_by(&mut self, stream: Option<&CallerStream>) -> Result<()> {
        stream.map_or(Ok(()), |_| Err(cannot("Communicator::on_stream")))
    }

    /// Returns whether the engine reduces in one step the contributions of ranks that have
    /// different numbers of them. By default it does not, and the runtime makes several calls.
    #[doc(hidden)]
    fn has_leaves_step(&self) -> bool {
        false
    }

    /// Makes such a step. Returns whether it reduced; else the ranks have only told their runs.
    ///
    /// # Errors
    /// As [`execute`](Engine::execute). [`Error::WrongContext`] by default.
    #[doc(hidden)]
    fn reduce_leaves(&mut self, _step: LeavesStep<'_>, _signature: &Signature, _name: Kind) -> Result<bool, Failure> {
        Err(cannot("a step of leaves").into())
    }

    /// Tells the other ranks that this rank's own call is invalid, and why. `signature` differs
    /// from that of every valid call, so that the ranks disagree. By default executes a barrier
    /// with it.
    ///
    /// # Errors
    /// As [`execute`](Engine::execute).
    fn refuse(&mut self, signature: &Signature, _why: &str) -> Result<(), Failure> {
        self.execute(Call::Barrier, signature, signature.kind)
    }

    /// Returns the error of an earlier call that this rank had finished before all ranks had come
    /// to it, once. It does not tell of the last call, which is executed all the same. By default
    /// every error comes from its own call.
    fn late_error(&mut self) -> Option<Error> {
        None
    }

    /// Waits until the calls that were enqueued are finished. The runtime waits so before the end
    /// of each asynchronous call ([`Pending`](crate::Pending), [`PendingNest`](crate::PendingNest),
    /// [`Request`](crate::Request) of a [`Queue`](crate::Queue)), of each call outside of a run
    /// such as [`Strategy::reduce`](crate::Strategy::reduce), and of a run, and before a merge
    /// function. By default nothing is enqueued.
    ///
    /// # Errors
    /// The first error of these calls. The ranks agreed on each of them when it was enqueued, and
    /// the others are not told: an engine whose device fails aborts its group.
    fn synchronize(&mut self) -> Result<()> {
        Ok(())
    }

    /// Sets the configuration of the next calls.
    fn configure(&mut self, configuration: &Configuration);

    /// Asks `ask` about every 100 ms while a call waits. If it returns false, the engine aborts the
    /// group. By default nothing is asked.
    fn keep_waiting(&mut self, _ask: KeepWaiting) {}

    /// Returns a handle that aborts the group from any thread.
    fn abort_handle(&self) -> AbortHandle;

    /// Makes the group of `members`, ranks of this group. The rank of each in the new group is its
    /// position in `members`. All ranks of this group make the call, each with the list that
    /// contains it. A rank in no list passes an empty list and gets no group. Calls of the two
    /// groups do not mix. An abort of this group aborts the new one, too. The caller
    /// [configures](Engine::configure) the new one.
    ///
    /// # Errors
    /// [`Error::WrongContext`] if the engine has no subgroups; otherwise as
    /// [`execute`](Engine::execute).
    fn subgroup(&mut self, _members: &[usize]) -> Result<Option<Box<dyn Engine>>, Failure> {
        Err(cannot("Communicator::split").into())
    }

    /// Returns the mailbox of this rank, for messages with tags beside the calls. By default there
    /// is none.
    ///
    /// # Errors
    /// [`Error::WrongContext`] if the engine has none; otherwise as [`execute`](Engine::execute).
    fn mailbox(&mut self) -> Result<Mailbox> {
        Err(cannot("Communicator::mailbox"))
    }

    /// Allocates `count` zero elements in memory of `space` that the engine's calls need not stage.
    /// By default ordinary memory of the host.
    ///
    /// # Errors
    /// [`Error::System`] if the system has no memory, [`Error::InvalidCall`] for a space that the
    /// engine does not [reach](Engine::reaches).
    fn alloc(&self, space: Space, dtype: DType, count: usize) -> Result<Memory> {
        require_host(space)?;
        Ok(HostMemory::try_zeroed(dtype, count).map_err(Error::no_memory(dtype, count))?.into())
    }

    /// Begins the first generation of the group that was not aborted, on this rank; waits for no
    /// other. The runtime then lets all ranks meet in it. Nothing of an earlier generation reaches
    /// a later one: no message, and no abort by a handle of it. Messages of a later generation wait
    /// until this rank is there. Called only for an engine of [messages](Service::Messages), after
    /// an abort. By default a group has one generation.
    ///
    /// # Errors
    /// [`Error::WrongContext`] by default.
    fn next_generation(&mut self) -> Result<()> {
        Err(cannot("the next run"))
    }

    /// Continues with the ranks that are left, as far as this rank knows: begins the first
    /// generation of the group of those ranks that was not aborted; waits for no other. They keep
    /// their order, and [`world`](Engine::world) numbers them anew. Without a loss this begins the
    /// next generation, or after no abort stays in this one. The runtime then lets these ranks
    /// meet, and calls this again if one of them is lost meanwhile. Called only for an engine of
    /// [messages](Service::Messages). By default a group ends with its first loss.
    ///
    /// The runtime relies on this:
    ///
    /// * The group follows from its members alone. Ranks that learn of the same losses in different
    ///   orders meet in the same group. Messages of groups with different members do not mix, nor
    ///   do their aborts. Messages of a group wait until this rank is there.
    /// * This rank tells the others which ranks it takes for lost. A rank that is told of a loss
    ///   ends its group, if the lost rank is a member: a call in it fails with an
    ///   error that is [a loss](Error::is_loss): [`Error::Left`] if the rank has said that it
    ///   leaves, else [`Error::Aborted`].
    /// * A rank stays lost. What arrives for groups that this rank has left is dropped.
    ///
    /// The [guide](crate::guide::engines) has an example.
    ///
    /// # Errors
    /// [`Error::WrongContext`] if the others take this rank for lost, and by default. The group is
    /// then as before.
    fn remaining(&mut self) -> Result<()> {
        Err(cannot("MultiWorkerMirroredStrategy::reform"))
    }

    /// Notes that the group of the last [`remaining`](Engine::remaining) has formed: all of its
    /// ranks have met. Until then a majority is one of the group before. By default this does
    /// nothing.
    fn formed(&mut self) {}

    /// Lets the next [`remaining`](Engine::remaining) go on also on a side of a broken network that
    /// has no majority: a person has decided that the other side does not. By default there is no
    /// such rule.
    fn waive_majority(&mut self) {}

    /// After a loss, forms the group of the ranks that are left, in their order: each of them makes
    /// this call, and waits for the others. By default a group ends with its first loss. An engine
    /// of [messages](Service::Messages) has [`remaining`](Engine::remaining) instead.
    ///
    /// # Errors
    /// [`Error::WrongContext`] by default; otherwise as [`execute`](Engine::execute): a loss if
    /// another rank is lost meanwhile. The call may then be repeated.
    fn reform(&mut self) -> Result<()> {
        Err(cannot("MultiWorkerMirroredStrategy::reform"))
    }

    /// After an abort, waits until all ranks are ready, then renews the group. Otherwise does
    /// nothing. By default an aborted group cannot be renewed. An engine of
    /// [messages](Service::Messages) has [`next_generation`](Engine::next_generation) instead.
    ///
    /// # Errors
    /// As [`execute`](Engine::execute): a lost rank does not come back. [`Error::WrongContext`] by
    /// default.
    fn renew(&mut self) -> Result<()> {
        match self.abort_handle().is_aborted() {
            true => Err(cannot("the next run")),
            false => Ok(()),
        }
    }

    /// Ends this rank's part in a run: a peer that waits for this rank is told that it has left.
    /// Returns whether the group can go on; then all ranks [begin](Engine::begin_run) another run
    /// later. By default it cannot: the engine is dropped at once, and the drop tells the peers.
    fn end_run(&mut self) -> bool {
        false
    }

    /// Begins another run, after every rank has [ended](Engine::end_run) its part in the last one.
    /// Returns false if the group cannot go on; then the strategy makes a new group.
    fn begin_run(&mut self) -> bool {
        false
    }

    /// Explains the last call, for profiles, spans and `consonance explain`; with `peer`, the last
    /// send to or receive from that rank. By default the engine tells nothing.
    fn explain(&self, _peer: Option<usize>) -> Explanation {
        Explanation::default()
    }

    /// Returns the way of the data of a call with these buffers. By default no rank is on a GPU.
    #[doc(hidden)]
    fn way(&self, _buffers: &Buffers) -> Way {
        Way::Host
    }

    /// Says that this rank is on this GPU, by its number in this process and its identity, for
    /// `consonance trace` in other processes. By default nobody is told.
    #[doc(hidden)]
    fn say_gpu(&self, _ordinal: usize, _uuid: Uuid) {}

    /// Notes that an error says of this rank that its call differs from those of the others. An
    /// engine of processes tells the launcher. By default this does nothing.
    fn blame(&self, _rank: usize) {}

    /// Describes the process of each of these ranks, whose messages are late, in errors: its task,
    /// host and process id, and its state. May ask other processes for less than a second in all.
    /// By default there is no description.
    fn describe_silent(&self, ranks: &[usize]) -> Vec<Option<String>> {
        vec![None; ranks.len()]
    }

    /// Marks this rank idle or active. An idle rank makes no call before `company`, ranks of the
    /// same process, have ended theirs. A rank of `company` that waits for it fails with
    /// [`Error::Left`]. By default this does nothing, and such a rank waits until its deadline.
    fn set_idle(&mut self, _company: Range<usize>, _idle: bool) {}
}

/// Makes the engines of replicas that are all in this process, one for each of these devices, in
/// rank order.
///
/// # Errors
/// Those of [`device::open`].
pub(crate) fn local(
    call: &'static str,
    devices: &[Device],
    configuration: Configuration,
) -> Result<Vec<Box<dyn Engine>>> {
    let ranks = Host::group(call, devices.len(), configuration)?;
    let gpu = |device: &Device| device.gpu().map(|gpu| device::open(call, gpu)).transpose();
    Ok(OnGpu::group(ranks, devices.iter().map(gpu).collect::<Result<_>>()?))
}

/// The report of an engine about itself and its last call.
#[derive(Clone, Copy, Debug, Default)]
pub struct Explanation {
    /// The transport between the ranks.
    pub transport: Option<Transport>,
    /// The way of the call's data, if this was not asked since.
    pub path: Option<Path>,
    /// The time that the call slept while it waited for other ranks.
    pub waited: Option<Duration>,
    /// The inputs of protocol selection, if the ranks share memory.
    #[doc(hidden)]
    pub topology: Option<Topology>,
    /// The number of this rank's GPU in this process, and its identity.
    #[doc(hidden)]
    pub gpu: Option<(usize, Uuid)>,
}

/// The calls that an engine executes itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Every call. The engine compares the ranks' signatures before any data moves, and reduces in
    /// the canonical order.
    Calls,
    /// Only [`Call::Send`] and [`Call::Recv`], of any number of bytes, in order between two ranks.
    /// The receiver knows the number of bytes. A message of up to
    /// [`EAGER_BYTES`](Service::EAGER_BYTES) must be sent without waiting for the receiver.
    ///
    /// A rank that does not come to a call is named as on any engine. One of more than two that
    /// sends or receives instead is named at the deadline. If a rank stops in the middle of a call,
    /// the error may name another rank that waits for it. If the group is aborted while some ranks
    /// have finished a call and others have not, it fails on the others. Calls allocate memory for
    /// data in transit.
    Messages,
    /// As [`Messages`](Service::Messages), but a message of any number of bytes is sent without
    /// waiting for the receiver, which need not know that number: see [`Engine::receive`]. Data are
    /// sent both ways at once, and few data go with what the ranks of a small group compare.
    Letters,
}

impl Service {
    /// The size limit of an eager message, which is sent before its receiver asks for it, in bytes.
    pub const EAGER_BYTES: usize = 64;
}

/// The reason why a call failed.
#[derive(Debug)]
pub enum Failure {
    /// The ranks did not make the same call. No data has moved, and the group still works. The
    /// runtime finds out which rank differs.
    Disagreement {
        /// The other rank of a send or receive; `None` for a call of all ranks.
        peer: Option<usize>,
    },
    /// Any other error.
    Error(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Error(error)
    }
}

/// Checks that an engine of host memory is asked for such memory.
fn require_host(space: Space) -> Result<()> {
    match space {
        Space::Host => Ok(()),
        Space::Cuda(_) => {
            let expected = "memory that this communicator's engine reaches";
            Err(Error::invalid("Communicator::alloc", "space", expected, format!("memory of {space}")))
        }
    }
}

fn cannot(call: &'static str) -> Error {
    Error::WrongContext { call, problem: "the engine of this communicator cannot do this".to_owned() }
}
