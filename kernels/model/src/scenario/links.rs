//! Scenarios of links: groups of two processes, which begin and end singly.

use super::{calls::*, messages::*};
use crate::{
    fault,
    group::{Abort, Endpoint, Fault, MailFault, Reason},
    scenario::DEATH,
};

fn link() -> [Endpoint; 2] {
    processes(RINGS).try_into().unwrap_or_else(|_| panic!("two ends"))
}

/// Sends a message on a link, and receives the answer.
fn ask(end: &mut Endpoint, number: usize) -> Result<usize, MailFault> {
    let mail = mail(end);
    assert_eq!(send(&mail, number, 1).wait(), Ok(1));
    recv(&mail, number + 1, 1)
}

fn answer(end: &mut Endpoint, number: usize) {
    let mail = mail(end);
    assert_eq!(recv(&mail, number, 1), Ok(0));
    assert_eq!(send(&mail, number + 1, 1).wait(), Ok(0));
}

/// The number of operations of a process in [`links_and_death`], plus one.
pub(super) const LINK_DEATHS: u32 = 120;

/// A process has links to two others, of which one dies at any operation. That disturbs the other
/// link at no time. Another link takes the place of the one that has ended.
pub(super) fn links_and_death() {
    let [mut first, mut mortal] = link();
    let [mut second, mut other] = link();
    let [mut third, mut replacement] = link();
    let watcher = first.aborter();
    let dies = loom::thread::spawn(move || {
        fault::die_after(DEATH.get(), || {
            answer(&mut mortal, 1);
            drop(mortal);
        })
    });
    let survives = loom::thread::spawn(move || {
        answer(&mut other, 3);
        answer(&mut replacement, 1);
        [other, replacement]
    });
    // A short message is copied, and waits for nobody.
    let to_first = mail(&mut first);
    assert_eq!(send(&to_first, 1, 1).wait(), Ok(1));
    assert_eq!(ask(&mut second, 3), Ok(1));
    let died = dies.join().unwrap();
    assert!(!died || DEATH.get() < LINK_DEATHS, "there are more operations before which it may die");
    watcher.lose(1..2, Reason::Death);
    let lost = MailFault::Fault(Fault::Aborted(Abort { rank: 1, reason: Reason::Death }));
    let answered = recv(&to_first, 2, 1);
    assert!(answered == Ok(1) || died && answered == Err(lost), "{answered:?}");
    drop(first);
    assert_eq!(ask(&mut third, 1), Ok(1));
    drop(survives.join().unwrap());
}
