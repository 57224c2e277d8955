//! Connections of processes that have not said yet who they are.

use super::{
    error::{MeetingError, system},
    meeting::{Meeting, no_descriptor},
    options::is_holder,
    packet::{Packet, ReadError},
    socket::{self, Link, Received},
};
use crate::shm::SharedFile;
use std::sync::Arc;

/// The limit on connections that are open without a hello, in addition to one for each task.
const STRANGERS: usize = 64;

impl Meeting {
    /// Accepts a bounded number of pending connections, so that a peer that connects in a loop
    /// cannot hold this process past its deadline.
    pub(super) fn accept(&mut self) -> Result<(), MeetingError> {
        let most = self.options.names.len() + STRANGERS;
        for _ in 0..most {
            let accepted = socket::accept(&self.listener).map_err(|source| system("accept a process", source))?;
            let Some(socket) = accepted else { break };
            // A process of another user, or one that has ended, is ignored.
            let peer = socket::peer(&socket).ok().filter(|peer| peer.uid == socket::user());
            self.strangers.extend(peer.and_then(|peer| Link::new(socket, peer).ok()));
            if self.strangers.len() > most {
                self.strangers.remove(0);
            }
        }
        Ok(())
    }

    /// Reads the first packet of a connection. A hello makes the connection the link to a task.
    pub(super) fn greet(&mut self, stranger: Link) -> Result<(), MeetingError> {
        let (count, mut descriptors) = match socket::receive(&stranger.socket, &mut self.buffer) {
            Received::Bytes(count, descriptors) if descriptors.len() <= 1 => (count, descriptors),
            Received::NoDescriptor => return Err(no_descriptor()),
            Received::Bytes(..) | Received::TooLarge | Received::Nothing | Received::Closed => return Ok(()),
        };
        let hello = match self.packet(count) {
            Ok(Packet::Hello(hello)) => hello,
            Err(ReadError::OtherBuild) => return self.refuse_build(&stranger),
            _ => return Ok(()),
        };
        // Anybody can read the digest, which is part of a socket's name. Only a process of the job
        // listens at the name of a task.
        if !is_holder(&self.options, hello.task, &stranger) {
            return Ok(());
        }
        if !self.options.has_size_of(&hello) {
            return self.refuse(&stranger, self.options.other_size(stranger.pid, &hello));
        }
        if hello.task <= self.options.task {
            return Ok(());
        }
        let task = hello.task;
        self.links[task] = Some(Arc::new(stranger));
        self.given[task] = descriptors.pop().map(SharedFile::from);
        self.formation.linked_to(task);
        self.formation.take(task, Packet::Hello(hello));
        self.read(task)
    }

    /// Refuses a process of another build if it has the name of a task. Its hello says no more than
    /// the build.
    fn refuse_build(&mut self, stranger: &Link) -> Result<(), MeetingError> {
        let Some(more) = self.searches.checked_sub(1) else { return Ok(()) };
        self.searches = more;
        let mut others = (0..self.options.names.len()).filter(|&task| task != self.options.task);
        let Some(task) = others.find(|&task| is_holder(&self.options, task, stranger)) else { return Ok(()) };
        let name = self.options.names[task].clone();
        self.refuse(stranger, MeetingError::OtherBuild { name, pid: stranger.pid })
    }

    /// Tells a process that it is refused. This is an error, `why`, if this process has been in no
    /// group; otherwise the job goes on without the other.
    pub(super) fn refuse(&self, link: &Link, why: MeetingError) -> Result<(), MeetingError> {
        let own = self.formation.own();
        // Of another build, it reads no more than the build. If it does not take this, it is gone.
        let _ = socket::send(&link.socket, &self.bytes(&Packet::Hello(own.clone())), None);
        if own.generation == 0 { Err(why) } else { Ok(()) }
    }
}
