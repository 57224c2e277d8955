//! What reads bytes from outside of the program. Text and messages are refused, or say the same when they are written and read
//! again; a file is taken for the segment of a group only if it is that.

use crate::compare::Verdict;
use consonance::{
    ClusterResolver, ClusterSpec, Result, SlurmClusterResolver, TfConfigClusterResolver,
    cluster::{expand_hostlist, expand_tasks_per_node},
};
use std::fmt::{Debug, Display};

/// A `TF_CONFIG`, and the cluster in it.
pub fn tf_config(text: &str) -> Verdict {
    same(
        TfConfigClusterResolver::from_text(text),
        TfConfigClusterResolver::to_string,
        TfConfigClusterResolver::from_text,
    )?;
    same(text.parse::<ClusterSpec>(), ClusterSpec::to_string, str::parse)
}

/// Slurm's list of nodes on the first line, its tasks of the nodes on the second.
pub fn slurm(text: &str) -> Verdict {
    let (nodes, tasks) = text.split_once('\n').unwrap_or((text, text));
    same(expand_hostlist(nodes), |hosts| hosts.join(","), expand_hostlist)?;
    same(
        expand_tasks_per_node(tasks),
        |tasks| joined(tasks),
        |text| {
            // A list of no nodes is written as one of none, which is not a list.
            if text.is_empty() { Ok(Vec::new()) } else { expand_tasks_per_node(text) }
        },
    )?;
    let environment = |name: &str| match name {
        "SLURM_PROCID" => Some("0".to_owned()),
        "SLURM_STEP_NODELIST" => Some(nodes.to_owned()),
        "SLURM_STEP_TASKS_PER_NODE" => Some(tasks.to_owned()),
        _ => None,
    };
    match SlurmClusterResolver::builder().build_from(environment) {
        Ok(resolver) => same(Ok(resolver.cluster_spec().clone()), ClusterSpec::to_string, str::parse),
        Err(_) => Ok(()),
    }
}

/// A segment's header, of which the bytes from a place on (the first byte) are replaced (by those from the third on), in a sealed
/// file whose size differs from the segment's by the second byte.
///
/// The segment is opened only if nothing differs.
#[cfg(target_os = "linux")]
pub fn segment(bytes: &[u8]) -> Verdict {
    use consonance_kernels::segment::{GroupId, Segment, Shape};
    use rustix::fs::{MemfdFlags, SealFlags};
    use std::sync::LazyLock;

    const ID: GroupId = GroupId::from_bytes([7; 16]);
    static SEGMENT: LazyLock<(Shape, i64, Vec<u8>)> = LazyLock::new(|| {
        let shape = Shape::new(2, Shape::STAGING_BYTES).expect("a shape");
        let segment = Segment::create(shape, ID).expect("a segment");
        let mut header = vec![0; Segment::HEADER_BYTES];
        rustix::io::pread(segment.file(), &mut header, 0).expect("the header of a segment");
        (shape, rustix::fs::fstat(segment.file()).expect("the size of a segment").st_size, header)
    });

    let &[at, larger, ref new @ ..] = bytes else { return Ok(()) };
    let (shape, size, header) = &*SEGMENT;
    let mut changed = header.clone();
    for (old, new) in changed.iter_mut().skip(at.into()).zip(new) {
        *old = *new;
    }
    let same = larger == 0 && changed == *header;
    let system = |error: rustix::io::Errno| format!("the system: {error}");
    let file = rustix::fs::memfd_create("fuzz", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).map_err(system)?;
    rustix::io::pwrite(&file, &changed, 0).map_err(system)?;
    rustix::fs::ftruncate(&file, (size + i64::from(larger as i8)) as u64).map_err(system)?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&file, seals).map_err(system)?;
    match Segment::open(file, ID, *shape) {
        Ok(_) if same => Ok(()),
        Err(_) if !same => Ok(()),
        Ok(_) => Err(format!("opened: {changed:?} in a file larger by {}", larger as i8)),
        Err(error) => Err(format!("refused, though nothing differs: {error}")),
    }
}

/// Messages of processes that meet: the bytes themselves; and a right one (the first byte says which), of which the bytes from a
/// place on (the second byte, in steps of two) are replaced (by those from the third on).
#[cfg(target_os = "linux")]
pub fn control(bytes: &[u8]) -> Verdict {
    use consonance_kernels::rendezvous::message::{GroupMember, Hello, Message, TaskSet};
    use consonance_kernels::rendezvous::{Group, state_in};
    const LAYOUT: u64 = 0x0102_0304_0506_0708;
    let as_written = |bytes: &[u8]| match Message::read(bytes, LAYOUT) {
        Ok(message) if message.write(LAYOUT) != bytes => {
            Err(format!("{bytes:?} is read as {message:?}, which is written as other bytes"))
        }
        _ => Ok(()),
    };
    as_written(bytes)?;
    // Any text is a state or none.
    state_in(bytes);
    let [kind, place, with @ ..] = bytes else { return Ok(()) };
    let set: TaskSet = [0, 2].into_iter().collect();
    let hello = Hello {
        digest: 1,
        nonce: 2,
        attempt: 3,
        generation: 1,
        seen: 2,
        used: 0,
        accepted: [0; 16],
        task: 1,
        tasks: 3,
        replicas: 2,
        alive: set,
        linked: set,
    };
    let member = |task| GroupMember { task, replicas: 2, nonce: 4, attempt: 1 };
    let message = match kind % 4 {
        0 => Message::Hello(hello),
        1 => Message::Propose(Group { generation: 1, id: [1; 16], members: (0..3).map(member).collect() }),
        2 => Message::Commit([1; 16]),
        _ => Message::Leave(1, "no memory".to_owned()),
    };
    let mut written = message.write(LAYOUT);
    let end = written.len();
    let place = (2 * usize::from(*place)).min(end);
    written.splice(place..end.min(place + with.len()), with.iter().copied());
    as_written(&written)
}

fn joined(numbers: &[impl Display]) -> String {
    numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

fn same<T: Debug + PartialEq>(read: Result<T>, write: fn(&T) -> String, again: fn(&str) -> Result<T>) -> Verdict {
    let Ok(value) = read else { return Ok(()) };
    let text = write(&value);
    match again(&text) {
        Ok(other) if other == value => Ok(()),
        other => Err(format!("{value:?} is written as {text:?}, which reads as {other:?}")),
    }
}
