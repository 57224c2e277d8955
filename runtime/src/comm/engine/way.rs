//! The way of a call's data to and from the memory of a GPU: one function decides it, for the
//! engine of a rank on a GPU and for `consonance explain`.

use crate::comm::call::Call;
use consonance_kernels::memory::{Buf, BufMut, Space};
use consonance_spec::Kind;

/// The buffers of a rank's call, without their addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffers {
    /// The kind of the call.
    pub kind: Kind,
    /// Whether the rank is the root of the call.
    pub is_root: bool,
    /// The input. Without it the call is in place.
    pub send: Option<Place>,
    /// The output.
    pub recv: Option<Place>,
}

/// The place of a buffer, and its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The memory that has the buffer.
    pub space: Space,
    /// The bytes of the buffer.
    pub bytes: usize,
}

/// The way of the data of a rank's call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// No data are in the memory of a GPU: the engine on which the ranks meet makes the call.
    Host,
    /// A kernel, which rank 0 enqueues, reduces the values of all ranks in the memory of their GPU.
    Fold,
    /// The call is made on copies in host memory.
    Copies(Copies),
}

/// The buffers that have copies in host memory. The copy of a buffer that is in host memory crosses
/// no link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copies {
    /// Whether the call sends a copy of the input.
    pub send: bool,
    /// Whether the call reads a copy of the output's content.
    pub input: bool,
    /// Whether the call has a result, which is written back, all of it.
    pub result: bool,
}

/// The bytes of buffers that cross the link of a rank's GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Crossing {
    /// The bytes of the input, and of the output's content, to the host.
    pub to_host: [usize; 2],
    /// The bytes of the result, to the device.
    pub to_device: usize,
}

impl Buffers {
    /// Returns the buffers of a call of `rank`.
    pub(crate) fn of(call: &Call<'_>, rank: usize) -> Buffers {
        let root = match call {
            Call::Broadcast { root, .. } | Call::Reduce { root, .. } => Some(*root),
            Call::Gather { root, .. } | Call::Scatter { root, .. } => Some(*root),
            Call::AllReduce { .. } | Call::ReduceScatter { .. } | Call::AllGather { .. } | Call::Concat { .. } => None,
            Call::AllToAll { .. } | Call::Send { .. } | Call::Recv { .. } | Call::Barrier => None,
        };
        let (send, recv) = call.buffers();
        let send = send.map(|buf: &Buf<'_>| Place { space: buf.space(), bytes: buf.bytes() });
        let recv = recv.map(|buf: &BufMut<'_>| Place { space: buf.space(), bytes: buf.bytes() });
        Buffers { kind: call.kind(), is_root: root == Some(rank), send, recv }
    }

    fn all(&self) -> impl Iterator<Item = &Place> {
        self.send.iter().chain(&self.recv)
    }
}

impl Place {
    fn is_on_gpu(&self) -> bool {
        self.space != Space::Host
    }

    /// Returns the bytes that cross the link, if the buffer `is_copied`.
    fn crossing(place: Option<Place>, is_copied: bool) -> usize {
        place.filter(|place| is_copied && place.is_on_gpu()).map_or(0, |place| place.bytes)
    }
}

impl Way {
    /// Returns the way of a call; `is_together` says whether all ranks are of one process and one
    /// GPU.
    pub(crate) fn of(buffers: &Buffers, is_together: bool) -> Way {
        if !buffers.all().any(Place::is_on_gpu) {
            return Way::Host;
        }
        let is_fold = buffers.kind == Kind::AllReduce && is_together && buffers.all().all(Place::is_on_gpu);
        if is_fold { Way::Fold } else { Way::Copies(Copies::of(buffers)) }
    }

    /// Returns the bytes that cross the link of the rank's GPU.
    pub fn crossing(&self, buffers: &Buffers) -> Crossing {
        match self {
            Way::Host | Way::Fold => Crossing::default(),
            Way::Copies(Copies { send, input, result }) => Crossing {
                to_host: [Place::crossing(buffers.send, *send), Place::crossing(buffers.recv, *input)],
                to_device: Place::crossing(buffers.recv, *result),
            },
        }
    }
}

impl Copies {
    fn of(buffers: &Buffers) -> Copies {
        let (send, result, is_root) = (buffers.send.is_some(), buffers.recv.is_some(), buffers.is_root);
        match buffers.kind {
            Kind::Broadcast => Copies { send, input: is_root, result },
            // Only the root has a result.
            Kind::Reduce | Kind::Gather => {
                let result = result && (is_root || !send);
                Copies { send, input: result && !send, result }
            }
            Kind::AllReduce | Kind::ReduceScatter | Kind::AllGather | Kind::AllToAll => {
                Copies { send, input: result && !send, result }
            }
            Kind::Scatter => Copies { send: send && is_root, input: false, result },
            Kind::SendRecv => Copies { send, input: false, result },
            // They have no buffers.
            Kind::Barrier | Kind::Split | Kind::Extension(_) => Copies { send: false, input: false, result: false },
        }
    }
}
