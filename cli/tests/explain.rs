//! `consonance explain`: a call does what is explained.
#![cfg(target_os = "linux")]

use consonance::{Communicator, DType, ReduceOp};
use consonance_cli::{
    bench::{
        Memory, Transport,
        case::{Case, Collective},
    },
    explain::{Question, topology_of},
};
use consonance_harness::counted_calls::pair_of_processes;
use consonance_kernels::{
    group::plan::{StepKind, Targets},
    shm::Segment,
};
use serde_json::Value;
use std::{
    fs::File,
    process::{self, Command, Output, Stdio},
    thread,
};

/// Makes the call of `case`, not in place, with buffers of its sizes.
fn call(rank: &mut Communicator, case: &Case) {
    let (own, root) = (rank.rank(), rank.rank() == 0);
    let all = vec![1f32; case.elements()];
    let part = vec![1f32; case.part(own).len()];
    let (mut recv, mut block, counts) = (all.clone(), part.clone(), case.counts(own));
    let done = match case.collective {
        Collective::Barrier => rank.barrier(),
        Collective::AllReduce => rank.all_reduce_into(case.op, &all, &mut recv),
        Collective::Reduce => rank.reduce_into(case.op, &all, root.then_some(&mut recv[..]), 0),
        Collective::ReduceScatter if case.in_place => rank.reduce_scatter(case.op, &mut recv),
        Collective::ReduceScatter => rank.reduce_scatter_into(case.op, &all, &mut block),
        Collective::AllGather => rank.all_gather_into(&part, &mut recv),
        Collective::AllGatherV => rank.all_gather_v(Some(&part), &mut recv, &counts),
        Collective::Gather => rank.gather(&part, root.then_some(&mut recv[..]), 0),
        Collective::GatherV => rank.gather_v(Some(&part), root.then_some(&mut recv[..]), &counts, 0),
        Collective::Scatter => rank.scatter(root.then_some(&all[..]), Some(&mut block), 0),
        Collective::ScatterV => rank.scatter_v(root.then_some(&all[..]), Some(&mut block), &counts, 0),
        Collective::AllToAll => rank.all_to_all_into(&all, &mut recv),
        Collective::AllToAllV => rank.all_to_all_v(&all, &counts, &mut recv, &counts),
        Collective::Broadcast => rank.broadcast(&mut recv, 0),
        Collective::SendRecv if root => rank.send(&all, 1),
        Collective::SendRecv => rank.recv(&mut recv, 0),
    };
    done.expect("both ranks call the same");
}

/// Returns how memory is shared in a step, as ranks note it in the log of their last calls.
fn noted(step: StepKind) -> u32 {
    match step {
        StepKind::Exchange => 0,
        StepKind::Published(_) => 1,
        StepKind::Divided { targets: Targets::All, .. } => 2,
        StepKind::Divided { targets: Targets::Own, .. } => 3,
        StepKind::Divided { targets: Targets::Root(_), .. } => 4,
        StepKind::Message => 5,
    }
}

#[test]
fn ranks_note_the_explained_step() {
    let [mut first, mut second] = pair_of_processes();
    let last_head = || {
        let inspections = Segment::inspect(process::id()).expect("this process's own memory");
        let calls = &inspections.first().expect("a group").ranks[0].calls;
        calls.last().expect("a call").head
    };
    let mut seen = [false; 9];
    for &collective in Collective::ALL {
        // The calls of a pair have knobs of their own.
        let topology = thread::scope(|scope| {
            scope.spawn(|| topology_of(&mut second, collective));
            topology_of(&mut first, collective).expect("both ranks ask")
        });
        for in_place in [false, true] {
            if in_place && collective != Collective::ReduceScatter {
                continue;
            }
            for bytes in [8, 72, 80, 88, 160, 168, 4096, 4176, 4184, 8192, 8352, 8360, 100_000, 1 << 20] {
                let (dtype, op) = (DType::F32, ReduceOp::Sum);
                let case = Case { collective, ranks: 2, count: 0, dtype, op, in_place, spread: 10 };
                let question = Question { case, transport: Transport::Processes, memory: Memory::Slice };
                let explanation = question.explain(&topology, bytes, false).expect("a call");
                let case = explanation.question.case;
                thread::scope(|scope| {
                    scope.spawn(|| call(&mut first, &case));
                    call(&mut second, &case);
                });
                let found = last_head() >> 24;
                // Data with counts have numbers of their own.
                let expected = if collective == Collective::AllToAllV {
                    8
                } else if collective.is_ragged() && explanation.step == StepKind::Message {
                    7
                } else {
                    noted(explanation.step)
                };
                assert_eq!(found, expected, "{explanation}");
                seen[found as usize] = true;
            }
        }
    }
    // No call was refused.
    assert_eq!(seen, [true, true, true, true, true, true, false, true, true]);
}

fn explain(words: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_consonance")).arg("explain").args(words.split(' ')).output().expect("the command")
}

#[test]
fn every_collective_is_explained() {
    for &collective in Collective::ALL {
        for memory in ["slice", "alloc"] {
            for transport in ["threads", "processes"] {
                let words = format!("{collective} --transport {transport} --memory {memory} -b 8,1M --no-measure");
                let text = String::from_utf8(explain(&words).stdout).expect("UTF-8");
                assert!(text.matches("  <- this call").count() == 2, "{words}: {text}");
                let json = String::from_utf8(explain(&(words + " --json")).stdout).expect("UTF-8");
                let rows: Vec<Value> = json.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
                assert_eq!(rows.len(), 2, "{json}");
                for row in rows {
                    assert!(row["thresholds"][0]["protocol"].is_string() && row["limit_us"].is_null(), "{row}");
                    assert_eq!(row["isa"].is_string(), collective.kind().combines(), "{row}");
                }
            }
        }
    }
}

#[test]
fn the_limit_is_measured() {
    let json = String::from_utf8(explain("all_reduce -b 64K --json").stdout).expect("UTF-8");
    let row: Value = serde_json::from_str(&json).expect("JSON");
    assert!(row["limit_us"].as_f64().is_some_and(|time| time > 0.0), "{row}");
}

#[test]
fn invalid_cases_are_refused() {
    let refused = [
        ("all_reduce --dtype bool", "'sum' for '--op <OP>': expected an operation on bool"),
        ("send_recv -n 1", "'1' for '--ranks <N>': expected 2 to 256 ranks"),
        (
            "all_reduce --transport cuda",
            "'cuda' for '--transport <TRANSPORT>': expected threads or processes: this build has no CUDA transport",
        ),
        ("all_gather_v --spread 51", "'51' for '--spread <PERCENT>': expected at most 50 %"),
        (
            "all_reduce -b 17179869183G",
            "'18446744072635809792' for '--bytes <SIZES>': expected at most 576460752303423487 bytes of each of 2 ranks",
        ),
        (
            "reduce --transport processes -n 4 -b 8,1073741824G",
            "'1152921504606846976' for '--bytes <SIZES>': expected at most 288230376151711743 bytes of each of 4 ranks",
        ),
        ("all_reduce -b 100000G", "the limit: no memory for copies of 107374182400000 bytes on each of "),
        ("all_reduce -b none", "expected a number of bytes above 0, such as 8, 64K, 1M or 2G"),
        ("allreduce", "expected one of all_reduce, all_gather,"),
    ];
    for (words, expected) in refused {
        let output = explain(words);
        let found = String::from_utf8(output.stderr).expect("UTF-8");
        assert!(!output.status.success() && found.contains(expected), "{words}: {found}");
        assert!(output.stdout.is_empty(), "{words}");
    }
}

#[test]
fn processes_are_asked_wherever_the_collective_stands() {
    let output = explain("--transport processes --no-measure -b 8 -- all_reduce");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stdout.starts_with(b"all_reduce("), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn a_command_without_a_reader_ends_with_at_most_a_sentence() {
    let start = |stdout: Stdio| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_consonance"));
        command.args(["explain", "all_reduce", "--no-measure"]).stdout(stdout).stderr(Stdio::piped());
        command.spawn().expect("the command")
    };
    let mut unread = start(Stdio::piped());
    drop(unread.stdout.take());
    let unread = unread.wait_with_output().expect("its end");
    assert!(unread.status.success() && unread.stderr.is_empty(), "{unread:?}");

    let full = start(File::options().write(true).open("/dev/full").expect("a full device").into());
    let full = full.wait_with_output().expect("its end");
    let said = String::from_utf8_lossy(&full.stderr);
    assert!(full.status.code() == Some(1) && said.starts_with("consonance: cannot write: No space left"), "{said}");
}

#[test]
fn between_hosts_the_bytes_on_each_link_are_counted() {
    let text = |words: &str| String::from_utf8(explain(words).stdout).expect("UTF-8");
    let json = text("all_reduce --hosts 2 -n 2 -b 4,4M --json");
    let rows: Vec<Value> = json.lines().map(|line| serde_json::from_str(line).expect("an object")).collect();
    for (row, bytes) in rows.iter().zip([4u64, 4 << 20]) {
        assert_eq!((&row["bytes"], &row["ranks"], &row["hosts"]), (&bytes.into(), &4.into(), &2.into()), "{row}");
        let links = row["links"].as_array().expect("a list");
        assert_eq!(links.len(), 2, "{row}");
        for link in links {
            let of = |key: &str| link[key].as_u64().expect("a number");
            assert_eq!((of("least_sent_bytes"), of("least_received_bytes")), (bytes, bytes));
            // Each rank sends a quarter of its data to each rank of the other host, and then a
            // quarter of the result; of few data it sends all to each.
            let (data, messages) = (if bytes == 4 { 4 } else { 2 } * bytes, of("sent_messages"));
            assert!((data..data + 512 * messages).contains(&of("sent_bytes")), "{row}");
        }
        // One host receives as many bytes as the other sends.
        assert_eq!(links[0]["sent_bytes"], links[1]["received_bytes"], "{row}");
    }
    assert_eq!(rows.len(), 2, "{json}");
    let words = text("send_recv --hosts 2 -n 1 -b 1K");
    assert!(words.contains("2 hosts with 1 rank each"), "{words}");
    assert!(words.contains("in 1 message; at least: sends 1 KiB, receives 0 B"), "{words}");
    for &collective in Collective::ALL {
        let words = text(&format!("{collective} --hosts 3 -n 2 -b 8K"));
        assert_eq!(words.lines().filter(|line| line.contains("; at least: ")).count(), 3, "{words}");
    }
    let refused = |words: &str| String::from_utf8(explain(words).stderr).expect("UTF-8");
    assert!(refused("all_reduce --hosts 1").contains("expected a whole number from 2 to 250"));
    assert!(refused("all_reduce --hosts 2 -n 2 -b 4G").contains("at most 536870912 bytes of each of 4 ranks"));
    assert!(refused("all_reduce --hosts 2 --transport threads").contains("cannot be used with"));
}
