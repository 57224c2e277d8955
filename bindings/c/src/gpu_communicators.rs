//! Communicators on a GPU.

use crate::{
    comm::{COMMS, Comm, ConsConfig, ConsId, join},
    failure::Failure,
};
use consonance::{Device, raw::CallerStream};
use std::ffi::{c_int, c_void};

/// Returns the number of a GPU that exists.
fn number(gpu: c_int) -> Result<u32, Failure> {
    let number = u32::try_from(gpu).map_err(|_| Failure::argument("gpu", "the number of a GPU", gpu.to_string()))?;
    format!("cuda:{gpu}").parse::<Device>()?;
    Ok(number)
}

functions! {
    /// Joins the group with this id, on a GPU.
    fn cons_comm_init_on_gpu(
        comm: *mut Comm, id: *const ConsId, size: c_int, rank: c_int, config: *const ConsConfig, gpu: c_int,
    ) of 0; {
        let gpu = number(gpu)?;
        // SAFETY: the pointers are null or valid.
        unsafe { join(comm, id, size, rank, config, Some(gpu)) }
    }

    /// Orders the next calls by a stream.
    fn cons_comm_set_stream(comm: Comm, ordered: c_int, stream: *mut c_void) of comm; {
        let shared = COMMS.get(comm)?;
        let expected = "a communicator of cons_comm_init_on_gpu";
        let gpu = shared.gpu.as_ref().ok_or_else(|| Failure::argument("comm", expected, "one on no GPU"))?;
        let next = match ordered {
            0 => None,
            _ => {
                // SAFETY: the caller lends the stream until another is set and the calls have
                // ended.
                let caller = unsafe { CallerStream::from_raw(gpu.number as usize, stream) };
                let expected = format!("a stream of cuda:{}", gpu.number);
                Some(caller.map_err(|error| Failure::argument("stream", expected, error.to_string()))?)
            }
        };
        gpu.set_stream(next);
        Ok(())
    }
}
