//! Makes the calls of a communicator from its arguments.

use crate::{
    arguments::{
        Counts, Pair, Rooted, array, counts_of, gathered, given_counts, input, items, operation, output, pair, parts,
        rank, rooted,
    },
    array::{Array, Loans},
    failure::Bad,
};
use consonance::{World, raw::Call};
use consonance_c::Job;
use pyo3::prelude::*;

type Any<'a, 'py> = &'a Bound<'py, PyAny>;

type Jobs = Result<Vec<Job>, Bad>;

pub(crate) fn all_reduce(loans: &mut Loans, data: Any<'_, '_>, op: &str, out: Option<Any<'_, '_>>) -> Jobs {
    let Pair { send, recv, of, .. } = pair(loans, data, out)?;
    Ok(vec![Job::new(Call::AllReduce { op: operation(op, of)?, send, recv }, of)])
}

pub(crate) fn all_reduce_coalesced(loans: &mut Loans, data: Any<'_, '_>, op: &str) -> Jobs {
    let job = |data| {
        let Pair { send, recv, of, .. } = pair(loans, data, None)?;
        Ok(Job::new(Call::AllReduce { op: operation(op, of)?, send, recv }, of))
    };
    let arrays: Vec<Bound<'_, PyAny>> = data.extract()?;
    arrays.iter().map(job).collect()
}

pub(crate) fn reduce(
    loans: &mut Loans,
    world: World,
    data: Any<'_, '_>,
    op: &str,
    root: isize,
    out: Option<Any<'_, '_>>,
) -> Jobs {
    let root = rank(world, "root", root)?;
    let Rooted { send, recv, of, .. } = rooted(loans, world.rank() == root, data, out)?;
    Ok(vec![Job::new(Call::Reduce { op: operation(op, of)?, send, recv, root }, of)])
}

pub(crate) fn reduce_scatter(
    loans: &mut Loans,
    world: World,
    data: Any<'_, '_>,
    op: &str,
    out: Option<Any<'_, '_>>,
) -> Jobs {
    if let (Some(blocks), Some(out)) = (items(data), out) {
        return reduce_scatter_blocks(loans, world, op, (data, blocks), out);
    }
    let Pair { send, recv, of, .. } = pair(loans, data, out)?;
    Ok(vec![Job::new(Call::ReduceScatter { op: operation(op, of)?, send, recv }, of)])
}

pub(crate) fn broadcast(loans: &mut Loans, world: World, data: Any<'_, '_>, root: isize) -> Jobs {
    let root = rank(world, "root", root)?;
    loans.keep(data);
    let array = Array::of(data, "data")?;
    let of = array.of_type();
    let data = match world.rank() == root {
        true => loans.source(array),
        false => loans.output(array, "data")?,
    };
    Ok(vec![Job::new(Call::Broadcast { data, root }, of)])
}

pub(crate) fn all_gather(
    loans: &mut Loans,
    world: World,
    data: Any<'_, '_>,
    out: Option<Any<'_, '_>>,
    counts: Counts,
) -> Jobs {
    let Pair { send, recv, of, received, .. } = gathered(loans, world, data, out)?;
    let counts = parts(world, "counts", counts_of(counts, received)?, of)?;
    Ok(vec![Job::new(Call::AllGather { send, recv, counts: None }, of).with_counts(counts)])
}

pub(crate) fn gather(
    loans: &mut Loans,
    world: World,
    data: Any<'_, '_>,
    root: isize,
    out: Option<Any<'_, '_>>,
    counts: Counts,
) -> Jobs {
    let root = rank(world, "root", root)?;
    let Rooted { send, recv, of, received } = rooted(loans, world.rank() == root, data, out)?;
    let counts = parts(world, "counts", counts_of(counts, received)?, of)?;
    Ok(vec![Job::new(Call::Gather { send, recv, counts: None, root }, of).with_counts(counts)])
}

pub(crate) fn scatter(
    loans: &mut Loans,
    world: World,
    data: Option<Any<'_, '_>>,
    root: isize,
    out: Option<Any<'_, '_>>,
    counts: Counts,
) -> Jobs {
    let root = rank(world, "root", root)?;
    let (send, recv, of, listed) = if world.rank() == root {
        let data = data.ok_or_else(|| Bad::value("data", "an array on the root", "None"))?;
        match out {
            None => {
                let (data, listed) = array(loans, data, "data")?;
                let of = data.of_type();
                (Some(loans.input(data, None)), None, of, listed)
            }
            Some(_) => {
                let Pair { send, recv, of, sent, .. } = pair(loans, data, out)?;
                let alone = || Bad::value("out", "an array apart from data", "the same");
                (Some(send.ok_or_else(alone)?), Some(recv), of, sent)
            }
        }
    } else {
        let out = out.ok_or_else(|| Bad::value("out", "an array for this rank's part", "None"))?;
        let (recv, of) = output(loans, out, "out")?;
        (None, Some(recv), of, Vec::new())
    };
    let counts = parts(world, "counts", counts_of(counts, listed)?, of)?;
    Ok(vec![Job::new(Call::Scatter { send, recv, counts: None, root }, of).with_counts(counts)])
}

pub(crate) fn all_to_all(
    loans: &mut Loans,
    world: World,
    data: Any<'_, '_>,
    out: Option<Any<'_, '_>>,
    counts: Counts,
    out_counts: Counts,
) -> Jobs {
    let (counts, out_counts) = (given_counts(counts, "counts")?, given_counts(out_counts, "out_counts")?);
    if counts.is_some() != out_counts.is_some() {
        return Err(Bad::value("counts", "counts and out_counts, or neither", "one of them"));
    }
    let Pair { send, recv, of, sent, received } = pair(loans, data, out)?;
    let listed = |counts: Vec<usize>| Some(counts).filter(|counts| !counts.is_empty());
    let sent = parts(world, "counts", counts.or(listed(sent)), of)?;
    let received = parts(world, "out_counts", out_counts.or(listed(received)), of)?;
    if sent.is_empty() != received.is_empty() {
        return Err(Bad::value("data", "lists in data and in out, or counts", "a list in one of them"));
    }
    let job = Job::new(Call::AllToAll { send, recv, counts: None }, of);
    Ok(vec![job.with_counts(sent).with_recv_counts(received)])
}

/// Makes the jobs of a reduce-scatter of a list of blocks, one for each rank: one job if they are
/// even, else a reduce of each block.
fn reduce_scatter_blocks(
    loans: &mut Loans,
    world: World,
    op: &str,
    (data, blocks): (Any<'_, '_>, Vec<Bound<'_, PyAny>>),
    out: &Bound<'_, PyAny>,
) -> Jobs {
    if blocks.len() != world.size() {
        return Err(Bad::value(
            "data",
            format!("a block for each of {} ranks", world.size()),
            blocks.len().to_string(),
        ));
    }
    let (_, counts) = array(loans, data, "data")?;
    if counts.iter().all(|&count| count == counts[0]) {
        let Pair { send, recv, of, .. } = pair(loans, data, Some(out))?;
        return Ok(vec![Job::new(Call::ReduceScatter { op: operation(op, of)?, send, recv }, of)]);
    }
    let written = Array::of(out, "out")?;
    let job = |(root, block): (usize, Bound<'_, PyAny>)| {
        let (send, recv, of) = if world.rank() == root {
            let Pair { send, recv, of, .. } = pair(loans, &block, Some(out))?;
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
