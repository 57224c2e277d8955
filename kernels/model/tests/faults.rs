//! The model finds planted faults. So it is evidence that it finds none in the protocol as it is.

use consonance_model::{
    fault::{self, Effect, Fault, SourceLine},
    scenario,
};

/// Synchronisations by name, each with the scenario that fails without it, at each of its ends.
const FOUND_BY: [(&str, &str); 27] = [
    ("arrival", "exchange"),
    ("sleep", "exchange"),
    ("wake", "exchange, end from outside"),
    ("end", "exchange, end from outside"),
    ("leave", "split of threads"),
    ("left", "generations of threads"),
    ("vain", "chain of waits"),
    ("rest", "exchange, one rests"),
    ("departure", "divided"),
    ("abort", "divided, deadline"),
    ("inside", "divided, deadline"),
    ("claim", "split of both, then of one"),
    ("staged", "windows"),
    ("folded", "windows, divided"),
    ("read", "windows"),
    ("generation", "windows, failure, next generation"),
    ("settle", "one way"),
    ("full", "messages"),
    ("taken", "messages"),
    ("refused", "messages, two mismatches"),
    ("mail", "messages"),
    ("letter", "letters"),
    ("overtaken", "versions"),
    ("version", "versions"),
    ("gpu", "gpu"),
    ("entry", "wake"),
    ("entry_id", "wake"),
];

/// Ends of synchronisations without which no scenario fails, and the reasons: mostly a fence that
/// is there for another synchronisation has the same effect.
const COVERED: [(&str, &str, &str); 6] = [
    ("group/waiter.rs", "counters.idle.store(", "the rank's last arrival was followed by the fence of `wake`"),
    (
        "group/waiter.rs",
        "counters.generation.store(",
        "its last `say_read` was followed by the fence of `wake`, or its abort by one",
    ),
    (
        "group/member.rs",
        "fence(Ordering::Acquire",
        "no scenario reads in heaps what may be torn and is then thrown away",
    ),
    ("group/mail/mailbox.rs", "fence(Ordering::SeqCst); // polled", "the ranks of the model do not poll"),
    (
        "group/call_context.rs",
        "locals.inside(member.world.rank()).store(0",
        "in the model nobody of a segment's group enters the memory of others",
    ),
    (
        "group/state/mod.rs",
        "owner.compare_exchange(free",
        "the members hear of the place in a step, which has the fence of `wake`",
    ),
];

/// Ends for which another scenario fails than for the other ends of the same name.
const FOUND_ELSEWHERE: [(&str, &str, &str); 1] =
    [("group/sharing.rs", "counters.inside.load(", "divided in heaps, deadline")];

fn covered() -> Vec<SourceLine> {
    COVERED.iter().map(|(file, text, _)| SourceLine::with(file, text)).collect()
}

#[test]
fn every_synchronisation_is_needed() {
    let points = fault::sync_points();
    for (name, scenario) in FOUND_BY {
        let lines = points.iter().filter(|(found, line)| *found == name && !covered().contains(line));
        assert!(lines.clone().count() > 0, "the protocol has no SYNC POINT {name}");
        for (_, line) in lines {
            let elsewhere = FOUND_ELSEWHERE.iter().find(|(file, text, _)| SourceLine::with(file, text) == *line);
            let scenario = elsewhere.map_or(scenario, |(_, _, scenario)| scenario);
            let found = scenario::named(scenario).check(Some(Fault { line: *line, effect: Effect::Relaxed }));
            assert!(
                found.is_err(),
                "{name} is not missed in {scenario}: {}:{}: {}",
                line.file,
                line.number,
                line.text()
            );
        }
    }
    for (name, line) in points {
        assert!(FOUND_BY.iter().any(|(found, _)| *found == name), "{}:{}: who finds {name}?", line.file, line.number);
    }
}

/// Every line with a stronger ordering than relaxed is an end of a named synchronisation.
#[test]
fn every_synchronisation_has_a_name() {
    let named: Vec<SourceLine> = fault::sync_points().into_iter().map(|(_, line)| line).collect();
    for line in fault::strong_lines() {
        assert!(named.contains(&line), "{}:{}: no SYNC POINT above {}", line.file, line.number, line.text());
    }
}

#[test]
fn waits_for_the_wrong_state_are_found() {
    let faults = [
        (
            "a cell is written before it is read",
            "group/mail/ring.rs",
            "let read = ends.reader.read.load(",
            1,
            "messages",
        ),
        ("a cell is said to be read too early", "group/mail/ring.rs", "ends.reader.read.store(", 1, "messages"),
        ("a cell is said to be full too early", "group/mail/ring.rs", "cell.full.store(", 1, "messages"),
        ("a sleeper is not signalled", "group/mail/mailbox.rs", "awaits_mail.load(", -1, "messages"),
        ("a process that sleeps is not woken", "group/mail/letters.rs", "awaits_mail.load(", -1, "letters"),
        ("a process sleeps and does not say so", "group/mail/letters.rs", "awaits_mail.store(1", -1, "letters"),
        ("a rank gives a message too early", "group/meeting.rs", "descriptor.sequence.load(", 4, "one way"),
        ("a mismatch is judged too early", "group/meeting.rs", "descriptor.sequence.load(", 4, "one way, mismatch"),
        (
            "a peer is taken to have come that has not",
            "group/meeting.rs",
            "descriptor.sequence.load(",
            4,
            "one way, deadline",
        ),
        ("ranks depart while one is still at work", "group/sharing.rs", "counters.done.load(", 1, "divided"),
        ("a slot is staged again a window too early", "group/staging/mod.rs", "counters.read.load(", 1, "windows"),
        ("a window is said to be read before it is", "group/staging/mod.rs", "counters.read.store(", 1, "windows"),
        (
            "the only reader says too early that it has read",
            "group/staging/mod.rs",
            "counters.read.store(",
            1,
            "windows of one rank",
        ),
        (
            "the only rank with data stages a window too early",
            "group/staging/mod.rs",
            "counters.read.load(",
            1,
            "windows of one rank",
        ),
        (
            "the only reader does not wait for a window",
            "group/staging/mod.rs",
            "counters.staged.load(",
            1,
            "windows of one rank",
        ),
        ("a window is read before it is staged", "group/staging/mod.rs", "counters.staged.load(", 1, "windows"),
        (
            "a result is read before it is folded",
            "group/staging/mod.rs",
            "counters.folded.load(",
            1,
            "windows, divided",
        ),
        ("what a peer reads is written again", "group/staging/mod.rs", "counters.read.load(", 1, "read directly"),
        (
            "a rank begins a generation alone",
            "group/waiter.rs",
            "counters.generation.load(",
            1,
            "windows, failure, next generation",
        ),
        ("nobody is ever inside", "group/call_context.rs", "counters.inside.store(1", -1, "divided, deadline"),
        (
            "nobody is ever in a heap",
            "group/call_context.rs",
            "record().counters.inside.store(1",
            -1,
            "divided in heaps, deadline",
        ),
        ("nobody is seen in a heap", "group/sharing.rs", "counters.inside.load(", -1, "divided in heaps, deadline"),
        (
            "the dead are taken to have left",
            "group/state/ends.rs",
            "let left = counters.left.load(",
            1,
            "windows, death",
        ),
        (
            "the dead at a link are taken to have left",
            "group/state/ends.rs",
            "let left = counters.left.load(",
            1,
            "links, death",
        ),
        ("an end of a link sleeps on", "group/mail/mailbox.rs", "awaits_mail.load(", -1, "links, death"),
        ("a cell of a link is full too early", "group/mail/ring.rs", "cell.full.store(", 1, "links, death"),
        (
            "a loss hides the abort",
            "group/state/ends.rs",
            "replaced.fetch_max(",
            -(1 << 40),
            "exchange, abort and loss",
        ),
        (
            "a slow rank is taken to be told",
            "group/state/ends.rs",
            "self.heard(rank).load(",
            3,
            "exchange, abort and loss",
        ),
        (
            "an abort is told twice",
            "group/state/ends.rs",
            "heard(rank).fetch_max(2 * generation.mark(), ",
            -1,
            "exchange, abort and loss",
        ),
        (
            "a slow rank is taken to be told of the abort of a part",
            "group/state/ends.rs",
            "self.heard(rank).load(",
            3,
            "exchange, abort of a pair and loss",
        ),
        (
            "an abort of a part is told twice",
            "group/state/ends.rs",
            "heard(rank).fetch_max(2 * generation.mark(), ",
            -1,
            "exchange, abort of a pair and loss",
        ),
        ("a deadline names the next rank of a chain", "group/chains.rs", "sleeper.blocker.load(", -3, "chain of waits"),
        (
            "a rank that waits is taken to be stopped",
            "group/chains.rs",
            "sleeper(rank).progress.load(",
            1,
            "chain of waits",
        ),
        ("a write is not seen to begin", "shm/version.rs", "word.store(version | 1", -1, "versions"),
        ("a write ends in an odd version", "shm/version.rs", "word.store(version.wrapping_add(1)", 1, "versions"),
        (
            "a copy of two versions is kept",
            "shm/version.rs",
            "self.word.load(Ordering::Relaxed) == version",
            -1,
            "versions",
        ),
        ("a signal is not counted", "sync/wait.rs", "count.fetch_add(", -1, "exchange"),
        ("a place forgets its generation", "group/state/mod.rs", "owner.fetch_sub(", 1 << 32, "split of processes"),
    ];
    for (what, file, text, offset, scenario) in faults {
        let fault = Fault { line: SourceLine::with(file, text), effect: Effect::Offset(offset) };
        assert!(scenario::named(scenario).check(Some(fault)).is_err(), "not found in {scenario}: {what}");
    }
}
