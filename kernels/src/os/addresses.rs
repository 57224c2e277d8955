//! The addresses of this host.

use std::{
    ffi::CStr,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    ptr,
};

/// Returns the addresses at which other hosts may reach this one: those of this network interface,
/// or of all but the loopback. Only interfaces that are up are looked at.
///
/// # Errors
/// The system's.
pub fn own_addresses(interface: Option<&str>) -> io::Result<Vec<IpAddr>> {
    let mut first = ptr::null_mut();
    // SAFETY: the pointer is written.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut found = Vec::new();
    let mut next = first;
    while !next.is_null() {
        // SAFETY: the list is from `getifaddrs`, and not freed yet.
        let entry = unsafe { &*next };
        next = entry.ifa_next;
        // SAFETY: as above; names end with a zero.
        let name = unsafe { CStr::from_ptr(entry.ifa_name) }.to_string_lossy();
        let is_up =
            entry.ifa_flags & (libc::IFF_UP | libc::IFF_RUNNING) as u32 == (libc::IFF_UP | libc::IFF_RUNNING) as u32;
        let is_meant = match interface {
            Some(interface) => name == interface,
            None => entry.ifa_flags & libc::IFF_LOOPBACK as u32 == 0,
        };
        if is_up && is_meant {
            // SAFETY: the address is null, or one of the family that it says.
            found.extend(unsafe { address(entry.ifa_addr) });
        }
    }
    // SAFETY: the list is from `getifaddrs`, and nothing points into it.
    unsafe { libc::freeifaddrs(first) };
    Ok(found)
}

/// Returns the address of IP; none of a link alone, which other hosts do not know how to reach.
///
/// # Safety
/// The address is null, or one of the family that it says.
unsafe fn address(of: *const libc::sockaddr) -> Option<IpAddr> {
    if of.is_null() {
        return None;
    }
    // SAFETY: the caller ensures it.
    match unsafe { i32::from((*of).sa_family) } {
        libc::AF_INET => {
            // SAFETY: an address of this family.
            let address = unsafe { of.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(Ipv4Addr::from(address.sin_addr.s_addr.to_ne_bytes()).into())
        }
        libc::AF_INET6 => {
            // SAFETY: an address of this family.
            let address = unsafe { of.cast::<libc::sockaddr_in6>().read_unaligned() };
            let address = Ipv6Addr::from(address.sin6_addr.s6_addr);
            (!address.is_unicast_link_local()).then_some(address.into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    #[test]
    fn this_host_has_its_addresses() {
        let loopback = own_addresses(Some("lo")).expect("the system lists them");
        assert!(loopback.contains(&Ipv4Addr::LOCALHOST.into()), "{loopback:?}");
        let all = own_addresses(None).expect("the system lists them");
        for address in &all {
            assert!(!address.is_loopback(), "{all:?}");
            UdpSocket::bind((*address, 0)).expect("a socket can be bound to an own address");
        }
        assert!(own_addresses(Some("no such interface")).expect("the system lists them").is_empty());
    }
}
