//! Processes that wait on this host for another job, and may have been meant for this one: their
//! addresses are written in another way, or a variable of their launcher differs.

use super::{
    message::{MAX_TASKS, TaskSet},
    options::{MeetingOptions, holder},
    socket,
};
use std::{collections::BTreeMap, fs};

/// The system's list of sockets, with the names at which processes listen.
const SOCKETS: &str = "/proc/net/unix";

/// Returns the ids of the processes that listen on this host as one of the `awaited` tasks of
/// another job, of which no process is a task that this job has. So a job that is complete is none
/// of these. Empty if the system does not tell.
pub(super) fn elsewhere(options: &MeetingOptions, awaited: TaskSet) -> Vec<u32> {
    let sockets = fs::read(SOCKETS).unwrap_or_default();
    let jobs = jobs(&String::from_utf8_lossy(&sockets), socket::user());
    let own = jobs.get(&options.digest).copied().unwrap_or_default();
    let candidates = jobs
        .iter()
        .filter(|&(&digest, tasks)| digest != options.digest && !tasks.iter().any(|task| own.contains(task)));
    let candidates = candidates.flat_map(|(&digest, tasks)| {
        let other = MeetingOptions { digest, ..options.clone() };
        let tasks: Vec<usize> = tasks.iter().filter(|&task| awaited.contains(task)).collect();
        tasks.into_iter().filter_map(move |task| holder(&other, task).ok().flatten()?.pid)
    });
    candidates.collect()
}

/// Returns the tasks of each job whose processes of this user listen, by the job's digest.
fn jobs(sockets: &str, user: u32) -> BTreeMap<u128, TaskSet> {
    let mut jobs = BTreeMap::<u128, TaskSet>::new();
    let names = sockets.lines().filter_map(|line| line.split_ascii_whitespace().nth(7));
    for name in names.filter_map(|name| name.strip_prefix(&format!("@consonance-{user}-"))) {
        let parts = name.split_once('-');
        let parts = parts.and_then(|(digest, task)| Some((u128::from_str_radix(digest, 16).ok()?, task.parse().ok()?)));
        if let Some((digest, task)) = parts.filter(|&(_, task)| task < MAX_TASKS) {
            jobs.entry(digest).or_default().insert(task);
        }
    }
    jobs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_of_sockets_are_read() {
        let sockets = "\
Num       RefCount Protocol Flags    Type St Inode Path
0000000000000000: 00000002 00000000 00010000 0005 01 20 @consonance-7-000000000000000000000000000000ab-0
0000000000000000: 00000003 00000000 00000000 0005 03 21 @consonance-7-000000000000000000000000000000ab-2
0000000000000000: 00000003 00000000 00000000 0005 03 22 @consonance-7-000000000000000000000000000000ab-2
0000000000000000: 00000002 00000000 00010000 0005 01 23 @consonance-7-000000000000000000000000000000cd-1
0000000000000000: 00000002 00000000 00010000 0005 01 24 @consonance-8-000000000000000000000000000000ef-1
0000000000000000: 00000002 00000000 00010000 0005 01 25 @consonance-7-000000000000000000000000000000cd-99999999
0000000000000000: 00000002 00000000 00010000 0005 01 26 @consonance-7-none-1
0000000000000000: 00000002 00000000 00010000 0001 01 27 /run/other
0000000000000000: 00000002 00000000 00000000 0002 01 28
";
        let expected = [(0xab, [0, 2].into_iter().collect()), (0xcd, [1].into_iter().collect())];
        assert_eq!(jobs(sockets, 7), BTreeMap::from(expected));
        assert_eq!(jobs("", 7), BTreeMap::new());
    }
}
