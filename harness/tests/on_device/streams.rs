//! Calls on memory of another library, in the order of its stream. On the driver for tests a stream
//! begins its work late, and nothing is done that nobody waits for.

use super::{
    calls::of,
    driver::{on_a_driver, sharing},
};
use consonance::{
    Communicator, Error, MirroredStrategy, ReduceOp, Result, Tensor,
    raw::{Agreement, Buf, BufMut, Call, HostMemory, Memory, Space},
};
use consonance_fake_driver::other_library::{OtherLibrary, unchecked};
use consonance_kernels::cuda::Failure;
use consonance_spec::DType;
use std::{
    io::ErrorKind,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

const COUNT: usize = 12;

const TIMEOUT: Duration = Duration::from_millis(50);

/// Calls a function on a thread for each rank. Returns what each returns.
fn each<R: Send>(ranks: Vec<Communicator>, work: impl Fn(&mut Communicator) -> R + Sync) -> Vec<R> {
    thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = ranks.into_iter().map(|mut rank| scope.spawn(move || work(&mut rank))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

fn elements(rank: usize, seed: usize, count: usize) -> HostMemory {
    let elements: Vec<f32> = (0..count).map(|at| 0.1 + 1e7 / (1 + at + 7 * rank + 3 * seed) as f32).collect();
    HostMemory::from(&elements[..])
}

/// The place of a rank's elements: host memory, or memory of another library, whose stream is late.
struct Place {
    library: Option<OtherLibrary>,
    /// Whether the ranks' work ends before the stream's later work begins, which waits for it
    /// otherwise.
    synchronizes: bool,
}

impl Place {
    fn host() -> Place {
        Place { library: None, synchronizes: false }
    }

    fn of(device: &str, synchronizes: bool) -> Place {
        let gpu = device.strip_prefix("cuda:").map(|gpu| gpu.split('.').next().unwrap().parse().unwrap());
        Place { library: gpu.map(OtherLibrary::on), synchronizes }
    }

    fn put(&self, elements: &HostMemory) -> Memory {
        let (dtype, count) = (elements.dtype(), elements.count());
        let Some(library) = &self.library else { return HostMemory::from(elements.as_buf()).into() };
        let memory = library.alloc(elements.as_buf().bytes());
        let view = library.view(&memory, (dtype, count), Box::new(())).unwrap();
        library.write(elements.as_buf(), memory.address());
        view.into()
    }

    fn get(&self, memory: &Memory) -> Vec<f32> {
        let read = |library: &OtherLibrary| {
            let address = memory.as_buf().start().addr().get() as u64;
            library.read(address, memory.dtype(), memory.count()).as_buf().as_slice::<f32>().unwrap().to_vec()
        };
        match &self.library {
            Some(library) => read(library),
            None => memory.as_buf().host().unwrap().as_slice::<f32>().unwrap().to_vec(),
        }
    }

    /// Makes calls in the order of the place's stream.
    fn ordered<R>(&self, rank: &mut Communicator, calls: impl FnOnce(&mut Communicator) -> R) -> R {
        match &self.library {
            Some(library) => rank.on_stream(&library.caller(), calls),
            None => calls(rank),
        }
    }

    /// Makes a call of an input and an output, and returns the output.
    fn call(
        &self,
        rank: &mut Communicator,
        sizes: [usize; 2],
        call: impl for<'c> FnOnce(Buf<'c>, BufMut<'c>) -> Call<'c>,
    ) -> Result<Vec<f32>> {
        let own = rank.rank();
        let (send, mut recv) = (self.put(&elements(own, 1, sizes[0])), self.put(&elements(own, 2, sizes[1])));
        self.ordered(rank, |rank| rank.execute(call(send.as_buf(), recv.as_buf_mut()), &Agreement::NONE))?;
        if self.synchronizes {
            rank.synchronize()?;
        }
        Ok(self.get(&recv))
    }

    /// Makes a call in place.
    fn in_place(&self, rank: &mut Communicator, call: impl for<'c> FnOnce(BufMut<'c>) -> Call<'c>) -> Result<Vec<f32>> {
        self.call(rank, [0, COUNT], |_, recv| call(recv))
    }
}

/// Makes every call, apart and in place. Returns what the rank has after each.
fn every_call(rank: &mut Communicator, place: &Place) -> Result<Vec<Vec<f32>>> {
    let (own, size, op) = (rank.rank(), rank.size(), ReduceOp::Sum);
    let (root, part) = (size - 1, COUNT / size);
    let even = [COUNT, COUNT];
    let mut results = vec![
        place.call(rank, even, |send, recv| Call::AllReduce { op, send: Some(send), recv })?,
        place.in_place(rank, |recv| Call::AllReduce { op, send: None, recv })?,
        place.in_place(rank, |data| Call::Broadcast { data, root })?,
        place.call(rank, [COUNT, part], |send, recv| Call::ReduceScatter { op, send: Some(send), recv })?,
        place.call(rank, [part, part * size], |send, recv| Call::AllGather { send: Some(send), recv, counts: None })?,
        place.call(rank, even, |send, recv| Call::AllToAll { send: Some(send), recv, counts: None })?,
        place.in_place(rank, |recv| Call::AllToAll { send: None, recv, counts: None })?,
        place.call(rank, even, |send, recv| Call::Reduce { op, send: Some(send), recv: Some(recv), root })?,
        place.call(rank, [part, part * size], |send, recv| Call::Gather {
            send: Some(send),
            recv: Some(recv),
            counts: None,
            root,
        })?,
        place.call(rank, [part * size, part], |send, recv| Call::Scatter {
            send: Some(send),
            recv: Some(recv),
            counts: None,
            root,
        })?,
    ];
    // Of the result in place only the rank's own block is promised.
    let scattered = place.in_place(rank, |recv| Call::ReduceScatter { op, send: None, recv })?;
    results.push(scattered[own * part..][..part].to_vec());
    results.push(place.in_place(rank, |recv| Call::AllGather { send: None, recv, counts: None })?);
    if size > 1 && own < 2 {
        results.push(place.call(rank, even, |data, recv| match own {
            0 => Call::Send { data, to: 1 },
            _ => Call::Recv { data: recv, from: 0 },
        })?);
    }
    Ok(results)
}

fn same_as_the_host(devices: &[&str], make: impl Fn() -> Vec<Communicator>) {
    let expected = each(Communicator::threads(devices.len()), |rank| every_call(rank, &Place::host()).unwrap());
    for synchronizes in [false, true] {
        let found = each(make(), |rank| every_call(rank, &Place::of(devices[rank.rank()], synchronizes)).unwrap());
        assert_eq!(found, expected, "{devices:?}, synchronizes: {synchronizes}");
    }
}

#[test]
fn calls_in_the_order_of_a_stream_have_the_bits_of_the_host() {
    let test = "streams::calls_in_the_order_of_a_stream_have_the_bits_of_the_host";
    on_a_driver(test, "devices=2 delay=3", || {
        for devices in [&["cuda:0"][..], &["cuda:0.0", "cuda:0.1"], &["cuda:1", "cpu:0", "cuda:0", "cuda:0.1"]] {
            same_as_the_host(devices, || Communicator::on_devices(devices.iter().copied()).unwrap());
        }
        let devices = ["cuda:0", "cuda:1", "cpu:0"];
        same_as_the_host(&devices, || {
            let ranks = Communicator::threads(3).into_iter().zip(devices);
            ranks.map(|(rank, device)| rank.on_device(device).unwrap()).collect()
        });
    });
}

/// No stream does any work, so that a call that waited for one would fail.
#[test]
fn an_all_reduce_on_one_gpu_returns_before_the_work() {
    on_a_driver("streams::an_all_reduce_on_one_gpu_returns_before_the_work", "hang", || {
        let all_reduce = |rank: &mut Communicator| {
            let (library, later) = (OtherLibrary::on(0), OtherLibrary::on(0));
            let memory = library.alloc(COUNT * 4);
            let call = || {
                let recv = unchecked(0, DType::F32, memory.address(), COUNT);
                Call::AllReduce { op: ReduceOp::Sum, send: None, recv }
            };
            rank.on_stream(&library.caller(), |rank| rank.execute(call(), &Agreement::NONE)).unwrap();
            assert!(!library.is_done());
            // A call is not ordered by a stream of earlier calls.
            rank.on_stream(&later.caller(), |_| ());
            rank.execute(call(), &Agreement::NONE).unwrap();
            assert!(later.is_done());
        };
        each(Communicator::on_devices(["cuda:0.0", "cuda:0.1"]).unwrap(), all_reduce);
    });
}

#[test]
fn a_stream_without_end_is_an_error_at_the_timeout() {
    on_a_driver("streams::a_stream_without_end_is_an_error_at_the_timeout", "hang", || {
        let ranks = Communicator::on_devices(["cuda:0", "cpu:0"]).unwrap();
        let errors = each(ranks, |rank| {
            let place = Place::of(["cuda:0", "cpu:0"][rank.rank()], false);
            if rank.rank() == 0 {
                rank.set_timeout(TIMEOUT).unwrap();
            }
            place.in_place(rank, |data| Call::Broadcast { data, root: 0 }).unwrap_err()
        });
        let Error::System { what, source } = &errors[0] else { panic!("{errors:?}") };
        assert_eq!((&what[..], source.kind()), ("wait for cuda:0", ErrorKind::TimedOut));
        let failure = source.get_ref().and_then(|source| source.downcast_ref());
        assert!(matches!(failure, Some(Failure::Timeout { time, .. }) if *time <= TIMEOUT), "{failure:?}");
        assert!(matches!(errors[1], Error::Aborted { replica: 0, .. }), "{errors:?}");
    });
}

#[test]
fn tensors_of_another_library_go_through_a_strategy() {
    on_a_driver("streams::tensors_of_another_library_go_through_a_strategy", "delay=3", || {
        let is_dropped = [const { AtomicBool::new(false) }; 2].map(Arc::new);
        struct Flag(Arc<AtomicBool>);
        impl Drop for Flag {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let sums = sharing(2).run(|replica| {
            let (id, library) = (replica.replica_id_in_sync_group(), OtherLibrary::on(0));
            let memory = library.alloc(COUNT * 4);
            library.write(elements(id, 1, COUNT).as_buf(), memory.address());
            let owner = Box::new(Flag(is_dropped[id].clone()));
            let view = library.view(&memory, (DType::F32, COUNT), owner).unwrap();
            let own = Tensor::from_memory(vec![3, 4], view)?;
            assert_eq!(own.to_host()?.as_slice::<f32>()?, elements(id, 1, COUNT).as_buf().as_slice::<f32>().unwrap());
            let sum = replica.all_reduce(ReduceOp::Sum, own)?;
            assert_eq!((sum.space(), sum.buf().start().addr().get() as u64), (Space::Cuda(0), memory.address()));
            assert!(!is_dropped[id].load(Ordering::Relaxed));
            let expected = sum.to_host()?;
            // The end of the view orders the stream after the sum.
            let again = replica.all_reduce(ReduceOp::Sum, sum)?;
            drop(again);
            assert!(is_dropped[id].load(Ordering::Relaxed));
            let twice = library.read(memory.address(), DType::F32, COUNT);
            let twice: Vec<f32> = twice.as_buf().as_slice::<f32>().unwrap().to_vec();
            assert_eq!(twice, expected.as_slice::<f32>()?.iter().map(|sum| sum + sum).collect::<Vec<f32>>());
            Ok(expected)
        });
        let sums = sums.unwrap();
        assert_eq!(sums[0], sums[1]);
    });
}

/// A tensor is dropped while the caller's stream copies it, and its memory is used again.
#[test]
fn memory_is_used_again_after_a_stream_before_it() {
    on_a_driver("streams::memory_is_used_again_after_a_stream_before_it", "delay=5", || {
        let library = OtherLibrary::on(0);
        let (caller, copied) = (library.caller(), library.alloc(COUNT * 4));
        let tensor = Tensor::from_memory(vec![COUNT], elements(3, 1, COUNT)).unwrap().to("cuda:0").unwrap();
        let address = tensor.buf().start().addr().get() as u64;
        library.copy(address, copied.address(), COUNT * 4);
        caller.precede().unwrap();
        drop(tensor);
        let other = Tensor::zeros(DType::F32, [COUNT]).to("cuda:0").unwrap();
        assert_eq!(other.buf().start().addr().get() as u64, address, "the memory of the first");
        let copy = library.read(copied.address(), DType::F32, COUNT);
        assert_eq!(copy.as_buf().as_slice::<f32>(), elements(3, 1, COUNT).as_buf().as_slice::<f32>());
    });
}

#[test]
fn a_stream_of_another_context_is_refused() {
    on_a_driver("streams::a_stream_of_another_context_is_refused", "devices=2", || {
        let (own, other) = (OtherLibrary::on(0), OtherLibrary::on(1));
        assert_eq!(other.caller_on(0).unwrap_err().kind(), ErrorKind::InvalidInput);
        assert_eq!(own.caller_on(2).unwrap_err().kind(), ErrorKind::NotFound);
        let error = of(0, 1).to("cuda:0").and_then(|tensor| {
            MirroredStrategy::new(["cuda:1"]).unwrap().run(|replica| replica.all_reduce(ReduceOp::Sum, tensor.clone()))
        });
        assert!(error.is_err());
    });
}

/// Rank 1 gives up while rank 0 enqueues the kernel, which writes to the memory of both. The stream
/// goes on after it.
#[test]
fn a_stream_goes_on_after_the_kernel_of_a_call_with_an_error() {
    let test = "streams::a_stream_goes_on_after_the_kernel_of_a_call_with_an_error";
    on_a_driver(test, "delay=1 pause=cuLaunchKernel:1:300", || {
        each(Communicator::on_devices(["cuda:0.0", "cuda:0.1"]).unwrap(), |rank| {
            let (library, own) = (OtherLibrary::on(0), rank.rank());
            let memory = library.alloc(COUNT * 4);
            library.write(elements(own, 1, COUNT).as_buf(), memory.address());
            if own == 1 {
                rank.set_timeout(2 * TIMEOUT).unwrap();
            }
            let recv = unchecked(0, DType::F32, memory.address(), COUNT);
            let call = Call::AllReduce { op: ReduceOp::Sum, send: None, recv };
            let error = rank.on_stream(&library.caller(), |rank| rank.execute(call, &Agreement::NONE)).unwrap_err();
            let gave_up = matches!(error, Error::Timeout { .. });
            assert!(gave_up == (own == 1) && (gave_up || matches!(error, Error::Aborted { .. })), "{error}");
            let later = elements(own, 5, COUNT);
            library.write(later.as_buf(), memory.address());
            for _ in 0..2 {
                let read = library.read(memory.address(), DType::F32, COUNT);
                assert_eq!(read.as_buf().as_slice::<f32>(), later.as_buf().as_slice::<f32>());
                rank.synchronize().unwrap();
            }
        });
    });
}

#[test]
fn a_stream_of_a_graph_is_refused_on_all_ranks() {
    on_a_driver("streams::a_stream_of_a_graph_is_refused_on_all_ranks", "captures", || {
        let errors = each(Communicator::on_devices(["cuda:0", "cpu:0"]).unwrap(), |rank| {
            let place = Place::of(["cuda:0", "cpu:0"][rank.rank()], false);
            place.in_place(rank, |data| Call::Broadcast { data, root: 0 }).unwrap_err()
        });
        assert!(matches!(&errors[0], Error::InvalidCall { argument, .. } if argument == "stream"), "{errors:?}");
        assert!(matches!(errors[1], Error::Mismatch { replica: 0, .. }), "{errors:?}");
    });
}

/// Rank 0 makes a wrong call, rank 1 a right one. Both fail, have moved nothing, and go on.
#[test]
fn wrong_memory_and_streams_are_refused_on_all_ranks() {
    on_a_driver("streams::wrong_memory_and_streams_are_refused_on_all_ranks", "devices=2", || {
        each(Communicator::on_devices(["cuda:0.0", "cuda:0.1"]).unwrap(), refuse_wrong_buffers);
    });
}

fn refuse_wrong_buffers(rank: &mut Communicator) {
    let (library, second, own, bytes) = (OtherLibrary::on(0), OtherLibrary::on(1), rank.rank(), COUNT * 4);
    let (memory, far, host) = (library.alloc(bytes), second.alloc(bytes), elements(9, 9, COUNT));
    let freed = library.alloc(bytes).address();
    let at = |device, address| unchecked(device, DType::F32, address, COUNT);
    library.write(elements(own, 1, COUNT).as_buf(), memory.address());
    let data = || library.read(memory.address(), DType::F32, COUNT).as_buf().as_slice::<f32>().unwrap().to_vec();
    let before = data();
    let check = |error: Error, argument: &str, facts: [&str; 2]| {
        match error {
            Error::InvalidCall { argument: found, expected, found: what, .. } => {
                assert_eq!((own, &found[..], &expected[..]), (0, argument, facts[0]));
                assert!(what.starts_with(facts[1]), "{what}");
            }
            Error::Mismatch { replica, .. } => assert_eq!((own, replica), (1, 0)),
            error => panic!("{error}"),
        }
        assert_eq!(data(), before);
    };
    let all_reduce = |rank: &mut Communicator, send: u64, recv: BufMut<'_>| {
        let send = at(0, send);
        rank.execute(Call::AllReduce { op: ReduceOp::Sum, send: Some(send.as_buf()), recv }, &Agreement::NONE)
    };
    let expected = "48 bytes of memory of cuda:0";
    let on_host = host.as_buf().as_bytes().as_ptr().addr() as u64;
    for (expected, found, address) in [
        (expected, "no memory that the driver knows at", freed),
        (expected, "memory of cuda:1 at", far.address()),
        (expected, "memory of the host at", library.pinned_address(bytes)),
        (expected, "no memory that the driver knows at", on_host),
        (expected, "44 bytes at", memory.address() + 4),
        ("an address aligned for elements of f32", "0x", memory.address() + 1),
    ] {
        let address = if own == 0 { address } else { memory.address() };
        let error = all_reduce(rank, memory.address(), at(0, address)).unwrap_err();
        check(error, "recv", [expected, found]);
        let error = all_reduce(rank, address, at(0, memory.address())).unwrap_err();
        check(error, "send", [expected, found]);
    }
    let double = library.alloc(2 * bytes);
    let [send, recv] = if own == 0 { [0, 16].map(|by| double.address() + by) } else { [memory.address(); 2] };
    let error = all_reduce(rank, send, at(0, recv)).unwrap_err();
    check(error, "recv", ["the memory of send, or none of it", "memory that overlaps it"]);
    // Buffers of two devices.
    let recv = if own == 0 { at(1, far.address()) } else { at(0, memory.address()) };
    let error = all_reduce(rank, memory.address(), recv).unwrap_err();
    check(error, "recv", ["memory that this communicator's engine reaches", "memory of cuda:1"]);
    // A stream of another device.
    let (stream, wrong) = (library.caller(), second.caller());
    let used = if own == 0 { &wrong } else { &stream };
    let sum = |rank: &mut Communicator| all_reduce(rank, memory.address(), at(0, memory.address()));
    let error = rank.on_stream(used, sum).unwrap_err();
    check(error, "stream", ["a stream of cuda:0", "a stream of cuda:1"]);
    // The order before an inner one comes back.
    let [inner, outer] = rank.on_stream(&wrong, |rank| [rank.on_stream(&stream, sum), sum(rank)]);
    inner.unwrap();
    assert!(matches!(outer, Err(Error::InvalidCall { argument, .. }) if argument == "stream"));
    let expected: Vec<f32> = elements(0, 1, COUNT).as_buf().as_slice::<f32>().unwrap().to_vec();
    let other = elements(1, 1, COUNT);
    let sums: Vec<f32> = expected.iter().zip(other.as_buf().as_slice::<f32>().unwrap()).map(|(a, b)| a + b).collect();
    assert_eq!(data(), sums);
}
