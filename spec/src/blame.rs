//! The ranks that an error names: when the ranks do not make the same call, and at a deadline.

/// Returns the rank to name, and a rank that made the expected call. `None` if all calls are the
/// same.
///
/// `calls` has each rank's call, or `None` for a call that is invalid on its own. The expected call
/// is the one that most ranks made; in a tie, the one of the lowest rank. An invalid call is
/// expected only if all calls are invalid. The rank to name is the first that made another call.
///
/// ```
/// use consonance_spec::blame::blame;
/// assert_eq!(blame(&[Some("all_reduce"), Some("barrier"), Some("all_reduce")]), Some((1, 0)));
/// assert_eq!(blame(&[Some("all_reduce"), Some("barrier")]), Some((1, 0)));
/// assert_eq!(blame(&[None, Some("barrier")]), Some((0, 1)));
/// assert_eq!(blame(&[Some("barrier"), Some("barrier")]), None);
/// ```
pub fn blame<C: PartialEq>(calls: &[Option<C>]) -> Option<(usize, usize)> {
    let votes = |rank: usize| calls.iter().filter(|call| **call == calls[rank]).count();
    let right: Vec<usize> = (0..calls.len()).filter(|&rank| calls[rank].is_some()).collect();
    let candidates = if right.is_empty() { (0..calls.len()).collect() } else { right };
    let most = candidates.iter().map(|&rank| votes(rank)).max()?;
    let expected = candidates.into_iter().find(|&rank| votes(rank) == most)?;
    let named = (0..calls.len()).find(|&rank| calls[rank] != calls[expected])?;
    Some((named, expected))
}

/// Returns the ranks that the error of `rank` names at its deadline, each once, in ascending order.
///
/// `waits` has the rank for which each rank waits, or `None` for a rank that waits for nobody: it
/// computes, was stopped, or does not come. `awaited` are the ranks for which `rank` waits. Where
/// one of them waits in turn, the error names the rank at the end of the chain. A chain without an
/// end is a circle of ranks that wait for each other, perhaps with `rank` in it: then the error
/// names the awaited rank itself.
///
/// ```
/// use consonance_spec::blame::ends_of_waits;
/// // Rank 3 is stopped. Rank 1, the root, waits for it, and the others wait for the root.
/// let waits = [Some(1), Some(3), Some(1), None];
/// assert_eq!(ends_of_waits(&waits, 0, &[1]), [3]);
/// assert_eq!(ends_of_waits(&waits, 2, &[1, 3]), [3]);
/// // Ranks 0 and 1 wait for each other.
/// assert_eq!(ends_of_waits(&[Some(1), Some(0), Some(0)], 2, &[0]), [0]);
/// ```
pub fn ends_of_waits(waits: &[Option<usize>], rank: usize, awaited: &[usize]) -> Vec<usize> {
    let end = |peer: usize| {
        let mut at = peer;
        // A chain that is longer visits a rank twice.
        for _ in 0..waits.len() {
            match waits[at] {
                None => return at,
                Some(next) if next == rank => return peer,
                Some(next) => at = next,
            }
        }
        peer
    };
    let mut named: Vec<usize> = awaited.iter().map(|&peer| end(peer)).collect();
    named.sort_unstable();
    named.dedup();
    named
}
