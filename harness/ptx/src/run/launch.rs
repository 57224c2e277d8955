//! A launch: the blocks of a grid, one after the other in an order that the seed chooses.

use super::{
    block::{self, BlockFailure},
    failure::Party,
    machine::Machine,
    random::Random,
    warp::Warp,
};
use crate::{
    fault::{Fault, FaultKind, Other},
    memory::Memory,
    program::{Constant, LANES, LaneOrder, Plane, Program, Special},
};

/// A kernel to launch, with its grid and parameters.
#[derive(Clone, Debug)]
pub struct Launch<'a> {
    /// The name of the kernel.
    pub kernel: &'a str,
    /// The blocks along x, y and z.
    pub grid: [u32; 3],
    /// The threads of a block along x, y and z: at most 1,024 in all.
    pub block: [u32; 3],
    /// The bytes of dynamic shared memory of a block.
    pub shared_bytes: u32,
    /// The kernel's parameters, laid out as [`Module::parameters`](crate::Module::parameters) says.
    pub parameters: &'a [u8],
    /// Chooses the order of the blocks, and the turns of the warps of a block.
    pub seed: u64,
}

/// The counts of a launch's instructions and accesses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// The instructions of warps.
    pub instructions: u64,
    /// The instructions of lanes: those that took part, of each instruction of a warp.
    pub lane_instructions: u64,
    /// The blocks.
    pub blocks: u64,
    /// The barriers of blocks.
    pub barriers: u64,
}

/// The largest number of threads of a block.
const MOST_THREADS: u64 = 1024;

/// The largest number of blocks of a grid: their order is a list.
const MOST_BLOCKS: u64 = 1 << 24;

/// Runs a program. `globals` are the addresses of the module's variables.
pub(crate) fn launch(
    program: &Program,
    constants: &[u8],
    globals: &[u64],
    memory: &mut Memory,
    launch: &Launch<'_>,
    text: &str,
) -> Result<Stats, Fault> {
    check(program, launch)?;
    let threads: u32 = launch.block.iter().product();
    let blocks: u32 = launch.grid.iter().product();
    let mut random = Random::new(launch.seed);
    let mut order: Vec<u32> = (0..blocks).collect();
    random.shuffle(&mut order);
    let mut machine = Machine::new(program, memory, constants, launch.parameters);
    let mut warps: Vec<Warp> = (0..threads.div_ceil(LANES as u32)).map(|at| Warp::new(at, program)).collect();
    for warp in &mut warps {
        for (plane, constant) in &program.constants {
            warp.planes[*plane as usize] = value(*constant, warp.index, 0, globals, program, launch);
        }
    }
    let mut stats = Stats { blocks: blocks.into(), ..Stats::default() };
    for block in order {
        machine.begin_block(block, launch.shared_bytes);
        for warp in &mut warps {
            let rest = threads - warp.index * LANES as u32;
            warp.begin(if rest >= 32 { u32::MAX } else { (1 << rest) - 1 }, program);
            for (plane, constant) in &program.constants {
                if let Constant::Special(Special::Block(_)) = constant {
                    warp.planes[*plane as usize] = value(*constant, warp.index, block, globals, program, launch);
                }
            }
        }
        let ran = block::run(&mut warps, &mut machine, &mut random);
        stats.barriers += ran.map_err(|failure| fault(failure, &machine, launch, text))?;
    }
    (stats.instructions, stats.lane_instructions) = (machine.instructions, machine.lane_instructions);
    Ok(stats)
}

/// Returns a fault unless the kernel can run with these blocks and parameters.
fn check(program: &Program, launch: &Launch<'_>) -> Result<(), Fault> {
    let refused = |what: String| Err(Fault::of_host(FaultKind::InvalidLaunch, None, what));
    let product = |sides: &[u32; 3]| sides.iter().map(|side| u64::from(*side)).try_fold(1u64, u64::checked_mul);
    let threads = product(&launch.block).unwrap_or(u64::MAX);
    if threads == 0 || threads > MOST_THREADS {
        return refused(format!("a block has 1 to {MOST_THREADS} threads, {:?} asks for {threads}", launch.block));
    }
    match product(&launch.grid) {
        Some(1..=MOST_BLOCKS) => {}
        _ => return refused(format!("a grid has 1 to {MOST_BLOCKS} blocks here, {:?} asks for others", launch.grid)),
    }
    if let Some(required) = program.required_block.filter(|required| *required != launch.block) {
        return refused(format!("the kernel requires blocks of {required:?}, {:?} asks for others", launch.block));
    }
    if let Some(largest) = program.largest_block.filter(|largest| threads > u64::from(*largest)) {
        return refused(format!("the kernel allows {largest} threads a block, {:?} asks for more", launch.block));
    }
    let (expected, found) = (program.parameter_bytes as usize, launch.parameters.len());
    if expected != found {
        return refused(format!("the parameters of `{}` take {expected} bytes, {found} were given", launch.kernel));
    }
    if program.dynamic_shared.checked_add(launch.shared_bytes).is_none() {
        return refused(format!("{} bytes of dynamic shared memory are too many", launch.shared_bytes));
    }
    Ok(())
}

/// Returns the plane of a constant.
fn value(constant: Constant, warp: u32, block: u32, globals: &[u64], program: &Program, launch: &Launch<'_>) -> Plane {
    let thread = |lane: usize| place(warp * LANES as u32 + lane as u32, launch.block);
    std::array::from_fn(|lane| match constant {
        Constant::Value(value) => value,
        Constant::Global(at, offset) => globals[at].wrapping_add_signed(offset),
        Constant::DynamicShared(offset) => u64::from(program.dynamic_shared).wrapping_add_signed(offset),
        Constant::Special(special) => u64::from(match special {
            Special::Thread(axis) => thread(lane)[axis],
            Special::BlockShape(axis) => launch.block[axis],
            Special::Block(axis) => place(block, launch.grid)[axis],
            Special::GridShape(axis) => launch.grid[axis],
            Special::Lane => lane as u32,
            Special::Warp => warp,
            Special::Warps => launch.block.iter().product::<u32>().div_ceil(LANES as u32),
            Special::LaneMask(order) => lane_mask(order, lane as u32),
            Special::DynamicSharedBytes => launch.shared_bytes,
            Special::TotalShared => program.dynamic_shared + launch.shared_bytes,
        }),
    })
}

fn lane_mask(order: LaneOrder, lane: u32) -> u32 {
    let less = (1u32 << lane) - 1;
    match order {
        LaneOrder::Less => less,
        LaneOrder::LessOrEqual => less | 1 << lane,
        LaneOrder::Equal => 1 << lane,
        LaneOrder::GreaterOrEqual => !less,
        LaneOrder::Greater => !less & !(1 << lane),
    }
}

/// Returns the coordinates of the n-th place of a box.
fn place(at: u32, shape: [u32; 3]) -> [u32; 3] {
    [at % shape[0], at / shape[0] % shape[1], at / shape[0] / shape[1]]
}

fn fault(failed: BlockFailure, machine: &Machine<'_>, launch: &Launch<'_>, text: &str) -> Fault {
    let BlockFailure { warp, failure } = failed;
    let thread = |warp: u32, lane: u32| place(warp * LANES as u32 + lane, launch.block);
    let at_step = |step: usize| {
        let line = machine.program.lines[step];
        (line, text.lines().nth(line.saturating_sub(1) as usize).unwrap_or_default().trim().to_owned())
    };
    let block = place(machine.block, launch.grid);
    let (line, line_text) = at_step(failure.step);
    let other = failure.other.map(|party| {
        let (block, thread, step) = match party {
            Party::Access(stamp) => {
                let event = machine.events.of(stamp);
                (place(event.block, launch.grid), thread(event.warp, stamp % 32), event.step as usize)
            }
            Party::Thread { warp, lane, step } => (block, thread(warp, lane), step),
        };
        let (line, text) = at_step(step);
        Box::new(Other { line, text, block, thread })
    });
    Fault {
        kind: failure.kind,
        line,
        text: line_text,
        block,
        thread: thread(warp, failure.lane),
        address: failure.address,
        other,
        detail: failure.detail,
    }
}
