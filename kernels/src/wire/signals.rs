//! Keeps the signal handlers of the process, and the calling thread's signal stack, as they are.
//! UCX sets its own when it is loaded.

use std::{mem::MaybeUninit, ptr};

/// The handlers and the stack as they were. Dropping it sets them again.
pub(super) struct Kept {
    handlers: Vec<(libc::c_int, libc::sigaction)>,
    stack: Option<libc::stack_t>,
}

/// Remembers the handlers of all signals, and this thread's signal stack.
pub(super) fn keep() -> Kept {
    Kept { handlers: handlers(), stack: stack() }
}

impl Kept {
    /// Lets the library's handler of a signal stay, if the process had none of its own.
    pub(super) fn but_for(mut self, signal: libc::c_int) -> Kept {
        self.handlers.retain(|(of, action)| *of != signal || action.sa_sigaction != libc::SIG_DFL);
        self
    }
}

fn handlers() -> Vec<(libc::c_int, libc::sigaction)> {
    let of = |signal| {
        let mut action = MaybeUninit::uninit();
        // SAFETY: only asks, and writes the answer.
        let asked = unsafe { libc::sigaction(signal, ptr::null(), action.as_mut_ptr()) };
        // SAFETY: a call that succeeds has written it. The C library refuses its own signals.
        (asked == 0).then(|| (signal, unsafe { action.assume_init() }))
    };
    (1..=libc::SIGRTMAX()).filter_map(of).collect()
}

fn stack() -> Option<libc::stack_t> {
    let mut stack = MaybeUninit::uninit();
    // SAFETY: only asks, and writes the answer.
    let asked = unsafe { libc::sigaltstack(ptr::null(), stack.as_mut_ptr()) };
    // SAFETY: a call that succeeds has written it.
    (asked == 0).then(|| unsafe { stack.assume_init() })
}

/// Returns the handlers and the stack in words. A flag is left out that the C library sets by
/// itself.
#[cfg(test)]
pub(super) fn state() -> String {
    const SA_RESTORER: libc::c_int = 0x0400_0000;
    let of = |(signal, action): (libc::c_int, libc::sigaction)| {
        format!("{signal}: {:#x} {:#x}", action.sa_sigaction, action.sa_flags & !SA_RESTORER)
    };
    let handlers: Vec<_> = handlers().into_iter().map(of).collect();
    format!("{handlers:?}, stack {:?}", stack().map(|stack| (stack.ss_sp, stack.ss_size)))
}

impl Drop for Kept {
    fn drop(&mut self) {
        let now = handlers();
        for (signal, action) in &self.handlers {
            let same = |other: &&(libc::c_int, libc::sigaction)| {
                other.0 == *signal && (other.1.sa_sigaction, other.1.sa_flags) == (action.sa_sigaction, action.sa_flags)
            };
            if !now.iter().any(|other| same(&other)) {
                // SAFETY: sets a handler that the process had.
                unsafe { libc::sigaction(*signal, action, ptr::null_mut()) };
            }
        }
        if let Some(stack) = &self.stack {
            // SAFETY: sets the stack that the thread had. It is the same thread, see `Wire::open`.
            unsafe { libc::sigaltstack(stack, ptr::null_mut()) };
        }
    }
}
