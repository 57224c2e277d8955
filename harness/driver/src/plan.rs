//! The calls that fail, and the work that is late.

use consonance_kernels::cuda::sys::{CUresult, CUuuid, SYMBOLS};
use std::time::Duration;

/// The calls that fail, and the work that is late. It is written as words:
///
/// * `fail=cuMemAlloc_v2:2:700`: the second call of the function returns 700, and does nothing.
/// * `pause=cuModuleLoadDataEx:1:200`: the first call of the function begins 200 ms late.
/// * `delay=3`: a stream begins its work at the fourth query after the work was enqueued.
/// * `hang`: no stream ever begins its work.
/// * `captures`: every stream says that it is being captured into a graph.
/// * `devices=0`: the number of devices.
/// * `first=3`: the number of device 0 among those of the machine, as `CUDA_VISIBLE_DEVICES` has
///   it. The devices' UUIDs follow from it.
/// * `memory=1000000`: the bytes of each device's memory.
/// * `flip=5`: the fifth copy to the host has a wrong bit in its middle.
/// * `seed=7`: the order in which a kernel's blocks run.
///
/// ```
/// let plan: consonance_fake_driver::Plan = "fail=cuInit:1:100 delay=3".parse().unwrap();
/// assert!("delay".parse::<consonance_fake_driver::Plan>().is_err());
/// ```
#[derive(Clone, Debug)]
pub struct Plan {
    pub(crate) fail: Vec<Fail>,
    pub(crate) pause: Vec<Pause>,
    pub(crate) delay: u64,
    pub(crate) hang: bool,
    pub(crate) captures: bool,
    pub(crate) devices: usize,
    pub(crate) first: usize,
    pub(crate) memory: usize,
    pub(crate) flip: Option<u64>,
    pub(crate) seed: u64,
}

/// A call that fails.
#[derive(Clone, Debug)]
pub(crate) struct Fail {
    pub(crate) symbol: &'static str,
    /// From 1 on.
    pub(crate) call: u64,
    pub(crate) code: CUresult,
}

/// A call that begins late.
#[derive(Clone, Debug)]
pub(crate) struct Pause {
    pub(crate) symbol: &'static str,
    /// From 1 on.
    pub(crate) call: u64,
    pub(crate) time: Duration,
}

impl Default for Plan {
    fn default() -> Plan {
        Plan {
            fail: Vec::new(),
            pause: Vec::new(),
            delay: 0,
            hang: false,
            captures: false,
            devices: 1,
            first: 0,
            memory: 1 << 30,
            flip: None,
            seed: 0,
        }
    }
}

impl Plan {
    /// Returns the UUID of a device.
    pub(crate) fn uuid(&self, device: usize) -> CUuuid {
        let mut uuid = *b"interpreter \0\0\0\0";
        uuid[12..].copy_from_slice(&((self.first + device) as u32).to_be_bytes());
        uuid
    }
}

impl std::str::FromStr for Plan {
    type Err = String;

    fn from_str(text: &str) -> Result<Plan, String> {
        fn number<T: std::str::FromStr>(word: &str, text: &str) -> Result<T, String> {
            text.parse().map_err(|_| format!("{word:?}: expected a number, found {text:?}"))
        }
        /// Reads a function, the number of its call, and what the call does.
        fn function<'t>(word: &str, call: &'t str) -> Result<(&'static str, u64, &'t str), String> {
            let parts: Vec<&str> = call.split(':').collect();
            let [name, call, what] = parts[..] else {
                return Err(format!("{word:?}: expected FUNCTION:CALL:NUMBER"));
            };
            let symbol = SYMBOLS.iter().find(|symbol| **symbol == name);
            let symbol = symbol.ok_or_else(|| format!("{word:?}: there is no function {name:?}"))?;
            Ok((symbol, number(word, call)?, what))
        }
        let mut plan = Plan::default();
        for word in text.split_whitespace() {
            match word.split_once('=').unwrap_or((word, "")) {
                ("fail", call) => {
                    let (symbol, call, code) = function(word, call)?;
                    plan.fail.push(Fail { symbol, call, code: CUresult(number(word, code)?) });
                }
                ("pause", call) => {
                    let (symbol, call, ms) = function(word, call)?;
                    plan.pause.push(Pause { symbol, call, time: Duration::from_millis(number(word, ms)?) });
                }
                ("hang", "") => plan.hang = true,
                ("captures", "") => plan.captures = true,
                ("delay", queries) => plan.delay = number(word, queries)?,
                ("first", device) => plan.first = number(word, device)?,
                ("devices", count) => plan.devices = number(word, count)?,
                ("memory", bytes) => plan.memory = number(word, bytes)?,
                ("flip", copy) => plan.flip = Some(number(word, copy)?),
                ("seed", seed) => plan.seed = number(word, seed)?,
                _ => return Err(format!("{word:?} is no word of a plan")),
            }
        }
        Ok(plan)
    }
}
