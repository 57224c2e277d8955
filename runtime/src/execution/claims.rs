//! The claims of the ranks of a group: which worker has which replicas.

use super::common_settings::Common;
use crate::{
    Communicator, Error, Result,
    comm::{agreement::Agreement, call::Call},
    kind,
};
use std::{
    ops::Range,
    sync::{Condvar, Mutex},
    thread,
    time::Duration,
};

/// The numbers that a rank tells the others: its worker, the number of variables there, the first
/// rank and the number of the ranks of its process, and whether it is on a GPU.
pub(super) type Claim = [u64; 5];

/// Tells the other ranks the claim of this one, and returns those of all. A collective.
pub(super) fn tell(communicator: &mut Communicator, own: [usize; 5], common: &Common) -> Result<Vec<Claim>> {
    let describe = || common.lines();
    let agreement = Agreement { call: Some(kind::WORKERS), digest: common.digest(), describe: &describe };
    let (own, mut all) = (own.map(|number| number as u64), vec![[0u64; 5]; communicator.size()]);
    let (send, recv) = (Some(own.as_slice().into()), all.as_flattened_mut().into());
    communicator.execute(Call::AllGather { send, recv, counts: None }, &agreement)?;
    // No rank may fail before all have the data: it would abort the group while another worker
    // still makes its strategy.
    communicator.barrier().map(|()| all)
}

/// Calls `form` for each replica of this worker, on a thread each, until all have formed the same
/// group: again after each loss. It takes the place of the replica and their number.
pub(super) fn remaining(
    communicators: &mut [Communicator],
    form: impl Fn((usize, usize), &mut Communicator) -> Result<Vec<Claim>> + Sync,
) -> Result<Vec<Claim>> {
    let count = communicators.len();
    // The number of replicas that have formed a group, and whether one cannot.
    let (formed, changed) = (Mutex::new((0, false)), Condvar::new());
    let lock = || formed.lock().expect("nobody panics holding the number");
    let work = |place: usize, communicator: &mut Communicator| {
        // Each rank can be lost once. More losses mean that an engine does not leave one behind.
        let mut losses = communicator.size();
        'form: loop {
            match form((place, count), communicator) {
                Err(error) if error.is_loss() && losses > 0 => losses -= 1,
                Err(error) => {
                    lock().1 = true;
                    changed.notify_all();
                    return Err(error);
                }
                Ok(claims) => {
                    let mut formed = lock();
                    formed.0 += 1;
                    changed.notify_all();
                    // One of the others may have been told of one more loss: it waits for this
                    // replica in a smaller group.
                    loop {
                        if formed.0 == count || formed.1 {
                            return Ok((formed.0 == count).then_some(claims));
                        }
                        if communicator.abort_handle().is_aborted() {
                            formed.0 -= 1;
                            continue 'form;
                        }
                        let waited = changed.wait_timeout(formed, Duration::from_millis(1));
                        formed = waited.expect("nobody panics holding the number").0;
                    }
                }
            }
        }
    };
    let all: Vec<Result<Option<Vec<Claim>>>> = thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = communicators
            .iter_mut()
            .enumerate()
            .map(|(place, communicator)| scope.spawn(move || work(place, communicator)))
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("a collective does not panic")).collect()
    });
    let all = all.into_iter().collect::<Result<Vec<_>>>()?;
    Ok(all.into_iter().flatten().next().expect("all replicas have formed the group"))
}

/// The replicas of each worker, the number of this one, and the number of variables.
pub(super) struct Roles {
    pub(super) replicas: Vec<Range<usize>>,
    pub(super) worker: usize,
    pub(super) variables: u64,
    /// Whether some ranks are on the host and others on GPUs.
    pub(super) mixed: bool,
}

impl Roles {
    /// Reads the claims of all ranks, for worker `worker` of `workers`. Without that number, the
    /// workers are those that are left, and are numbered anew.
    pub(super) fn new(call: &'static str, claims: &[Claim], worker: usize, workers: Option<usize>) -> Result<Roles> {
        let told: Vec<u64> = claims.iter().map(|&[worker, ..]| worker).collect();
        let mut numbers = told.clone();
        numbers.dedup();
        let numbers = workers.map_or(numbers, |workers| (0..workers as u64).collect());
        let replicas: Vec<Range<usize>> = numbers
            .iter()
            .map(|&worker| {
                let start = told.partition_point(|&other| other < worker);
                start..start + told[start..].iter().take_while(|&&other| other == worker).count()
            })
            .collect();
        if !told.is_sorted() || replicas.iter().any(Range::is_empty) || told.last() > numbers.last() {
            let expected = format!("replicas of all {} workers, in their order", numbers.len());
            return Err(Error::invalid(call, "communicators", expected, format!("replicas of workers {told:?}")));
        }
        // Two processes may claim to be the same worker. Every rank checks all claims, so all
        // refuse.
        for &[worker, _, first, count, _] in claims {
            let own = first as usize..first.saturating_add(count) as usize;
            let all = &replicas[numbers.partition_point(|&other| other < worker)];
            if own != *all {
                let expected = format!("replicas {all:?}, which are worker {worker}'s, all from one process");
                return Err(Error::invalid(call, "communicators", expected, format!("only {own:?} from one")));
            }
        }
        let variables = claims.iter().map(|&[_, variables, ..]| variables).max().unwrap_or(0);
        let mixed = claims.iter().any(|claim| claim[4] != claims[0][4]);
        Ok(Roles { replicas, worker: numbers.partition_point(|&other| other < worker as u64), variables, mixed })
    }
}
