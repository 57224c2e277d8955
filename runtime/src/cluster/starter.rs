//! The process that has started the ranks of a job on this host: all of them have the same, and
//! those of another job have another one. It tells jobs apart whose launcher sets no id.

use std::fs;

/// Returns the nearest ancestor of this process that lacks these variables of it, in words that no
/// other process of this host has. A rank may be started by a script, which has the variables, too.
/// `None` if the ancestor is not visible from here, as in a container of the rank alone.
pub(super) fn starter(variables: &[(&str, usize)]) -> Option<String> {
    let own: Vec<String> = variables.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let (mut process, _) = parent_and_begin("self")?;
    loop {
        let (parent, begin) = parent_and_begin(&process)?;
        if !has(&process, &own) {
            // Process ids of two containers may be equal.
            let namespace = fs::read_link("/proc/self/ns/pid").ok()?;
            return Some(format!("process {process} of {begin} in {}", namespace.display()));
        }
        process = parent;
    }
}

/// Returns the parent of a process, and when the process began.
fn parent_and_begin(process: &str) -> Option<(String, String)> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name of the program before may contain anything.
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ').skip(1).map(str::to_owned);
    Some((fields.next()?, fields.nth(17)?))
}

/// Returns whether a process has begun with all of these variables.
fn has(process: &str, variables: &[String]) -> bool {
    let Ok(environment) = fs::read(format!("/proc/{process}/environ")) else { return false };
    let is_there = |variable: &String| environment.split(|&byte| byte == 0).any(|other| other == variable.as_bytes());
    variables.iter().all(is_there)
}
