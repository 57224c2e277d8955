//! The id of a group whose processes need no cluster.

use crate::{Error, Result};
use consonance_kernels::{
    digest::digest,
    hosts::{Serving, listen_anywhere, serve},
    os::addresses::own_addresses,
    shm::Segment,
};
use std::{
    collections::BTreeMap,
    fmt::{self, Write},
    fs,
    io::Read,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::unix::fs::MetadataExt,
    str::FromStr,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

const CALL: &str = "ProcessGroup::with_id";

/// The id of a group of processes: see
/// [`ProcessGroup::with_id`](crate::ProcessGroup::with_id). It has 128 bytes. It can be passed as
/// bytes or as text, by any means.
///
/// ```
/// use consonance::UniqueId;
/// let id = UniqueId::new()?;
/// assert_eq!(UniqueId::from_bytes(*id.as_bytes())?, id);
/// assert_eq!(id.to_string().parse::<UniqueId>()?, id);
/// assert_ne!(UniqueId::new()?, id);
/// # Ok::<(), consonance::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct UniqueId([u8; UniqueId::BYTES]);

/// The bytes at which every id begins.
const MAGIC: [u8; 8] = *b"cons-id1";

/// The first byte of the place. Before it are the magic and 16 bytes that no other id has.
const PLACE: usize = 24;

/// The first byte of the user and the build, after the host and its network.
const USER: usize = 48;

/// The first byte of the port at which the maker listens, if it does. The addresses of its host
/// follow: a byte with the version of IP, then the address. A zero ends them.
const ADDRESSES: usize = 64;

/// The services of the ids that this process has made, by their digests.
static SERVED: Mutex<BTreeMap<u128, Serving>> = Mutex::new(BTreeMap::new());

/// The time that the maker of an id across hosts listens, at most.
const LISTENS: Duration = Duration::from_secs(24 * 60 * 60);

impl UniqueId {
    /// The number of bytes of an id.
    pub const BYTES: usize = 128;

    /// Makes an id that no other group has.
    ///
    /// # Errors
    /// [`Error::System`] if the system does not say which machine this is, or has no random
    /// numbers.
    pub fn new() -> Result<UniqueId> {
        let mut random = [0; 16];
        let read = fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut random));
        read.map_err(|source| Error::system("get random numbers", source))?;
        UniqueId::of(random)
    }

    /// Makes the id that follows from `text`: the same in each process of this host that passes the
    /// same text. The caller ensures that no other group at the same time has this text.
    ///
    /// # Errors
    /// As [`new`](UniqueId::new).
    ///
    /// ```
    /// # use consonance::UniqueId;
    /// assert_eq!(UniqueId::derived("job 7, step 1")?, UniqueId::derived("job 7, step 1")?);
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn derived(text: &str) -> Result<UniqueId> {
        let halves = [digest(text), digest(&format!("again {text}"))].map(u64::to_le_bytes);
        UniqueId::of(halves.concat().try_into().expect("two halves of 8 bytes"))
    }

    /// Makes an id for processes of several hosts. This process listens for them until the group is
    /// formed, a day at most, at a port of all its addresses: the id has these, or those of the
    /// network interface `CONSONANCE_INTERFACE`. An id is good for one group. On one host
    /// [`new`](UniqueId::new) makes the faster groups.
    ///
    /// # Errors
    /// As [`new`](UniqueId::new); [`Error::InvalidCall`] for a `CONSONANCE_INTERFACE` that is none,
    /// or is down; [`Error::System`] if no port is free.
    ///
    /// ```
    /// use consonance::{ProcessGroup, UniqueId};
    /// let id = UniqueId::across_hosts()?;
    /// // Pass it on, and join, on each of the hosts:
    /// let (rank, size) = (0, 1);
    /// let group = ProcessGroup::with_id(&id, rank, size).join()?;
    /// assert_eq!(group.size(), 1);
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn across_hosts() -> Result<UniqueId> {
        let mut id = UniqueId::new()?;
        let asked = |what: &'static str| move |source| Error::system(what, source);
        let interface = super::process_environment("CONSONANCE_INTERFACE").filter(|name| !name.is_empty());
        let mut addresses = own_addresses(interface.as_deref()).map_err(asked("list the addresses of this host"))?;
        if addresses.is_empty() {
            if let Some(interface) = interface {
                let expected = "a network interface of this host that is up, with an address";
                return Err(Error::invalid("UniqueId::across_hosts", "CONSONANCE_INTERFACE", expected, interface));
            }
            addresses.push(Ipv4Addr::LOCALHOST.into());
        }
        let listener = listen_anywhere().map_err(asked("listen at a port"))?;
        let port = listener.local_addr().map_err(asked("listen at a port"))?.port();
        let mut place = port.to_le_bytes().to_vec();
        for address in addresses {
            let (version, bytes) = match address {
                IpAddr::V4(address) => (4, address.octets().to_vec()),
                IpAddr::V6(address) => (6, address.octets().to_vec()),
            };
            // As many as there is room for.
            if ADDRESSES + place.len() + 1 + bytes.len() <= UniqueId::BYTES {
                place.push(version);
                place.extend(bytes);
            }
        }
        id.0[ADDRESSES..][..place.len()].copy_from_slice(&place);
        let serving = serve(listener, id.digest(), Instant::now() + LISTENS);
        let serving = serving.map_err(asked("listen for the processes of a group"))?;
        SERVED.lock().unwrap_or_else(PoisonError::into_inner).insert(id.digest(), serving);
        Ok(id)
    }

    /// Ends the service of the group's addresses, if this process has it: the group has formed.
    pub(crate) fn end_service(&self) {
        SERVED.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.digest());
    }

    /// Returns the addresses at which the maker listens, `host:port`; none if the id is one of
    /// processes of one host.
    pub(crate) fn addresses(&self) -> Vec<String> {
        let (port, mut rest) = self.0[ADDRESSES..].split_at(2);
        let port = u16::from_le_bytes([port[0], port[1]]);
        let mut all = Vec::new();
        while let Some((&version, bytes)) = rest.split_first().filter(|_| port != 0) {
            let (address, next): (IpAddr, _) = match (version, bytes) {
                (4, [a, b, c, d, next @ ..]) => (Ipv4Addr::new(*a, *b, *c, *d).into(), next),
                (6, _) if let Some((address, next)) = bytes.split_first_chunk::<16>() => {
                    (Ipv6Addr::from(*address).into(), next)
                }
                _ => break,
            };
            all.push(SocketAddr::new(address, port).to_string());
            rest = next;
        }
        all
    }

    fn of(own: [u8; 16]) -> Result<UniqueId> {
        let mut bytes = [0; UniqueId::BYTES];
        let parts = [&MAGIC[..], &own, &Origin::here()?.bytes()].concat();
        bytes[..parts.len()].copy_from_slice(&parts);
        Ok(UniqueId(bytes))
    }

    /// Makes the id of these bytes.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] if they are not the bytes of an id.
    pub fn from_bytes(bytes: [u8; UniqueId::BYTES]) -> Result<UniqueId> {
        match bytes.starts_with(&MAGIC) {
            true => Ok(UniqueId(bytes)),
            false => Err(Error::invalid("UniqueId", "bytes", "those of an id, which begin with cons-id1", "others")),
        }
    }

    /// Returns the bytes of the id.
    pub fn as_bytes(&self) -> &[u8; UniqueId::BYTES] {
        &self.0
    }

    /// Returns a text that says where the id was made: the same one in all processes that can be of
    /// one group. For launchers that compare the places of processes before they pass on an id.
    ///
    /// ```
    /// # use consonance::UniqueId;
    /// assert_eq!(UniqueId::new()?.place(), UniqueId::new()?.place());
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn place(&self) -> String {
        in_digits(&self.0[PLACE..ADDRESSES])
    }

    /// Returns a text that says on which host, and in which network of it, the id was made: the
    /// beginning of its [place](UniqueId::place). Processes of other hosts need an id [across
    /// hosts](UniqueId::across_hosts).
    ///
    /// ```
    /// # use consonance::UniqueId;
    /// let id = UniqueId::new()?;
    /// assert!(id.place().starts_with(&id.host_id()));
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn host_id(&self) -> String {
        in_digits(&self.0[PLACE..USER])
    }

    /// Returns the digest by which the processes of the group find each other.
    pub(crate) fn digest(&self) -> u128 {
        u128::from_le_bytes(self.0[8..24].try_into().expect("16 bytes"))
    }

    /// Checks that the id was made where this process, of `rank`, is.
    pub(crate) fn check_here(&self, rank: usize) -> Result<()> {
        let here = Origin::here()?;
        let there = Origin::of(&self.0[PLACE..]);
        let differs = |what: &str, expected: String, found: String| {
            let argument = format!("id of rank {rank}, {what}");
            Err(Error::invalid(CALL, argument, format!("{expected}, where this process is"), found))
        };
        if there.boot != here.boot {
            return differs("host", here.boot(), there.boot());
        }
        if there.network != here.network {
            return differs("network namespace", here.network.to_string(), there.network.to_string());
        }
        if there.user != here.user {
            return differs("user", here.user.to_string(), there.user.to_string());
        }
        if there.layout != here.layout {
            return differs("build", format!("{:x}", here.layout), format!("{:x}", there.layout));
        }
        Ok(())
    }
}

fn in_digits(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The place where an id was made: processes in different places cannot share memory.
struct Origin {
    /// The id of the running system.
    boot: [u8; 16],
    network: u64,
    user: u64,
    layout: u64,
}

impl Origin {
    fn here() -> Result<Origin> {
        let asked = |path: &str| {
            let what = format!("read {path}");
            move |source| Error::system(what, source)
        };
        let path = "/proc/sys/kernel/random/boot_id";
        let text = fs::read_to_string(path).map_err(asked(path))?;
        let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
        let boot = u128::from_str_radix(&digits, 16).unwrap_or(0).to_be_bytes();
        let path = "/proc/self/ns/net";
        let network = fs::metadata(path).map_err(asked(path))?.ino();
        let path = "/proc/self";
        let user = fs::metadata(path).map_err(asked(path))?.uid().into();
        Ok(Origin { boot, network, user, layout: Segment::LAYOUT })
    }

    fn bytes(&self) -> Vec<u8> {
        let words = [self.network, self.user, self.layout].map(u64::to_le_bytes);
        [&self.boot[..], words.as_flattened()].concat()
    }

    fn of(bytes: &[u8]) -> Origin {
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let boot = bytes[..16].try_into().expect("16 bytes");
        Origin { boot, network: word(16), user: word(24), layout: word(32) }
    }

    fn boot(&self) -> String {
        format!("the system with boot id {:032x}", u128::from_be_bytes(self.boot))
    }
}

/// Writes the bytes in hexadecimal digits.
impl fmt::Display for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        self.0.iter().try_for_each(|byte| write!(text, "{byte:02x}"))?;
        f.pad(&text)
    }
}

impl fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UniqueId({:032x})", self.digest())
    }
}

impl FromStr for UniqueId {
    type Err = Error;

    fn from_str(text: &str) -> Result<UniqueId> {
        let digits = |at: usize| text.get(2 * at..2 * at + 2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
        let bytes: Option<Vec<u8>> = (0..UniqueId::BYTES).map(digits).collect();
        let found = || format!("{} characters", text.len());
        let bytes = bytes.filter(|_| text.len() == 2 * UniqueId::BYTES);
        let bytes = bytes.ok_or_else(|| Error::invalid("UniqueId", "text", "256 hexadecimal digits", found()))?;
        UniqueId::from_bytes(bytes.try_into().expect("as many as were asked for"))
    }
}
