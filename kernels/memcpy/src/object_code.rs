//! The places of sources whose object code calls `memcpy` for large copies.
//!
//! `objdump` lists the calls, and the lines of source that each instruction comes from, also those
//! of inlined functions. The innermost line of a library is the place of a call. An instance of a
//! generic function of Rust's library that copies counts as `memcpy`: its place is where it is
//! called. Not seen are generic functions of which the library has no instance, and functions that
//! are compiled in another library.

use crate::MOST;
use std::{
    collections::BTreeSet,
    env, fs,
    io::{self, BufRead, BufReader},
    ops::RangeInclusive,
    path::Path,
    process::{Command, Stdio},
};

/// A place that calls `memcpy` for more than [`MOST`] bytes, or for any number.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CallSite {
    /// The file in the folder of sources.
    pub file: String,
    /// The function; what is derived may be in none.
    pub function: String,
    /// The line, counted from 1.
    pub line: usize,
}

/// Returns the places in the newest build of a crate beside this program. `sources` is the folder
/// of its sources, seen from the root of the workspace.
///
/// # Errors
/// Of kind `NotFound` if there is no `objdump`.
///
/// # Panics
/// If there is no build.
pub fn places(name: &str, sources: &str) -> io::Result<BTreeSet<CallSite>> {
    let program = env::current_exe()?;
    let builds = fs::read_dir(program.parent().expect("a folder"))?.map(|entry| entry.map(|entry| entry.path()));
    let builds = builds.collect::<io::Result<Vec<_>>>()?.into_iter().filter(|path| {
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        file.starts_with(&format!("lib{name}-")) && file.ends_with(".rlib")
    });
    let newest = builds.max_by_key(|path| path.metadata().and_then(|data| data.modified()).ok());
    let Code { calls, jumps, keepers } = read(&newest.expect("a build"), sources)?;
    let mut copiers = BTreeSet::from(["memcpy", "memmove"]);
    let copies = |copiers: &BTreeSet<&str>, call: &Call| {
        let of = |address: u64| (call.caller.clone(), address);
        // Code that jumps between the two instructions may have loaded something else.
        let is_short =
            |short: &RangeInclusive<u64>| jumps.range(of(*short.start())..=of(*short.end())).next().is_none();
        (copiers.contains(&*call.callee) || keepers.contains(&(call.caller.clone(), call.callee.clone())))
            && !call.short.as_ref().is_some_and(is_short)
    };
    let mut count = 0;
    while copiers.len() > count {
        count = copiers.len();
        let foreign = calls.iter().filter(|call| call.place.is_none() && copies(&copiers, call));
        copiers.extend(foreign.map(|call| &*call.caller).collect::<Vec<_>>());
    }
    let own = calls.iter().filter(|call| copies(&copiers, call)).filter_map(|call| call.place.clone());
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let named = |(file, line): (String, usize)| {
        let text = fs::read_to_string(root.join(sources).join(&file))?;
        let above: Vec<&str> = text.lines().take(line).collect();
        let name = above.into_iter().rev().filter(|line| !line.contains("//")).find_map(|line| line.split_once("fn "));
        let name = name.and_then(|(_, name)| name.split(|c: char| !c.is_alphanumeric() && c != '_').next());
        Ok(CallSite { file, function: name.unwrap_or_default().to_owned(), line })
    };
    own.map(named).collect()
}

/// A call in a function, or an address of `memcpy` that is taken there.
struct Call {
    caller: String,
    /// The function, or the operand that has its address.
    callee: String,
    /// The file in the folder of sources, and the line.
    place: Option<(String, usize)>,
    /// The addresses after the instruction that loads the third argument, up to the call. Only if
    /// that is a constant of at most [`MOST`].
    short: Option<RangeInclusive<u64>>,
}

/// The object code of an archive.
#[derive(Default)]
struct Code {
    calls: Vec<Call>,
    /// Functions, and the addresses to which they jump.
    jumps: BTreeSet<(String, u64)>,
    /// Functions, and the registers in which they keep the address of `memcpy` or `memmove`.
    keepers: BTreeSet<(String, String)>,
}

/// An instruction, as it is listed.
#[derive(Default)]
struct Instruction {
    address: u64,
    name: String,
    operands: String,
    function: String,
    /// The line that it comes from, and those of the calls that were inlined around it.
    innermost: String,
    around: String,
    /// The address of the last instruction before it that loads a third argument, and the constant.
    constant: Option<(u64, usize)>,
}

impl Instruction {
    fn call(&self, callee: &str, sources: &str) -> Call {
        let own = [&*self.innermost].into_iter().chain(self.around.lines()).find_map(|line| line.rsplit_once(sources));
        let place = own.and_then(|(_, place)| place.split_once(':')).map(|(file, line)| {
            let digits = line.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
            (file.to_owned(), digits.parse().expect("the number of a line"))
        });
        let short = self.constant.filter(|(_, bytes)| *bytes <= MOST).map(|(from, _)| from + 1..=self.address);
        Call { caller: self.function.clone(), callee: callee.to_owned(), place, short }
    }

    /// Returns what is known of the third argument after this instruction.
    fn constant(&self) -> Option<(u64, usize)> {
        // Instructions that write the register unnamed, and those that the next does not follow.
        const OTHERS: [&str; 14] = [
            "call", "cltd", "cpuid", "cqto", "div", "idiv", "imul", "jmp", "lock", "mul", "rdtsc", "ret", "xchg",
            "xgetbv",
        ];
        let (value, register) = self.operands.rsplit_once(",%").unwrap_or(("", &self.operands));
        match register {
            "edx" | "rdx" if self.name.starts_with("mov") => {
                Some((self.address, usize::from_str_radix(value.strip_prefix("$0x")?, 16).ok()?))
            }
            "rdx" | "edx" | "dx" | "dl" | "%rdx" | "%edx" | "%dx" | "%dl" => None,
            _ => self.constant.filter(|_| !OTHERS.iter().any(|other| self.name.starts_with(other))),
        }
    }
}

/// Reads an archive that was compiled from the folder `sources`.
fn read(archive: &Path, sources: &str) -> io::Result<Code> {
    let mut command = Command::new("objdump");
    command.args(["--disassemble", "--reloc", "--line-numbers", "--inlines", "--no-show-raw-insn"]).arg(archive);
    let mut child = command.env("LC_ALL", "C").stdout(Stdio::piped()).spawn()?;
    let mut lines = BufReader::with_capacity(1 << 20, child.stdout.take().expect("a pipe"));
    let (mut code, mut now) = (Code::default(), Instruction::default());
    let (mut around, mut line) = (String::new(), String::new());
    while lines.read_line(&mut line)? > 0 {
        let text = line.trim();
        if text.starts_with("inlined by ") {
            // Listed before each instruction; the innermost line is listed when it changes.
            around.push_str(&line);
        } else if let Some((address, text)) = line.strip_prefix(' ').and_then(|line| line.split_once(":\t")) {
            let text = text.split(" #").next().unwrap_or_default();
            let (name, operands) = text.split_once(' ').unwrap_or((text, ""));
            now.constant = now.constant();
            now.address = u64::from_str_radix(address.trim(), 16).expect("an address");
            (now.name, now.operands) = (name.trim().to_owned(), operands.trim().to_owned());
            now.around = std::mem::take(&mut around);
            match now.operands.strip_prefix('*') {
                Some(keeper) if keeper.contains('%') && !keeper.contains("(%rip)") => {
                    code.calls.push(now.call(keeper, sources));
                }
                _ if now.name.starts_with('j') => {
                    let target = now.operands.split(' ').next().and_then(|text| u64::from_str_radix(text, 16).ok());
                    code.jumps.extend(target.map(|target| (now.function.clone(), target)));
                }
                _ => {}
            }
        } else if let Some((_, symbol)) = text.split_once("R_X86_64_").and_then(|(_, text)| text.split_once('\t')) {
            let symbol = symbol.split(['-', '+']).next().unwrap_or_default();
            // A function of the same file is named by its section.
            let symbol = symbol.trim_start_matches(".text.").trim_start_matches("unlikely.");
            if ["call", "jmp"].contains(&&*now.name) {
                code.calls.push(now.call(symbol, sources));
            } else if ["memcpy", "memmove"].contains(&symbol) {
                match now.operands.rsplit_once(",%").filter(|_| now.name == "mov") {
                    Some((_, register)) => _ = code.keepers.insert((now.function.clone(), format!("%{register}"))),
                    None => code.calls.push(Call { short: None, ..now.call(symbol, sources) }),
                }
            }
        } else if let Some((_, name)) = text.strip_suffix(">:").and_then(|text| text.split_once(" <")) {
            now = Instruction { function: name.to_owned(), ..Instruction::default() };
        } else if text.ends_with("():") {
            // Its line follows, if it is one and not several.
            now.innermost.clear();
        } else if text.contains(".rs:") {
            now.innermost = text.to_owned();
        }
        line.clear();
    }
    assert!(child.wait()?.success(), "{command:?}");
    Ok(code)
}
