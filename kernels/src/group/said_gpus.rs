//! Tests of the GPU that a rank says for reports.

use super::endpoint::Endpoint;
use crate::shm::{GroupId, Segment, Shape};
use consonance_spec::{Kind, Signature};
use std::{io::Error, sync::Arc, thread, time::Duration};

const LIMIT: Duration = Duration::from_secs(60);
const RANKS: usize = 3;

fn segment() -> Arc<Segment> {
    let shape = Shape::new(RANKS, Shape::STAGING_BYTES).unwrap();
    Arc::new(Segment::create(shape, GroupId::from_bytes([5; 16])).unwrap())
}

/// Returns the number of each rank's GPU, as other processes see it.
fn gpus(segment: &Segment) -> Vec<Option<usize>> {
    segment.look().ranks.iter().map(|rank| rank.gpu.map(|(ordinal, _)| ordinal)).collect()
}

#[test]
fn a_rank_says_its_gpu_in_any_group() {
    let segment = segment();
    let ranks = Endpoint::in_segment(&segment, 0..RANKS, 2, &[], LIMIT);
    ranks[1].say_gpu(4, [1; 16]);
    assert_eq!(gpus(&segment), [None, Some(4), None]);
    let (members, signature) = ([2, 0], Signature::new(Kind::Split));
    thread::scope(|scope| {
        for mut rank in ranks {
            scope.spawn(move || {
                let own: &[usize] = if rank.world().rank() == 1 { &[1] } else { &members };
                let part = rank.split(&signature, own).unwrap().unwrap();
                let is_first = part.world().rank() == 0;
                if is_first {
                    part.say_gpu(own[0] + 5, [2; 16]);
                }
            });
        }
    });
    // Rank 1 has said another one before.
    assert_eq!(gpus(&segment), [None, Some(4), Some(7)]);
}

#[test]
fn threads_and_forks_say_no_gpu() {
    Endpoint::group(2, LIMIT).iter().for_each(|rank| rank.say_gpu(0, [1; 16]));
    let segment = segment();
    let ranks = Endpoint::in_segment(&segment, 0..RANKS, 2, &[], LIMIT);
    // SAFETY: the child calls functions that touch no lock, and ends at once.
    let child = unsafe {
        match libc::fork() {
            0 => {
                ranks[0].say_gpu(0, [1; 16]);
                libc::_exit(17)
            }
            child => child,
        }
    };
    assert!(child > 0, "{}", Error::last_os_error());
    let mut status = 0;
    // SAFETY: waits for the child made above, and writes its status.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(libc::WIFEXITED(status), "ended by signal {}", libc::WTERMSIG(status));
    assert_eq!((libc::WEXITSTATUS(status), gpus(&segment)), (17, vec![None; RANKS]));
}
