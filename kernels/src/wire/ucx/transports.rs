//! The transports of a context of UCX, which it tells only in the text that it writes to a stream.

use super::sys::Functions;
use std::{ffi::c_void, ptr, slice};

/// Returns the transports of a context with their devices, such as `tcp/eth0`. None if the system
/// has no memory for the text.
///
/// # Safety
/// The context is one of the library of these functions, and no other thread uses it.
pub(super) unsafe fn of(functions: &Functions, context: *mut c_void) -> Vec<String> {
    let (mut text, mut bytes) = (ptr::null_mut(), 0);
    // SAFETY: the two variables live until the stream is closed.
    let stream = unsafe { libc::open_memstream(&mut text, &mut bytes) };
    if stream.is_null() {
        return Vec::new();
    }
    // SAFETY: the context by the caller's promise; the stream was opened above.
    unsafe { (functions.print_context)(context, stream) };
    // SAFETY: once. It sets the two variables.
    let is_whole = unsafe { libc::fclose(stream) } == 0 && !text.is_null();
    let found = match is_whole {
        // SAFETY: the stream has written as many bytes there.
        true => named_in(&String::from_utf8_lossy(unsafe { slice::from_raw_parts(text.cast(), bytes) })),
        false => Vec::new(),
    };
    // SAFETY: memory of the C library, or null.
    unsafe { libc::free(text.cast()) };
    found
}

/// Returns the transports in UCX's text, where each is the last word of a line with its number:
/// `#      resource 0  :  md 0  dev 0  flags -- tcp/eth0`.
fn named_in(text: &str) -> Vec<String> {
    let of_line = |line: &str| {
        let words = line.trim_start_matches('#').trim().strip_prefix("resource ")?;
        words.split_whitespace().next_back().filter(|word| word.contains('/')).map(str::to_owned)
    };
    text.lines().filter_map(of_line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_resource_of_the_text_is_a_transport() {
        let text = "#\n# UCP context\n#\n#     component 0  :  tcp\n#            md 0  :  component 0  tcp \n#\n\
                    #      resource 0  :  md 0  dev 0  flags -- tcp/eth0\n\
                    #      resource 1  :  md 1  dev 1  flags -s self/memory\n#\n# memory: 1GB\n";
        assert_eq!(named_in(text), ["tcp/eth0", "self/memory"]);
        assert!(named_in("resource\n# resource 0\n").is_empty());
    }
}
