//! Combinations of factors in which each pair of values of two factors occurs.

use consonance_kernels::digest::mix;

/// Candidates for each row, of which the one with the most new pairs is taken.
const CANDIDATES: u64 = 24;

/// Returns rows of values, one below each of `sizes`, such that each pair of values of two factors
/// is in a row. The same sizes give the same rows.
pub(crate) fn pairwise(sizes: &[usize]) -> Vec<Vec<usize>> {
    let factors = sizes.len();
    let mut open = Vec::new();
    for right in 1..factors {
        for left in 0..right {
            for a in 0..sizes[left] {
                open.extend((0..sizes[right]).map(|b| (left, a, right, b)));
            }
        }
    }
    let mut rows = Vec::new();
    while let Some(&(left, a, right, b)) = open.first() {
        let candidate = |number: u64| {
            let random = |factor: usize| mix(mix(rows.len() as u64, number), factor as u64) >> 20;
            let mut row: Vec<usize> = (0..factors).map(|factor| random(factor) as usize % sizes[factor]).collect();
            (row[left], row[right]) = (a, b);
            row
        };
        let has =
            |row: &[usize], &(left, a, right, b): &(usize, usize, usize, usize)| row[left] == a && row[right] == b;
        let new = |row: &Vec<usize>| open.iter().filter(|pair| has(row, pair)).count();
        let row = (0..CANDIDATES).map(candidate).max_by_key(new).expect("a candidate");
        open.retain(|pair| !has(&row, pair));
        rows.push(row);
    }
    rows
}

#[test]
fn each_pair_of_values_is_in_a_row() {
    let rows = pairwise(&[3, 2, 2]);
    assert!(rows.len() < 12, "{rows:?}");
    assert!(rows.iter().any(|row| row[1] == 1 && row[2] == 0), "{rows:?}");
}
