//! Network devices whose other end is a file: a program reads the frames that the system sends, and
//! writes those that it receives.

use std::{
    fs::{File, OpenOptions},
    io, mem,
    os::{fd::AsRawFd, unix::fs::OpenOptionsExt},
};

/// The file of the system that makes TAP devices.
pub const DEVICE: &str = "/dev/net/tun";

/// Opens the other end of a TAP device of this thread's network, which exists or is made. The
/// device has a carrier from then on, until the file is closed. Each read takes a frame, and each
/// write gives one; neither waits.
///
/// ```
/// use consonance_kernels::os::tap;
///
/// // Only root may. The name of a device has at most 15 bytes.
/// assert!(tap::open("a name of too many bytes").is_err());
/// ```
///
/// # Errors
/// The system's: it has no [`DEVICE`], or this process may not, or another file is its end.
pub fn open(name: &str) -> io::Result<File> {
    // SAFETY: zeros are a request.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    if name.is_empty() || name.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (place, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *place = byte as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as libc::c_short;
    let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(DEVICE)?;
    // SAFETY: the request is one of an interface, with a name that ends.
    match unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF as _, &mut request) } {
        0.. => Ok(file),
        _ => Err(io::Error::last_os_error()),
    }
}
