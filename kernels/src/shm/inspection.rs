//! Reads the calls of ranks in other processes, for reports. It only reads, trusts no value, and
//! lets the ranks go on.

use super::{
    call_log::{CallLog, Entry},
    error::{SegmentError, cannot},
    file::{NAME, check_seals, check_size, read_header},
    group_id::GroupId,
    layout::{Header, Layout, Shape},
    segment::Segment,
    title::LinkTitle,
};
use crate::{cuda::Uuid, sync::watch};
use consonance_spec::Extension;
use memmap2::MmapOptions;
use rustix::fs::{Mode, OFlags};
use std::{
    collections::HashSet,
    fs, io,
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

/// The last calls of the ranks of one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspection {
    /// The group.
    pub group: GroupId,
    /// The size of its segment.
    pub shape: Shape,
    /// Its title, if the group is a link that a report found by its file.
    pub title: Option<LinkTitle>,
    /// Its ranks, in order.
    pub ranks: Vec<RankCalls>,
}

/// The last calls of one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankCalls {
    /// The rank.
    pub rank: usize,
    /// The process that the rank is or was in, by that process's own view of its id; `None` if the
    /// rank has not come yet.
    pub process: Option<u32>,
    /// The GPU that the rank is on, by its number in that process and its identity; `None` if the
    /// rank is on the host. The process has said so.
    pub gpu: Option<(usize, Uuid)>,
    /// Its last calls, in the order in which they began.
    pub calls: Vec<Entry>,
}

impl Segment {
    /// Returns the last calls of the ranks of each group of process `pid`. The ranks' processes
    /// take no part, and may be dead.
    ///
    /// # Errors
    /// [`SegmentError::System`] if there is no such process, or this process may not inspect it;
    /// [`SegmentError::Foreign`] if one of its files is not a segment of this build.
    pub fn inspect(pid: u32) -> Result<Vec<Inspection>, SegmentError> {
        let folder = format!("/proc/{pid}/fd");
        let cannot_list = || format!("read the open files of process {pid}");
        let mut seen = HashSet::new();
        let mut inspections = Vec::new();
        for entry in fs::read_dir(&folder).map_err(cannot(cannot_list()))? {
            let path = entry.map_err(cannot(cannot_list()))?.path();
            let Some((file, title)) =
                open_segment(&path).map_err(cannot(format!("look at the open files of process {pid}")))?
            else {
                continue;
            };
            let status = rustix::fs::fstat(&file).map_err(cannot("read the number of a segment's file"))?;
            // A process may have several descriptors of the same file.
            if seen.insert((status.st_dev, status.st_ino)) {
                inspections.push(Inspection { title, ..inspect_file(&file)? });
            }
        }
        Ok(inspections)
    }

    /// Returns the last calls of the ranks of this segment's group. Must not be called in a fork.
    pub fn look(&self) -> Inspection {
        let ranks = 0..self.shape.ranks();
        let ranks = ranks.map(|rank| RankCalls::read(rank, self.call_log(rank))).collect();
        Inspection { group: self.id, shape: self.shape, title: None, ranks }
    }
}

/// Opens the file of a process's descriptor, which may have the title of a link; `None` if the file
/// does not have the name of segments, or is gone.
fn open_segment(descriptor: &Path) -> io::Result<Option<(OwnedFd, Option<LinkTitle>)>> {
    let gone = |error: io::Error| if error.kind() == io::ErrorKind::NotFound { Ok(None) } else { Err(error) };
    let target = match fs::read_link(descriptor) {
        Ok(target) => target,
        Err(error) => return gone(error),
    };
    let name = target.to_str().and_then(|target| target.strip_prefix("/memfd:")?.strip_suffix(" (deleted)"));
    let title = name.and_then(LinkTitle::in_file_name);
    if title.is_none() && name != Some(NAME) {
        return Ok(None);
    }
    // If it is another kind of file after all, the open does not block.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::open(descriptor, flags, Mode::empty());
    file.map(|file| Some((file, title))).or_else(|error| gone(error.into()))
}

fn inspect_file(file: &OwnedFd) -> Result<Inspection, SegmentError> {
    check_seals(file.as_fd())?;
    let (group, shape) = Header::read(&read_header(file.as_fd())?)?;
    let layout = Layout::new(shape);
    check_size(file.as_fd(), layout.size)?;
    let call_logs = layout.call_logs();
    let map = MmapOptions::new().offset(call_logs.start as u64).len(call_logs.len()).map_raw_read_only(file);
    let map = map.map_err(cannot("map the call_logs of a segment"))?;
    watch::map(map.as_ptr(), call_logs.len(), call_logs.start);
    let read = |rank| {
        // SAFETY: the layout puts the call log of a rank of this shape there, aligned and within
        // the mapping. The file is long enough for ever, because it is sealed. A call log consists
        // of atomics for which every bit pattern is valid. They are only loaded, relaxed or
        // acquire, with at most 8 bytes, which is allowed in memory that is mapped read-only.
        let call_log: &CallLog = unsafe { &*map.as_ptr().add(layout.call_log(rank) - call_logs.start).cast() };
        RankCalls::read(rank, call_log)
    };
    let ranks = (0..shape.ranks()).map(read).collect();
    watch::unmap(map.as_ptr());
    Ok(Inspection { group, shape, title: None, ranks })
}

impl RankCalls {
    fn read(rank: usize, call_log: &CallLog) -> RankCalls {
        let gpu = call_log.gpu().map(|(ordinal, uuid)| (ordinal, Uuid(uuid)));
        RankCalls { rank, process: call_log.process(), gpu, calls: call_log.read() }
    }

    fn name(&self) -> String {
        let name = match self.process {
            Some(process) => format!("rank {}, process {process}", self.rank),
            None => format!("rank {}, in no process", self.rank),
        };
        match self.gpu {
            Some((ordinal, uuid)) => format!("{name}, on cuda:{ordinal}, {uuid}"),
            None => name,
        }
    }
}

impl Inspection {
    /// Returns the report with the last `calls` calls of each rank, one per line. `extensions` are
    /// the kinds of the layer above.
    pub fn text(&self, calls: usize, extensions: &[&'static Extension]) -> String {
        let mut records = vec![format!("group {} of {} ranks", self.group, self.ranks.len())];
        for rank in &self.ranks {
            records.push(rank.name());
            let last = &rank.calls[rank.calls.len().saturating_sub(calls)..];
            records.extend(last.iter().map(|call| format!("  {}", call.in_words(extensions))));
        }
        records.join("\n")
    }
}
