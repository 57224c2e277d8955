//! The floors of `consonance_kernels::cuda`, over a driver whose calls fail and whose work is late.

mod fake;

use consonance_kernels::cuda::{
    Absent, Access, Context, DeviceMemory, DeviceSlice, Driver, DriverError, Event, Failure, Fold, Found, Kernels,
    LoadError, Module, PinnedMemory, Stream,
    kernels::{Launch, Stage, Unsupported},
    sys,
};
use consonance_spec::{DType, ReduceOp};
use fake::Fake;
use std::{
    error::Error,
    path::Path,
    time::{Duration, Instant},
};

/// Far longer than any work here takes.
const PATIENCE: Duration = Duration::from_secs(60);

fn soon() -> Instant {
    Instant::now() + PATIENCE
}

/// Uses each function of the driver, and checks what comes back.
fn use_everything(driver: &Driver) -> Result<(), Box<dyn Error>> {
    let context = Context::new(&driver.device(0)?)?;
    let module = Module::load(&context, fake::PTX)?;
    let function = module.function("double")?;
    let stream = Stream::new(&context)?;
    let (begin, end) = (Event::new(&context)?, Event::new(&context)?);
    let free = context.free_bytes()?;
    let (first, second) = (DeviceMemory::new(&context, 64)?, DeviceMemory::new(&context, 128)?);
    assert_eq!(free - context.free_bytes()?, 64 + 128);

    assert_eq!(context.expect_memory(first.address(), 65), Err(Found::Bytes(64)));
    match context.expect_memory(1 << 40, 1) {
        Err(Found::Error(error)) => return Err(error.into()),
        found => assert_eq!(found, Err(Found::Nothing)),
    }
    // SAFETY: the stream is alive.
    let same = unsafe { Stream::borrowed(&context, stream.handle())? };
    let point = Event::untimed(&context)?;
    same.record(&point)?;
    stream.wait_for(&point)?;
    assert!(!same.is_captured()?);
    stream.record(&begin)?;
    let mut pinned = PinnedMemory::new(&context, 64)?;
    pinned.as_mut_slice().iter_mut().zip(0..).for_each(|(byte, value)| *byte = value);
    let pinned = stream.write(pinned, first.slice(0), 64)?.wait(soon())?;
    stream.fill(second.slice(0), 128, 7)?;
    stream.copy(first.slice(4), second.slice(8), 60)?;
    let (launch, access) = fake::double(second.address(), 4);
    // SAFETY: the launch is the kernel's, which accesses these words.
    unsafe { stream.launch(&function, &launch, &[access])? };
    stream.record(&end)?;
    let pinned = stream.read(second.slice(0), pinned, 64)?.wait(soon())?;
    let expected: Vec<u8> = fake::doubled([7; 8].into_iter().chain(4..60).collect(), 4);
    assert_eq!(pinned.as_slice(), expected);
    assert!(end.is_done()? && end.since(&begin)? < PATIENCE);
    Ok(())
}

#[test]
fn everything_is_freed() {
    let fake = Fake::new("delay=2");
    use_everything(&fake.driver()).expect("a driver without faults");
    fake.assert_nothing_is_alive();
    let calls = fake.calls();
    let uncalled: Vec<&str> = sys::SYMBOLS.iter().copied().filter(|symbol| !calls.contains_key(*symbol)).collect();
    assert_eq!(uncalled, ["cuGetErrorName", "cuGetErrorString"], "only errors have texts");
}

/// Returns an error of the driver without the driver's words.
fn failed(function: &'static str, code: i32, name: &str) -> DriverError {
    DriverError { function, code: sys::CUresult(code), name: name.to_owned(), text: String::new() }
}

/// Each call of each function fails once. The error names the function, or, where nobody takes an
/// error because an owner is dropped, the list of leaks does. Nothing else stays alive.
#[test]
fn an_error_names_the_function_and_nothing_leaks() {
    let fake = Fake::new("");
    use_everything(&fake.driver()).expect("a driver without faults");
    let calls = fake.calls();
    for (&symbol, &count) in &calls {
        let calls: Vec<u64> = if count > 12 { vec![1, 2, count / 2, count - 1, count] } else { (1..=count).collect() };
        for call in calls {
            let case = format!("call {call} of {symbol} fails");
            let fake = fake.again(&format!("fail={symbol}:{call}:719"));
            let (result, leaks) = match fake.load() {
                Ok(driver) => (use_everything(&driver).map_err(|error| error.to_string()), driver.leaks()),
                Err(absent) => (Err(absent.to_string()), Vec::new()),
            };
            let expected = format!("{}", failed(symbol, 719, "CUDA_ERROR_LAUNCH_FAILED"));
            let told: Vec<&String> = result.as_ref().err().into_iter().chain(&leaks).collect();
            // A drop only asks whether something can be freed now. If not, the next one does.
            let is_silent = ["cuStreamQuery", "cuCtxPushCurrent_v2"].contains(&symbol) && told.is_empty();
            assert!(is_silent || told.iter().any(|text| text.contains(&expected)), "{case}: {told:?}");
            assert!(told.len() <= 1, "{case}: {told:?}");
            let alive = fake.alive();
            assert_eq!(alive.values().sum::<u64>(), leaks.len() as u64, "{case}: {alive:?}, {leaks:?}");
            assert_eq!(fake.misuse(), [""; 0], "{case}");
        }
    }
}

#[test]
fn unnamed_codes_are_reported_by_number() {
    let fake = Fake::new("fail=cuMemAlloc_v2:1:123456");
    let context = fake.context();
    let failure = DeviceMemory::new(&context, 1).expect_err("a call that fails");
    assert_eq!(failure, Failure::Driver { device: 0, error: failed("cuMemAlloc_v2", 123456, "") });
}

#[test]
fn an_absent_driver_is_a_value() {
    let library = Path::new("/no/such/libcuda.so.1");
    let absent = Driver::load_from(library).expect_err("no such library");
    assert!(matches!(&absent, Absent::Library { tried, .. } if *tried == [library]), "{absent:?}");

    let absent = Driver::load_from(Path::new("libc.so.6")).expect_err("no driver");
    assert_eq!(absent, Absent::Symbol { library: "libc.so.6".into(), name: "cuInit" });

    let fake = Fake::new("fail=cuInit:1:34");
    let absent = fake.load().expect_err("a driver that does not start");
    assert!(matches!(&absent, Absent::Initialization { error, .. } if error.function == "cuInit"), "{absent:?}");

    let fake = fake.again("devices=0");
    let driver = fake.load().expect("a driver without devices");
    let absent = driver.device(0).expect_err("no device");
    assert_eq!(absent, Absent::Device { ordinal: 0, count: 0 });

    let fake = fake.again("devices=2");
    let driver = fake.driver();
    assert_eq!((driver.device_count(), driver.version().as_str()), (2, "12.0"));
    assert_eq!(driver.device(1).expect("a device").name(), "interpreter (no GPU)");
    let uuids = |first: usize| {
        let driver = fake.again(&format!("devices=2 first={first}")).driver();
        [0, 1].map(|ordinal| driver.device(ordinal).expect("a device").uuid().to_string())
    };
    let uuid = |device: usize| format!("GPU-696e7465-7270-7265-7465-72200000000{device}");
    assert_eq!([uuids(0), uuids(1)], [[uuid(0), uuid(1)], [uuid(1), uuid(2)]]);
    let absent = driver.device(2).expect_err("no third device");
    assert_eq!(absent, Absent::Device { ordinal: 2, count: 2 });
}

/// Work that never ends: waits end with an error at their deadline, and drops return.
#[test]
fn endless_work_is_left_behind() {
    let fake = Fake::new("hang");
    let driver = fake.driver();
    let begin = Instant::now();
    {
        let context = Context::new(&driver.device(0).expect("a device")).expect("a context");
        let module = Module::load(&context, fake::PTX).expect("a module");
        let stream = Stream::new(&context).expect("a stream");
        let memory = DeviceMemory::new(&context, 16).expect("memory");
        let event = Event::new(&context).expect("an event");
        let pinned = PinnedMemory::new(&context, 16).expect("pinned memory");
        let copy = stream.write(pinned, memory.slice(0), 16).expect("a copy");
        let time = Duration::from_millis(30);
        let failure = copy.wait(Instant::now() + time).expect_err("a copy that never ends");
        let Failure::Timeout { device: 0, work, time: had } = &failure else { panic!("{failure:?}") };
        assert_eq!(work, "a copy of 16 bytes to the device");
        assert!(*had <= time, "{failure}");
        stream.record(&event).expect("an event");
        assert!(!event.is_done().expect("a query") && !stream.is_done().expect("a query"));
        drop(memory);
        assert_eq!(context.reclaim(), 2, "pinned memory and memory of the device");
        drop((module, stream));
    }
    assert!(begin.elapsed() < PATIENCE);
    let leaks = driver.leaks();
    let expected = ["pinned memory", "device memory", "a module", "a stream", "the context"];
    assert_eq!(leaks.len(), expected.len(), "{leaks:?}");
    for (leak, what) in leaks.iter().zip(expected) {
        assert!(leak.contains(what) && leak.ends_with("the device's work did not end within 1s"), "{leak}");
    }
    assert_eq!(fake.misuse(), [""; 0]);
}

/// Memory that is dropped while work uses it is freed when the work has ended, and not before.
#[test]
fn memory_is_freed_after_the_work() {
    let fake = Fake::new("delay=40");
    let context = fake.context();
    let stream = Stream::new(&context).expect("a stream");
    let memory = DeviceMemory::new(&context, 1000).expect("memory");
    let pinned = PinnedMemory::new(&context, 1000).expect("pinned memory");
    drop(stream.write(pinned, memory.slice(0), 1000).expect("a copy"));
    drop(memory);
    assert_eq!((fake.alive()["memory"], fake.alive()["pinned"]), (1, 1));
    stream.wait(soon()).expect("work that ends");
    assert_eq!(context.reclaim(), 0);
    assert_eq!((fake.alive()["memory"], fake.alive()["pinned"]), (0, 0));
    drop((stream, context));
    fake.assert_nothing_is_alive();
}

/// Two streams, each of which waits for a point of the other, in any order of queries.
#[test]
fn a_stream_waits_for_a_point_of_another_and_for_no_later_work() {
    for first_is_asked in [false, true] {
        let fake = Fake::new("delay=2");
        let context = fake.context();
        let [first, second] = [(); 2].map(|()| Stream::new(&context).expect("a stream"));
        let [memory, copy] = [(); 2].map(|()| DeviceMemory::new(&context, 8).expect("memory"));
        let wait_for = |stream: &Stream, other: &Stream| {
            let point = Event::untimed(&context).expect("an event");
            other.record(&point).and_then(|()| stream.wait_for(&point)).expect("a wait");
        };
        first.fill(memory.slice(0), 8, 1).expect("a fill");
        wait_for(&second, &first);
        first.fill(copy.slice(0), 8, 9).expect("a fill");
        second.copy(memory.slice(0), copy.slice(0), 8).expect("a copy");
        wait_for(&first, &second);
        first.fill(memory.slice(0), 8, 3).expect("a fill");
        let asked = if first_is_asked { &first } else { &second };
        asked.wait(soon()).expect("work that ends");
        let read = |memory: &DeviceMemory| {
            let pinned = PinnedMemory::new(&context, 8).expect("pinned memory");
            first
                .read(memory.slice(0), pinned, 8)
                .and_then(|copy| copy.wait(soon()))
                .expect("a copy")
                .as_slice()
                .to_vec()
        };
        // The second fill of the copy is of no order: it comes first if the first stream is asked.
        assert_eq!((read(&copy), read(&memory)), (vec![if first_is_asked { 1 } else { 9 }; 8], vec![3; 8]));
        assert_eq!(fake.misuse(), [""; 0]);
    }
}

#[test]
fn streams_and_memory_of_another_library_are_recognised() {
    let fake = Fake::new("devices=2 delay=20");
    let driver = fake.driver();
    let context = |device| Context::new(&driver.device(device).expect("a device")).expect("a context");
    let (own, library, other) = (context(0), context(0), context(1));
    let stream = |context| Stream::new(context).expect("a stream");
    let (same, far) = (stream(&library), stream(&other));
    // SAFETY: the streams are alive.
    let borrow = |stream: &Stream| unsafe { Stream::borrowed(&own, stream.handle()) };
    drop(borrow(&same).expect("a stream of the same context"));
    assert!(matches!(borrow(&far), Err(Failure::Refused { device: 0, .. })));
    let alloc = |context| DeviceMemory::new(context, 1000).expect("memory");
    let (foreign, distant, pinned) =
        (alloc(&library), alloc(&other), PinnedMemory::new(&own, 10).expect("pinned memory"));
    let dropped = alloc(&library).address();
    let own_stream = stream(&own);
    own_stream.fill(foreign.slice(0), 1000, 1).expect("memory of the same device");
    let late = DeviceMemory::new(&own, 1000).expect("memory");
    let retired = late.address();
    own_stream.fill(late.slice(0), 1, 1).expect("a fill");
    drop(late);
    for (address, bytes, expected) in [
        (foreign.address(), 1000, Ok(())),
        (foreign.address() + 999, 1, Ok(())),
        (foreign.address() + 1, 1000, Err(Found::Bytes(999))),
        (foreign.address() + 1000, 1, Err(Found::Nothing)),
        (distant.address(), 1, Err(Found::Device(1))),
        (pinned.as_slice().as_ptr().addr() as u64 + 9, 1, Err(Found::Host)),
        (dropped, 1, Err(Found::Nothing)),
        (retired + 5, 1, Err(Found::Dropped)),
        (u64::MAX, 2, Err(Found::Nothing)),
    ] {
        assert_eq!(own.expect_memory(address, bytes), expected, "{bytes} at {address:#x}");
    }
    own_stream.wait(soon()).expect("work that ends");
    drop((same, far, own_stream, foreign, distant, pinned, own, library, other));
    fake.assert_nothing_is_alive();
}

/// An allocation that finds no room waits for work that uses memory which was dropped.
#[test]
fn an_allocation_waits_for_dropped_memory() {
    let fake = Fake::new("delay=20 memory=1000");
    let context = fake.context();
    let stream = Stream::new(&context).expect("a stream");
    let memory = DeviceMemory::new(&context, 600).expect("memory");
    stream.fill(memory.slice(0), 600, 1).expect("a fill");
    let failure = DeviceMemory::new(&context, 600).expect_err("too little memory");
    let is_of_memory = |error: &DriverError| error.name == "CUDA_ERROR_OUT_OF_MEMORY";
    assert!(matches!(&failure, Failure::Driver { error, .. } if is_of_memory(error)), "{failure}");
    drop(memory);
    DeviceMemory::new(&context, 600).expect("the memory that was dropped");
}

#[test]
fn a_failed_compilation_has_the_compiler_s_words() {
    let fake = Fake::new("");
    let context = fake.context();
    let LoadError { failure, log } = Module::load(&context, "no PTX").expect_err("no PTX");
    let Failure::Driver { device: 0, error } = failure else { panic!("{failure}") };
    assert_eq!((error.function, error.code), ("cuModuleLoadDataEx", sys::CUresult(218)));
    assert!(log.contains("line 1"), "{log}");
    Module::load(&context, "a\0b").expect_err("a text with a zero byte");
    let module = Module::load(&context, fake::PTX).expect("a module");
    let LoadError { failure, log } = module.function("no such kernel").expect_err("no such kernel");
    let Failure::Driver { device: 0, error } = failure else { panic!("{failure}") };
    assert_eq!(error.name, "CUDA_ERROR_NOT_FOUND");
    assert!(log.contains("\"no such kernel\""), "{log}");
}

/// Wrong arguments are refused before the driver sees them.
#[test]
fn wrong_arguments_do_not_reach_the_driver() {
    let fake = Fake::new("devices=2");
    let driver = fake.driver();
    let context = Context::new(&driver.device(0).expect("a device")).expect("a context");
    let other = Context::new(&driver.device(1).expect("a device")).expect("a context");
    let stream = Stream::new(&context).expect("a stream");
    let memory = DeviceMemory::new(&context, 100).expect("memory");
    let foreign = DeviceMemory::new(&other, 100).expect("memory");
    let pinned = || PinnedMemory::new(&context, 8).expect("pinned memory");
    let function = Module::load(&context, fake::PTX).and_then(|module| module.function("double")).expect("a kernel");
    let dropped = DeviceMemory::new(&context, 100).expect("memory").address();

    let refusals = [
        stream.write(pinned(), memory.slice(93), 8).map(drop),
        stream.write(pinned(), memory.slice(usize::MAX), 8).map(drop),
        stream.read(memory.slice(101), pinned(), 0).map(drop),
        stream.read(memory.slice(0), pinned(), 9).map(drop),
        stream.read(foreign.slice(0), pinned(), 8).map(drop),
        stream.write(PinnedMemory::new(&other, 8).expect("pinned memory"), memory.slice(0), 8).map(drop),
        stream.copy(memory.slice(0), foreign.slice(0), 8),
        stream.copy(memory.slice(0), memory.slice(50), 51),
        stream.copy(memory.slice(0), memory.slice(7), 8),
        stream.fill(memory.slice(50), 51, 0),
        stream.record(&Event::new(&other).expect("an event")),
    ];
    for (index, refusal) in refusals.into_iter().enumerate() {
        assert!(matches!(refusal, Err(Failure::Refused { device: 0, .. })), "{index}: {refusal:?}");
    }

    let refuse = |change: &dyn Fn(&mut Launch, &mut Access)| {
        let (mut launch, mut access) = fake::double(memory.address(), 25);
        change(&mut launch, &mut access);
        // SAFETY: the arguments are wrong, so that no kernel runs.
        let refusal = unsafe { stream.launch(&function, &launch, &[access]) };
        match refusal.expect_err("wrong arguments") {
            Failure::Refused { device: 0, why } => why,
            failure => panic!("{failure}"),
        }
    };
    let refusals = [
        (refuse(&|launch, _| launch.grid = 0), "0 blocks; expected 1 to"),
        (refuse(&|launch, _| launch.block = 0), "0 threads a block; expected 1 to 1024"),
        (refuse(&|launch, _| launch.block = 1025), "1025 threads a block; expected 1 to 1024"),
        (refuse(&|_, access| access.address += 2), "words 2: the address"),
        (refuse(&|_, access| access.address += 4), "words 2: expected 100 bytes at"),
        (refuse(&|_, access| access.address += 100), "words 2: the context has no memory at"),
        (refuse(&|_, access| access.bytes = u64::MAX), "words 2: expected"),
        (refuse(&|_, access| access.address = 0), "words 2: the context has no memory at 0x0"),
        (refuse(&|_, access| access.address = dropped), "words 2: "),
        (refuse(&|_, access| access.address = foreign.address()), "words 2: "),
    ];
    for (why, expected) in refusals {
        assert!(why.starts_with("kernel double: ") && why.contains(expected), "{why}: {expected}");
    }
    let calls = fake.calls();
    for symbol in ["cuLaunchKernel", "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuMemcpyDtoDAsync_v2"] {
        assert!(!calls.contains_key(symbol), "{symbol}: {calls:?}");
    }
}

/// Returns why device 0 refused arguments.
fn why(error: LoadError) -> String {
    match error.failure {
        Failure::Refused { device: 0, why } => why,
        failure => panic!("{failure}"),
    }
}

/// A reduction of the table, on memory that is too short, overlaps, or is of another device.
#[test]
fn wrong_reductions_do_not_reach_the_driver() {
    let fake = Fake::new("devices=2");
    let driver = fake.driver();
    let context = Context::new(&driver.device(0).expect("a device")).expect("a context");
    let other = Context::new(&driver.device(1).expect("a device")).expect("a context");
    let (stream, kernels) = (Stream::new(&context).expect("a stream"), Kernels::new(&context));
    let memory = DeviceMemory::new(&context, 400).expect("memory");
    let foreign = DeviceMemory::new(&other, 400).expect("memory");
    let (one, two) = (memory.slice(0), memory.slice(200));
    let refused = |op, sources: &[DeviceSlice<'_>], targets: &[DeviceSlice<'_>], count| {
        let fold = Fold {
            stage: Stage::Whole,
            op,
            dtype: DType::F32,
            sources,
            targets,
            count,
            divisor: 1,
            most_blocks: u32::MAX,
        };
        why(fold.enqueue(&kernels, &stream).expect_err("wrong arguments"))
    };
    let sum = ReduceOp::Sum;
    let refusals = [
        (refused(sum, &[one, two], &[memory.slice(4)], 50), "target 0 overlaps source 0"),
        (refused(sum, &[one], &[two, memory.slice(204)], 49), "target 1 overlaps target 0"),
        (refused(sum, &[one], &[two], 51), "overlaps source 0"),
        (refused(sum, &[one], &[memory.slice(240)], 50), "target 0: expected 200 bytes at"),
        (refused(sum, &[foreign.slice(0)], &[two], 50), "memory is of "),
        (refused(sum, &[memory.slice(400)], &[two], 50), "source 0: the context has no memory at"),
    ];
    for (index, (why, expected)) in refusals.iter().enumerate() {
        assert!(why.contains(expected), "{index}: {why}");
    }
    let unaligned = Unsupported::Unaligned { what: "sources", address: memory.slice(2).address(), bytes: 4 };
    let of_table = [
        (refused(ReduceOp::And, &[one], &[two], 50), Unsupported::Undefined { op: ReduceOp::And, dtype: DType::F32 }),
        (refused(sum, &[], &[two], 50), Unsupported::Number { what: "sources", expected: 1..=16, found: 0 }),
        (refused(sum, &[memory.slice(2)], &[two], 49), unaligned),
        (refused(sum, &[one], &[two], usize::MAX / 2), Unsupported::TooLarge),
    ];
    for (why, expected) in of_table {
        assert_eq!(why, format!("{expected}"));
    }
    assert!(!fake.calls().contains_key("cuLaunchKernel"));
    let overlapping = kernels.concat(&stream, DType::U8, 2, &[(one, 10), (one, 5)], memory.slice(10));
    let why = why(overlapping.expect_err("a target that overlaps a source"));
    assert!(why.contains("expected other bytes"), "{why}");
    assert!(kernels.scale(&stream, DType::U8, one, two, 1, 0.5).is_err());
}
