//! Expands Slurm's compressed lists.

use super::{MAX_TASKS, spec::MAX_HOST};
use crate::{Error, Result};

/// Expands a list of hosts like `scontrol show hostnames`: each bracket stands for its numbers,
/// which keep their leading zeros. The last bracket of a name varies fastest. The order of the list
/// is kept.
///
/// # Errors
/// [`Error::InvalidCall`] if a name is empty, is longer than 253 characters, or has characters
/// other than letters, digits, `.`, `_` and `-`; if a bracket is not closed, is nested, or contains
/// anything but numbers and ranges from low to high; or if there are more than 2²⁰ hosts.
///
/// ```
/// use consonance::cluster::expand_hostlist;
/// assert_eq!(expand_hostlist("n[2,9-11],gpu[01-02]-ib")?, ["n2", "n9", "n10", "n11", "gpu01-ib", "gpu02-ib"]);
/// assert_eq!(expand_hostlist("rack[1-2]n[3-4]")?, ["rack1n3", "rack1n4", "rack2n3", "rack2n4"]);
/// # Ok::<(), consonance::Error>(())
/// ```
pub fn expand_hostlist(list: &str) -> Result<Vec<String>> {
    hostlist("expand_hostlist", "list", list)
}

/// Expands the numbers of tasks of the nodes: `2(x3)` stands for three nodes with two tasks each.
///
/// # Errors
/// [`Error::InvalidCall`] if a part is not a number, alone or before `(xN)`; or if a number or the
/// number of nodes is larger than 2²⁰.
///
/// ```
/// use consonance::cluster::expand_tasks_per_node;
/// assert_eq!(expand_tasks_per_node("3(x2),2,1")?, [3, 3, 2, 1]);
/// # Ok::<(), consonance::Error>(())
/// ```
pub fn expand_tasks_per_node(list: &str) -> Result<Vec<usize>> {
    tasks_per_node("expand_tasks_per_node", "list", list)
}

/// [`expand_hostlist`] for an argument of `call`.
pub(super) fn hostlist(call: &'static str, argument: &str, list: &str) -> Result<Vec<String>> {
    let invalid =
        |expected: &str, found: &str| Error::invalid(call, argument, expected, format!("{found:?} in {list:?}"));
    let mut hosts = Vec::new();
    if list.is_empty() {
        return Ok(hosts);
    }
    let mut rest = list;
    loop {
        let (name, after) = Name::read(rest).map_err(|(expected, found)| invalid(expected, found))?;
        if name.longest() == 0 || name.longest() > MAX_HOST {
            return Err(invalid("names of 1 to 253 characters", &rest[..rest.len() - after.len()]));
        }
        if name.count().is_none_or(|count| count > MAX_TASKS - hosts.len()) {
            return Err(Error::invalid(
                call,
                argument,
                format!("at most {MAX_TASKS} hosts"),
                format!("more in {list:?}"),
            ));
        }
        name.write(&mut hosts);
        match after.strip_prefix(',') {
            Some(next) => rest = next,
            None => return Ok(hosts),
        }
    }
}

/// A name of the list, as consecutive parts.
struct Name<'a> {
    parts: Vec<Part<'a>>,
}

enum Part<'a> {
    Text(&'a str),
    /// A number of one of these ranges.
    Bracket(Vec<Range>),
}

/// The numbers from `low` to `high`, padded with zeros to `width`.
struct Range {
    low: u64,
    high: u64,
    width: usize,
    /// The number of digits of the longest number.
    longest: usize,
}

impl<'a> Name<'a> {
    /// Reads a name up to a comma or the end. The error has the expected and the found text.
    fn read(list: &'a str) -> std::result::Result<(Name<'a>, &'a str), (&'static str, &'a str)> {
        let (mut parts, mut rest) = (Vec::new(), list);
        while !rest.is_empty() && !rest.starts_with(',') {
            if let Some(inner) = rest.strip_prefix('[') {
                let (ranges, after) = inner.split_once(']').ok_or(("a closing bracket", rest))?;
                let ranges = ranges.split(',').map(|range| Range::read(range).ok_or(("a number, or a range", range)));
                parts.push(Part::Bracket(ranges.collect::<std::result::Result<_, _>>()?));
                rest = after;
            } else {
                let is_name = |character: char| character.is_ascii_alphanumeric() || "._-".contains(character);
                let end = rest.find(|character| !is_name(character)).unwrap_or(rest.len());
                if end == 0 {
                    return Err(("names of letters, digits, '.', '_' and '-'", rest));
                }
                parts.push(Part::Text(&rest[..end]));
                rest = &rest[end..];
            }
        }
        Ok((Name { parts }, rest))
    }

    /// Returns the number of names that this expands to, `None` if it overflows.
    fn count(&self) -> Option<usize> {
        self.parts.iter().try_fold(1usize, |count, part| match part {
            Part::Text(_) => Some(count),
            Part::Bracket(ranges) => {
                let choices = ranges.iter().try_fold(0usize, |sum, range| sum.checked_add(range.count()?))?;
                count.checked_mul(choices)
            }
        })
    }

    /// Returns the number of characters of the longest expanded name.
    fn longest(&self) -> usize {
        let longest = |part: &Part<'_>| match part {
            Part::Text(text) => text.len(),
            Part::Bracket(ranges) => ranges.iter().map(|range| range.longest).max().unwrap_or(0),
        };
        self.parts.iter().map(longest).sum()
    }

    fn write(&self, hosts: &mut Vec<String>) {
        let mut names = vec![String::new()];
        // Text that is still to be appended to all names. Names are copied only at a bracket with
        // several numbers, which at least doubles their number.
        let mut common = String::new();
        for part in &self.parts {
            match part {
                Part::Text(text) => common.push_str(text),
                Part::Bracket(ranges) if matches!(ranges[..], [Range { low, high, .. }] if low == high) => {
                    common.extend(ranges[0].numbers());
                }
                Part::Bracket(ranges) => {
                    let numbers = |name: &String| {
                        let numbers = ranges.iter().flat_map(Range::numbers);
                        numbers.map(|number| format!("{name}{common}{number}")).collect::<Vec<_>>()
                    };
                    names = names.iter().flat_map(numbers).collect();
                    common.clear();
                }
            }
        }
        names.iter_mut().for_each(|name| name.push_str(&common));
        hosts.append(&mut names);
    }
}

impl Range {
    fn read(text: &str) -> Option<Range> {
        let number = |text: &str| {
            let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            digits.then(|| text.parse::<u64>().ok()).flatten()
        };
        let (low, high) = text.split_once('-').unwrap_or((text, text));
        let range =
            Range { low: number(low)?, high: number(high)?, width: low.len(), longest: low.len().max(high.len()) };
        (range.low <= range.high).then_some(range)
    }

    fn count(&self) -> Option<usize> {
        usize::try_from(self.high - self.low).ok()?.checked_add(1)
    }

    fn numbers(&self) -> impl Iterator<Item = String> + use<> {
        let width = self.width;
        (self.low..=self.high).map(move |number| format!("{number:0width$}"))
    }
}

/// [`expand_tasks_per_node`] for an argument of `call`.
pub(super) fn tasks_per_node(call: &'static str, argument: &str, list: &str) -> Result<Vec<usize>> {
    let number = |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        digits.then(|| text.parse().ok()).flatten().filter(|&number| number <= MAX_TASKS)
    };
    let mut nodes = Vec::new();
    for part in list.split(',') {
        let read = || match part.split_once("(x") {
            Some((tasks, times)) => Some((number(tasks)?, number(times.strip_suffix(')')?)?)),
            None => Some((number(part)?, 1)),
        };
        let Some((tasks, times)) = read() else {
            let expected = format!("a number up to {MAX_TASKS}, alone or before (xN)");
            return Err(Error::invalid(call, argument, expected, format!("{part:?} in {list:?}")));
        };
        if times > MAX_TASKS - nodes.len() {
            return Err(Error::invalid(
                call,
                argument,
                format!("at most {MAX_TASKS} nodes"),
                format!("more in {list:?}"),
            ));
        }
        nodes.resize(nodes.len() + times, tasks);
    }
    Ok(nodes)
}

#[cfg(test)]
mod tests {
    use super::{MAX_TASKS, Name, expand_hostlist, expand_tasks_per_node};
    use crate::Error;
    use std::{sync::mpsc::channel, thread, time::Duration};

    /// Much longer than any wait here: it only ends a test that would hang.
    const DEADLINE: Duration = Duration::from_secs(60);

    #[test]
    fn brackets_multiply_and_numbers_keep_their_zeros() {
        assert_eq!(expand_hostlist("").unwrap(), [""; 0]);
        assert_eq!(expand_hostlist("n[9-11]").unwrap(), ["n9", "n10", "n11"]);
        assert_eq!(expand_hostlist("n[008-010,5]").unwrap(), ["n008", "n009", "n010", "n5"]);
        assert_eq!(expand_hostlist("[1-2]").unwrap(), ["1", "2"]);
        assert_eq!(expand_hostlist("a[1,2]b[3-4]c").unwrap(), ["a1b3c", "a1b4c", "a2b3c", "a2b4c"]);
        assert_eq!(expand_hostlist("[1-2][1-2]").unwrap(), ["11", "12", "21", "22"]);
        assert_eq!(expand_hostlist("a[07]b[1-2][3-3]c[4]").unwrap(), ["a07b13c4", "a07b23c4"]);
    }

    /// Found by a review: all names were copied again for each bracket.
    #[test]
    fn names_of_many_brackets_are_written_in_time() {
        let (sender, receiver) = channel();
        let list = format!("n[0-1048575]{}", "[0]".repeat(240));
        thread::spawn(move || {
            sender.send(expand_hostlist(&list).map(|hosts| (hosts.len(), hosts[MAX_TASKS - 1].clone())))
        });
        let (count, last) = receiver.recv_timeout(DEADLINE).expect("the names, in time").unwrap();
        assert_eq!((count, last), (MAX_TASKS, format!("n1048575{}", "0".repeat(240))));
    }

    #[test]
    fn invalid_lists_are_refused() {
        for list in [
            "n[1", "n1]", "n[]", "n[1,]", "n[3-1]", "n[a-b]", "n[1-2-3]", "n[[1]]", ",n", "n,", "a,,b", " n", "n[+1]",
            "ñ",
        ] {
            assert!(matches!(expand_hostlist(list), Err(Error::InvalidCall { call: "expand_hostlist", .. })), "{list}");
        }
        for list in ["", "x", "2(x)", "2(x3)1", "(x3)", " 2", "-1", "+1", "2(3)", "2x3", "1,,1", "99999999999999999999"]
        {
            let expanded = expand_tasks_per_node(list);
            assert!(matches!(expanded, Err(Error::InvalidCall { call: "expand_tasks_per_node", .. })), "{list}");
        }
    }

    #[test]
    fn absurd_lists_are_refused_before_they_are_written_out() {
        let brackets = "[0-9]".repeat(64);
        let long = "n".repeat(254);
        let zeros = format!("[{}-1]", "0".repeat(254));
        for list in ["n[0-18446744073709551615]", "n[1-9999999999]", "n,[0-1048575]", &brackets, &long, &zeros] {
            assert!(expand_hostlist(list).is_err(), "{list}");
        }
        assert_eq!(Name::read("n[1-1048576]").unwrap().0.count(), Some(MAX_TASKS));
        assert!(expand_tasks_per_node("1(x1048576),1").is_err());
        assert!(expand_tasks_per_node("1048577").is_err());
    }
}
