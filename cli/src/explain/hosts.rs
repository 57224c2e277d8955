//! A call between hosts: the bytes that cross the link of each, beside those that must.
//!
//! The ranks of the group are threads that make the call. A carrier counts their letters.

use super::size;
use crate::bench::{
    BenchError,
    case::Case,
    crossing::{Crossing, least},
    make_once,
};
use consonance::{
    Communicator, World,
    raw::{Carrier, Inbox, Letter},
};
use consonance_kernels::wire::HEAD;
use serde_json::{Value, json};
use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    thread,
};

/// Limit on the bytes of all buffers of all ranks, since the call is made.
const MOST_BYTES: usize = 4 << 30;

/// The answer for a call between hosts.
#[derive(Clone, Debug)]
pub struct BetweenHosts {
    /// The call, by all ranks of all hosts.
    pub case: Case,
    links: Vec<Link>,
}

/// A host's link to the others.
#[derive(Clone, Copy, Debug, Default)]
struct Link {
    /// The messages that the host sends to others.
    messages: usize,
    crossed: Crossing,
    least: Crossing,
}

/// Counts the letters between hosts that threads play.
struct Counted {
    inboxes: Vec<Arc<Inbox>>,
    ranks_of_host: usize,
    links: Mutex<Vec<Link>>,
}

impl Carrier for Counted {
    fn carry(&self, from: usize, to: usize, letter: Letter) {
        let (sender, receiver) = (from / self.ranks_of_host, to / self.ranks_of_host);
        if sender != receiver {
            let bytes = HEAD + letter.body().len();
            let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
            links[sender].messages += 1;
            links[sender].crossed.sent += bytes;
            links[receiver].crossed.received += bytes;
        }
        self.inboxes[to].put(from, letter);
    }
}

impl BetweenHosts {
    /// Checks that this machine can make the call.
    ///
    /// # Errors
    /// If the buffers take too much memory.
    pub fn check(case: &Case) -> Result<(), BenchError> {
        let (ranks, found) = (case.ranks, case.bytes());
        let most = MOST_BYTES / 2 / ranks;
        let expected = format!("at most {most} bytes of each of {ranks} ranks, since the call is made");
        let invalid = BenchError::Invalid { argument: "--bytes <SIZES>", expected, found: found.to_string() };
        if found <= most { Ok(()) } else { Err(invalid) }
    }

    /// Returns the answer for a call by `hosts` hosts with as many ranks each.
    ///
    /// # Errors
    /// If the buffers take too much memory, or the call fails.
    pub fn explain(case: Case, hosts: usize) -> Result<BetweenHosts, BenchError> {
        BetweenHosts::check(&case)?;
        let ranks = case.ranks;
        let inboxes: Vec<Arc<Inbox>> = (0..ranks).map(|rank| Arc::new(Inbox::new(rank, ranks))).collect();
        let links = Mutex::new(vec![Link::default(); hosts]);
        let counted = Arc::new(Counted { inboxes: inboxes.clone(), ranks_of_host: ranks / hosts, links });
        let engine = |(rank, inbox): (usize, Arc<Inbox>)| {
            let world = World::new(rank, ranks).expect("a rank of the group");
            Communicator::from_engine(inbox.engine(world, counted.clone()))
        };
        let group: Vec<Communicator> = inboxes.into_iter().enumerate().map(engine).collect();
        let call = |mut communicator: Communicator| {
            let made = make_once(case, &mut communicator).map_err(|error| error.to_string());
            made.map(|()| communicator)
        };
        thread::scope(|scope| {
            let threads: Vec<_> = group.into_iter().map(|rank| scope.spawn(move || call(rank))).collect();
            // No rank leaves its group before all have made the call.
            let ranks = threads.into_iter().map(|thread| thread.join().expect("no rank panics"));
            let ranks = ranks.collect::<Result<Vec<_>, String>>().map_err(BenchError::Failed)?;
            let mut links = counted.links.lock().unwrap_or_else(PoisonError::into_inner).clone();
            drop(ranks);
            links.iter_mut().zip(least(&case, hosts)).for_each(|(link, least)| link.least = least);
            Ok(BetweenHosts { case, links })
        })
    }

    /// Returns the answer as a JSON object.
    pub fn json(&self) -> Value {
        let BetweenHosts { case, links } = self;
        let link = |(host, link): (usize, &Link)| {
            json!({
                "host": host,
                "sent_messages": link.messages,
                "sent_bytes": link.crossed.sent,
                "received_bytes": link.crossed.received,
                "least_sent_bytes": link.least.sent,
                "least_received_bytes": link.least.received,
            })
        };
        json!({
            "collective": case.collective.name(),
            "hosts": links.len(),
            "ranks": case.ranks,
            "bytes": case.bytes(),
            "count": case.count,
            "dtype": case.dtype.name(),
            "op": case.collective.kind().combines().then(|| case.op.name()),
            "in_place": case.in_place,
            "protocol": "messages",
            "links": links.iter().enumerate().map(link).collect::<Vec<_>>(),
        })
    }
}

impl fmt::Display for BetweenHosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BetweenHosts { case, links } = self;
        let combined = if case.collective.kind().combines() { format!("{}, ", case.op) } else { String::new() };
        let place = if case.in_place { ", in place" } else { "" };
        let (hosts, ranks) = (links.len(), case.ranks / links.len());
        let ranks = if ranks == 1 { "1 rank".to_owned() } else { format!("{ranks} ranks") };
        let (collective, bytes) = (case.collective, size(case.bytes()));
        writeln!(f, "{collective}({combined}{}) of {bytes}, {hosts} hosts with {ranks} each{place}", case.dtype)?;
        writeln!(
            f,
            "  protocol   messages: call descriptors, then data between pairs of ranks; few data go with the descriptors"
        )?;
        writeln!(f, "  memory     each message is copied on both sides, on one host through memory that both share")?;
        for (host, Link { messages, crossed, least }) in links.iter().enumerate() {
            let words =
                |crossing: &Crossing| format!("sends {}, receives {}", size(crossing.sent), size(crossing.received));
            let name = if host == 0 { "links" } else { "" };
            let messages = if *messages == 1 { "1 message".to_owned() } else { format!("{messages} messages") };
            writeln!(f, "  {name:<10} host {host} {}, in {messages}; at least: {}", words(crossed), words(least))?;
        }
        Ok(())
    }
}
