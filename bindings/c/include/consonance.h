/* Consonance: collectives and messages for processes, of one host or of several, and threads.
 *
 * The same bits everywhere: a reduction combines the ranks' data in one order, whatever the number
 * of processes or threads, the size and the instruction set. No wait is unbounded: each call ends
 * at its timeout at the latest, and its error names the rank at fault.
 *
 * Each function returns a code: CONS_OK, or why it failed. cons_last_error has the details. Every
 * rank of a group makes the same collectives in the same order. If one differs, all fail with
 * CONS_ERR_MISMATCH and have moved no data; the group works on. A collective with a wrong argument
 * is such a difference, too.
 * Between processes a broadcast, or a scatter or gather of even parts, of up to 4 KiB does not wait
 * for all ranks: a rank that has gone on gets CONS_ERR_MISMATCH from its next call, which is made
 * all the same.
 *
 * Any thread may use any handle. Calls on one communicator take turns. A process that was forked
 * from one that has called a function gets CONS_ERR_FORKED from each.
 */
#ifndef CONSONANCE_H
#define CONSONANCE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this interface. cons_abi_version returns that of the library. */
#define CONS_ABI_VERSION 1

/* Handles are checked numbers: one that was freed is an error. 0 is none. */
typedef uint64_t cons_comm;
typedef uint64_t cons_request;
typedef uint64_t cons_accumulator;

/* The id of a group. Pass its 128 bytes to all ranks by any means. */
typedef struct cons_id {
    unsigned char bytes[128];
} cons_id;

/* Element types. A C64 is two F32, a C128 two F64; they can be summed, averaged and moved. Data of
 * any other type can be moved as U8. A BOOL is a byte that is 0 or 1. */
enum {
    CONS_BOOL = 0,
    CONS_I8 = 1,
    CONS_I16 = 2,
    CONS_I32 = 3,
    CONS_I64 = 4,
    CONS_U8 = 5,
    CONS_U16 = 6,
    CONS_U32 = 7,
    CONS_U64 = 8,
    CONS_F16 = 9,
    CONS_BF16 = 10,
    CONS_F32 = 11,
    CONS_F64 = 12,
    CONS_C64 = 13,
    CONS_C128 = 14
};

/* Added to an element type (CONS_F32 + CONS_ON_GPU): the buffers of the call lie in the memory of
 * the communicator's GPU. All ranks pass the same type, each with or without this. */
#define CONS_ON_GPU 256

/* Operations. AND, OR and XOR are bitwise, for integers and BOOL. */
enum {
    CONS_SUM = 0,
    CONS_MEAN = 1,
    CONS_PRODUCT = 2,
    CONS_MIN = 3,
    CONS_MAX = 4,
    CONS_AND = 5,
    CONS_OR = 6,
    CONS_XOR = 7
};

/* Codes. */
enum {
    CONS_OK = 0,
    CONS_ERR_ARGUMENT = 1, /* an argument is invalid; the other ranks get CONS_ERR_MISMATCH */
    CONS_ERR_MISMATCH = 2, /* the ranks did not make the same call; the group works on */
    CONS_ERR_TIMEOUT = 3,  /* ranks did not come; see missing */
    CONS_ERR_LOST = 4,     /* a rank has freed its communicator, or its process has ended */
    CONS_ERR_ABORTED = 5,  /* a rank has ended the group, or missed the timeout of another */
    CONS_ERR_FREED = 6,    /* the handle was freed, or never made */
    CONS_ERR_FORKED = 7,   /* this process is a fork of the one that uses the library */
    CONS_ERR_SYSTEM = 8,   /* the operating system refused a request */
    CONS_ERR_MEETING = 9,  /* the processes did not form a group */
    CONS_ERR_CONTEXT = 10, /* the call is not allowed here */
    CONS_ERR_INTERNAL = 11 /* a fault of the library */
};

/* A receive from any other rank. */
#define CONS_ANY (-1)

/* Settings of a communicator. Set size to sizeof(cons_config). 0 is the default: 5 minutes. */
typedef struct cons_config {
    size_t size;
    int64_t timeout_ms;      /* the timeout of each call */
    int64_t join_timeout_ms; /* how long cons_comm_init waits for the other ranks */
} cons_config;

/* The details of an error. Set size to sizeof(cons_error). Texts end with 0 and are cut to fit. */
typedef struct cons_error {
    size_t size;
    int code;            /* CONS_OK if there was no error */
    int replica;         /* the rank at fault; -1 if none is known */
    char call[64];       /* the call that failed */
    char argument[64];   /* the argument that is wrong or differs */
    char expected[256];  /* a right value, or the value of the other ranks */
    char found[256];     /* the value that is wrong or differs */
    char text[1024];     /* all of it in words */
    int missing_count;   /* the number of ranks that did not come */
    int missing[64];     /* the first of them */
} cons_error;

/* A function that is called once, when a request has ended, on any thread, with its code. It must
 * not wait for another request. */
typedef void (*cons_done)(void *argument, int code);

int cons_abi_version(void);

/* Returns the name of a code, a constant text. */
const char *cons_code_name(int code);

/* Writes the details of the last error of a communicator; of this thread if comm is 0. */
int cons_last_error(cons_comm comm, cons_error *error);

/* ---- Communicators ---- */

/* Makes an id that no other group has. One rank calls this. */
int cons_unique_id(cons_id *id);

/* Makes an id for processes of several hosts. This process listens for them until the group is
 * formed, a day at most. The id is good for one group, which sends over UCX: libucp.so.0, which is
 * loaded by cons_comm_init. On one host cons_unique_id makes the faster groups. */
int cons_unique_id_across_hosts(cons_id *id);

/* Joins the group of the `size` ranks that pass the same id, each with its own rank from 0. They
 * are processes of one user on one host, or threads; of several hosts if the id is across hosts. A
 * process may be in many groups. config may be null. */
int cons_comm_init(cons_comm *comm, const cons_id *id, int size, int rank, const cons_config *config);

/* Does what cons_comm_init does, for a rank on the GPU with this number: its collectives take
 * buffers there, with CONS_ON_GPU in dtype, and of the host. Accumulators, exact sums and messages
 * take host memory alone. A pointer to memory of the host with CONS_ON_GPU, and one to memory of a
 * GPU without it, are CONS_ERR_ARGUMENT. NVIDIA's driver is loaded by this call. */
int cons_comm_init_on_gpu(cons_comm *comm, const cons_id *id, int size, int rank, const cons_config *config, int gpu);

/* Orders the next calls of a communicator on a GPU by a stream (a CUstream or cudaStream_t of the
 * GPU's primary context), if ordered is not 0: a call begins after what the stream has, and what
 * the stream gets later finds the result. A stream is lent until another is set, or none, and the
 * calls before have ended. Without one a call finds what is in memory, and the GPU has done it when
 * it ends. In this version a call on a GPU also waits on this thread for what the stream has, at
 * most for the timeout, and has moved its data when it ends. */
int cons_comm_set_stream(cons_comm comm, int ordered, void *stream);

/* Splits the group: ranks with the same color form one, ordered by key and then by rank. A negative
 * color gives 0. Every rank makes the call. */
int cons_comm_split(cons_comm comm, int color, int key, cons_comm *part);

int cons_comm_rank(cons_comm comm, int *rank);
int cons_comm_size(cons_comm comm, int *size);

/* Sets the timeout of the next calls, up to a day. 0 is that of the communicator. */
int cons_comm_set_timeout(cons_comm comm, int64_t timeout_ms);

/* Ends the group: each call that waits, and each later one, fails on every rank. Never waits. */
int cons_comm_abort(cons_comm comm);

/* Writes 1 if the group was aborted, else 0. */
int cons_comm_state(cons_comm comm, int *aborted);

/* Frees the handle. This rank leaves the group when the calls that it has made are done. */
int cons_comm_free(cons_comm comm);

/* ---- Collectives ----
 *
 * Counts are in elements. If send == recv the call works in place. Buffers are aligned for their
 * element type, and null only if they have no element. `send` and `recv` of a rank that does not
 * use them are not read. cons_i... starts a call: buffers are lent until the request has ended. */

/* Combines all ranks' data on all ranks. */
int cons_all_reduce(cons_comm comm, const void *send, void *recv, size_t count, int dtype, int op);
int cons_iall_reduce(cons_comm comm, const void *send, void *recv, size_t count, int dtype, int op, cons_request *request);

/* Does cons_all_reduce in place for several buffers in one call. */
int cons_all_reduce_coalesced(cons_comm comm, void *const *data, const size_t *counts, size_t buffers, int dtype, int op);
int cons_iall_reduce_coalesced(cons_comm comm, void *const *data, const size_t *counts, size_t buffers, int dtype, int op, cons_request *request);

/* Does what cons_all_reduce does, with exact sums or means: each is rounded once, and depends on
 * the elements alone, not on the order of the ranks. op is CONS_SUM or CONS_MEAN, dtype CONS_F32,
 * CONS_F64, CONS_C64 or CONS_C128; others are CONS_ERR_ARGUMENT. */
int cons_all_reduce_exact(cons_comm comm, const void *send, void *recv, size_t count, int dtype, int op);
int cons_iall_reduce_exact(cons_comm comm, const void *send, void *recv, size_t count, int dtype, int op, cons_request *request);

/* Combines all ranks' data on the root. Only the root uses recv. */
int cons_reduce(cons_comm comm, const void *send, void *recv, size_t count, int dtype, int op, int root);
int cons_ireduce(cons_comm comm, const void *send, void *recv, size_t count, int dtype, int op, int root, cons_request *request);

/* Combines all ranks' data, count elements for each rank, and gives rank r the part r. In place the
 * part stays at its place in recv, which has the data of all parts. */
int cons_reduce_scatter(cons_comm comm, const void *send, void *recv, size_t count, int dtype, int op);
int cons_ireduce_scatter(cons_comm comm, const void *send, void *recv, size_t count, int dtype, int op, cons_request *request);

/* Does cons_reduce_scatter with counts[r] elements for rank r. */
int cons_reduce_scatter_v(cons_comm comm, const void *send, void *recv, const size_t *counts, int dtype, int op);
int cons_ireduce_scatter_v(cons_comm comm, const void *send, void *recv, const size_t *counts, int dtype, int op, cons_request *request);

/* Copies the root's data to all ranks. */
int cons_broadcast(cons_comm comm, void *data, size_t count, int dtype, int root);
int cons_ibroadcast(cons_comm comm, void *data, size_t count, int dtype, int root, cons_request *request);

/* Concatenates count elements of each rank on all ranks. In place each rank's data are at their
 * place in recv. */
int cons_all_gather(cons_comm comm, const void *send, void *recv, size_t count, int dtype);
int cons_iall_gather(cons_comm comm, const void *send, void *recv, size_t count, int dtype, cons_request *request);

/* The same with counts[r] elements of rank r. counts is the same on all ranks. */
int cons_all_gather_v(cons_comm comm, const void *send, void *recv, const size_t *counts, int dtype);
int cons_iall_gather_v(cons_comm comm, const void *send, void *recv, const size_t *counts, int dtype, cons_request *request);

/* Concatenates count, or counts[r], elements of each rank on the root. Only the root uses recv, and
 * only the root can work in place. */
int cons_gather(cons_comm comm, const void *send, void *recv, size_t count, int dtype, int root);
int cons_igather(cons_comm comm, const void *send, void *recv, size_t count, int dtype, int root, cons_request *request);
int cons_gather_v(cons_comm comm, const void *send, void *recv, const size_t *counts, int dtype, int root);
int cons_igather_v(cons_comm comm, const void *send, void *recv, const size_t *counts, int dtype, int root, cons_request *request);

/* Copies count, or counts[r], elements of the root's data to each rank. Only the root uses send. If
 * send == recv there, its own part stays in place. */
int cons_scatter(cons_comm comm, const void *send, void *recv, size_t count, int dtype, int root);
int cons_iscatter(cons_comm comm, const void *send, void *recv, size_t count, int dtype, int root, cons_request *request);
int cons_scatter_v(cons_comm comm, const void *send, void *recv, const size_t *counts, int dtype, int root);
int cons_iscatter_v(cons_comm comm, const void *send, void *recv, const size_t *counts, int dtype, int root, cons_request *request);

/* Copies count elements from each rank to each rank. */
int cons_all_to_all(cons_comm comm, const void *send, void *recv, size_t count, int dtype);
int cons_iall_to_all(cons_comm comm, const void *send, void *recv, size_t count, int dtype, cons_request *request);

/* The same with send_counts[r] elements to rank r, and recv_counts[r] from it. */
int cons_all_to_all_v(cons_comm comm, const void *send, const size_t *send_counts, void *recv, const size_t *recv_counts, int dtype);
int cons_iall_to_all_v(cons_comm comm, const void *send, const size_t *send_counts, void *recv, const size_t *recv_counts, int dtype, cons_request *request);

/* Waits for all ranks. After a timeout, cons_last_error lists those that are missing. */
int cons_barrier(cons_comm comm);
int cons_ibarrier(cons_comm comm, cons_request *request);

/* ---- Accumulators ----
 *
 * Reductions to which ranks bring different numbers of contributions, called leaves. The result has
 * the bits of as many ranks with one leaf each, whatever the number of ranks. Leaves have numbers
 * from 0; the runs of all ranks follow each other in rank order, and a run may be empty. Add all
 * leaves of this rank but the last, in order, and make the call with the last one. */

/* Makes room for leaves start to end - 1 of the `of` leaves of all ranks, of count elements each. A
 * mean is divided by `of`, and rounded once. The accumulator can be used again and again, by
 * several communicators. It holds a few partial results, in memory that the ranks share. */
int cons_accumulator_init(cons_comm comm, size_t count, int dtype, int op, size_t start, size_t end, size_t of, cons_accumulator *sum);

/* Adds the next leaf, and reads it once. The other ranks are not told of an error. */
int cons_accumulator_add(cons_accumulator sum, const void *leaf, size_t count, int dtype);

/* Writes the number of leaves that were added since the last call. */
int cons_accumulator_added(cons_accumulator sum, size_t *added);

/* Drops the leaves that were added: the next one is the first. */
int cons_accumulator_clear(cons_accumulator sum);

/* Frees the handle. Calls that were started go on. */
int cons_accumulator_free(cons_accumulator sum);

/* Combine the leaves of all ranks as cons_all_reduce, cons_reduce and cons_reduce_scatter combine
 * data; last is this rank's last leaf. If last == recv the call works in place. In the
 * reduce-scatter count is that of a rank's part, so that a leaf has the parts of all ranks. A rank
 * without leaves passes any valid elements. A leaf that is missing is CONS_ERR_ARGUMENT. Runs that
 * do not follow each other are CONS_ERR_MISMATCH on all ranks. After both errors the accumulator is
 * as before; otherwise it has no leaves. cons_i... lends it until the request has ended. */
int cons_all_reduce_accumulated(cons_comm comm, cons_accumulator sum, const void *last, void *recv, size_t count, int dtype);
int cons_iall_reduce_accumulated(cons_comm comm, cons_accumulator sum, const void *last, void *recv, size_t count, int dtype, cons_request *request);
int cons_reduce_accumulated(cons_comm comm, cons_accumulator sum, const void *last, void *recv, size_t count, int dtype, int root);
int cons_ireduce_accumulated(cons_comm comm, cons_accumulator sum, const void *last, void *recv, size_t count, int dtype, int root, cons_request *request);
int cons_reduce_scatter_accumulated(cons_comm comm, cons_accumulator sum, const void *last, void *recv, size_t count, int dtype);
int cons_ireduce_scatter_accumulated(cons_comm comm, cons_accumulator sum, const void *last, void *recv, size_t count, int dtype, cons_request *request);

/* ---- Messages ----
 *
 * They go beside the collectives, in both directions at once. A receive takes the first message of
 * its rank, or of any rank, that has its tag. It has the message's element type and count, or both
 * ranks get CONS_ERR_MISMATCH: the sender in its next call with that rank, if its send has ended
 * before. A timeout ends the message only. A send of up to 4 KiB does not wait for its receiver. */
int cons_send(cons_comm comm, const void *data, size_t count, int dtype, int to, uint64_t tag);
int cons_isend(cons_comm comm, const void *data, size_t count, int dtype, int to, uint64_t tag, cons_request *request);

/* source, which may be null, gets the rank that sent. */
int cons_recv(cons_comm comm, void *data, size_t count, int dtype, int from, uint64_t tag, int *source);
int cons_irecv(cons_comm comm, void *data, size_t count, int dtype, int from, uint64_t tag, cons_request *request);

/* ---- Requests ---- */

/* Waits until the request has ended, at most for timeout_ms; 0 waits until its own timeout. done,
 * which may be null, gets whether it has. Returns the code of its result, or CONS_OK before. */
int cons_wait(cons_request request, int64_t timeout_ms, int *done);

/* Writes whether the request has ended, and returns the code of its result if it has. */
int cons_test(cons_request request, int *done);

/* Calls function once when the request has ended; now, if it has. cons_wait of the request returns
 * after function has returned. */
int cons_on_done(cons_request request, cons_done function, void *argument);

/* Writes the rank that sent the message of a receive that has ended; else -1. */
int cons_request_source(cons_request request, int *source);

/* Frees the handle. The request goes on. */
int cons_request_free(cons_request request);

/* ---- Memory ---- */

/* Allocates zero bytes that all ranks can read and write in place: collectives of processes need
 * not copy them into shared memory. The memory may outlive the communicator. */
int cons_alloc(cons_comm comm, size_t bytes, void **memory);
int cons_free(void *memory);

#ifdef __cplusplus
}
#endif

#endif
