//! A mailbox on messages of another crate.

use consonance::{
    Error, Mailbox, Result, World,
    raw::{Envelope, FinishMessage, HostBuf, HostBufMut, MessageFault, Tag, TaggedMessages},
};
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

/// The messages of a rank that is alone in its group: a send ends at once, and a receive takes a
/// message that is there.
#[derive(Default)]
struct Alone(Mutex<VecDeque<(Envelope, Vec<u8>)>>);

fn envelope(data: &HostBuf<'_>, tag: Tag) -> Envelope {
    Envelope { dtype: data.dtype(), label: tag.label, bytes: data.bytes(), tag: tag.tag }
}

impl TaggedMessages for Alone {
    fn world(&self) -> World {
        World::new(0, 1).expect("one rank")
    }

    fn send(&self, data: HostBuf<'_>, to: usize, tag: Tag, _: Duration) -> Result<usize, MessageFault> {
        self.0.lock().unwrap().push_back((envelope(&data, tag), data.as_bytes().to_vec()));
        Ok(to)
    }

    fn recv(&self, mut data: HostBufMut<'_>, _: Option<usize>, tag: Tag, _: Duration) -> Result<usize, MessageFault> {
        let mut messages = self.0.lock().unwrap();
        let found = messages.iter().position(|(sent, _)| sent.tag == tag.tag);
        let Some((sent, bytes)) = found.and_then(|place| messages.remove(place)) else {
            return Err(MessageFault::Late { awaited: vec![0], missing: vec![0] });
        };
        let expected = envelope(&data.as_buf(), tag);
        if sent != expected {
            return Err(MessageFault::Unlike { from: 0, to: 0, sent, expected });
        }
        data.copy_from_bytes(&bytes);
        Ok(0)
    }

    fn start_send(&self, data: HostBuf<'static>, to: usize, tag: Tag, limit: Duration, finish: FinishMessage) {
        finish(self.send(data, to, tag, limit));
    }

    fn start_recv(
        &self,
        data: HostBufMut<'static>,
        from: Option<usize>,
        tag: Tag,
        limit: Duration,
        finish: FinishMessage,
    ) {
        finish(self.recv(data, from, tag, limit));
    }

    fn wait(&self, _: Option<usize>, _: Option<Instant>, done: &dyn Fn() -> bool) -> bool {
        done()
    }

    fn rest(&self, _: Instant) {}

    fn wake(&self) {}

    fn is_busy(&self) -> bool {
        false
    }
}

#[test]
fn a_mailbox_stands_on_messages_of_another_crate() -> Result<()> {
    let mailbox = Mailbox::new(Arc::new(Alone::default()), Duration::from_secs(60));
    mailbox.send([1.5f32, 2.5].as_slice(), 0, 7, None)?;
    let (sent, received): (&'static [u8], &'static mut [u8]) = (&[1, 2], vec![0; 2].leak());
    assert!(mailbox.start_send(sent.into(), 0, 8, None).is_finished());
    let request = mailbox.start_recv(received.into(), None, 8, None);
    assert_eq!((request.wait(None)?, request.source()), (true, Some(0)));
    let mut data = [0f32; 2];
    assert_eq!(mailbox.recv(data.as_mut_slice(), None, 7, None)?, 0);
    assert_eq!(data, [1.5, 2.5]);
    Ok(())
}

#[test]
fn faults_of_such_messages_are_the_errors_of_a_mailbox() {
    let mailbox = Mailbox::new(Arc::new(Alone::default()), Duration::from_secs(60));
    let late = mailbox.recv([0u8].as_mut_slice(), Some(0), 7, None);
    assert!(matches!(late, Err(Error::Timeout { missing, .. }) if missing[0].0 == 0));
    mailbox.send([1u8, 2].as_slice(), 0, 7, None).expect("a send ends at once");
    let unlike = mailbox.recv([0u8].as_mut_slice(), Some(0), 7, None);
    assert!(
        matches!(unlike, Err(Error::Mismatch { replica: 0, expected, found, .. }) if expected == "1" && found == "2")
    );
}
