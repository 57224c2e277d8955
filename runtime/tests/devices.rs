//! Tensors in the memory of a device: they reach an engine as they are, and a computation on the
//! host refuses them.

use consonance::{
    CommunicationOptions, Communicator, Device, Error, IndexedSlices, MirroredStrategy, PerReplica, ReduceOp, Result,
    Tensor, Variable, World, dataset,
    raw::{
        Abort, AbortHandle, Call, Configuration, DeviceMemory, Engine, Failure, Kind, Memory, Reason, Role, Service,
        Signature, Space,
    },
};
use consonance_kernels::memory::pretended;
use consonance_spec::DType;
use std::sync::{Arc, Mutex};

const DEVICE: Space = Space::Cuda(0);

/// The spaces of the buffers of each all-reduce.
type Seen = Arc<Mutex<Vec<(Option<Space>, Space)>>>;

/// The engine of a replica on a device. Its calls change nothing and wait for no other replica. It
/// enqueues barriers, and finds each of them to have failed.
struct Alone {
    world: World,
    seen: Seen,
    enqueued: usize,
}

struct Never;

impl Abort for Never {
    fn abort(&self, _: Option<usize>, _: Option<u64>, _: Reason) {}

    fn is_aborted(&self) -> bool {
        false
    }
}

impl Engine for Alone {
    fn world(&self) -> World {
        self.world
    }

    fn service(&self) -> Service {
        Service::Calls
    }

    fn reaches(&self, space: Space) -> bool {
        space == DEVICE || space == Space::Host
    }

    fn execute(&mut self, call: Call<'_>, _: &Signature, _: Kind) -> Result<(), Failure> {
        match call {
            Call::AllReduce { send, recv, .. } => {
                self.seen.lock().unwrap().push((send.map(|send| send.space()), recv.space()));
            }
            Call::Barrier => self.enqueued += 1,
            _ => {}
        }
        Ok(())
    }

    fn synchronize(&mut self) -> Result<()> {
        match std::mem::take(&mut self.enqueued) {
            0 => Ok(()),
            replica => Err(Error::aborted("barrier", replica, Reason::Failure)),
        }
    }

    fn configure(&mut self, _: &Configuration) {}

    fn abort_handle(&self) -> AbortHandle {
        (Arc::new(Never) as Arc<dyn Abort>).into()
    }

    fn alloc(&self, space: Space, dtype: DType, count: usize) -> Result<Memory> {
        assert_eq!(space, DEVICE);
        Ok(on_device(dtype, count).into())
    }
}

fn on_device(dtype: DType, count: usize) -> DeviceMemory {
    pretended::alloc(0, dtype, count).unwrap()
}

fn engine(rank: usize, size: usize, seen: &Seen) -> Box<dyn Engine> {
    let world = World::new(rank, size).expect("a rank of the group");
    Box::new(Alone { world, seen: seen.clone(), enqueued: 0 })
}

fn strategy(replicas: usize, seen: &Seen) -> MirroredStrategy {
    let seen = seen.clone();
    let engines =
        move |devices: &[Device], _: &Role| Ok((0..replicas).map(|rank| engine(rank, devices.len(), &seen)).collect());
    MirroredStrategy::builder((0..replicas).map(Device::Cpu)).engines(engines).build().unwrap()
}

fn tensor(elements: [f32; 4]) -> Tensor {
    let mut memory = on_device(DType::F32, 4);
    memory.write(0, elements.as_slice().into()).unwrap();
    Tensor::from_memory(vec![2, 2], memory).unwrap()
}

#[test]
fn a_tensor_on_a_device_is_reduced_where_it_lies() {
    let seen = Seen::default();
    let kept = tensor([1.0, 2.0, 3.0, 4.0]);
    let reduced = strategy(1, &seen).run(|replica| {
        let (own, shared) = (tensor([5.0, 6.0, 7.0, 8.0]), kept.clone());
        // Small tensors of the host would be packed.
        replica.all_reduce(ReduceOp::Sum, vec![own, shared, Tensor::from([1.0f32, 2.0])])
    });
    let [own, shared, host] = &reduced.unwrap()[0][..] else { panic!("three tensors") };
    let spaces = [own, shared, host].map(Tensor::space);
    assert_eq!(spaces, [DEVICE, DEVICE, Space::Host]);
    assert_eq!(own.to_host().unwrap().as_slice::<f32>().unwrap(), [5.0, 6.0, 7.0, 8.0]);
    let in_place = (None, DEVICE);
    assert_eq!(*seen.lock().unwrap(), [in_place, (Some(DEVICE), DEVICE), (None, Space::Host)]);
}

#[test]
fn a_reduction_outside_of_a_run_is_a_call_of_the_engines() {
    let (seen, x) = (Seen::default(), tensor([1.0, 2.0, 3.0, 4.0]));
    let sum = strategy(2, &seen).reduce(ReduceOp::Sum, &PerReplica::new(vec![x.clone(), x]), None).unwrap();
    assert_eq!((sum.space(), sum.shape()), (DEVICE, &[2, 2][..]));
    assert_eq!(*seen.lock().unwrap(), [(Some(DEVICE), DEVICE); 2]);
}

#[test]
fn an_enqueued_call_fails_when_it_is_waited_for() {
    let mut communicator = Communicator::from_engine(engine(0, 1, &Seen::default()));
    assert!(communicator.barrier().is_ok() && communicator.barrier().is_ok());
    assert!(matches!(communicator.synchronize(), Err(Error::Aborted { replica: 2, .. })), "two calls");
    assert!(communicator.synchronize().is_ok());
}

/// Found by a review: a tensor without elements was packed with one on a device.
#[test]
fn a_tensor_on_a_device_is_never_packed() {
    let empty = || Tensor::zeros(DType::F32, [0]);
    for bytes_per_pack in [0, 1, 64 << 10] {
        let options = CommunicationOptions::new().bytes_per_pack(bytes_per_pack);
        let reduced = strategy(2, &Seen::default()).run(|replica| {
            let value = vec![empty(), tensor([5.0, 6.0, 7.0, 8.0]), empty(), Tensor::from([1.0f32, 2.0])];
            replica.all_reduce_with(ReduceOp::Sum, value, options)
        });
        let spaces: Vec<Space> = reduced.unwrap()[0].iter().map(Tensor::space).collect();
        assert_eq!(spaces, [Space::Host, DEVICE, Space::Host, Space::Host], "{bytes_per_pack}");
    }
}

#[test]
fn rows_clones_and_comparisons_work_on_a_device() {
    let x = tensor([1.0, 2.0, 3.0, 4.0]);
    assert_eq!((x.space(), x.to_string()), (DEVICE, "f32[2, 2] on cuda:0".to_owned()));
    let row = x.rows(1..2).unwrap();
    assert_eq!((row.space(), row.to_host().unwrap()), (DEVICE, Tensor::from([[3.0f32, 4.0]])));
    assert_eq!(x.clone().reshape([4]).unwrap(), Tensor::from([1.0f32, 2.0, 3.0, 4.0]));
    assert_ne!(x, tensor([1.0, 2.0, 3.0, 5.0]));
}

#[test]
fn a_computation_on_the_host_refuses_a_tensor_on_a_device() {
    let seen = Seen::default();
    let (strategy, x) = (strategy(1, &seen), tensor([1.0, 2.0, 3.0, 4.0]));
    fn refused<R>(result: Result<R>) {
        match result {
            Ok(_) => panic!("it is not in host memory"),
            // A replica's own error has its id around it.
            Err(Error::InvalidCall { expected, found, .. }) => {
                assert!(expected.contains("host memory") && found.contains("cuda:0"), "{expected}, {found}")
            }
            Err(Error::Replica { source, .. }) => refused::<()>(Err(*source)),
            Err(other) => panic!("{other}"),
        }
    }
    refused(x.as_slice::<f32>());
    refused(x.clone().as_mut_slice::<f32>());
    let variable = strategy.scope(|| Variable::builder(|| Tensor::zeros(DType::F32, [2, 2])).build()).unwrap();
    refused(variable.assign(x.clone()));
    refused(variable.assign_add(x.clone()));
    refused(strategy.run(|replica| replica.assign_add(&variable, x.clone())));
    refused(dataset::from_tensor_slices(x.clone()));
    let slices = IndexedSlices::new(x.clone(), Tensor::from([0i64, 1]), Some(vec![2, 2])).unwrap();
    refused(slices.to_dense());
}
