//! Messages with tags: the mailbox of a rank, on its inbox.
//!
//! A send ends at once, since the receiver's inbox takes every message. A receive is *open* until a
//! message, the end of its group or its deadline ends it. The thread that notices this ends it.

use super::{
    Group,
    letter::{Content, Tagged},
    wait::{Outcome, Receive},
};
use crate::{
    Error,
    comm::tagged_messages::{FinishMessage, MessageFault, Tag, TaggedMessages},
};
use consonance_kernels::{
    group::Envelope,
    memory::{HostBuf, HostBufMut},
};
use consonance_spec::World;
use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

/// The mailbox of a rank in one generation of a group.
pub(super) struct Mail(pub(super) Arc<Group>);

const SEND: &str = "Mailbox::send";
const RECV: &str = "Mailbox::recv";

fn envelope(data: &HostBuf<'_>, tag: Tag) -> Envelope {
    Envelope { dtype: data.dtype(), label: tag.label, bytes: data.bytes(), tag: tag.tag }
}

/// Returns the fault of a request after the group's mailboxes were closed on this rank.
fn closed(call: &'static str) -> MessageFault {
    let problem = "the communicator of this mailbox was dropped, or its group was renewed".to_owned();
    MessageFault::Error(Error::WrongContext { call, problem })
}

impl Mail {
    /// Opens a receive. `finish` takes the message with its sender, a rank of this group.
    fn open(
        &self,
        expected: Envelope,
        from: Option<usize>,
        limit: Duration,
        finish: impl FnOnce(Result<(usize, Vec<u8>), MessageFault>) + Send + 'static,
    ) {
        let group = self.0.clone();
        let own = group.world.rank();
        if let Some(to) = from
            && let Some((sent, expected)) = group.inbox.take_unlike(group.members[to], group.generation())
        {
            return finish(Err(MessageFault::Unlike { from: own, to, sent, expected }));
        }
        let awaited =
            from.map_or_else(|| (0..group.members.len()).filter(|&rank| rank != own).collect(), |one| vec![one]);
        let mut senders: Vec<usize> = awaited.iter().map(|&rank| group.members[rank]).collect();
        if from.is_none() {
            // Also a message of this rank itself is one of any rank.
            senders.push(group.own());
        }
        let of = group.clone();
        let end = move |outcome| finish(of.result(outcome, expected, awaited));
        let deadline = Instant::now() + limit;
        let line = group.line.clone();
        group.inbox.open(Receive { line, from: senders, tag: expected.tag, deadline, finish: Box::new(end) });
    }
}

impl Group {
    /// Returns the fault of a request with a rank of the group that has left.
    fn fault_of(&self, call: &str, rank: usize) -> MessageFault {
        MessageFault::Error(self.ended(call, self.left(rank)))
    }

    /// Returns the result of a receive. Tells the sender of a message that does not fit.
    fn result(
        &self,
        outcome: Outcome,
        expected: Envelope,
        awaited: Vec<usize>,
    ) -> Result<(usize, Vec<u8>), MessageFault> {
        let position = |member: usize| self.members.iter().position(|&other| other == member).expect("a member");
        match outcome {
            Outcome::Message(from, Tagged { envelope: sent, bytes }) if sent == expected => Ok((position(from), bytes)),
            Outcome::Message(from, Tagged { envelope: sent, .. }) => {
                self.tell(from, Content::Unlike { of: self.generation(), sent, expected });
                Err(MessageFault::Unlike { from: position(from), to: self.world.rank(), sent, expected })
            }
            Outcome::Ended(end) => Err(MessageFault::Error(self.ended(RECV, end))),
            Outcome::Closed => Err(closed(RECV)),
            Outcome::Left(member) => Err(self.fault_of(RECV, position(member))),
            Outcome::Late => Err(MessageFault::Late { missing: awaited.clone(), awaited }),
        }
    }
}

impl TaggedMessages for Mail {
    fn world(&self) -> World {
        self.0.world
    }

    fn send(&self, data: HostBuf<'_>, to: usize, tag: Tag, _: Duration) -> Result<usize, MessageFault> {
        let Group { world, ref members, ref inbox, ref line, .. } = *self.0;
        let (of, member) = (self.0.generation(), members[to]);
        if let Some((sent, expected)) = inbox.take_unlike(member, of) {
            return Err(MessageFault::Unlike { from: world.rank(), to, sent, expected });
        }
        if inbox.has_closed(of) {
            return Err(closed(SEND));
        }
        if let Some(end) = inbox.end_of(line) {
            return Err(MessageFault::Error(self.0.ended(SEND, end)));
        }
        if inbox.has_left(member, of.group) {
            return Err(self.0.fault_of(SEND, to));
        }
        let message = Tagged { envelope: envelope(&data, tag), bytes: data.as_bytes().to_vec() };
        self.0.tell(member, Content::Tagged { of, message });
        Ok(to)
    }

    fn recv(
        &self,
        mut data: HostBufMut<'_>,
        from: Option<usize>,
        tag: Tag,
        limit: Duration,
    ) -> Result<usize, MessageFault> {
        let result = Arc::new(Mutex::new(None));
        let slot = || result.lock().expect("nobody panics holding a result");
        let told = result.clone();
        let tell = move |end| *told.lock().expect("nobody panics holding a result") = Some(end);
        self.open(envelope(&data.as_buf(), tag), from, limit, tell);
        self.wait(from, None, &|| slot().is_some());
        let (rank, bytes) = slot().take().expect("the receive has ended")?;
        data.copy_from_bytes(&bytes);
        Ok(rank)
    }

    fn start_send(&self, data: HostBuf<'static>, to: usize, tag: Tag, limit: Duration, finish: FinishMessage) {
        finish(self.send(data, to, tag, limit));
    }

    fn start_recv(
        &self,
        mut data: HostBufMut<'static>,
        from: Option<usize>,
        tag: Tag,
        limit: Duration,
        finish: FinishMessage,
    ) {
        self.open(envelope(&data.as_buf(), tag), from, limit, move |end| {
            finish(end.map(|(rank, bytes)| {
                data.copy_from_bytes(&bytes);
                rank
            }));
        });
    }

    fn wait(&self, _: Option<usize>, until: Option<Instant>, done: &dyn Fn() -> bool) -> bool {
        self.0.inbox.wait_until(until, done)
    }

    fn rest(&self, until: Instant) {
        self.0.inbox.rest(self.0.inbox.changes(), Some(until));
    }

    fn wake(&self) {
        self.0.inbox.wake();
    }

    fn is_busy(&self) -> bool {
        self.0.inbox.has_open(self.0.generation())
    }
}
