//! A call of ranks on GPUs: its way, the GPUs, and the bytes that cross the link of each.
//!
//! The way comes from the engines of a real group, by the function that they ask for a call. The
//! kernel comes from the table of launches.

use super::{Explanation, Question, size};
use crate::bench::{
    BenchError, Memory, Transport,
    case::{Case, Collective},
};
use consonance::{
    Communicator, DType, Device,
    raw::{Buffers, Crossing, Place, Space, Way},
};
use consonance_kernels::cuda::{
    Gpu,
    kernels::{Launch, reduce},
};
use serde_json::{Value, json};
use std::{collections::BTreeMap, fmt};

/// The distance between addresses for which a kernel is explained: the runtime's memory begins at
/// multiples of it.
const APART: u64 = 512;

/// The answer for a call of ranks on GPUs, some of which may be on processors.
#[derive(Clone, Debug)]
pub struct OnGpus {
    /// The call.
    pub case: Case,
    /// The ranks in order.
    pub ranks: Vec<RankOnDevice>,
    /// The GPUs by their numbers in this process: the name, and the UUID.
    pub gpus: BTreeMap<usize, (String, String)>,
    /// The launch of rank 0, if a kernel reduces.
    pub launch: Option<Launch>,
    /// The way of the copies between the ranks, if there are copies.
    pub between: Option<Explanation>,
}

/// A rank, and the way of its data.
#[derive(Clone, Copy, Debug)]
pub struct RankOnDevice {
    /// The device of the rank.
    pub device: Device,
    /// The number of the rank's GPU in this process.
    pub gpu: Option<usize>,
    /// The way of its data.
    pub way: Way,
    /// The bytes that cross the link of its GPU.
    pub crossing: Crossing,
}

impl RankOnDevice {
    /// Returns the bytes that cross the link to the host, and the number of copies.
    pub fn to_host(&self) -> (usize, usize) {
        (self.crossing.to_host.iter().sum(), self.crossing.to_host.into_iter().map(copies).sum())
    }

    /// Returns the bytes that cross the link to the GPU, and the number of copies.
    pub fn to_device(&self) -> (usize, usize) {
        (self.crossing.to_device, copies(self.crossing.to_device))
    }
}

/// Returns the number of copies of a buffer of so many bytes.
fn copies(bytes: usize) -> usize {
    bytes.div_ceil(Gpu::COPY_BYTES)
}

/// Returns the buffers of a rank, in the memory of its device.
fn buffers(case: &Case, rank: usize, space: Space) -> Buffers {
    let Case { collective, op, dtype, in_place, .. } = *case;
    let (is_root, kind) = (rank == 0, collective.kind());
    let place = |dtype: DType, count: usize| Some(Place { space, bytes: count * dtype.size() });
    let result = if kind.combines() { op.result(dtype).unwrap_or(dtype) } else { dtype };
    let (all, part) = (case.elements(), case.part(rank).len());
    let of_root = |place: Option<Place>| place.filter(|_| is_root);
    // The input, and the output.
    let (input, output) = match collective {
        Collective::Barrier => (None, None),
        Collective::AllReduce => (place(dtype, all), place(result, all)),
        Collective::Reduce => (place(dtype, all), of_root(place(result, all))),
        Collective::ReduceScatter if in_place => (None, place(result, all)),
        Collective::ReduceScatter => (place(dtype, all), place(result, part)),
        Collective::AllGather | Collective::AllGatherV => (place(dtype, part), place(dtype, all)),
        Collective::Gather | Collective::GatherV => (place(dtype, part), of_root(place(dtype, all))),
        Collective::Scatter | Collective::ScatterV => {
            (of_root(place(dtype, all)), place(dtype, part).filter(|_| !(is_root && in_place)))
        }
        Collective::AllToAll | Collective::AllToAllV => (place(dtype, all), place(dtype, all)),
        Collective::Broadcast => (None, place(dtype, all)),
        Collective::SendRecv => (of_root(place(dtype, all)), place(dtype, all).filter(|_| rank == 1)),
    };
    // A scatter in place has no output on the root; other calls in place have no input.
    let keeps_input = matches!(collective, Collective::Scatter | Collective::ScatterV) || output.is_none();
    let send = input.filter(|_| !in_place || keeps_input);
    Buffers { kind, is_root: kind.has_root() && is_root, send, recv: output }
}

impl OnGpus {
    /// Returns the answer for a call of a group that was made on these devices, one for each rank.
    ///
    /// # Errors
    /// If the operation is not defined on the type, or no machine has buffers of this size.
    pub fn explain(case: Case, devices: &[Device], group: &[Communicator]) -> Result<OnGpus, BenchError> {
        let question = Question { case, transport: Transport::Threads, memory: Memory::Slice };
        question.check(case.bytes())?;
        let (mut gpus, mut ranks) = (BTreeMap::new(), Vec::new());
        for (rank, (&device, communicator)) in devices.iter().zip(group).enumerate() {
            let gpu = communicator.gpu();
            if let Some((ordinal, uuid)) = gpu {
                let named = Gpu::get(ordinal).map_err(|error| BenchError::Failed(error.to_string()))?;
                gpus.insert(ordinal, (named.device().name().to_owned(), uuid.to_string()));
            }
            let space = gpu.map_or(Space::Host, |(ordinal, _)| Space::Cuda(ordinal as u32));
            let buffers = buffers(&case, rank, space);
            let way = communicator.way(&buffers);
            ranks.push(RankOnDevice {
                device,
                gpu: gpu.map(|(ordinal, _)| ordinal),
                way,
                crossing: way.crossing(&buffers),
            });
        }
        let is_fold = ranks.iter().any(|rank| rank.way == Way::Fold);
        let launch = if is_fold { launch(&case)? } else { None };
        let topology = group[0].topology(None).filter(|_| !is_fold);
        let between = topology.map(|topology| question.explain(&topology, case.bytes(), false)).transpose()?;
        Ok(OnGpus { case, ranks, gpus, launch, between })
    }

    /// Returns the answer as a JSON object.
    pub fn json(&self) -> Value {
        let OnGpus { case, ranks, gpus, launch, between } = self;
        let rank = |(index, rank): (usize, &RankOnDevice)| {
            let ((to_host, host_copies), (to_device, device_copies)) = (rank.to_host(), rank.to_device());
            json!({
                "rank": index,
                "device": rank.device.to_string(),
                "uuid": rank.gpu.map(|gpu| &gpus[&gpu].1),
                "way": way_name(rank.way),
                "to_host_bytes": to_host,
                "to_host_copies": host_copies,
                "to_device_bytes": to_device,
                "to_device_copies": device_copies,
            })
        };
        let gpus = gpus.iter();
        let launch = launch.as_ref().map(|launch| {
            json!({
                "kernel": launch.kernel.name,
                "sources": case.ranks,
                "blocks": launch.grid,
                "threads": launch.block,
            })
        });
        json!({
            "collective": case.collective.name(),
            "ranks": ranks.iter().enumerate().map(rank).collect::<Vec<_>>(),
            "bytes": case.bytes(),
            "count": case.count,
            "dtype": case.dtype.name(),
            "op": case.collective.kind().combines().then(|| case.op.name()),
            "in_place": case.in_place,
            "gpus": gpus.map(|(gpu, (name, uuid))| json!({ "ordinal": gpu, "name": name, "uuid": uuid })).collect::<Vec<_>>(),
            "launch": launch,
            "window_bytes": Gpu::COPY_BYTES,
            "protocol": between.as_ref().map(Explanation::name),
        })
    }
}

/// Returns the launch of rank 0, for memory of the runtime. Without elements there is none.
fn launch(case: &Case) -> Result<Option<Launch>, BenchError> {
    let Case { op, dtype, ranks, in_place, .. } = *case;
    let count = case.elements();
    if count == 0 {
        return Ok(None);
    }
    let addresses: Vec<u64> = (1..=2 * ranks as u64).map(|index| index * APART).collect();
    let (sources, targets) = addresses.split_at(ranks);
    let targets = if in_place { sources } else { targets };
    let launch = reduce(op, dtype, sources, targets, count as u64);
    launch.map(Some).map_err(|unsupported| BenchError::Failed(unsupported.to_string()))
}

fn way_name(way: Way) -> &'static str {
    match way {
        Way::Host => "host",
        Way::Fold => "fold",
        Way::Copies(_) => "copies",
    }
}

impl fmt::Display for OnGpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OnGpus { case, ranks, gpus, launch, between } = self;
        let combined = if case.collective.kind().combines() { format!("{}, ", case.op) } else { String::new() };
        let place = if case.in_place { ", in place" } else { "" };
        let devices: Vec<String> = ranks.iter().map(|rank| rank.device.to_string()).collect();
        let bytes = size(case.bytes());
        writeln!(f, "{}({combined}{}) of {bytes} on {}{place}", case.collective, case.dtype, devices.join(", "))?;
        let mut line = |name: &str, text: String| writeln!(f, "  {name:<10} {text}");
        let mut name = "gpus";
        for (gpu, (model, uuid)) in gpus {
            line(name, format!("cuda:{gpu} is {model}, {uuid}"))?;
            name = "";
        }
        if let Some(Launch { kernel, grid, block, .. }) = launch {
            let gpu = ranks[0].gpu.map_or_else(String::new, |gpu| format!("cuda:{gpu}"));
            line(
                "way",
                "fold: a kernel reduces the values of all ranks in their GPU's memory; rank 0 enqueues it".to_owned(),
            )?;
            let (name, ranks) = (kernel.name, case.ranks);
            line("kernel", format!("{name} of {ranks} sources on {gpu}, {grid} blocks of {block} threads"))?;
            line(
                "meetings",
                "the ranks compare the call, tell their addresses, and go on once it is enqueued".to_owned(),
            )?;
        }
        for (index, rank) in ranks.iter().enumerate() {
            let ((to_host, host_copies), (to_device, device_copies)) = (rank.to_host(), rank.to_device());
            let way = match rank.way {
                Way::Host if rank.gpu.is_some() => "no data on the GPU",
                Way::Host => "the call is on host memory",
                Way::Fold => "no data leave the GPU",
                Way::Copies(_) => "the call is on copies in host memory",
            };
            let crossing = |bytes: usize, copies: usize, to: String| {
                let copies = if copies == 1 { "1 copy".to_owned() } else { format!("{copies} copies") };
                if bytes == 0 { String::new() } else { format!("; {} to {to} in {copies}", size(bytes)) }
            };
            let gpu = rank.gpu.map_or_else(String::new, |gpu| format!("cuda:{gpu}"));
            let crossing =
                crossing(to_host, host_copies, "the host".to_owned()) + &crossing(to_device, device_copies, gpu);
            line(if index == 0 { "ranks" } else { "" }, format!("rank {index} on {}: {way}{crossing}", rank.device))?;
        }
        let crosses = ranks.iter().any(|rank| rank.crossing != Crossing::default());
        if crosses {
            line("windows", format!("of at most {}, through pinned memory of the host", size(Gpu::COPY_BYTES)))?;
        }
        if let Some(between) = between {
            line(
                "protocol",
                format!("between the ranks, on host memory: {}: {}", between.name(), between.algorithm()),
            )?;
        }
        Ok(())
    }
}
