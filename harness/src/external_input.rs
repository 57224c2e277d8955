//! Tests of parsers of bytes from outside the program. Text and messages are refused, or keep their
//! meaning when they are written and read again. A file is accepted as the segment of a group only
//! if it is that segment.

use crate::{cases::Source, compare::Verdict};
use consonance::{
    ClusterResolver, ClusterSpec, Result, SlurmClusterResolver, TfConfigClusterResolver,
    cluster::{expand_hostlist, expand_tasks_per_node},
};
use std::fmt::{Debug, Display};

/// Judges the parsers of a `TF_CONFIG` and of the cluster in it.
pub fn tf_config(text: &str) -> Verdict {
    same(
        TfConfigClusterResolver::from_text(text),
        TfConfigClusterResolver::to_string,
        TfConfigClusterResolver::from_text,
    )?;
    same(text.parse::<ClusterSpec>(), ClusterSpec::to_string, str::parse)
}

/// Judges the parsers of Slurm's list of nodes, on the first line, and of its tasks per node, on
/// the second.
pub fn slurm(text: &str) -> Verdict {
    let (nodes, tasks) = text.split_once('\n').unwrap_or((text, text));
    same(expand_hostlist(nodes), |hosts| hosts.join(","), expand_hostlist)?;
    same(
        expand_tasks_per_node(tasks),
        |tasks| joined(tasks),
        |text| {
            // An empty list is written as an empty text, which is not a valid list.
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

/// Judges how a changed segment is opened. The first byte is an offset in the header. From this
/// offset on, the header's bytes are replaced by the bytes from the third on. The second byte is
/// the difference between the size of the sealed file and that of the segment.
///
/// The segment is opened if nothing but knobs differs, and each has a value within its limits.
#[cfg(target_os = "linux")]
pub fn segment(bytes: &[u8]) -> Verdict {
    use consonance_kernels::{
        shm::{GroupId, Segment, Shape},
        tuning::Tuning,
    };
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
    // A knob may have any value within its limits.
    let (fixed, knobs) = changed.split_at(Segment::HEADER_BYTES - 8 * Tuning::WORDS);
    let word = |at: usize| u64::from_ne_bytes(knobs[8 * at..][..8].try_into().expect("eight bytes"));
    let are_allowed = Tuning::of_words(&std::array::from_fn(word)).is_ok();
    let same = larger == 0 && header.starts_with(fixed) && are_allowed;
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
        Err(error) => Err(format!("refused, though only knobs differ: {error}")),
    }
}

/// Judges the parser of bootstrap packets, with two inputs. The first is `bytes`. The second is a
/// valid packet, chosen by the first byte. From an offset on, twice the second byte, its bytes are
/// replaced by the bytes from the third on.
#[cfg(target_os = "linux")]
pub fn control(bytes: &[u8]) -> Verdict {
    use consonance_kernels::bootstrap::packet::{GroupMember, Hello, Packet, TaskSet};
    use consonance_kernels::{bootstrap::Group, os::process_state::state_in};
    const DIGEST: u128 = 0x1112_1314_1516_1718;
    const LAYOUT: u64 = 0x0102_0304_0506_0708;
    let as_written = |bytes: &[u8]| match Packet::read(bytes, DIGEST, LAYOUT) {
        Ok(packet) if packet.write(DIGEST, LAYOUT) != bytes => {
            Err(format!("{bytes:?} is read as {packet:?}, which is written as other bytes"))
        }
        _ => Ok(()),
    };
    as_written(bytes)?;
    // Any text gives a state or `None`.
    state_in(bytes);
    let [kind, place, with @ ..] = bytes else { return Ok(()) };
    let set: TaskSet = [0, 2].into_iter().collect();
    let hello = Hello {
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
    let packet = match kind % 4 {
        0 => Packet::Hello(hello),
        1 => Packet::Propose(Group { generation: 1, id: [1; 16], members: (0..3).map(member).collect() }),
        2 => Packet::Commit([1; 16]),
        _ => Packet::Leave(1, "no memory".to_owned()),
    };
    let mut written = packet.write(DIGEST, LAYOUT);
    let end = written.len();
    let place = (2 * usize::from(*place)).min(end);
    written.splice(place..end.min(place + with.len()), with.iter().copied());
    as_written(&written)
}

/// Judges one process's part in forming a group, while its peers send any valid packets in any
/// order.
///
/// Every packet that the process sends must be readable. Every group that it forms must contain
/// the process and must not have a lower generation than the previous group.
#[cfg(target_os = "linux")]
pub fn formation(bytes: &[u8]) -> Verdict {
    use consonance_kernels::bootstrap::formation::{Formation, Outcome};
    use consonance_kernels::bootstrap::packet::{Group, GroupMember, Hello, Packet, TaskSet};
    const DIGEST: u128 = 1;
    const LAYOUT: u64 = 1;
    /// Few values, so that peers often expect the chosen one.
    const NUMBERS: &[u64] = &[1, 2, 3, 1 << 61];

    let mut source = Source::new(bytes);
    let tasks = 1 + source.below(4);
    let own = source.below(tasks);
    let set = |source: &mut Source<'_>| -> TaskSet { (0..tasks).filter(|_| source.once_in(2)).collect() };
    let id = |source: &mut Source<'_>| [1 + source.byte() % 3; 16];
    let own_hello = Hello {
        nonce: 1,
        attempt: 0,
        generation: 0,
        seen: 0,
        used: 0,
        accepted: [0; 16],
        task: own,
        tasks,
        replicas: 1,
        alive: TaskSet::default(),
        linked: TaskSet::default(),
    };
    let mut formation = Formation::new(own_hello.clone());
    // The process sends nothing before this call.
    formation.begin();
    let mut generation = 0;
    while !source.has_ended() {
        let task = source.below(tasks);
        let patient = source.once_in(2);
        match source.below(if task == own { 4 } else { 8 }) {
            0 => formation.begin(),
            1 => formation.leave(source.pick(&["", "no memory"])),
            2 => {
                if let Some(group) = formation.plan(patient, id(&mut source)) {
                    formation.propose(group);
                }
            }
            3 => {
                for (to, packet) in formation.packets() {
                    if Packet::read(&packet.write(DIGEST, LAYOUT), DIGEST, LAYOUT).as_ref() != Ok(&packet) || to == own
                    {
                        return Err(format!("task {own} says to task {to} what cannot be read: {packet:?}"));
                    }
                    match source.once_in(4) {
                        true => formation.postpone(to, packet),
                        false => formation.told(to),
                    }
                }
            }
            4 => formation.linked_to(task),
            5 => formation.lost(task),
            kind => {
                let packet = match kind + source.below(3) {
                    6 | 7 => Packet::Hello(Hello {
                        nonce: source.pick(NUMBERS),
                        attempt: source.pick(NUMBERS),
                        generation: source.below(3) as u64,
                        seen: 2 + source.pick(NUMBERS),
                        used: source.below(3) as u64,
                        accepted: id(&mut source),
                        task,
                        alive: set(&mut source),
                        linked: set(&mut source),
                        ..own_hello.clone()
                    }),
                    8 if source.once_in(4) => Packet::Leave(source.pick(NUMBERS), String::new()),
                    8 => Packet::Commit(id(&mut source)),
                    _ => {
                        let member = |task| GroupMember {
                            task,
                            replicas: 1,
                            nonce: source.pick(NUMBERS),
                            attempt: source.pick(NUMBERS),
                        };
                        let members = (0..tasks).map(member).collect();
                        Packet::Propose(Group { generation: source.pick(NUMBERS), id: id(&mut source), members })
                    }
                };
                formation.take(task, packet);
            }
        }
        if formation.awaited(patient).contains(own) {
            return Err(format!("task {own} waits for itself: {formation:?}"));
        }
        if let Some(Outcome::Formed(group)) = formation.outcome() {
            if group.generation < generation || group.member(own).is_none_or(|member| member.nonce != own_hello.nonce) {
                return Err(format!("task {own} of generation {generation} has formed {group:?}"));
            }
            generation = group.generation;
        }
    }
    Ok(())
}

/// Judges the parser of the numbers of a call and its outcome, as another build may write them. A
/// number is either known, and then is written as the same number again, or unknown.
pub fn call_codes(bytes: &[u8]) -> Verdict {
    use consonance::raw::EXTENSIONS;
    use consonance_kernels::shm::{
        call_log::{Entry, Outcome},
        codes,
    };
    let mut source = Source::new(bytes);
    let mut word = || u64::from_le_bytes(std::array::from_fn(|_| source.byte()));
    let (head, number, bytes) = (word() as u32, word(), word());
    let entry = Entry { number, head, bytes, outcome: Outcome::Unknown };
    let text = entry.in_words(EXTENSIONS);
    let known = head & 0x00ff_ffff;
    match entry.signature(EXTENSIONS) {
        Some(signature) if codes::code(&signature) != known => {
            Err(format!("{known:#x} is {signature}, whose code differs"))
        }
        None if !text.contains("unknown (code") => Err(text),
        None if codes::kind_of(head as u8, EXTENSIONS).is_some() && codes::read(head & 0xff, EXTENSIONS).is_none() => {
            Err(text)
        }
        _ => Ok(()),
    }
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
