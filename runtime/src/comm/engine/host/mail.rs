//! Messages with tags of ranks that share memory.

use crate::{
    Error,
    comm::{
        mailbox::{RECV, SEND},
        report::Reports,
        tagged_messages::{FinishMessage, MessageFault, Tag, TaggedMessages},
    },
};
use consonance_kernels::{
    group::{Deadline, Fault, Mail, MailFault},
    memory::{HostBuf, HostBufMut},
    os::launcher::Blame,
};
use consonance_spec::World;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// One rank's messages.
pub(super) struct HostMessages {
    pub(super) mail: Mail,
    pub(super) reports: Arc<Reports>,
}

impl TaggedMessages for HostMessages {
    fn world(&self) -> World {
        self.mail.world()
    }

    fn send(&self, data: HostBuf<'_>, to: usize, tag: Tag, limit: Duration) -> Result<usize, MessageFault> {
        let sent = self.mail.send_and_wait(data, tag.label, to, tag.tag, Deadline::after(limit));
        sent.map_err(|fault| told(&self.reports, SEND, fault, limit))
    }

    fn recv(
        &self,
        data: HostBufMut<'_>,
        from: Option<usize>,
        tag: Tag,
        limit: Duration,
    ) -> Result<usize, MessageFault> {
        let received = self.mail.recv_and_wait(data, tag.label, from, tag.tag, Deadline::after(limit));
        received.map_err(|fault| told(&self.reports, RECV, fault, limit))
    }

    fn start_send(&self, data: HostBuf<'static>, to: usize, tag: Tag, limit: Duration, finish: FinishMessage) {
        let reports = self.reports.clone();
        let finish = Box::new(move |result: Result<usize, MailFault>| {
            finish(result.map_err(|fault| told(&reports, SEND, fault, limit)));
        });
        self.mail.send(data, tag.label, to, tag.tag, Deadline::after(limit), finish);
    }

    fn start_recv(
        &self,
        data: HostBufMut<'static>,
        from: Option<usize>,
        tag: Tag,
        limit: Duration,
        finish: FinishMessage,
    ) {
        let reports = self.reports.clone();
        let finish = Box::new(move |result: Result<usize, MailFault>| {
            finish(result.map_err(|fault| told(&reports, RECV, fault, limit)));
        });
        self.mail.recv(data, tag.label, from, tag.tag, Deadline::after(limit), finish);
    }

    fn wait(&self, peer: Option<usize>, until: Option<Instant>, done: &dyn Fn() -> bool) -> bool {
        self.mail.wait(peer, until, done)
    }

    fn rest(&self, until: Instant) {
        self.mail.rest(until);
    }

    fn wake(&self) {
        self.mail.wake();
    }

    fn is_busy(&self) -> bool {
        self.mail.is_busy()
    }

    fn describe(&self, rank: usize) -> Option<String> {
        self.reports.process(rank)
    }

    fn blame(&self, rank: usize) {
        self.reports.blame(rank, Blame::Differs);
    }
}

/// Returns what a request of this name is told, which waited for at most `limit`.
fn told(reports: &Reports, call: &'static str, fault: MailFault, limit: Duration) -> MessageFault {
    match fault {
        MailFault::Unlike { from, to, sent, expected } => MessageFault::Unlike { from, to, sent, expected },
        MailFault::Late { awaited, missing } => MessageFault::Late { awaited, missing },
        MailFault::Withdrawn(from) => MessageFault::Withdrawn(from),
        // The endpoint of this rank was dropped, or its group goes on in another generation.
        MailFault::Fault(Fault::Left(rank)) if rank == reports.world().rank() => {
            MessageFault::Error(Error::WrongContext {
                call,
                problem: "the communicator of this mailbox was dropped, or its group was renewed".to_owned(),
            })
        }
        MailFault::Fault(fault) => MessageFault::Error(reports.error(fault, call, limit)),
    }
}
