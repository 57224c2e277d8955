//! Declarations of MPI's functions, and the constants of each family of MPIs.
//!
//! All families have the same functions, and differ in constants, in the size of handles and in the
//! order of a status. A handle is an address in two of them, and a 32-bit number in MPICH's. Here
//! it is a word: as an argument a number is the lower half of a register, and as a result it is
//! written to the lower half of a word of zeros. This holds on the targets of [`IS_KNOWN`].
//!
//! Checked against the headers `mpi.h` and `mpi_abi.h` of MPICH 5.0.2, and `mpi.h` of Open MPI
//! 4.1.4.

use std::ffi::{c_char, c_int, c_void};

/// Whether the target passes handles as described above.
pub(super) const IS_KNOWN: bool =
    cfg!(all(target_endian = "little", any(target_arch = "x86_64", target_arch = "aarch64")));

/// A communicator, datatype, error handler, request or message.
pub(super) type Handle = usize;

/// The call succeeded.
pub(super) const OK: c_int = 0;

/// Room for the longest text of any family.
pub(super) const TEXT: usize = 8192;

/// A status: room for that of any family.
#[repr(C, align(8))]
#[derive(Clone, Copy, Default)]
pub(super) struct Status(pub(super) [c_int; 16]);

/// A family of MPIs whose programs run on each other's libraries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    /// The standard ABI of MPI 5: `libmpi_abi.so.1`.
    Standard,
    /// The ABI of MPICH, Intel MPI and others: `libmpi.so.12`.
    Mpich,
    /// Open MPI 4 and 5: `libmpi.so.40`.
    OpenMpi,
}

/// The constants of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Constants {
    /// `MPI_COMM_WORLD`
    pub(super) world: Handle,
    /// `MPI_BYTE`
    pub(super) byte: Handle,
    /// `MPI_ERRORS_RETURN`
    pub(super) errors_return: Handle,
    /// `MPI_REQUEST_NULL`
    pub(super) no_request: Handle,
    /// `MPI_ANY_SOURCE`
    pub(super) any_source: c_int,
    /// `MPI_THREAD_SERIALIZED`
    pub(super) serialized: c_int,
    /// `MPI_THREAD_MULTIPLE`
    pub(super) multiple: c_int,
    /// The place of `MPI_SOURCE` in a status.
    pub(super) source: usize,
}

const STANDARD: Constants = Constants {
    world: 0x101,
    byte: 0x247,
    errors_return: 0x143,
    no_request: 0x180,
    any_source: -1,
    serialized: 2048,
    multiple: 4096,
    source: 0,
};

const MPICH: Constants = Constants {
    world: 0x4400_0000,
    byte: 0x4c00_010d,
    errors_return: 0x5400_0001,
    no_request: 0x2c00_0000,
    any_source: -2,
    serialized: 2,
    multiple: 3,
    source: 2,
};

impl Constants {
    /// Returns the family of a library and its constants. `address` finds a symbol in it, or in
    /// those that it needs, and `file` the number of the file that has an address.
    pub(super) fn of(
        address: impl Fn(&str) -> Option<usize>,
        file: impl Fn(usize) -> Option<usize>,
    ) -> (Family, Constants) {
        // The standard ABI leaves the conversion of handles of Fortran to another library.
        let file_of = |name| address(name).and_then(&file);
        if let Some(standard) = file_of("MPI_Abi_get_version")
            && file_of("MPI_Comm_f2c") != Some(standard)
        {
            return (Family::Standard, STANDARD);
        }
        // Open MPI's handles are addresses of its variables.
        let handles = ["ompi_mpi_comm_world", "ompi_mpi_byte", "ompi_mpi_errors_return", "ompi_request_null"];
        let [Some(world), Some(byte), Some(errors_return), Some(no_request)] = handles.map(address) else {
            return (Family::Mpich, MPICH);
        };
        let constants =
            Constants { world, byte, errors_return, no_request, any_source: -1, serialized: 2, multiple: 3, source: 0 };
        (Family::OpenMpi, constants)
    }
}

functions! {
    initialized = MPI_Initialized(flag: *mut c_int) -> c_int;
    finalized = MPI_Finalized(flag: *mut c_int) -> c_int;
    init_thread = MPI_Init_thread(
        count: *mut c_int, arguments: *mut *mut *mut c_char, required: c_int, provided: *mut c_int
    ) -> c_int;
    query_thread = MPI_Query_thread(provided: *mut c_int) -> c_int;
    finalize = MPI_Finalize() -> c_int;
    library_version = MPI_Get_library_version(text: *mut c_char, bytes: *mut c_int) -> c_int;
    error_string = MPI_Error_string(status: c_int, text: *mut c_char, bytes: *mut c_int) -> c_int;
    rank = MPI_Comm_rank(communicator: Handle, rank: *mut c_int) -> c_int;
    size = MPI_Comm_size(communicator: Handle, size: *mut c_int) -> c_int;
    set_handler = MPI_Comm_set_errhandler(communicator: Handle, handler: Handle) -> c_int;
    send = MPI_Isend(
        data: *const c_void, count: c_int, datatype: Handle, rank: c_int, tag: c_int, communicator: Handle,
        request: *mut Handle
    ) -> c_int;
    probe = MPI_Improbe(
        rank: c_int, tag: c_int, communicator: Handle, flag: *mut c_int, message: *mut Handle, status: *mut Status
    ) -> c_int;
    count = MPI_Get_count(status: *const Status, datatype: Handle, count: *mut c_int) -> c_int;
    receive = MPI_Imrecv(
        data: *mut c_void, count: c_int, datatype: Handle, message: *mut Handle, request: *mut Handle
    ) -> c_int;
    receive_from = MPI_Irecv(
        data: *mut c_void, count: c_int, datatype: Handle, rank: c_int, tag: c_int, communicator: Handle,
        request: *mut Handle
    ) -> c_int;
    test = MPI_Test(request: *mut Handle, flag: *mut c_int, status: *mut Status) -> c_int;
}

/// A function of MPIs that let a program go on after the end of a process: from then on, receiving
/// from any process succeeds again.
pub(super) type FailureAck = unsafe extern "C" fn(communicator: Handle) -> c_int;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_is_known_by_the_symbols_of_its_library() {
        let family = |symbols: &[&str]| {
            Constants::of(|name| symbols.iter().position(|of| *of == name).map(|at| at + 8), |at| Some(at / 32))
        };
        let ours = ["ompi_mpi_comm_world", "ompi_mpi_byte", "ompi_mpi_errors_return", "ompi_request_null"];
        assert_eq!(family(&["MPI_Comm_f2c"]), (Family::Mpich, MPICH));
        assert_eq!(family(&["MPI_Comm_f2c", "MPI_Abi_get_version"]), (Family::Mpich, MPICH));
        assert_eq!(family(&["MPI_Abi_get_version"]), (Family::Standard, STANDARD));
        let (kind, constants) = family(&[ours[0], ours[1], ours[2], ours[3], "MPI_Comm_f2c"]);
        assert_eq!((kind, constants.world, constants.no_request), (Family::OpenMpi, 8, 11));
        // A library of the standard ABI that needs one of another.
        let mut symbols = [&["MPI_Abi_get_version"][..], &[""; 30]].concat();
        symbols.extend(ours.iter().chain(&["MPI_Comm_f2c"]));
        assert_eq!(family(&symbols), (Family::Standard, STANDARD));
    }
}
