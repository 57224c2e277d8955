//! Launches that concatenate tensors.

use super::{
    fold::MOST,
    launch::{Kernel, Launch, Parameters, Unsupported, aligned},
    module,
};
use consonance_spec::DType;

/// Concatenates tensors along an axis. `outer` is the product of the sizes before the axis. Each
/// source is an address with the number of its elements in a row: its size along the axis times the
/// sizes after it. These may differ, and may be 0. The target is disjoint from the sources.
///
/// Returns a launch for each [`MOST`] sources.
///
/// # Errors
/// If addresses are not aligned, or sizes exceed the address space.
pub fn concat(dtype: DType, outer: u64, sources: &[(u64, u64)], target: u64) -> Result<Vec<Launch>, Unsupported> {
    let element = dtype.size() as u64;
    aligned("targets", &[target], dtype.size())?;
    let mut row = 0u64;
    let mut starts = Vec::with_capacity(sources.len());
    for &(source, count) in sources {
        aligned("sources", &[source], dtype.size())?;
        starts.push(row);
        let bytes = count.checked_mul(element).ok_or(Unsupported::TooLarge)?;
        row = row.checked_add(bytes).ok_or(Unsupported::TooLarge)?;
    }
    row.checked_mul(outer).ok_or(Unsupported::TooLarge)?;
    // The largest unit that divides all sizes and addresses.
    let places = sources.iter().zip(&starts).fold(target | row, |all, (&(source, _), start)| all | source | start);
    let unit = 1u64 << places.trailing_zeros().min(4);
    let name = match unit {
        1 => "concat_1",
        2 => "concat_2",
        4 => "concat_4",
        8 => "concat_8",
        _ => "concat_16",
    };
    let kernel = Kernel { module: module::MOVE, name };
    let launches = sources.chunks(MOST).zip(starts.chunks(MOST)).map(|(sources, starts)| {
        let first = starts[0];
        let last = starts[starts.len() - 1] + sources[sources.len() - 1].1 * element;
        let ends = starts.iter().copied().chain([last]).map(|start| (start - first) / unit);
        let parameters = Parameters::new()
            .u64(target + first)
            .u64(row / unit)
            .u64(outer)
            .u64(sources.len() as u64)
            .array(sources.iter().map(|&(source, _)| source), MOST)
            .array(ends.collect::<Vec<_>>().into_iter(), MOST + 1);
        Launch::new(kernel, outer * ((last - first) / unit), 1, parameters)
    });
    Ok(launches.collect())
}
