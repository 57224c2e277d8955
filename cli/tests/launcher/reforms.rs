//! Groups of two hosts without a strategy that form again after a loss. Take root, the commands
//! that make namespaces, and UCX.

use super::strategies_on_hosts::{can_cross, in_words, play, say};
use consonance::{CommunicationOptions, ProcessGroup, ReduceOp};
use rustix::process::{Signal, getpid, kill_process};
use std::{thread, time::Duration};

/// Joins a group of processes without a strategy. One is killed, and the others go on without it,
/// then form again without a loss.
pub(super) fn work(victim: usize) {
    let options = CommunicationOptions::new().timeout(Duration::from_secs(10)).expect("a timeout");
    let group = ProcessGroup::from_env().expect("a launcher").options(options).timeout(Duration::from_secs(20));
    let mut group = group.expect("a timeout").join().expect("all come");
    let own = group.ranks().start;
    for losses in 0..3 {
        let mut rank = group.communicators().remove(0);
        let mut sum = [1u32 << (8 * own)];
        let done = rank.all_reduce(ReduceOp::Sum, &mut sum);
        let members: Vec<String> = group.members().map(|(task, ranks)| format!("{} {ranks:?}", &task[..9])).collect();
        say(match done {
            Ok(()) => format!("{}: {:08x} of {}", group.generation(), sum[0], members.join(", ")),
            Err(error) => in_words(&error),
        });
        if losses == 0 {
            if own == victim {
                // Its messages arrive first.
                thread::sleep(Duration::from_millis(300));
                kill_process(getpid(), Signal::KILL).expect("this process");
                thread::park();
            }
            let error = rank.all_reduce(ReduceOp::Sum, &mut [1.0f32]).expect_err("one is lost");
            say(in_words(&error));
        }
        if let Err(error) = group.reform(Duration::ZERO) {
            say(error);
        }
    }
}

#[test]
fn a_group_without_a_strategy_forms_again_on_several_hosts() {
    if can_cross() {
        for victim in [0, 3] {
            let played = play(&format!("group without {victim}"));
            let names: Vec<String> = (0..4).map(|worker| format!("worker[{worker}]")).collect();
            let members = |all: &[usize]| -> String {
                let member = |(rank, worker): (usize, &usize)| format!("{} {rank}..{}", names[*worker], rank + 1);
                all.iter().enumerate().map(member).collect::<Vec<_>>().join(", ")
            };
            let left: Vec<usize> = (0..4).filter(|worker| *worker != victim).collect();
            let sum: u32 = left.iter().map(|worker| 1 << (8 * worker)).sum();
            for worker in &left {
                let expected = [
                    format!("1: 01010101 of {}", members(&[0, 1, 2, 3])),
                    format!("lost {victim}"),
                    format!("2: {sum:08x} of {}", members(&left)),
                    format!("3: {sum:08x} of {}", members(&left)),
                ];
                assert_eq!(played[worker], expected, "worker {worker}");
            }
        }
    }
}
