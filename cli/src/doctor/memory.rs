//! Free memory, its limit, and whether processes can share memory.

use super::{
    groups::Groups,
    limits::{self, without},
    row::{Row, Section, Verdict, size},
};
use consonance_kernels::shm::{GroupId, Segment, SegmentError, Shape};
use serde_json::json;
use std::fs;

/// Less free memory than this is a note: a few buffers of common size fill it.
const LITTLE: u64 = 256 << 20;

pub(super) fn rows(groups: &Groups) -> Vec<Row> {
    vec![system(), group(groups), shared()]
}

fn row(name: &'static str, state: Verdict, finding: impl Into<String>) -> Row {
    Row::new(Section::Memory, name, state, finding)
}

fn system() -> Row {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let [total, available] = ["MemTotal:", "MemAvailable:"].map(|name| kilobytes(&text, name));
    let facts = json!({ "total_bytes": total, "available_bytes": available });
    let (Some(total), Some(available)) = (total, available) else {
        return row("free memory", Verdict::Note, "the system does not say").advice("mount -t proc proc /proc");
    };
    let finding = format!("{} of {}", size(available), size(total));
    let little = available < LITTLE;
    let row = row("free memory", if little { Verdict::Note } else { Verdict::Good }, finding).facts(facts);
    if little { row.advice("end other programs: a group that cannot reserve its memory fails") } else { row }
}

/// Returns the bytes in a line of `/proc/meminfo`.
fn kilobytes(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1 << 10)
}

fn group(groups: &Groups) -> Row {
    const NAME: &str = "control group";
    let Some(limit) = groups.memory() else {
        return row(NAME, Verdict::Good, "no limit on memory").facts(json!({ "limit_bytes": null }));
    };
    let facts = json!({ "version": limit.version, "limit_bytes": limit.bytes, "left_bytes": limit.left });
    let finding = format!("{} of {} left (version {})", size(limit.left), size(limit.bytes), limit.version);
    let row = |state| row(NAME, state, finding).facts(facts);
    if limit.left < LITTLE {
        return row(Verdict::Note).advice("raise the limit: when it is reached, the system kills a process");
    }
    if limit.version == 1 {
        // The crate `kernels` checks only groups of version 2 before it reserves memory.
        return row(Verdict::Note)
            .advice(
                "keep buffers below the limit: Consonance reads only version 2, and at the limit the system kills a process",
            );
    }
    row(Verdict::Good)
}

/// Makes a segment as the first process of a group makes it.
fn shared() -> Row {
    const NAME: &str = "shared memory";
    let make = || -> Result<u64, SegmentError> {
        let system = |what: &str| {
            let what = what.to_owned();
            |source| SegmentError::System { what, source }
        };
        let id = GroupId::random().map_err(system("get random bytes"))?;
        let segment = Segment::create(Shape::new(2, Shape::STAGING_BYTES)?, id)?;
        let stat = rustix::fs::fstat(segment.file());
        Ok(stat.map_err(|error| system("read the size of a segment")(error.into()))?.st_size.unsigned_abs())
    };
    match make() {
        Ok(bytes) => row(
            NAME,
            Verdict::Good,
            format!("an anonymous file with {} of addresses was sealed and mapped", size(bytes)),
        )
        .facts(json!({ "address_bytes": bytes })),
        Err(error) => {
            let code = match &error {
                SegmentError::System { source, .. } => source.raw_os_error(),
                _ => None,
            };
            row(NAME, Verdict::Fails, error.to_string()).advice(without(code)).facts(json!({
                "os_error": code,
                "limits": limits::facts(),
            }))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_system_are_read() {
        let text = "MemTotal:       9 kB\nMemAvailable:    7 kB\n";
        assert_eq!((kilobytes(text, "MemTotal:"), kilobytes(text, "MemFree:")), (Some(9 << 10), None));
    }

    #[test]
    fn a_segment_can_be_made_here() {
        let row = shared();
        assert_eq!(row.state, Verdict::Good, "{row}");
    }
}
