//! The rank that an error names when the ranks do not make the same call.

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
