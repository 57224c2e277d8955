use consonance_spec::dataset::{interleave, range};
use quickcheck::{TestResult, quickcheck};

fn sizes(sizes: &[u8]) -> Vec<usize> {
    sizes.iter().take(10).map(|&size| usize::from(size) % 9).collect()
}

/// Returns the elements of all data sets, one data set after the other.
fn chained(sizes: &[usize]) -> Vec<(usize, usize)> {
    sizes.iter().enumerate().flat_map(|(dataset, &size)| (0..size).map(move |element| (dataset, element))).collect()
}

quickcheck! {
    fn a_range_has_the_numbers_before_its_stop(start: i8, stop: i8, step: i8) -> TestResult {
        let [start, stop, step] = [start, stop, step].map(i64::from);
        if step == 0 {
            return TestResult::discard();
        }
        let is_within = |number: &i64| if step > 0 { (start..stop).contains(number) } else { *number <= start && *number > stop };
        let expected: Vec<i64> = match step {
            1.. => (-128..128).filter(is_within).filter(|number| (number - start) % step == 0).collect(),
            _ => (-128..128).rev().filter(is_within).filter(|number| (number - start) % step == 0).collect(),
        };
        TestResult::from_bool(range(start, stop, step) == expected)
    }

    fn each_element_is_interleaved_once_and_each_data_set_is_in_order(of: Vec<u8>, cycle: u8, block: u8) -> bool {
        let sizes = sizes(&of);
        let mut order = interleave(&sizes, usize::from(cycle) % 5 + 1, usize::from(block) % 5 + 1);
        // A stable sort: within a data set the order stays.
        order.sort_by_key(|&(dataset, _)| dataset);
        order == chained(&sizes)
    }

    fn one_slot_chains_data_sets(of: Vec<u8>, block: u8) -> bool {
        let sizes = sizes(&of);
        interleave(&sizes, 1, usize::from(block) % 5 + 1) == chained(&sizes)
    }

    fn long_blocks_chain_data_sets(of: Vec<u8>, cycle: u8) -> bool {
        let sizes = sizes(&of);
        // Longer than every data set, so that none is left when the turn ends.
        interleave(&sizes, usize::from(cycle) % 5 + 1, 9) == chained(&sizes)
    }

    fn data_sets_of_one_size_go_in_step(size: u8, count: u8, block: u8) -> bool {
        let (size, count, block) = (usize::from(size) % 9, usize::from(count) % 5 + 1, usize::from(block) % 5 + 1);
        let mut expected = chained(&vec![size; count]);
        expected.sort_by_key(|&(dataset, element)| (element / block, dataset));
        interleave(&vec![size; count], count, block) == expected
    }
}
