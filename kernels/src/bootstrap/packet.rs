//! The packets between the processes of a job, as bytes. Each is one packet of a socket.
//!
//! The bytes come from another process, so every number in them is checked here against fixed
//! bounds before it is used. A packet that was read is written as the same bytes again.

/// The limit on the tasks of a job, and on the ranks of its group.
pub const MAX_TASKS: usize = 1024;

/// The size limit of a packet. The longest is a proposal to [`MAX_TASKS`] tasks.
pub const MAX_BYTES: usize = HEADER_BYTES + 28 + MAX_TASKS * MEMBER_BYTES;

/// The longest text of a [`Packet::Leave`], in bytes.
pub const MAX_TEXT_BYTES: usize = 1024;

/// The version of the format of all following fields. The magic number and the job's digest come
/// before the version in every version: a process that has not sent the digest is a stranger.
const VERSION: u32 = 2;

const MAGIC: [u8; 8] = *b"consmeet";
const HEADER_BYTES: usize = 40;
const MEMBER_BYTES: usize = 24;

/// One packet.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "most are hellos, and none is kept")]
pub enum Packet {
    /// The sender wants to form a group. The packet identifies the sender and says what it knows.
    Hello(Hello),
    /// The group that the sender proposes. The packet contains a descriptor of the group's segment.
    Propose(Group),
    /// All members have accepted the group with this id: it is formed.
    Commit([u8; 16]),
    /// The sender has left this attempt of its own, for this reason. The text is empty if other
    /// processes need not know the reason.
    Leave(u64, String),
}

/// The state of a process that wants to form a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The random number of the process, not 0.
    pub nonce: u64,
    /// The number of the sender's attempt to form a group, from 1. A proposal names the attempts of
    /// its members.
    pub attempt: u64,
    /// The last generation that the sender was in; 0 if it was in none.
    pub generation: u64,
    /// The highest generation that the sender knows of, formed or only proposed.
    pub seen: u64,
    /// The receiver's last attempt that a proposal used up, as far as the sender knows; 0 if there
    /// is none.
    pub used: u64,
    /// The id of the proposal that the sender accepts; 0 if it accepts none.
    pub accepted: [u8; 16],
    /// The sender's task.
    pub task: usize,
    /// The number of tasks of the cluster.
    pub tasks: usize,
    /// The number of the sender's replicas.
    pub replicas: usize,
    /// The tasks that the sender knows to be alive, from its last generation and from proposals
    /// that it accepted.
    pub alive: TaskSet,
    /// The tasks from which the sender has received a hello.
    pub linked: TaskSet,
}

/// A formed or proposed group of processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The number of the group, from 1: higher than the number of any earlier group.
    pub generation: u64,
    /// A random number that no other group has.
    pub id: [u8; 16],
    /// Its members, in the order of their tasks.
    pub members: Vec<GroupMember>,
}

/// A process of a [`Group`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupMember {
    /// Its task.
    pub task: usize,
    /// The number of its replicas.
    pub replicas: usize,
    /// The random number of the process, from its hello.
    pub nonce: u64,
    /// The number of the process's attempt that the proposal is for.
    pub attempt: u64,
}

impl Group {
    /// Returns the member of a task; `None` if the task is no member.
    pub fn member(&self, task: usize) -> Option<&GroupMember> {
        self.members.iter().find(|member| member.task == task)
    }
}

/// A set of tasks, each below [`MAX_TASKS`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskSet([u64; MAX_TASKS / 64]);

impl TaskSet {
    /// Returns the tasks `0..count`.
    pub fn first(count: usize) -> TaskSet {
        (0..count).collect()
    }

    /// Inserts a task.
    pub fn insert(&mut self, task: usize) {
        self.0[task / 64] |= 1 << (task % 64);
    }

    /// Removes a task.
    pub fn remove(&mut self, task: usize) {
        self.0[task / 64] &= !(1 << (task % 64));
    }

    /// Returns whether a task is in the set.
    pub fn contains(&self, task: usize) -> bool {
        self.0[task / 64] & 1 << (task % 64) != 0
    }

    /// Returns the number of tasks.
    pub fn count(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Returns whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0 == TaskSet::default().0
    }

    /// Returns the tasks in ascending order.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        let bits = |(word, mut bits): (usize, u64)| {
            std::iter::from_fn(move || {
                let bit = (bits != 0).then(|| bits.trailing_zeros())?;
                bits &= bits - 1;
                Some(word * 64 + bit as usize)
            })
        };
        self.0.into_iter().enumerate().flat_map(bits)
    }

    /// Returns the union of the two sets.
    pub fn or(self, other: TaskSet) -> TaskSet {
        TaskSet(std::array::from_fn(|word| self.0[word] | other.0[word]))
    }

    /// Returns the tasks of this set that are not in `other`.
    pub fn without(self, other: TaskSet) -> TaskSet {
        TaskSet(std::array::from_fn(|word| self.0[word] & !other.0[word]))
    }
}

impl FromIterator<usize> for TaskSet {
    fn from_iter<I: IntoIterator<Item = usize>>(tasks: I) -> TaskSet {
        let mut set = TaskSet::default();
        tasks.into_iter().for_each(|task| set.insert(task));
        set
    }
}

/// The reason why bytes are not a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadError {
    /// The bytes have this job's digest, but another version of the protocol or another layout of
    /// the segment.
    OtherBuild,
    /// The bytes are not of this job, or are no packet.
    Garbage,
}

impl Packet {
    /// Encodes the packet for the job with this digest, from a build whose segment has this
    /// layout.
    pub fn write(&self, digest: u128, layout: u64) -> Vec<u8> {
        let kind: u32 = match self {
            Packet::Hello(_) => 1,
            Packet::Propose(_) => 2,
            Packet::Commit(_) => 3,
            Packet::Leave(..) => 4,
        };
        let mut bytes = Vec::with_capacity(512);
        bytes.extend(MAGIC);
        bytes.extend(digest.to_le_bytes());
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(kind.to_le_bytes());
        bytes.extend(layout.to_le_bytes());
        match self {
            Packet::Hello(hello) => hello.write(&mut bytes),
            Packet::Propose(group) => group.write(&mut bytes),
            Packet::Commit(id) => bytes.extend(id),
            Packet::Leave(attempt, text) => {
                bytes.extend(attempt.to_le_bytes());
                bytes.extend(&text.as_bytes()[..text.floor_char_boundary(MAX_TEXT_BYTES)]);
            }
        }
        bytes
    }

    /// Decodes a packet.
    ///
    /// # Errors
    /// [`ReadError::OtherBuild`] if the bytes begin like a packet to this job but have another
    /// version or layout; [`ReadError::Garbage`] for all other bytes that [`Packet::write`] does
    /// not write.
    pub fn read(bytes: &[u8], digest: u128, layout: u64) -> Result<Packet, ReadError> {
        let mut reader = Reader(bytes);
        if reader.take() != Some(MAGIC) || reader.take().map(u128::from_le_bytes) != Some(digest) {
            return Err(ReadError::Garbage);
        }
        let version = reader.u32().ok_or(ReadError::Garbage)?;
        if version != VERSION {
            return Err(ReadError::OtherBuild);
        }
        let (kind, sender) = reader.u32().zip(reader.u64()).ok_or(ReadError::Garbage)?;
        if sender != layout {
            return Err(ReadError::OtherBuild);
        }
        let packet = match kind {
            1 => Hello::read(&mut reader).map(Packet::Hello),
            2 => Group::read(&mut reader).map(Packet::Propose),
            3 => reader.take().map(Packet::Commit),
            4 => reader
                .u64()
                .filter(|&attempt| is_number(attempt))
                .zip(reader.text())
                .map(|(attempt, text)| Packet::Leave(attempt, text)),
            _ => None,
        };
        packet.filter(|_| reader.0.is_empty()).ok_or(ReadError::Garbage)
    }
}

impl Hello {
    fn write(&self, bytes: &mut Vec<u8>) {
        for number in [self.nonce, self.attempt, self.generation, self.seen, self.used] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(self.accepted);
        for number in [self.task, self.tasks, self.replicas] {
            bytes.extend((number as u32).to_le_bytes());
        }
        for word in self.alive.0.iter().chain(&self.linked.0) {
            bytes.extend(word.to_le_bytes());
        }
    }

    fn read(reader: &mut Reader<'_>) -> Option<Hello> {
        let hello = Hello {
            nonce: reader.u64()?,
            attempt: reader.u64()?,
            generation: reader.u64()?,
            seen: reader.u64()?,
            used: reader.u64()?,
            accepted: reader.take()?,
            task: reader.size()?,
            tasks: reader.size()?,
            replicas: reader.size()?,
            alive: reader.set()?,
            linked: reader.set()?,
        };
        let within = |set: TaskSet| set.without(TaskSet::first(hello.tasks)).is_empty();
        let is_right = hello.task < hello.tasks
            && hello.replicas > 0
            && hello.nonce != 0
            && is_number(hello.attempt)
            && hello.generation <= hello.seen
            && [hello.seen, hello.used].iter().all(|&count| count == 0 || is_number(count))
            && within(hello.alive)
            && within(hello.linked);
        is_right.then_some(hello)
    }
}

impl Group {
    fn write(&self, bytes: &mut Vec<u8>) {
        bytes.extend(self.generation.to_le_bytes());
        bytes.extend(self.id);
        bytes.extend((self.members.len() as u32).to_le_bytes());
        for member in &self.members {
            bytes.extend((member.task as u32).to_le_bytes());
            bytes.extend((member.replicas as u32).to_le_bytes());
            bytes.extend(member.nonce.to_le_bytes());
            bytes.extend(member.attempt.to_le_bytes());
        }
    }

    fn read(reader: &mut Reader<'_>) -> Option<Group> {
        let (generation, id, count) = (reader.u64()?, reader.take()?, reader.size()?);
        let mut group = Group { generation, id, members: Vec::with_capacity(count) };
        for _ in 0..count {
            let (task, replicas) = (reader.size()?, reader.size()?);
            group.members.push(GroupMember { task, replicas, nonce: reader.u64()?, attempt: reader.u64()? });
        }
        let is_right = is_number(generation)
            && id != [0; 16]
            && count > 0
            && group.members.is_sorted_by(|a, b| a.task < b.task)
            && group.members.iter().all(|member| {
                member.task < MAX_TASKS && member.replicas > 0 && member.nonce != 0 && is_number(member.attempt)
            })
            && group.ranks() <= MAX_TASKS;
        is_right.then_some(group)
    }

    /// Returns the number of replicas of all members.
    pub fn ranks(&self) -> usize {
        self.members.iter().map(|member| member.replicas).sum()
    }
}

/// Returns whether a counter has a value that is possible: at least 1, with room to count on.
fn is_number(counter: u64) -> bool {
    (1..1 << 62).contains(&counter)
}

/// The bytes that have not been read.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    /// Reads a number of tasks or replicas.
    fn size(&mut self) -> Option<usize> {
        let size = self.u32()? as usize;
        (size <= MAX_TASKS).then_some(size)
    }

    fn set(&mut self) -> Option<TaskSet> {
        let mut set = TaskSet::default();
        for word in &mut set.0 {
            *word = self.u64()?;
        }
        Some(set)
    }

    fn text(&mut self) -> Option<String> {
        let bytes = std::mem::take(&mut self.0);
        let text = std::str::from_utf8(bytes).ok()?;
        (bytes.len() <= MAX_TEXT_BYTES).then(|| text.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: u128 = 5;
    const LAYOUT: u64 = 77;

    fn hello() -> Hello {
        Hello {
            nonce: 9,
            attempt: 2,
            generation: 3,
            seen: 4,
            used: 6,
            accepted: [7; 16],
            task: 69,
            tasks: 70,
            replicas: 2,
            alive: [1, 69].into_iter().collect(),
            linked: [0, 64].into_iter().collect(),
        }
    }

    fn group() -> Group {
        let member = |task| GroupMember { task, replicas: 1, nonce: 4, attempt: 1 };
        Group { generation: 1, id: [3; 16], members: (0..MAX_TASKS).map(member).collect() }
    }

    fn packets() -> [Packet; 4] {
        let text = "é".repeat(MAX_TEXT_BYTES / 2);
        [Packet::Hello(hello()), Packet::Propose(group()), Packet::Commit([1; 16]), Packet::Leave(1, text)]
    }

    #[test]
    fn every_packet_reads_back() {
        for packet in packets() {
            let bytes = packet.write(DIGEST, LAYOUT);
            assert!(bytes.len() <= MAX_BYTES);
            assert_eq!(Packet::read(&bytes, DIGEST, LAYOUT), Ok(packet));
        }
        assert_eq!(packets()[1].write(DIGEST, LAYOUT).len(), MAX_BYTES);
    }

    #[test]
    fn a_longer_text_is_cut_between_characters() {
        let text = format!("a{}", "é".repeat(MAX_TEXT_BYTES));
        let Ok(Packet::Leave(1, read)) = Packet::read(&Packet::Leave(1, text).write(DIGEST, LAYOUT), DIGEST, LAYOUT)
        else {
            panic!("no text");
        };
        assert_eq!(read, format!("a{}", "é".repeat(MAX_TEXT_BYTES / 2 - 1)));
    }

    #[test]
    fn a_cut_or_longer_packet_is_garbage() {
        for packet in &packets()[..3] {
            let mut bytes = packet.write(DIGEST, LAYOUT);
            for count in 0..bytes.len().min(400) {
                assert_eq!(Packet::read(&bytes[..count], DIGEST, LAYOUT), Err(ReadError::Garbage), "{count} bytes");
            }
            bytes.push(0);
            assert_eq!(Packet::read(&bytes, DIGEST, LAYOUT), Err(ReadError::Garbage));
        }
    }

    #[test]
    fn a_packet_of_another_build_is_not_garbage() {
        let bytes = packets()[0].write(DIGEST, LAYOUT);
        assert_eq!(Packet::read(&bytes, DIGEST, LAYOUT + 1), Err(ReadError::OtherBuild));
        let mut version = bytes.clone();
        version[24] += 1;
        assert_eq!(Packet::read(&version[..28], DIGEST, LAYOUT), Err(ReadError::OtherBuild));
        let mut magic = bytes;
        magic[0] += 1;
        assert_eq!(Packet::read(&magic, DIGEST, LAYOUT), Err(ReadError::Garbage));
    }

    #[test]
    fn another_job_is_garbage_whatever_its_version_and_layout() {
        let mut bytes = packets()[0].write(DIGEST + 1, LAYOUT + 1);
        assert_eq!(Packet::read(&bytes, DIGEST, LAYOUT), Err(ReadError::Garbage));
        bytes[24] += 1;
        assert_eq!(Packet::read(&bytes, DIGEST, LAYOUT), Err(ReadError::Garbage));
    }

    #[test]
    fn numbers_out_of_bounds_are_garbage() {
        let wrong_hellos: [fn(&mut Hello); 11] = [
            |hello| hello.task = 70,
            |hello| hello.tasks = 1025,
            |hello| hello.replicas = 0,
            |hello| hello.replicas = 1025,
            |hello| hello.nonce = 0,
            |hello| hello.attempt = 0,
            |hello| hello.attempt = u64::MAX,
            |hello| hello.generation = 5,
            |hello| hello.seen = u64::MAX,
            |hello| hello.used = u64::MAX,
            |hello| hello.alive.insert(70),
        ];
        for wrong in wrong_hellos {
            let mut hello = hello();
            wrong(&mut hello);
            let bytes = Packet::Hello(hello.clone()).write(DIGEST, LAYOUT);
            assert_eq!(Packet::read(&bytes, DIGEST, LAYOUT), Err(ReadError::Garbage), "{hello:?}");
        }
        let wrong_groups: [fn(&mut Group); 7] = [
            |group| group.members.clear(),
            |group| group.members[1].task = 0,
            |group| group.members[1023].task = 1024,
            |group| group.members[1].replicas = 2,
            |group| group.members[1].replicas = 0,
            |group| group.generation = 0,
            |group| group.id = [0; 16],
        ];
        for wrong in wrong_groups {
            let mut group = group();
            wrong(&mut group);
            let bytes = Packet::Propose(group).write(DIGEST, LAYOUT);
            assert_eq!(Packet::read(&bytes, DIGEST, LAYOUT), Err(ReadError::Garbage));
        }
    }
}
