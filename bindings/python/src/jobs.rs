//! Makes the calls of a communicator from its arguments.

use crate::{
    arguments::{
        Counts, Pair, Rooted, array, counts_of, gathered, given_counts, input, is_even, operation, output, pair, parts,
        rank, rooted, same_type,
    },
    array::{Array, Loans},
    failure::Bad,
    outcome::{self, Outcome, items},
};
use consonance::{World, raw::Call};
use consonance_c::{Job, Leaves, codes::Type};
use pyo3::prelude::*;

type Any<'a, 'py> = &'a Bound<'py, PyAny>;

/// The jobs of a call, and what it returns on this rank.
pub(crate) struct Plan {
    pub(crate) jobs: Vec<Job>,
    pub(crate) outcome: Option<Outcome>,
}

impl Plan {
    pub(crate) fn barrier() -> Plan {
        Plan { jobs: vec![Job::barrier()], outcome: None }
    }

    /// Makes the reduction exact.
    pub(crate) fn exact(self) -> Plan {
        Plan { jobs: self.jobs.into_iter().map(Job::exact).collect(), ..self }
    }

    /// Makes the reduction one of leaves.
    pub(crate) fn on(self, leaves: &Leaves) -> Planned {
        let Plan { jobs, outcome } = self;
        if jobs.len() > 1 {
            return Err(Bad::value("data", "blocks of as many elements", "blocks that differ"));
        }
        jobs.iter().filter_map(Job::of_type).try_for_each(|of| same_as_leaves("data", of, leaves))?;
        Ok(Plan { jobs: jobs.into_iter().map(|job| job.with_leaves(leaves)).collect(), outcome })
    }
}

type Planned = Result<Plan, Bad>;

/// Checks that an array has elements of the type of the leaves.
pub(crate) fn same_as_leaves(argument: &'static str, of: Type, leaves: &Leaves) -> Result<(), Bad> {
    let own = leaves.of_type();
    match of == own {
        true => Ok(()),
        false => Err(Bad::value(argument, format!("elements of {}, as in the accumulator", own.name), of.name)),
    }
}

fn plan(jobs: Vec<Job>, outcome: impl Into<Option<Outcome>>) -> Planned {
    Ok(Plan { jobs, outcome: outcome.into() })
}

/// Returns what a call returns: `out`, or what `make` makes.
fn given_or(out: Option<Any<'_, '_>>, make: impl FnOnce() -> Result<Outcome, Bad>) -> Result<Outcome, Bad> {
    out.map_or_else(make, |out| Ok(Outcome::written(out)))
}

pub(crate) fn all_reduce(loans: &mut Loans, data: Any<'_, '_>, op: &str, out: Option<Any<'_, '_>>) -> Planned {
    let outcome = given_or(out, || Outcome::like(data))?;
    let Pair { send, recv, of, .. } = pair(loans, data, &outcome.memory(data.py())?)?;
    plan(vec![Job::new(Call::AllReduce { op: operation(op, of)?, send, recv }, of)], outcome)
}

pub(crate) fn all_reduce_coalesced(
    loans: &mut Loans,
    data: Any<'_, '_>,
    op: &str,
    out: Option<Any<'_, '_>>,
) -> Planned {
    let arrays = items(data).ok_or_else(|| Bad::list("data", data))?;
    let outcome = given_or(out, || Outcome::like(data))?;
    let memory = outcome.memory(data.py())?;
    let outs = items(&memory).ok_or_else(|| Bad::list("out", &memory))?;
    if arrays.len() != outs.len() {
        let expected = format!("a list of {} arrays, as in data", arrays.len());
        return Err(Bad::value("out", expected, outs.len().to_string()));
    }
    let job = |(data, out): (&Bound<'_, PyAny>, &Bound<'_, PyAny>)| {
        let Pair { send, recv, of, .. } = pair(loans, data, out)?;
        Ok(Job::new(Call::AllReduce { op: operation(op, of)?, send, recv }, of))
    };
    plan(arrays.iter().zip(&outs).map(job).collect::<Result<_, Bad>>()?, outcome)
}

pub(crate) fn reduce(
    loans: &mut Loans,
    world: World,
    data: Any<'_, '_>,
    op: &str,
    root: isize,
    out: Option<Any<'_, '_>>,
) -> Planned {
    let root = rank(world, "root", root)?;
    let outcome = (world.rank() == root).then(|| given_or(out, || Outcome::like(data))).transpose()?;
    let memory = outcome.as_ref().map(|outcome| outcome.memory(data.py())).transpose()?;
    let Rooted { send, recv, of, .. } = rooted(loans, data, memory.as_ref())?;
    plan(vec![Job::new(Call::Reduce { op: operation(op, of)?, send, recv, root }, of)], outcome)
}

pub(crate) fn reduce_scatter(
    loans: &mut Loans,
    world: World,
    data: Any<'_, '_>,
    op: &str,
    out: Option<Any<'_, '_>>,
) -> Planned {
    let blocks = items(data);
    if let Some(blocks) = &blocks
        && blocks.len() != world.size()
    {
        let expected = format!("a block for each of {} ranks", world.size());
        return Err(Bad::value("data", expected, blocks.len().to_string()));
    }
    let outcome = given_or(out, || match &blocks {
        Some(blocks) => Outcome::like(&blocks[world.rank()]),
        None => Outcome::new(data, outcome::part(world)),
    })?;
    let memory = outcome.memory(data.py())?;
    if let Some(blocks) = blocks {
        return plan(reduce_scatter_blocks(loans, world, op, (data, blocks), &memory)?, outcome);
    }
    let Pair { send, recv, of, .. } = pair(loans, data, &memory)?;
    plan(vec![Job::new(Call::ReduceScatter { op: operation(op, of)?, send, recv }, of)], outcome)
}

pub(crate) fn broadcast(loans: &mut Loans, world: World, data: Any<'_, '_>, root: isize) -> Planned {
    let root = rank(world, "root", root)?;
    loans.keep(data);
    let array = Array::of(data, "data")?;
    let of = array.of_type();
    let (buffer, outcome) = if world.rank() == root {
        (loans.source(array), Outcome::written(data))
    } else if array.is_read_only() && outcome::never_changes(data) {
        let outcome = Outcome::like(data)?;
        (output(loans, &outcome.memory(data.py())?, "data")?.0, outcome)
    } else {
        (loans.output(array, "data")?, Outcome::written(data))
    };
    plan(vec![Job::new(Call::Broadcast { data: buffer, root }, of)], outcome)
}

pub(crate) fn all_gather(
    loans: &mut Loans,
    world: World,
    data: Any<'_, '_>,
    out: Option<Any<'_, '_>>,
    counts: Counts,
) -> Planned {
    let counts = given_counts(counts, "counts")?;
    let outcome = given_or(out, || whole(world, data, counts.as_deref()))?;
    let Pair { send, recv, of, received, .. } = gathered(loans, world, data, &outcome.memory(data.py())?)?;
    let counts = parts(world, "counts", counts_of(counts, received), of)?;
    plan(vec![Job::new(Call::AllGather { send, recv, counts: None }, of).with_counts(counts)], outcome)
}

pub(crate) fn gather(
    loans: &mut Loans,
    world: World,
    data: Any<'_, '_>,
    root: isize,
    out: Option<Any<'_, '_>>,
    counts: Counts,
) -> Planned {
    let (root, counts) = (rank(world, "root", root)?, given_counts(counts, "counts")?);
    let make = || given_or(out, || whole(world, data, counts.as_deref()));
    let outcome = (world.rank() == root).then(make).transpose()?;
    let memory = outcome.as_ref().map(|outcome| outcome.memory(data.py())).transpose()?;
    let Rooted { send, recv, of, received } = rooted(loans, data, memory.as_ref())?;
    let counts = parts(world, "counts", counts_of(counts, received), of)?;
    plan(vec![Job::new(Call::Gather { send, recv, counts: None, root }, of).with_counts(counts)], outcome)
}

/// Makes an array for what is gathered of all ranks.
fn whole(world: World, data: Any<'_, '_>, counts: Option<&[usize]>) -> Result<Outcome, Bad> {
    match items(data) {
        Some(_) => Err(Bad::value("out", "an array, as data is a list", "None")),
        None => Outcome::new(data, outcome::whole(world, counts)),
    }
}

pub(crate) fn scatter(
    loans: &mut Loans,
    world: World,
    data: Option<Any<'_, '_>>,
    root: isize,
    out: Option<Any<'_, '_>>,
    counts: Counts,
) -> Planned {
    let (root, counts) = (rank(world, "root", root)?, given_counts(counts, "counts")?);
    if world.rank() != root {
        // Only the root knows how large the part is.
        let out = out.ok_or_else(|| Bad::value("out", "an array for this rank's part", "None"))?;
        let (recv, of) = output(loans, out, "out")?;
        let counts = parts(world, "counts", counts, of)?;
        let job = Job::new(Call::Scatter { send: None, recv: Some(recv), counts: None, root }, of);
        return plan(vec![job.with_counts(counts)], Outcome::written(out));
    }
    let data = data.ok_or_else(|| Bad::value("data", "an array on the root", "None"))?;
    let outcome = given_or(out, || match (items(data), &counts) {
        (Some(parts), _) if parts.len() != world.size() => {
            let expected = format!("a part for each of {} ranks", world.size());
            Err(Bad::value("data", expected, parts.len().to_string()))
        }
        (Some(parts), _) => Outcome::like(&parts[root]),
        (None, None) => Outcome::new(data, outcome::part(world)),
        (None, Some(counts)) => {
            Outcome::new(data, |shape| outcome::of_counts(shape, "counts", counts.get(root..=root).unwrap_or_default()))
        }
    })?;
    let (input, listed) = array(loans, data, "data")?;
    let (output, _) = array(loans, &outcome.memory(data.py())?, "out")?;
    let of = input.of_type();
    same_type(of, "out", &output)?;
    let (send, recv) = (Some(loans.input(input, Some(&output))), Some(loans.output(output, "out")?));
    let counts = parts(world, "counts", counts_of(counts, listed), of)?;
    plan(vec![Job::new(Call::Scatter { send, recv, counts: None, root }, of).with_counts(counts)], outcome)
}

pub(crate) fn all_to_all(
    loans: &mut Loans,
    world: World,
    data: Any<'_, '_>,
    out: Option<Any<'_, '_>>,
    counts: Counts,
    out_counts: Counts,
) -> Planned {
    let (counts, out_counts) = (given_counts(counts, "counts")?, given_counts(out_counts, "out_counts")?);
    if counts.is_some() != out_counts.is_some() {
        return Err(Bad::value("counts", "counts and out_counts, or neither", "one of them"));
    }
    let outcome = given_or(out, || match &out_counts {
        Some(counts) => Outcome::new(data, |shape| outcome::of_counts(shape, "out_counts", counts)),
        None => Outcome::like(data),
    })?;
    let Pair { send, recv, of, sent, received } = pair(loans, data, &outcome.memory(data.py())?)?;
    if out.is_none() && !is_even(&sent) {
        // Only the other ranks know how large their parts are.
        return Err(Bad::value("out", "a list of arrays, as those in data differ in size", "None"));
    }
    let listed = |counts: Vec<usize>| Some(counts).filter(|counts| !counts.is_empty());
    let sent = parts(world, "counts", counts.or(listed(sent)), of)?;
    let received = parts(world, "out_counts", out_counts.or(listed(received)), of)?;
    if sent.is_empty() != received.is_empty() {
        return Err(Bad::value("data", "lists in data and in out, or counts", "a list in one of them"));
    }
    let job = Job::new(Call::AllToAll { send, recv, counts: None }, of);
    plan(vec![job.with_counts(sent).with_recv_counts(received)], outcome)
}

/// Makes the jobs of a reduce-scatter of a list of blocks, one for each rank: one job if they are
/// even, else a reduce of each block.
fn reduce_scatter_blocks(
    loans: &mut Loans,
    world: World,
    op: &str,
    (data, blocks): (Any<'_, '_>, Vec<Bound<'_, PyAny>>),
    out: &Bound<'_, PyAny>,
) -> Result<Vec<Job>, Bad> {
    let (_, counts) = array(loans, data, "data")?;
    if is_even(&counts) {
        let Pair { send, recv, of, .. } = pair(loans, data, out)?;
        return Ok(vec![Job::new(Call::ReduceScatter { op: operation(op, of)?, send, recv }, of)]);
    }
    let written = Array::of(out, "out")?;
    let job = |(root, block): (usize, Bound<'_, PyAny>)| {
        let (send, recv, of) = if world.rank() == root {
            let Pair { send, recv, of, .. } = pair(loans, &block, out)?;
            (send, Some(recv), of)
        } else {
            // Another block's result may be written before this block is read.
            let (send, of) = input(loans, &block, Some(&written))?;
            (Some(send), None, of)
        };
        Ok(Job::new(Call::Reduce { op: operation(op, of)?, send, recv, root }, of))
    };
    blocks.into_iter().enumerate().map(job).collect()
}
