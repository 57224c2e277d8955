//! Processes that wait on this host for another job, and may have been meant for this one: their
//! addresses are written in another way, or a variable of their launcher differs.

use super::{
    options::{MeetingOptions, Notice, holder},
    packet::{MAX_TASKS, TaskSet},
    socket,
};
use std::{collections::BTreeMap, fs};

/// The system's list of sockets, with their names.
const SOCKETS: &str = "/proc/net/unix";

/// Returns the ids of the processes of this host that may be meant for one of the `awaited` tasks,
/// but listen for another job, of which no process is a task that this job has. So a job that is
/// complete is none of these. The job has as many tasks as this one, or the process has the port of
/// the task. Empty if the system does not tell.
pub(super) fn elsewhere(options: &MeetingOptions, awaited: TaskSet) -> Vec<u32> {
    let sockets = fs::read(SOCKETS).unwrap_or_default();
    let notices = notices(&String::from_utf8_lossy(&sockets), socket::user());
    let candidates = candidates(&notices, options, awaited).filter_map(|notice| {
        let other = MeetingOptions { digest: notice.digest, ..options.clone() };
        holder(&other, notice.task).ok().flatten()?.pid
    });
    candidates.collect()
}

/// Returns the notices of other jobs' processes that may be meant.
fn candidates<'a>(
    notices: &'a [Notice],
    options: &'a MeetingOptions,
    awaited: TaskSet,
) -> impl Iterator<Item = &'a Notice> {
    let mut jobs = BTreeMap::<u128, TaskSet>::new();
    for notice in notices {
        jobs.entry(notice.digest).or_default().insert(notice.task);
    }
    let own = jobs.remove(&options.digest).unwrap_or_default();
    notices.iter().filter(move |notice| {
        let is_other = jobs.get(&notice.digest).is_some_and(|tasks| !tasks.iter().any(|task| own.contains(task)));
        is_other && awaited.contains(notice.task) && {
            let meant = Notice::of(options, notice.task);
            notice.tasks == meant.tasks || notice.port.is_some() && notice.port == meant.port
        }
    })
}

/// Returns the notices of this user's processes.
fn notices(sockets: &str, user: u32) -> Vec<Notice> {
    let names = sockets.lines().filter_map(|line| line.split_ascii_whitespace().nth(7)?.strip_prefix('@'));
    names.filter_map(|name| Notice::read(name, user)).filter(|notice| notice.task < MAX_TASKS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_is_read_back_and_other_names_are_none() {
        let sockets = "\
Num       RefCount Protocol Flags    Type St Inode Path
0000000000000000: 00000002 00000000 00000000 0005 01 20 @consonance-7-000000000000000000000000000000ab-0
0000000000000000: 00000002 00000000 00000000 0005 01 21 @consonance-7-000000000000000000000000000000ab-0+2+4711
0000000000000000: 00000002 00000000 00000000 0005 01 22 @consonance-7-000000000000000000000000000000cd-1+3+
0000000000000000: 00000002 00000000 00000000 0005 01 23 @consonance-8-000000000000000000000000000000ef-1+3+
0000000000000000: 00000002 00000000 00000000 0005 01 24 @consonance-7-000000000000000000000000000000cd-99999999+3+
0000000000000000: 00000002 00000000 00000000 0005 01 25 @consonance-7-none-1+3+
0000000000000000: 00000002 00000000 00000000 0001 01 26 /run/other
0000000000000000: 00000002 00000000 00000000 0002 01 27
";
        let expected = [
            Notice { digest: 0xab, task: 0, tasks: 2, port: Some(4711) },
            Notice { digest: 0xcd, task: 1, tasks: 3, port: None },
        ];
        assert_eq!(notices(sockets, 7), expected);
        assert_eq!(notices("", 7), []);
        for notice in expected {
            assert_eq!(Notice::read(&notice.name(7), 7), Some(notice));
        }
    }

    /// Found by a trial: any process that waited for a task of the same index was named.
    #[test]
    fn only_jobs_of_as_many_tasks_or_with_the_port_of_the_task_are_meant() {
        let names = ["a:11", "a:12", "a:13"].map(|address| format!("worker ({address})")).to_vec();
        let options = MeetingOptions { digest: 1, layout: 1, task: 0, names, replicas: 1 };
        let awaited: TaskSet = [1, 2].into_iter().collect();
        let notice = |digest, task, tasks, port| Notice { digest, task, tasks, port };
        let all = [
            notice(1, 0, 3, Some(11)),
            // As many tasks.
            notice(2, 1, 3, Some(99)),
            notice(2, 2, 3, None),
            // The port of the task; of another; none.
            notice(3, 1, 5, Some(12)),
            notice(4, 1, 5, Some(13)),
            notice(5, 1, 5, None),
            // Not awaited; of a job that has a task that this one has.
            notice(6, 3, 5, Some(12)),
            notice(7, 0, 3, Some(11)),
            notice(7, 1, 3, Some(12)),
        ];
        let meant: Vec<_> = candidates(&all, &options, awaited).map(|notice| (notice.digest, notice.task)).collect();
        assert_eq!(meant, [(2, 1), (2, 2), (3, 1)]);
    }
}
