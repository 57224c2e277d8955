use consonance_spec::ending::{Act, Told, told};
use quickcheck::quickcheck;

quickcheck! {
    fn ranks_making_the_same_call_get_its_result(ranks: u8) -> bool {
        let ranks = 1 + ranks as usize % 8;
        told(&vec![Act::Calls(Some(0u8)); ranks]) == (vec![Some(Told::Result); ranks], true)
    }

    fn the_end_of_a_group_names_the_rank_without_a_call(ranks: u8, odd: u8, end: u8) -> bool {
        let ranks = 2 + ranks as usize % 8;
        let odd = odd as usize % ranks;
        let (act, expected) = match end % 3 {
            0 => (Act::Leaves, Told::Left(odd)),
            1 => (Act::IsLate, Told::Late(vec![odd])),
            _ => (Act::Aborts, Told::Aborted(odd)),
        };
        // The calls of the others no longer matter, nor whether they agree.
        let acts: Vec<Act<usize>> =
            (0..ranks).map(|rank| if rank == odd { act.clone() } else { Act::Calls(Some(rank)) }).collect();
        let (told, goes_on) = told(&acts);
        !goes_on && (0..ranks).all(|rank| told[rank] == (rank != odd).then(|| expected.clone()))
    }

    fn a_mismatch_is_the_same_for_all_ranks_with_a_valid_call(calls: Vec<Option<u8>>) -> bool {
        let acts: Vec<Act<u8>> = calls.iter().map(|&call| Act::Calls(call.map(|call| call % 3))).collect();
        let (told, goes_on) = told(&acts);
        let valid: Vec<&Told> =
            told.iter().zip(&calls).filter(|(_, call)| call.is_some()).filter_map(|(told, _)| told.as_ref()).collect();
        goes_on
            && valid.windows(2).all(|pair| pair[0] == pair[1])
            && told.iter().zip(&calls).all(|(told, call)| (*told == Some(Told::Invalid)) == call.is_none())
    }
}
