//! Passes on the workers' output line by line, with the worker before each line.
//!
//! One thread reads all pipes and writes all lines: no line is torn, and the lines of a worker keep
//! their order. If the thread must wait for the reader of its output, the workers wait for the
//! thread, as they would for the reader without a launcher.

use super::task::Task;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::{Errno, write},
};
use std::{
    fs::File,
    io::{self, Read, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    sync::mpsc::{Receiver, Sender, channel},
    time::{Duration, Instant},
};

/// A longer line is passed on in parts, each as a line. Otherwise the launcher would have to hold
/// the whole line.
const LINE_BYTES: usize = 1 << 20;

/// The time that the launcher waits, after all workers have ended, for other processes that still
/// have their pipes open.
const DRAIN: Duration = Duration::from_millis(500);

/// The capacity of a pipe, so that one read empties it.
const READ_BYTES: usize = 1 << 16;

/// The launcher's output to which lines are written.
#[derive(Clone, Copy)]
pub(super) enum Sink {
    Stdout,
    Stderr,
}

/// One of the two outputs of a worker.
pub(super) struct Stream {
    pipe: File,
    sink: Sink,
    lines: Lines,
}

impl Stream {
    pub(super) fn new(worker: Task, pipe: OwnedFd, sink: Sink) -> Stream {
        Stream { pipe: File::from(pipe), sink, lines: Lines::new(worker) }
    }

    /// Passes on the pipe's contents. Returns false at the end of the pipe, or if our output takes
    /// no more: then the pipe is closed, and the worker notices, as it would without a launcher.
    fn pass_on(&mut self, buffer: &mut [u8], refused: &impl Fn(io::Error)) -> bool {
        let mut text = Vec::new();
        let count = match self.pipe.read(buffer) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return true,
            Err(_) => 0,
        };
        match count {
            0 => self.lines.finish(&mut text),
            _ => self.lines.push(&buffer[..count], &mut text),
        }
        let written = self.sink.write(&text);
        let takes_more = written.is_ok();
        // A reader that has gone away, such as `head`, is no failure.
        if let Err(error) = written
            && error.kind() != io::ErrorKind::BrokenPipe
        {
            refused(error);
        }
        takes_more && count > 0
    }
}

/// A command to the thread that passes on output.
enum Given {
    /// The outputs of a further worker.
    Streams(Vec<Stream>),
    /// Lines of the launcher itself, for standard error.
    Words(String),
}

/// Gives the thread that passes on output more to do. The thread ends after this is dropped, once
/// the pipes are empty.
pub(super) struct Feed {
    given: Sender<Given>,
    /// A byte says that there is something in the channel. The end says that all workers have
    /// ended.
    wake: UnixStream,
}

/// The thread's end of a [`Feed`].
pub(super) struct Fed {
    given: Receiver<Given>,
    wake: UnixStream,
}

impl Feed {
    pub(super) fn new() -> io::Result<(Feed, Fed)> {
        let (ours, theirs) = UnixStream::pair()?;
        // The thread takes all that is there, whatever the number of bytes.
        ours.set_nonblocking(true)?;
        theirs.set_nonblocking(true)?;
        let (sender, given) = channel();
        Ok((Feed { given: sender, wake: ours }, Fed { given, wake: theirs }))
    }

    /// Passes on these streams, too.
    pub(super) fn add(&self, streams: Vec<Stream>) {
        self.give(Given::Streams(streams));
    }

    /// Writes each line on standard error, as the launcher's.
    pub(super) fn say(&self, text: &str) {
        let lines: Vec<String> = text.lines().map(|line| format!("consonance: {line}\n")).collect();
        self.give(Given::Words(lines.concat()));
    }

    fn give(&self, given: Given) {
        // Both fail if the thread has panicked. A full socket wakes the thread, too.
        let _ = self.given.send(given);
        let _ = (&self.wake).write(&[0]);
    }
}

impl Fed {
    /// Takes what was given. Returns whether all workers have ended.
    fn take(&self, streams: &mut Vec<Stream>) -> bool {
        let mut bytes = [0; 64];
        let mut ended = false;
        loop {
            match (&self.wake).read(&mut bytes) {
                Ok(0) => {
                    ended = true;
                    break;
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        for given in self.given.try_iter() {
            match given {
                Given::Streams(further) => streams.extend(further),
                // If nobody reads them, they are dropped.
                Given::Words(text) => _ = Sink::Stderr.write(text.as_bytes()),
            }
        }
        ended
    }
}

impl Sink {
    /// Writes all of the text. No other thread of this process writes in between.
    fn write(self, text: &[u8]) -> io::Result<()> {
        match self {
            Sink::Stdout => write_all(&io::stdout().lock(), text),
            Sink::Stderr => write_all(&io::stderr().lock(), text),
        }
    }
}

/// Writes all of the text. Another process that shares the file may have made it non-blocking. If
/// such a file is full, waits until it is not.
fn write_all(file: &impl AsFd, mut text: &[u8]) -> io::Result<()> {
    while !text.is_empty() {
        match write(file, text) {
            Ok(count) => text = &text[count..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => match poll(&mut [PollFd::new(file, PollFlags::OUT)], None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            },
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Passes on output until all workers have ended, and then until the pipes are at their ends, or
/// [`DRAIN`] is over. Calls `refused` with the system's reason if an output takes no more, although
/// its reader has not gone away.
pub(super) fn pass_on(fed: &Fed, refused: impl Fn(io::Error)) {
    let mut streams = Vec::new();
    let mut buffer = vec![0; READ_BYTES];
    let mut until: Option<Instant> = None;
    while until.is_none() || !streams.is_empty() {
        // With no time left this is the last pass, which takes what the pipes hold.
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let Some((ready, fed_more)) = wait(&streams, &fed.wake, left) else { continue };
        let mut ready = ready.into_iter();
        streams.retain_mut(|stream| !ready.next().unwrap_or(false) || stream.pass_on(&mut buffer, &refused));
        if left.is_some_and(|left| left.is_zero()) {
            break;
        }
        if fed_more && until.is_none() && fed.take(&mut streams) {
            until = Some(Instant::now() + DRAIN);
        }
    }
    for stream in &mut streams {
        let mut text = Vec::new();
        stream.lines.finish(&mut text);
        // If nobody reads it, it is dropped.
        let _ = stream.sink.write(&text);
    }
}

/// Returns which of the streams can be read, and whether the feed has something or is at its end;
/// `None` if a signal interrupted the wait.
fn wait(streams: &[Stream], feed: &UnixStream, left: Option<Duration>) -> Option<(Vec<bool>, bool)> {
    let mut polled: Vec<PollFd<'_>> = streams.iter().map(|stream| PollFd::new(&stream.pipe, PollFlags::IN)).collect();
    // Once its other end is closed, the feed would be ready all the time.
    if left.is_none() {
        polled.push(PollFd::new(feed, PollFlags::IN));
    }
    let left = left.map(|left| Timespec::try_from(left).expect("at most DRAIN"));
    match poll(&mut polled, left.as_ref()) {
        Ok(_) => {}
        Err(Errno::INTR) => return None,
        Err(error) => panic!("poll of {} pipes: {error}", polled.len()),
    }
    let mut ready: Vec<bool> = polled.iter().map(|polled| !polled.revents().is_empty()).collect();
    let fed = ready.len() > streams.len() && ready.pop() == Some(true);
    Some((ready, fed))
}

/// Splits bytes into lines.
struct Lines {
    /// The beginning of each line.
    prefix: Vec<u8>,
    /// The prefix, and the bytes of a line that has not ended.
    line: Vec<u8>,
}

impl Lines {
    fn new(worker: Task) -> Lines {
        let prefix = format!("[{worker}] ").into_bytes();
        Lines { line: prefix.clone(), prefix }
    }

    /// Appends to `text` the lines that end in `bytes`.
    fn push(&mut self, bytes: &[u8], text: &mut Vec<u8>) {
        for part in bytes.split_inclusive(|&byte| byte == b'\n') {
            self.line.extend_from_slice(part);
            if part.ends_with(b"\n") || self.line.len() - self.prefix.len() >= LINE_BYTES {
                self.finish(text);
            }
        }
    }

    /// Appends to `text` the line so far, if it has any bytes.
    fn finish(&mut self, text: &mut Vec<u8>) {
        if self.line.len() > self.prefix.len() {
            text.extend_from_slice(&self.line);
            if !text.ends_with(b"\n") {
                text.push(b'\n');
            }
            self.line.truncate(self.prefix.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the text that results from these pieces.
    fn lines(pieces: &[&[u8]]) -> Vec<u8> {
        let (mut lines, mut text) = (Lines::new(Task::worker(7)), Vec::new());
        for piece in pieces {
            lines.push(piece, &mut text);
        }
        lines.finish(&mut text);
        text
    }

    #[test]
    fn lines_are_whole() {
        assert_eq!(lines(&[]), b"");
        assert_eq!(lines(&[b"a", b"b\n\nc"]), b"[worker 7] ab\n[worker 7] \n[worker 7] c\n");
        assert_eq!(lines(&[b"\xff\0\xc3", b"\xa4\r\n"]), b"[worker 7] \xff\0\xc3\xa4\r\n");
    }

    #[test]
    fn a_full_file_is_waited_for() {
        let (reader, file) = UnixStream::pair().unwrap();
        file.set_nonblocking(true).unwrap();
        let text: Vec<u8> = (0..8 * READ_BYTES).map(|at| (at % 251) as u8).collect();
        let read = std::thread::spawn(move || {
            let mut found = Vec::new();
            (&reader).read_to_end(&mut found).map(|_| found)
        });
        write_all(&file, &text).unwrap();
        drop(file);
        assert!(read.join().unwrap().unwrap() == text);
    }

    #[test]
    fn a_line_without_end_is_passed_on_in_parts() {
        let piece = vec![b'x'; READ_BYTES];
        let parts = LINE_BYTES / READ_BYTES;
        let text = lines(&vec![piece.as_slice(); parts + 1]);
        let long = b"[worker 7] ".len() + LINE_BYTES + 1;
        assert_eq!(text.len(), long + b"[worker 7] ".len() + READ_BYTES + 1);
        assert!(text[..long].ends_with(b"x\n") && text[long..].starts_with(b"[worker 7] x"));
    }
}
