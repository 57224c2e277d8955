//! The scenarios that the model checker runs: a few ranks make a few calls, and the results must be
//! right in every interleaving.

mod calls;
mod exchanges;
mod divided;
mod generations;
mod windows;
mod one_way;
mod messages;
mod letters;
mod links;
mod chains;
mod versions;

use self::{
    chains::*, divided::*, exchanges::*, generations::*, letters::*, links::*, messages::*, one_way::*, versions::*,
    windows::*,
};
use crate::{
    fault::{self, Fault as Planted},
    watched_memory,
};
use std::{
    cell::{Cell, RefCell},
    collections::BTreeSet,
    panic,
};

/// The actions of some ranks, and the checks of their results.
#[derive(Clone, Copy)]
pub struct Scenario {
    /// The name of the scenario.
    pub name: &'static str,
    /// The limit on preemptions in one run, that is, switches away from a thread that does not
    /// wait.
    pub preemptions: usize,
    /// The number of operations of the rank that dies: one check for each, in which the rank dies
    /// before that operation. 0 if no rank dies.
    deaths: u32,
    run: fn(),
}

const fn scenario(name: &'static str, preemptions: usize, run: fn()) -> Scenario {
    Scenario { name, preemptions, deaths: 0, run }
}

/// Every scenario.
pub const ALL: [Scenario; 63] = [
    scenario("exchange", 3, exchange),
    scenario("exchange in swapped places", 2, exchange_in_traded_places),
    scenario("exchange of different kinds", 2, exchange_of_different_kinds),
    scenario("exchange of three", 1, exchange_of_three),
    scenario("exchange, deadline", 3, exchange_with_a_deadline),
    scenario("exchange, one leaves", 2, exchange_with_a_leaver),
    scenario("exchange, one rests", 2, exchange_with_a_resting_rank),
    scenario("exchange, end from outside", 2, end_from_outside),
    scenario("exchange, abort and loss", 2, abort_and_loss),
    scenario("exchange, abort of a pair and loss", 2, abort_of_a_pair_and_loss),
    scenario("divided", 2, divided),
    scenario("divided, deadline", 2, divided_with_a_deadline),
    scenario("divided in heaps", 1, divided_in_heaps),
    scenario("divided in heaps, deadline", 2, divided_in_heaps_with_a_deadline),
    scenario("holdings", 2, holdings),
    scenario("holdings, deadline", 2, holdings_with_a_deadline),
    scenario("holdings in heaps", 1, holdings_in_heaps),
    scenario("published, failure", 2, published_with_a_failure),
    scenario("generations of threads", 2, rounds_of_threads),
    scenario("split of threads", 2, split_of_threads),
    scenario("split of processes", 2, split_of_processes),
    scenario("splits of processes", 2, splits_of_processes),
    scenario("split of both, then of one", 2, split_of_both_then_of_one),
    scenario("windows", 2, windows),
    scenario("windows of one rank", 2, windows_one_way),
    scenario("windows in swapped places", 2, windows_in_traded_places),
    scenario("windows of different kinds", 2, windows_of_different_kinds),
    scenario("windows of unknown blocks", 1, windows_of_unknown_blocks),
    scenario("windows, divided", 1, windows_divided),
    scenario("read directly", 1, read_directly),
    scenario("windows, failure, next generation", 2, windows_and_next_round),
    Scenario { deaths: DEATHS, ..scenario("windows, death", 1, windows_and_death) },
    scenario("one way", 2, one_way),
    scenario("one way, between sums", 1, one_way_between_sums),
    scenario("one way, of three", 1, one_way_of_three),
    scenario("one way, to one", 2, one_way_to_one),
    scenario("one way, mismatch", 2, one_way_with_a_mismatch),
    scenario("one way, mismatch and one leaves", 2, one_way_with_a_mismatch_and_a_leaver),
    scenario("one way, from nobody", 2, one_way_from_nobody),
    scenario("one way, other counts", 2, one_way_of_other_counts),
    scenario("one way, mismatch of three", 1, one_way_of_three_with_a_mismatch),
    scenario("one way, other data", 1, one_way_of_other_data),
    scenario("one way, one leaves", 2, one_way_from_a_leaver),
    scenario("one way, deadline", 2, one_way_with_a_deadline),
    scenario("one way, next generation", 2, one_way_and_next_generation),
    scenario("one way, in a split", 2, one_way_in_a_split),
    Scenario { deaths: GIVER_DEATHS, ..scenario("one way, death", 1, one_way_and_death) },
    scenario("messages", 2, messages),
    scenario("crossing messages", 2, crossing_messages),
    scenario("messages, mismatch", 2, mismatched_message),
    scenario("messages, mismatch without a further call", 2, message_unlike_its_last_receive),
    scenario("messages, two mismatches", 2, two_mismatched_messages),
    scenario("messages, mismatch of a short one", 2, short_mismatched_message),
    scenario("messages, next generation", 2, messages_and_next_generation),
    scenario("messages of a split", 2, messages_of_a_split),
    Scenario { deaths: MESSAGE_DEATHS, ..scenario("messages, death", 1, messages_and_death) },
    scenario("letters", 2, letters),
    Scenario { deaths: LETTER_DEATHS, ..scenario("letters, death", 1, letters_and_death) },
    Scenario { deaths: LINK_DEATHS, ..scenario("links, death", 0, links_and_death) },
    scenario("versions", 3, versions),
    scenario("gpu", 3, gpu_of_a_rank),
    scenario("chain of waits", 2, chain_of_waits),
    scenario("wake", 1, call_log),
];

/// Returns the scenario of this name.
///
/// # Panics
/// If there is none.
pub fn named(name: &str) -> Scenario {
    *ALL.iter().find(|scenario| scenario.name == name).unwrap_or_else(|| panic!("no scenario {name:?}"))
}

thread_local! {
    static RUNS: Cell<usize> = const { Cell::new(0) };
    /// The operation before which a rank dies.
    static DEATH: Cell<u32> = const { Cell::new(0) };
    /// The places and generations in which groups of processes began, in this run.
    static BEGUN: RefCell<BTreeSet<(usize, u64)>> = const { RefCell::new(BTreeSet::new()) };
}

impl Scenario {
    /// Runs every interleaving within the bounds, with a fault planted, until one fails. Returns
    /// the number of runs.
    ///
    /// # Errors
    /// The text of the failure.
    pub fn check(&self, planted: Option<Planted>) -> Result<usize, String> {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = model.preemption_bound.or(Some(self.preemptions));
        model.max_branches = 20_000;
        let Scenario { run, deaths, .. } = *self;
        RUNS.set(0);
        let checked = fault::plant(planted, || {
            panic::catch_unwind(panic::AssertUnwindSafe(|| {
                for death in deaths.min(1)..=deaths {
                    model.check(move || {
                        RUNS.set(RUNS.get() + 1);
                        DEATH.set(death);
                        fault::begin();
                        watched_memory::begin();
                        run();
                    });
                }
            }))
        });
        match checked {
            Ok(()) => Ok(RUNS.get()),
            Err(cause) => {
                let text = cause.downcast_ref::<String>().map(String::as_str);
                Err(text.or(cause.downcast_ref::<&str>().copied()).unwrap_or("a panic without words").to_owned())
            }
        }
    }
}
