//! Limits of this process and settings of the system that matter to groups.

use super::row::{Row, Section, Verdict, size};
use rustix::{
    io::Errno,
    process::{Resource, Rlimit, getrlimit},
};
use serde_json::{Value, json};
use std::{fs, path::Path};

/// A limit to look at.
struct Limit {
    name: &'static str,
    /// Its name in the manual of `setrlimit`.
    constant: &'static str,
    resource: Resource,
    /// The option of the shell's `ulimit`.
    option: char,
    /// Whether its unit is a byte.
    bytes: bool,
    /// A lower limit is a note.
    enough: u64,
    /// The reason why Consonance needs more.
    why: &'static str,
}

/// For a limit that is only shown.
const SHOWN: u64 = 0;

const LIMITS: [Limit; 5] = [
    Limit {
        name: "open files",
        constant: "RLIMIT_NOFILE",
        resource: Resource::Nofile,
        option: 'n',
        bytes: false,
        // A process has two open files for each other process of its group: enough for 256
        // processes.
        enough: 1024,
        why: "a process of a group has open files for each of the other processes",
    },
    Limit {
        name: "address space",
        constant: "RLIMIT_AS",
        resource: Resource::As,
        option: 'v',
        bytes: true,
        enough: u64::MAX,
        why: "a group reserves far more addresses than it uses memory",
    },
    Limit {
        name: "file size",
        constant: "RLIMIT_FSIZE",
        resource: Resource::Fsize,
        option: 'f',
        bytes: true,
        enough: u64::MAX,
        why: "shared memory is an anonymous file, as large as the addresses that it takes",
    },
    Limit {
        name: "process count",
        constant: "RLIMIT_NPROC",
        resource: Resource::Nproc,
        option: 'u',
        bytes: false,
        // Enough for a few groups beside the user's other programs.
        enough: 1024,
        why: "every replica is a thread, and all threads of the user count",
    },
    Limit {
        name: "locked memory",
        constant: "RLIMIT_MEMLOCK",
        resource: Resource::Memlock,
        option: 'l',
        bytes: true,
        // This version locks no memory; a CUDA or UCX engine would.
        enough: SHOWN,
        why: "",
    },
];

/// A setting of the system.
struct Setting {
    name: &'static str,
    path: &'static str,
    /// Whether this value is a note.
    note: fn(&str) -> bool,
    advice: &'static str,
}

const SETTINGS: [Setting; 4] = [
    Setting {
        name: "yama.ptrace_scope",
        path: PTRACE_SCOPE,
        note: |text| text != "0",
        advice: "sysctl -w kernel.yama.ptrace_scope=0; otherwise large buffers of processes take one more copy",
    },
    Setting { name: "vm.memfd_noexec", path: "/proc/sys/vm/memfd_noexec", note: |_| false, advice: "" },
    Setting {
        name: "vm.overcommit",
        path: "/proc/sys/vm/overcommit_memory",
        note: |text| text == "2",
        advice: "sysctl -w vm.overcommit_memory=0; otherwise reserved addresses count as memory",
    },
    Setting {
        name: "shmem huge pages",
        path: "/sys/kernel/mm/transparent_hugepage/shmem_enabled",
        note: |text| text.contains("[deny]"),
        advice: "echo never into that file: then only programs that ask for huge pages get them, as Consonance does",
    },
];

/// The Yama module's rule on who may read another process's memory.
pub(super) const PTRACE_SCOPE: &str = "/proc/sys/kernel/yama/ptrace_scope";

pub(super) fn rows() -> Vec<Row> {
    LIMITS.iter().map(Limit::row).chain(SETTINGS.iter().filter_map(Setting::row)).collect()
}

/// Returns the current limits, for programs.
pub(super) fn facts() -> Value {
    LIMITS.iter().map(|limit| (limit.constant, json!(getrlimit(limit.resource).current))).collect()
}

impl Limit {
    fn row(&self) -> Row {
        let Limit { name, constant, option, bytes, enough, why, .. } = *self;
        let Rlimit { current, maximum } = getrlimit(self.resource);
        let text = |limit: Option<u64>| match limit {
            None => "unlimited".to_owned(),
            Some(limit) if bytes => size(limit),
            Some(limit) => limit.to_string(),
        };
        let mut finding = format!("{} ({constant}", text(current));
        if maximum != current {
            finding += &format!(", may be raised to {}", text(maximum));
        }
        finding += ")";
        let facts = json!({ "limit": constant, "current": current, "maximum": maximum });
        let little = current.is_some_and(|current| current < enough);
        let row =
            Row::new(Section::Limits, name, if little { Verdict::Note } else { Verdict::Good }, finding).facts(facts);
        let much = if enough == u64::MAX { "unlimited".to_owned() } else { enough.to_string() };
        if little { row.advice(format!("ulimit -{option} {much}: {why}")) } else { row }
    }
}

impl Setting {
    /// Returns the setting's row; `None` if the system does not have the setting.
    fn row(&self) -> Option<Row> {
        let Setting { name, path, note, advice } = *self;
        let text = fs::read_to_string(path).ok()?;
        let text = text.trim();
        let facts = json!({ "path": path, "value": text });
        let state = if note(text) { Verdict::Note } else { Verdict::Good };
        let row = Row::new(Section::Limits, name, state, format!("{text} ({path})")).facts(facts);
        Some(if state == Verdict::Note { row.advice(advice) } else { row })
    }
}

/// The advice for errors of the system.
const REFUSALS: [(Errno, &str); 8] = [
    (Errno::MFILE, "ulimit -n 1024: this process has reached its limit of open files"),
    (Errno::NFILE, "sysctl -w fs.file-max=…: the system has reached its limit of open files"),
    (Errno::FBIG, "ulimit -f unlimited: the limit applies to anonymous files, too"),
    (Errno::NOMEM, "ulimit -v unlimited, or free memory: see the rows on memory and limits"),
    (Errno::AGAIN, "ulimit -u 1024: the user has reached the limit of threads and processes"),
    (Errno::ACCESS, REFUSED),
    (Errno::PERM, REFUSED),
    (Errno::NOSYS, REFUSED),
];

const REFUSED: &str = "allow the system call: a security module or a container's seccomp filter refuses it";

/// Returns the advice for an error of the system by which a call or a group fails.
pub(super) fn without(code: Option<i32>) -> String {
    refusal(code, getrlimit(Resource::As).current.is_some()).map_or_else(likely, str::to_owned)
}

/// Returns the advice for this error, where the addresses of a process may be limited.
fn refusal(code: Option<i32>, has_limit: bool) -> Option<&'static str> {
    // The system says the same of a thread whose stack gets no addresses.
    if code == Some(Errno::AGAIN.raw_os_error()) && has_limit {
        return Some("ulimit -v unlimited: a thread needs addresses for its stack");
    }
    let refusal = REFUSALS.iter().find(|(error, _)| Some(error.raw_os_error()) == code);
    refusal.map(|&(_, advice)| advice)
}

/// Returns the advice if the error does not tell the cause: what is missing or low, if anything is.
fn likely() -> String {
    if !Path::new("/proc/self").exists() {
        return "mount -t proc proc /proc".to_owned();
    }
    let low: Vec<String> = LIMITS.iter().map(Limit::row).filter_map(|row| row.advice).collect();
    match low[..] {
        [] => "report it as a defect, with this output".to_owned(),
        _ => low.join("; "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_has_advice() {
        for code in [i32::MIN, -1, 0, 1, 24, 140, i32::MAX] {
            assert!(!without(Some(code)).is_empty());
        }
        assert!(without(Some(24)).starts_with("ulimit -n ") && !without(None).is_empty());
    }

    #[test]
    fn a_thread_without_a_stack_has_too_few_addresses() {
        let advice = |has_limit| refusal(Some(Errno::AGAIN.raw_os_error()), has_limit).expect("advice");
        assert!(advice(true).starts_with("ulimit -v unlimited") && advice(false).starts_with("ulimit -u"));
    }

    #[test]
    fn a_note_has_advice() {
        for row in rows() {
            assert_eq!(row.state == Verdict::Note, row.advice.is_some(), "{row}");
        }
    }
}
