//! The processor: its model, the instruction set that kernels use, the cores that ranks may use,
//! their caches, and the knobs that follow from them.

use super::{
    groups::Groups,
    row::{Row, Section, Verdict, size},
};
use crate::tune::Values;
use consonance_kernels::{cpu::isa::Isa, tuning::VARIABLE};
use serde_json::{Value, json};
use std::{collections::BTreeMap, env::consts::ARCH, fs, path::Path, thread};

/// The system's folder of processors.
const CPUS: &str = "/sys/devices/system/cpu";

pub(super) fn rows(groups: &Groups) -> Vec<Row> {
    let allowed = allowed();
    vec![system(), processor(), instructions(), cores(&allowed, groups.cores()), caches(&allowed), knobs()]
}

fn row(name: &'static str, state: Verdict, finding: impl Into<String>) -> Row {
    Row::new(Section::Machine, name, state, finding)
}

fn system() -> Row {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let release = release.trim();
    let facts = json!({ "release": release });
    if release.is_empty() {
        let row = row("system", Verdict::Fails, "Linux without /proc, which Consonance reads");
        return row.advice("mount -t proc proc /proc").facts(facts);
    }
    row("system", Verdict::Good, format!("Linux {release}")).facts(facts)
}

fn processor() -> Row {
    let model = processor_name();
    let finding = match &model {
        Some(model) => format!("{model} ({ARCH})"),
        None => format!("{ARCH}; the system does not name it"),
    };
    row("processor", Verdict::Good, finding).facts(json!({ "model": model, "architecture": ARCH }))
}

/// Returns the processor's name, if the system tells it.
pub(crate) fn processor_name() -> Option<String> {
    fs::read_to_string("/proc/cpuinfo").ok().and_then(|text| model(&text))
}

/// Returns the processor's name in `/proc/cpuinfo`.
fn model(cpuinfo: &str) -> Option<String> {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name") || line.starts_with("Model"))?;
    let (_, model) = line.split_once(':')?;
    Some(model.trim().to_owned()).filter(|model| !model.is_empty())
}

fn instructions() -> Row {
    let (used, all) = (Isa::best(), Isa::available().map(Isa::name).collect::<Vec<_>>());
    let facts = json!({ "used": used.name(), "available": all });
    let finding = format!("{used}, of {}", all.join(", "));
    match used {
        Isa::Baseline if cfg!(target_arch = "x86_64") => row("instruction set", Verdict::Note, finding)
            .advice("reductions are faster on a processor with AVX2 and F16C; a virtual machine may hide them"),
        _ => row("instruction set", Verdict::Good, finding),
    }
    .facts(facts)
}

fn cores(allowed: &[usize], quota: Option<f64>) -> Row {
    let online = fs::read_to_string(Path::new(CPUS).join("online")).map_or(0, |text| numbers(&text).len());
    let used = thread::available_parallelism().map_or(1, usize::from);
    let facts = json!({ "allowed": ranges(allowed), "count": allowed.len(), "online": online, "quota": quota,
        "used": used });
    let mut finding = format!("{} of {online}: {}", allowed.len(), ranges(allowed));
    if let Some(quota) = quota {
        finding += &format!("; a control group limits their time to that of {quota:.1}");
    }
    if quota.is_some_and(|quota| quota < allowed.len() as f64) {
        let advice = "start no more ranks than the quota has cores: all ranks wait for one that gets no time";
        return row("cores", Verdict::Note, finding).advice(advice).facts(facts);
    }
    if allowed.len() < 2 {
        let advice = "allow more cores (taskset, cpuset): ranks that share a core run in turn";
        return row("cores", Verdict::Note, finding).advice(advice).facts(facts);
    }
    row("cores", Verdict::Good, finding).facts(facts)
}

/// Returns the cores that this process may use.
fn allowed() -> Vec<usize> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).map(numbers).unwrap_or_default()
}

/// The thresholds of protocols and copies.
fn knobs() -> Row {
    let values = match Values::of_this_process() {
        Ok(values) => values,
        Err(error) => {
            let advice = format!("correct the file, or unset {VARIABLE}: no group can be made");
            return row("knobs", Verdict::Fails, error.to_string()).advice(advice).facts(json!({}));
        }
    };
    let changed = values.changed();
    let others = if changed.is_empty() { "all at their defaults".to_owned() } else { changed.join(", ") };
    row("knobs", Verdict::Good, format!("from {}: {others}", values.source())).facts(values.json())
}

/// A kind of cache: level, type, bytes.
type Kind = (u8, String, u64);

fn caches(allowed: &[usize]) -> Row {
    // For each kind, the sets of cores that share one cache.
    let mut kinds: BTreeMap<Kind, Vec<Vec<usize>>> = BTreeMap::new();
    for core in allowed {
        for index in 0.. {
            let Some((kind, shared)) = cache(&Path::new(CPUS).join(format!("cpu{core}/cache/index{index}"))) else {
                break;
            };
            let sets = kinds.entry(kind).or_default();
            if !sets.contains(&shared) {
                sets.push(shared);
            }
        }
    }
    let facts: Vec<Value> = kinds
        .iter()
        .map(|((level, what, bytes), sets)| {
            let cores: Vec<String> = sets.iter().map(|set| ranges(set)).collect();
            json!({ "level": level, "type": what, "bytes": bytes, "shared_by": cores })
        })
        .collect();
    // Instruction caches are left out: kernels are far smaller.
    let data = kinds.iter().filter(|((_, what, _), _)| what != "Instruction");
    let texts: Vec<String> = data.map(|((level, _, bytes), sets)| describe(*level, *bytes, sets)).collect();
    let finding = if texts.is_empty() { "the system does not describe them".to_owned() } else { texts.join("; ") };
    row("caches", Verdict::Good, finding).facts(json!({ "caches": facts }))
}

/// Returns the cache that a folder describes, and the cores that share it.
fn cache(folder: &Path) -> Option<(Kind, Vec<usize>)> {
    let read = |name: &str| fs::read_to_string(folder.join(name)).ok();
    let (level, what, size) = (read("level")?.trim().parse().ok()?, read("type")?.trim().to_owned(), read("size")?);
    let (number, power) = match size.trim().split_at(size.trim().find(|c: char| !c.is_ascii_digit())?) {
        (number, "K") => (number, 10),
        (number, "M") => (number, 20),
        _ => return None,
    };
    Some(((level, what, number.parse::<u64>().ok()? << power), numbers(&read("shared_cpu_list")?)))
}

fn describe(level: u8, bytes: u64, sets: &[Vec<usize>]) -> String {
    let bytes = size(bytes);
    match sets {
        [cores] if cores.len() > 1 => format!("L{level} {bytes} shared by cores {}", ranges(cores)),
        [cores, ..] if cores.len() > 1 => {
            format!("{} L{level} of {bytes}, each shared by {} cores ({}, …)", sets.len(), cores.len(), ranges(cores))
        }
        _ => format!("L{level} {bytes} a core"),
    }
}

/// Parses a list of numbers as the system writes it, such as `0-3,8`. Leaves out parts that are no
/// numbers.
fn numbers(list: &str) -> Vec<usize> {
    let part = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.trim().parse::<usize>().ok()?, last.trim().parse::<usize>().ok()?);
        // A range with more cores than any system has is ignored.
        (last < 1 << 16).then_some(first..=last)
    };
    list.split(',').filter_map(part).flatten().collect()
}

/// Formats numbers in order as a list that [`numbers`] reads.
fn ranges(numbers: &[usize]) -> String {
    let runs = numbers.chunk_by(|one, next| one + 1 == *next).map(|run| match run {
        [one] => one.to_string(),
        [first, .., last] => format!("{first}-{last}"),
        [] => String::new(),
    });
    runs.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cores_are_read_and_written() {
        for text in ["0", "0-1", "0-3,8,10-11"] {
            assert_eq!(ranges(&numbers(text)), text);
        }
        assert_eq!(numbers("\t0-2\n"), [0, 1, 2]);
        assert_eq!(numbers("x,1-,0-99999999999"), [0; 0]);
        assert_eq!(ranges(&[]), "");
    }

    #[test]
    fn caches_are_described_with_the_cores_sharing_them() {
        assert_eq!(describe(2, 1 << 20, &[vec![0], vec![1]]), "L2 1 MiB a core");
        assert_eq!(describe(3, 32 << 20, &[vec![0, 1]]), "L3 32 MiB shared by cores 0-1");
        assert_eq!(describe(3, 32 << 20, &[vec![0, 1], vec![2, 3]]), "2 L3 of 32 MiB, each shared by 2 cores (0-1, …)");
    }

    #[test]
    fn a_processor_has_the_name_in_the_system_s_list() {
        assert_eq!(model("processor\t: 0\nmodel name\t: A B\n").as_deref(), Some("A B"));
        assert_eq!(model("processor\t: 0\n"), None);
    }

    #[test]
    fn few_cores_are_a_note() {
        assert_eq!(cores(&[0], None).state, Verdict::Note);
        assert_eq!(cores(&[0, 1], Some(1.5)).state, Verdict::Note);
        assert_eq!(cores(&[0, 1], Some(2.0)).state, Verdict::Good);
    }
}
