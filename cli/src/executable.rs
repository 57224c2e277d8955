//! The start of further processes of the command: workers and ranks.
//!
//! The command usually is an executable of its own. Another program may carry it, such as an
//! interpreter that runs it as a module; that program calls [`carried_by`] first.

use std::{env, ffi::OsString, io, process::Command, sync::OnceLock};

/// The program and first arguments that start the command. Unset if the command's own executable
/// starts it.
static STARTER: OnceLock<Vec<OsString>> = OnceLock::new();

/// The command's arguments, without its name.
static ARGUMENTS: OnceLock<Vec<OsString>> = OnceLock::new();

/// Sets how the command is started if it is not an executable of its own: by a program and its
/// first arguments, such as `python3`, `-m`, `consonance`. The command starts all further processes
/// of itself in this way.
///
/// Call it before [`main`](crate::main). Only the first call in a process has an effect.
pub fn carried_by(starter: impl IntoIterator<Item = impl Into<OsString>>) {
    // A second call would be for another command in the same process.
    let _ = STARTER.set(starter.into_iter().map(Into::into).collect());
}

/// Stores the command's arguments, without its name.
pub(crate) fn remember(arguments: &[OsString]) {
    let _ = ARGUMENTS.set(arguments.to_vec());
}

/// Returns the command's arguments, without its name.
pub(crate) fn arguments() -> &'static [OsString] {
    ARGUMENTS.get().map_or(&[], Vec::as_slice)
}

/// Returns the command itself, without arguments.
///
/// # Errors
/// The system's, if it does not tell the path of this executable.
pub(crate) fn command() -> io::Result<Command> {
    match STARTER.get().map(Vec::as_slice) {
        Some([program, first @ ..]) => {
            let mut command = Command::new(program);
            command.args(first);
            Ok(command)
        }
        _ => env::current_exe().map(Command::new),
    }
}
