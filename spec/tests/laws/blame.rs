use consonance_spec::blame::{blame, ends_of_waits};
use quickcheck::quickcheck;

quickcheck! {
    fn one_odd_call_of_three_or_more_is_named(ranks: u8, odd: u8, is_right: bool) -> bool {
        let ranks = 3 + ranks as usize % 8;
        let odd = odd as usize % ranks;
        let calls: Vec<Option<bool>> =
            (0..ranks).map(|rank| if rank == odd { is_right.then_some(true) } else { Some(false) }).collect();
        matches!(blame(&calls), Some((named, expected)) if named == odd && expected != odd)
    }

    fn the_expected_call_has_most_votes_of_the_valid_calls(calls: Vec<Option<u8>>) -> bool {
        let calls: Vec<Option<u8>> = calls.into_iter().map(|call| call.map(|call| call % 3)).collect();
        let votes = |call: Option<u8>| calls.iter().filter(|&&other| other == call).count();
        match blame(&calls) {
            None => calls.windows(2).all(|pair| pair[0] == pair[1]),
            Some((named, expected)) => {
                let is_right = calls[expected].is_some() || calls.iter().all(Option::is_none);
                calls[named] != calls[expected]
                    && calls[..named].iter().all(|&call| call == calls[expected])
                    && is_right
                    && calls.iter().all(|&call| call.is_none() || votes(call) <= votes(calls[expected]))
            }
        }
    }
}

/// Ranks that wait: each for one with a higher number, or for nobody. No chain is a circle.
fn in_line(waits: &[Option<u8>]) -> Vec<Option<usize>> {
    let later = |(rank, wait): (usize, &Option<u8>)| {
        let behind = waits.len() - rank - 1;
        wait.filter(|_| behind > 0).map(|wait| rank + 1 + wait as usize % behind)
    };
    waits.iter().enumerate().map(later).collect()
}

quickcheck! {
    fn a_deadline_names_ranks_without_a_wait(waits: Vec<Option<u8>>) -> bool {
        let waits = in_line(&waits);
        (0..waits.len()).all(|rank| match waits[rank] {
            Some(peer) => ends_of_waits(&waits, rank, &[peer]).iter().all(|&named| waits[named].is_none()),
            None => true,
        })
    }

    fn a_single_absent_rank_is_the_only_one_named(waits: Vec<u8>) -> bool {
        let last = waits.len();
        let waits = in_line(&waits.into_iter().map(Some).chain([None]).collect::<Vec<_>>());
        (0..last).all(|rank| {
            let awaited: Vec<usize> = (0..=last).filter(|&other| other != rank).collect();
            let behind: Vec<usize> = waits[rank].into_iter().chain([last]).collect();
            ends_of_waits(&waits, rank, &behind) == [last]
                && awaited.iter().all(|&peer| peer < rank || ends_of_waits(&waits, rank, &[peer]) == [last])
        })
    }

    fn no_deadline_names_its_own_rank_and_each_names_some_rank(waits: Vec<Option<u8>>) -> bool {
        let ranks = waits.len();
        let waits: Vec<Option<usize>> = waits.iter().map(|wait| wait.map(|wait| wait as usize % ranks)).collect();
        (0..ranks).all(|rank| {
            let awaited: Vec<usize> = (0..ranks).filter(|&other| other != rank).collect();
            let named = ends_of_waits(&waits, rank, &awaited);
            !named.contains(&rank) && named.is_empty() == awaited.is_empty()
        })
    }

    fn the_last_of_a_chain_has_the_names_of_the_first(waits: Vec<Option<u8>>) -> bool {
        let waits = in_line(&waits);
        let next = |rank: usize| Some((rank, waits[rank]?));
        (0..waits.len()).filter_map(next).all(|(rank, peer)| match waits[peer] {
            Some(end) => ends_of_waits(&waits, rank, &[peer]) == ends_of_waits(&waits, peer, &[end]),
            None => ends_of_waits(&waits, rank, &[peer]) == [peer],
        })
    }
}

#[test]
fn a_circle_of_waits_names_the_awaited_rank() {
    // Ranks 0 and 1 wait for each other, and rank 2 for rank 0. Rank 3 does not come.
    let waits = [Some(1), Some(0), Some(0), None];
    assert_eq!(ends_of_waits(&waits, 0, &[1, 3]), [1, 3]);
    assert_eq!(ends_of_waits(&waits, 1, &[0]), [0]);
    assert_eq!(ends_of_waits(&waits, 2, &[0, 1]), [0, 1]);
}
