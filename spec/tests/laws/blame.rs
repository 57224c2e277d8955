use consonance_spec::blame::blame;
use quickcheck::quickcheck;

quickcheck! {
    fn one_odd_call_of_three_or_more_is_named(ranks: u8, odd: u8, is_right: bool) -> bool {
        let ranks = 3 + ranks as usize % 8;
        let odd = odd as usize % ranks;
        let calls: Vec<Option<bool>> =
            (0..ranks).map(|rank| if rank == odd { is_right.then_some(true) } else { Some(false) }).collect();
        matches!(blame(&calls), Some((named, expected)) if named == odd && expected != odd)
    }

    fn the_call_that_is_expected_has_most_votes_of_those_that_can_be_right(calls: Vec<Option<u8>>) -> bool {
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
