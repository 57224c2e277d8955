//! A whole strategy on a device that pretends: its tensors reach its engine and nothing else, its
//! calls are only enqueued, and all results have the bits of the host.

use super::calls::{here, of, results};
use consonance::{
    Communicator, Device, Error, MirroredStrategy, PerReplica, ReduceOp, Result, Tensor, World,
    raw::{
        AbortHandle, Agreement, Buf, BufMut, Call, Configuration, DeviceMemory, Engine, Failure, HostMemory, Kind,
        Memory, Role, Service, Signature, Space,
    },
};
use consonance_kernels::memory::pretended;
use consonance_spec::DType;
use std::{
    hash::{BuildHasher, BuildHasherDefault, DefaultHasher},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

const DEVICE: Space = Space::Cuda(0);

/// The engines of a test: how many calls are enqueued, and whether the next that is waited for
/// fails.
#[derive(Clone, Default)]
struct Watch {
    enqueued: Arc<AtomicUsize>,
    fails: Arc<AtomicBool>,
}

/// The engine of a replica on the device. The ranks meet, and compute, on copies in host memory.
struct OnDevice {
    ranks: Communicator,
    watch: Watch,
    enqueued: usize,
}

impl OnDevice {
    /// Makes the call on copies. The ranks agree on the `signature` of the true one.
    fn meet(&mut self, call: Call<'_>, signature: &Signature) -> Result<(), Failure> {
        let digest = BuildHasherDefault::<DefaultHasher>::new().hash_one(format!("{signature:?}"));
        match self.ranks.execute(call, &Agreement::new(digest, &Vec::new)) {
            Err(Error::Mismatch { .. }) => Err(Failure::Disagreement { peer: None }),
            done => done.map_err(Failure::Error),
        }
    }

    /// Enqueues the write of a result to the device; one in host memory is finished at once.
    fn put(&mut self, recv: BufMut<'_>, result: HostMemory) {
        if recv.space() == Space::Host {
            recv.host().expect("host memory").copy_from_bytes(result.as_buf().as_bytes());
            return;
        }
        pretended::enqueue(&recv.as_buf(), result);
        self.enqueued += 1;
        self.watch.enqueued.fetch_add(1, Ordering::Relaxed);
    }
}

fn elements(buf: Buf<'_>) -> HostMemory {
    buf.host().map_or_else(|| pretended::read(&buf), HostMemory::from)
}

impl Engine for OnDevice {
    fn world(&self) -> World {
        self.ranks.world()
    }

    fn service(&self) -> Service {
        Service::Calls
    }

    fn reaches(&self, space: Space) -> bool {
        space == DEVICE || space == Space::Host
    }

    fn execute(&mut self, call: Call<'_>, signature: &Signature, _: Kind) -> Result<(), Failure> {
        match call {
            Call::AllReduce { op, send, recv } => {
                let (send, mut result) = (send.map(elements), elements(recv.as_buf()));
                let send = send.as_ref().map(|send| send.as_buf().into());
                self.meet(Call::AllReduce { op, send, recv: result.as_buf_mut().into() }, signature)?;
                self.put(recv, result);
            }
            Call::ReduceScatter { op, send, recv } => {
                let (send, mut result) = (send.map(elements), elements(recv.as_buf()));
                let send = send.as_ref().map(|send| send.as_buf().into());
                self.meet(Call::ReduceScatter { op, send, recv: result.as_buf_mut().into() }, signature)?;
                self.put(recv, result);
            }
            Call::Broadcast { data, root } => {
                let mut result = elements(data.as_buf());
                self.meet(Call::Broadcast { data: result.as_buf_mut().into(), root }, signature)?;
                self.put(data, result);
            }
            Call::Concat { send, rows, recv, counts } => {
                let own = elements(send);
                self.meet(Call::Concat { send: own.as_buf().into(), rows, recv, counts }, signature)?;
                if let (Some(Memory::Host(all)), DEVICE) = (&*recv, send.space()) {
                    *recv = Some(on_device(all).into());
                }
            }
            // The other calls of a strategy are on host memory: what replicas tell each other.
            call => self.meet(call, signature)?,
        }
        Ok(())
    }

    fn synchronize(&mut self) -> Result<()> {
        pretended::finish();
        self.watch.enqueued.fetch_sub(std::mem::take(&mut self.enqueued), Ordering::Relaxed);
        match self.watch.fails.swap(false, Ordering::Relaxed) {
            true => Err(Error::system("the device", std::io::ErrorKind::InvalidData)),
            false => Ok(()),
        }
    }

    fn configure(&mut self, configuration: &Configuration) {
        self.ranks.set_timeout(configuration.timeout).expect("a timeout that was checked");
    }

    fn abort_handle(&self) -> AbortHandle {
        self.ranks.abort_handle()
    }

    fn alloc(&self, space: Space, dtype: DType, count: usize) -> Result<Memory> {
        assert_eq!(space, DEVICE);
        Ok(pretended::alloc(0, dtype, count).expect("memory").into())
    }
}

fn on_device(elements: &HostMemory) -> DeviceMemory {
    let elements = elements.as_buf();
    let mut memory = pretended::alloc(0, elements.dtype(), elements.count()).expect("memory");
    memory.write(0, elements).expect("the device takes it");
    memory
}

/// Returns a tensor of the device with these elements.
fn moved(tensor: &Tensor) -> Tensor {
    let elements = tensor.as_slice::<f32>().expect("floats");
    Tensor::from_memory(tensor.shape().to_vec(), on_device(&HostMemory::from(elements))).expect("the same shape")
}

fn strategy(replicas: usize, watch: &Watch) -> MirroredStrategy {
    let watch = watch.clone();
    let make = move |devices: &[Device], _: &Role| {
        let on = |ranks| Box::new(OnDevice { ranks, watch: watch.clone(), enqueued: 0 }) as Box<dyn Engine>;
        Ok(Communicator::threads(devices.len()).into_iter().map(on).collect())
    };
    MirroredStrategy::builder((0..replicas).map(Device::Cpu)).engines(make).build().expect("devices that exist")
}

#[test]
fn a_strategy_on_a_device_has_the_bits_of_the_host() {
    for replicas in [1, 2, 3] {
        let host = MirroredStrategy::new((0..replicas).map(Device::Cpu)).unwrap();
        let expected = results(&host, here).unwrap();
        let watch = Watch::default();
        let device = strategy(replicas, &watch);
        let on_device = results(&device, |tensor, _| moved(tensor)).unwrap();
        let spaces = on_device.iter().filter(|tensor| tensor.space() == DEVICE).count();
        // Of each replica eight, and the four of calls outside of the run.
        assert_eq!(spaces, replicas * 8 + 4);
        let copies: Vec<Tensor> = on_device.iter().map(|tensor| tensor.to_host().unwrap()).collect();
        assert_eq!(copies, expected, "{replicas} replicas");
        // The engines of values in host memory have the same bits, too.
        assert_eq!(results(&device, here).unwrap(), expected);
        assert_eq!(watch.enqueued.load(Ordering::Relaxed), 0, "every call is finished");
    }
}

#[test]
fn an_error_of_the_device_comes_from_its_own_call_or_run() {
    let watch = Watch::default();
    let strategy = strategy(1, &watch);
    let values = PerReplica::new(vec![moved(&of(0, 1))]);
    let run = || strategy.run(|replica| replica.all_reduce(ReduceOp::Sum, values[0].clone())).map(drop);
    let reduce = || strategy.reduce(ReduceOp::Sum, &values, None).map(drop);
    let merge = || strategy.run(|replica| replica.merge_call((), |_, _| Ok(())));
    for call in [&run as &dyn Fn() -> Result<()>, &reduce, &|| merge().map(drop)] {
        watch.fails.store(true, Ordering::Relaxed);
        let error = call().unwrap_err();
        assert!(matches!(error.root(), Error::System { what, .. } if what == "the device"), "{error}");
        call().unwrap();
    }
}

#[test]
fn replicas_agree_on_where_their_values_lie() {
    let differ = |id: usize| if id == 1 { moved(&of(id, 1)) } else { of(id, 1) };
    let strategy = strategy(2, &Watch::default());
    let in_run =
        strategy.run(|replica| replica.all_reduce(ReduceOp::Sum, vec![differ(replica.replica_id_in_sync_group()); 2]));
    let outside = strategy.reduce(ReduceOp::Sum, &PerReplica::new(vec![differ(0), differ(1)]), None);
    for error in [in_run.map(drop).unwrap_err(), outside.map(drop).unwrap_err()] {
        let Error::Mismatch { replica, expected, found, .. } = &error else { panic!("{error}") };
        assert_eq!((*replica, &expected[..]), (1, "f32[1, 2]"));
        assert!(found.starts_with("f32[1, 2] on a device"), "{found}");
    }
}
