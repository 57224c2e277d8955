//! `consonance explain --device`: ranks on GPUs do what is explained. The driver for tests counts
//! the copies and the launches.
#![cfg(target_os = "linux")]

use consonance::{
    Communicator, DType, Device, ReduceOp,
    raw::{Agreement, Buf, BufMut, Call, Copies, HostMemory, Memory, Way},
};
use consonance_cli::{
    bench::case::{Case, Collective},
    explain::OnGpus,
};
use consonance_fake_driver::control::report_of;
use consonance_kernels::cuda::Gpu;
use serde_json::Value;
use std::{
    collections::BTreeMap,
    env,
    path::PathBuf,
    process::{Command, Output},
    thread,
};

const DRIVER: &str = "CONSONANCE_CUDA_DRIVER";
const PLAN: &str = "CONSONANCE_FAKE_DRIVER";

/// The work of each GPU: the count and the bytes, by the work's name.
type Enqueued = BTreeMap<(usize, String), (usize, usize)>;

/// The path of the driver for tests, which is built beside these.
fn driver() -> PathBuf {
    let path = env::current_exe().expect("the path of this test");
    path.parent().expect("a folder").join("libconsonance_fake_driver.so")
}

/// Runs `work` in a process of the test of this name, on the driver for tests.
fn on_a_driver(test: &str, work: fn()) {
    if env::var_os(DRIVER).is_some() {
        return if env::var_os(PLAN).is_some() { work() } else { println!("{test} needs the driver for tests") };
    }
    let mut process = Command::new(env::current_exe().expect("the path of this test"));
    process.args(["--exact", test, "--nocapture"]).env(DRIVER, driver()).env(PLAN, "devices=2");
    let output = process.output().expect("the process of a test");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success() && stdout.contains("1 passed"), "{stdout}{stderr}");
}

/// Returns the work so far.
fn enqueued() -> Enqueued {
    let report = report_of(&driver());
    let lines = report.lines().filter_map(|line| line.strip_prefix("enqueued cuda:"));
    let work = lines.map(|line| {
        let words: Vec<&str> = line.split(' ').collect();
        let [gpu, name, count, bytes] = words[..] else { panic!("{line}") };
        let number = |word: &str| word.parse().expect("a number");
        ((number(gpu), name.to_owned()), (number(count), number(bytes)))
    });
    work.collect()
}

/// Returns the work between two reports.
fn between(before: &Enqueued, after: Enqueued) -> Enqueued {
    let less = |(work, (count, bytes)): ((usize, String), (usize, usize))| {
        let (old_count, old_bytes) = before.get(&work).copied().unwrap_or_default();
        (work, (count - old_count, bytes - old_bytes))
    };
    after.into_iter().map(less).filter(|(_, work)| *work != (0, 0)).collect()
}

/// Returns the explained work.
fn explained(answer: &OnGpus) -> Enqueued {
    let mut work = Enqueued::new();
    let mut add = |gpu: usize, name: &str, (bytes, count): (usize, usize)| {
        if count > 0 {
            let (counts, all) = work.entry((gpu, name.to_owned())).or_default();
            (*counts, *all) = (*counts + count, *all + bytes);
        }
    };
    for rank in &answer.ranks {
        if let Some(gpu) = rank.gpu {
            add(gpu, "to_host", rank.to_host());
            add(gpu, "to_device", rank.to_device());
        }
    }
    if let Some(launch) = &answer.launch {
        add(answer.ranks[0].gpu.expect("a GPU"), launch.kernel.name, (0, 1));
    }
    work
}

/// Returns memory of the rank, on its GPU or on the host.
fn memory(rank: &Communicator, count: usize) -> Memory {
    match rank.gpu() {
        Some((gpu, _)) => Gpu::get(gpu).expect("a GPU").alloc(DType::F32, count).expect("memory").into(),
        None => HostMemory::zeroed(DType::F32, count).into(),
    }
}

/// Makes the call of `case` with buffers in the memory of the rank's device. A rank that is not the
/// root passes the root's buffers, too: nobody copies them.
fn call(rank: &mut Communicator, case: &Case) {
    let (own, op, all, part) = (rank.rank(), case.op, case.elements(), case.part(rank.rank()).len());
    let (is_root, apart) = (own == 0, !case.in_place);
    let counts = case.counts(own);
    let ragged = case.collective.is_ragged().then_some(&counts[..]);
    let [first, mut second, mut small] = [all, all, part].map(|count| memory(rank, count));
    fn only<B>(is_wanted: bool, buffer: B) -> Option<B> {
        is_wanted.then_some(buffer)
    }
    let (send, block): (Buf<'_>, BufMut<'_>) = (first.as_buf(), small.as_buf_mut());
    let recv = second.as_buf_mut();
    let root = 0;
    let made = match case.collective {
        Collective::Barrier => Call::Barrier,
        Collective::Broadcast => Call::Broadcast { data: recv, root },
        Collective::AllReduce => Call::AllReduce { op, send: only(apart, send), recv },
        Collective::Reduce => Call::Reduce { op, send: only(apart || !is_root, send), recv: Some(recv), root },
        Collective::ReduceScatter if apart => Call::ReduceScatter { op, send: Some(send), recv: block },
        Collective::ReduceScatter => Call::ReduceScatter { op, send: None, recv },
        Collective::AllGather | Collective::AllGatherV => {
            Call::AllGather { send: only(apart, block.as_buf()), recv, counts: ragged }
        }
        Collective::Gather | Collective::GatherV => {
            Call::Gather { send: only(apart || !is_root, block.as_buf()), recv: Some(recv), counts: ragged, root }
        }
        Collective::Scatter | Collective::ScatterV => {
            Call::Scatter { send: Some(send), recv: only(apart || !is_root, block), counts: ragged, root }
        }
        Collective::AllToAll => Call::AllToAll { send: only(apart, send), recv, counts: None },
        Collective::AllToAllV => Call::AllToAll { send: Some(send), recv, counts: Some((&counts, &counts)) },
        Collective::SendRecv => match own {
            0 => Call::Send { data: send, to: 1 },
            1 => Call::Recv { data: recv, from: 0 },
            _ => return,
        },
    };
    rank.execute(made, &Agreement::NONE).expect("all ranks call the same");
    rank.synchronize().expect("the work ends");
}

/// Explains a call, makes it, and compares.
fn compare(devices: &[Device], case: Case) -> OnGpus {
    let mut group = Communicator::on_devices(devices.iter().copied()).expect("devices");
    let answer = OnGpus::explain(case, devices, &group).expect("a call");
    let before = enqueued();
    thread::scope(|scope| group.iter_mut().for_each(|rank| _ = scope.spawn(move || call(rank, &case))));
    assert_eq!(between(&before, enqueued()), explained(&answer), "{answer}");
    answer
}

fn devices(words: &str) -> Vec<Device> {
    words.split(' ').map(|device| device.parse().expect("a device")).collect()
}

fn case(collective: Collective, ranks: usize) -> Case {
    let (dtype, op) = (DType::F32, ReduceOp::Sum);
    Case { collective, ranks, count: 0, dtype, op, in_place: collective.in_place(false), spread: 10 }
}

#[test]
fn ranks_on_gpus_make_the_explained_copies_and_launches() {
    on_a_driver("ranks_on_gpus_make_the_explained_copies_and_launches", || {
        for words in ["cuda:1", "cuda:0.0 cuda:0.1", "cuda:0 cuda:1 cuda:0.1", "cpu:0 cuda:1", "cpu:0 cpu:1"] {
            let devices = devices(words);
            for &collective in Collective::ALL {
                if devices.len() < collective.least_ranks() {
                    continue;
                }
                for in_place in [false, true].map(|wanted| collective.in_place(wanted)) {
                    let case = Case { in_place, ..case(collective, devices.len()) };
                    let answer = compare(&devices, case.with_bytes(1200));
                    let is_fold = answer.ranks.iter().any(|rank| rank.way == Way::Fold);
                    let is_together = words == "cuda:1" || words == "cuda:0.0 cuda:0.1";
                    assert_eq!(is_fold, collective == Collective::AllReduce && is_together, "{answer}");
                }
            }
        }
    });
}

/// One copy moves at most a window.
#[test]
fn a_large_buffer_crosses_in_windows() {
    on_a_driver("a_large_buffer_crosses_in_windows", || {
        let window = Gpu::COPY_BYTES;
        for (bytes, copies) in [(window, 1), (window + 4, 2), (3 * window, 3)] {
            let answer = compare(&devices("cuda:0 cuda:1"), case(Collective::Broadcast, 2).with_bytes(bytes));
            assert_eq!(answer.ranks[0].to_host(), (bytes, copies));
            assert_eq!(answer.ranks[1].to_host(), (0, 0));
            assert_eq!(answer.ranks[1].to_device(), (bytes, copies));
        }
    });
}

/// A kernel reads at most 16 sources.
#[test]
fn more_ranks_than_sources_of_a_kernel_reduce_copies() {
    on_a_driver("more_ranks_than_sources_of_a_kernel_reduce_copies", || {
        for (ranks, is_fold) in [(16, true), (17, false)] {
            let devices: Vec<Device> = (0..ranks).map(|logical| Device::Cuda { gpu: 1, logical }).collect();
            let answer = compare(&devices, case(Collective::AllReduce, ranks).with_bytes(400));
            let copies = Way::Copies(Copies { send: true, input: false, result: true });
            assert!(answer.ranks.iter().all(|rank| rank.way == if is_fold { Way::Fold } else { copies }), "{answer}");
        }
    });
}

#[test]
fn every_operation_launches_the_explained_kernel() {
    on_a_driver("every_operation_launches_the_explained_kernel", || {
        for op in [ReduceOp::Sum, ReduceOp::Mean, ReduceOp::Max] {
            let case = Case { op, ..case(Collective::AllReduce, 2) };
            assert!(compare(&devices("cuda:0.0 cuda:0.1"), case.with_bytes(4)).launch.is_some());
        }
    });
}

fn explain(words: &str, plan: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_consonance"));
    command.arg("explain").args(words.split(' ')).env(DRIVER, driver()).env(PLAN, plan);
    command.output().expect("the command")
}

#[test]
fn the_command_names_gpus_by_uuid() {
    let uuid = |device: usize| format!("GPU-696e7465-7270-7265-7465-72200000000{device}");
    let output = explain("all_reduce --device cuda:0.0,cuda:0.1 -b 8K,1M --json", "first=7");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let rows: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(rows.len(), 2, "{text}");
    for row in rows {
        assert_eq!((&row["gpus"][0]["uuid"], &row["ranks"][1]["uuid"]), (&uuid(7).into(), &uuid(7).into()), "{row}");
        assert_eq!((&row["ranks"][0]["way"], &row["launch"]["sources"]), (&"fold".into(), &2.into()), "{row}");
    }
    let output = explain("broadcast --device cuda:1,cpu:0 -b 1M", "devices=2");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(text.contains(&format!("cuda:1 is interpreter (no GPU), {}", uuid(1))), "{text}");
    assert!(text.contains("rank 0 on cuda:1.0: the call is on copies") && !text.contains(&uuid(0)), "{text}");
}

#[test]
fn absent_devices_are_refused() {
    for (words, plan) in [("cuda:0,cuda:3", "devices=2"), ("cuda:0", "devices=0"), ("cpu:0,tpu:1", "")] {
        let output = explain(&format!("all_reduce --device {words}"), plan);
        assert_eq!((output.status.success(), output.stdout.len()), (false, 0), "{words}: {output:?}");
        let error = String::from_utf8(output.stderr).expect("UTF-8");
        assert!(error.contains("Device::from_str") && error.contains("expected cpu:0 to cpu:"), "{words}: {error}");
    }
    let output = explain("all_reduce --device cuda:0 -n 2", "");
    assert!(!output.status.success() && output.stdout.is_empty(), "{output:?}");
}
