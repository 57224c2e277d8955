//! No object code of this library calls the C library's `memcpy` for more than a few hundred bytes,
//! but at the places that are [`ALLOWED`]. `copies.rs` watches the calls of the work that it does;
//! this test sees the calls of work that no test does. Another compiler may join calls elsewhere,
//! and need other rows: so the test has to be asked for.

use consonance_memcpy::{
    MOST,
    object_code::{CallSite, places},
};
use std::{env, io};

/// The places where `memcpy` may be called for more bytes, or for any number: a folder or file, its
/// functions or none for all if it has no user's data, and the bytes that are copied. The compiler
/// joins calls of `cpu/copy.rs` at the end of branches: then their place is that of the function
/// inlined there.
const ALLOWED: [(&str, &[&str], &str); 59] = [
    ("bootstrap/", &[], "messages by which processes meet, and texts"),
    ("cpu/axis/tensor.rs", &["part_of_a_tile"], "less than a tile"),
    ("cpu/copy.rs", &["copy", "copy_in", "copy_own", "copy_private", "in_blocks", "take"], "up to `PLAIN_BYTES`"),
    ("cpu/exact/block.rs", &["extract"], "less than a row of lanes"),
    ("cpu/exact/mod.rs", &["for_each_sum", "partial_as", "reduce_as"], "new sums; the results of a tile"),
    ("cpu/reduce/axis_body.rs", &["neighbours"], "a row of fewer columns than a tile has"),
    ("cpu/reduce/axis_body.rs", &["pairs", "transposed"], "up to two tiles"),
    ("cpu/reduce/run.rs", &["padded"], "less than a small tile"),
    ("cpu/ways.rs", &["copy_by", "rewrite_by"], "up to `PLAIN_BYTES`"),
    ("cuda/result.rs", &[], "a text"),
    ("cuda/safe/absence.rs", &[], "a text"),
    ("cuda/safe/context.rs", &["note_memory", "reclaim", "retire"], "lists of allocations"),
    ("cuda/safe/driver.rs", &[], "names"),
    ("cuda/safe/gpu.rs", &["drop", "get", "no_memory"], "maps of devices and of blocks, not the blocks; a text"),
    ("cuda/safe/kernels.rs", &[], "a list of functions"),
    ("cuda/safe/module.rs", &[], "names"),
    ("cuda/safe/stream.rs", &["launch"], "up to 16 bytes of parameters"),
    ("group/backing.rs", &[], "the records of a new group"),
    ("group/end/abort.rs", &[], "a list of ranks"),
    ("group/endpoint.rs", &[], "the endpoints of new groups"),
    ("group/mail/incoming.rs", &["add", "begin", "deliver_own", "withdraw"], "queues of requests and messages"),
    ("group/mail/incoming.rs", &["end_all", "end_late"], "lists of requests and ranks"),
    ("group/mail/letters.rs", &["send"], "the head of a letter: the body is moved"),
    ("group/mail/mailbox.rs", &["late"], "a list of ranks"),
    ("group/mail/outgoing.rs", &["add", "end_all", "extract", "write"], "queues of requests"),
    ("group/mail/refusals.rs", &["hear", "take"], "a queue of refusals"),
    ("group/mail/request.rs", &[], "a list of ranks"),
    ("group/meeting.rs", &["post"], "up to `FIRST_BYTES`"),
    ("group/member.rs", &["alloc"], "a text"),
    ("group/peers.rs", &["copy_pieces", "copy_rows", "fold"], "joined: up to `PLAIN_BYTES`"),
    (
        "group/measured.rs",
        &["choose_with_peers", "exchange", "fastest", "from_bytes", "to_bytes"],
        "times, and what ranks tell",
    ),
    ("group/plan/mod.rs", &[], "a list of sizes"),
    ("group/post.rs", &["copy_to"], "up to `FIRST_BYTES`"),
    ("group/posted_call.rs", &[], "a text"),
    ("group/state/mod.rs", &[], "the state of a new group"),
    ("group/step/mod.rs", &["message"], "a count for each rank"),
    ("group/transport/divided.rs", &["on_stage"], "joined: up to `PLAIN_BYTES`"),
    ("hosts/", &[], "greetings, heads of messages, lists of processes, texts: bodies are moved"),
    ("memory/page_cache.rs", &["give_back", "keep", "take"], "lists of pages, not the pages"),
    ("memory/pretended.rs", &["alloc", "drop"], "a map of blocks, not the blocks; in tests only"),
    ("os/gate.rs", &[], "a text"),
    ("os/launcher.rs", &[], "lines for the launcher"),
    ("os/record_file.rs", &[], "texts"),
    ("os/robust_list.rs", &[], "the head of a list, and the handle of a thread"),
    ("os/tap.rs", &[], "the name of a device"),
    ("os/thread_pool.rs", &[], "handles of threads"),
    ("shm/call_log.rs", &[], "a new log"),
    ("shm/file.rs", &[], "a text"),
    ("shm/header.rs", &[], "a text"),
    ("shm/heap.rs", &["allocate", "free"], "a list of blocks, not the blocks"),
    ("shm/inspection.rs", &[], "texts"),
    ("shm/layout/mod.rs", &[], "a text"),
    ("shm/parts.rs", &[], "a list of parts of a segment"),
    ("shm/records.rs", &["", "default"], "the record of a rank of a new group, also where it is derived"),
    ("shm/segment.rs", &[], "a list of groups"),
    ("shm/title.rs", &[], "the title of a link"),
    ("shm/views.rs", &[], "a list of views of a segment, not the segment"),
    ("tuning/", &[], "knobs and their texts"),
    ("wire/", &[], "messages that lie in buffers of UCX or MPI, which copies them by the C library; addresses; texts"),
];

fn main() {
    let skipped = |why: &str| println!("skipped: the calls of memcpy in object code: {why}");
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return skipped("they are read on Linux on x86-64");
    }
    if env::var_os("CONSONANCE_OBJECT_CODE").is_none() {
        return skipped("CONSONANCE_OBJECT_CODE=1 looks for them");
    }
    let planted = match places("consonance_memcpy", "kernels/memcpy/src/") {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return skipped("there is no objdump (Debian's package binutils has it)");
        }
        planted => planted.expect("an archive"),
    };
    if planted.is_empty() && !cfg!(debug_assertions) {
        return skipped("CARGO_PROFILE_RELEASE_DEBUG=line-tables-only gives object code its lines");
    }
    let planted = planted.iter().filter(|place| place.file == "planted_copies.rs").map(|place| &*place.function);
    assert_eq!(planted.collect::<Vec<_>>(), ["long", "unknown"]);
    let places = places("consonance_kernels", "kernels/src/").expect("an archive");
    assert!(places.iter().any(|place| place.function == "copy_private"), "the object code names no lines: {places:?}");
    let is_allowed = |place: &&CallSite| {
        let of = |functions: &[&str]| functions.is_empty() || functions.contains(&&*place.function);
        ALLOWED.iter().any(|(file, functions, _)| place.file.starts_with(file) && of(functions))
    };
    let others: Vec<&CallSite> = places.iter().filter(|place| !is_allowed(place)).collect();
    assert!(others.is_empty(), "places that copy more than {MOST} bytes, or any number: {others:#?}");
    println!("no object code calls memcpy for more than {MOST} bytes but at {} places that may", places.len());
}
