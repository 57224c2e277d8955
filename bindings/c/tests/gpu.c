/* Collectives on memory of a GPU, in the order of a stream, on the driver that the environment
 * variable CONSONANCE_CUDA_DRIVER names. A stream begins its work late. */
#include "ranks.h"
#include <dlfcn.h>

typedef unsigned long long address;

static struct {
    int (*init)(unsigned flags);
    int (*retain)(void **context, int device);
    int (*push)(void *context);
    int (*pop)(void **context);
    int (*alloc)(address *memory, size_t bytes);
    int (*free)(address memory);
    int (*alloc_host)(void **memory, size_t bytes);
    int (*write)(address to, const void *from, size_t bytes, void *stream);
    int (*read)(void *to, address from, size_t bytes, void *stream);
    int (*create)(void **stream, unsigned flags);
    int (*query)(void *stream);
} cuda;

static void find(void *function, void *library, const char *name) {
    void *symbol = dlsym(library, name);
    CHECK(symbol != NULL);
    memcpy(function, &symbol, sizeof symbol);
}

static void load(void) {
    void *library = dlopen(getenv("CONSONANCE_CUDA_DRIVER"), RTLD_NOW);
    CHECK(library != NULL);
    find(&cuda.init, library, "cuInit");
    find(&cuda.retain, library, "cuDevicePrimaryCtxRetain");
    find(&cuda.push, library, "cuCtxPushCurrent_v2");
    find(&cuda.pop, library, "cuCtxPopCurrent_v2");
    find(&cuda.alloc, library, "cuMemAlloc_v2");
    find(&cuda.free, library, "cuMemFree_v2");
    find(&cuda.alloc_host, library, "cuMemAllocHost_v2");
    find(&cuda.write, library, "cuMemcpyHtoDAsync_v2");
    find(&cuda.read, library, "cuMemcpyDtoHAsync_v2");
    find(&cuda.create, library, "cuStreamCreate");
    find(&cuda.query, library, "cuStreamQuery");
    CHECK(cuda.init(0) == 0);
}

/* Makes the context of a device the thread's. */
static void enter(int device) {
    void *context = NULL;
    CHECK(cuda.retain(&context, device) == 0 && cuda.push(context) == 0);
}

static void *new_stream(void) {
    void *stream = NULL;
    CHECK(cuda.create(&stream, 1) == 0);
    return stream;
}

static address new_memory(size_t bytes) {
    address memory = 0;
    CHECK(cuda.alloc(&memory, bytes) == 0);
    return memory;
}

static double *new_pinned(size_t bytes) {
    void *memory = NULL;
    CHECK(cuda.alloc_host(&memory, bytes) == 0);
    return (double *)memory;
}

static void *at(address memory) {
    return (void *)(uintptr_t)memory;
}

enum { COUNT = 4, F64 = CONS_F64 + CONS_ON_GPU };

/* Checks the elements after the stream's work. */
static void expect(address memory, double *pinned, double expected, void *stream) {
    CHECK(cuda.read(pinned, memory, COUNT * sizeof *pinned, stream) == 0);
    int code;
    while ((code = cuda.query(stream)) == 600) {
    }
    CHECK(code == 0);
    for (int index = 0; index < COUNT; index++) CHECK(pinned[index] == expected + index);
}

/* Lets the stream write this rank's elements. */
static void put(address memory, double *pinned, double first, void *stream) {
    for (int index = 0; index < COUNT; index++) pinned[index] = first + (double)index;
    CHECK(cuda.write(memory, pinned, COUNT * sizeof *pinned, stream) == 0);
}

static void refused(cons_comm comm, int rank, void *send, void *recv, int dtype, const char *expected, const char *found) {
    int code = cons_all_reduce(comm, send, recv, COUNT, dtype, CONS_MAX);
    cons_error error = sized_error();
    OK(cons_last_error(comm, &error));
    CHECK(code == (rank == 0 ? CONS_ERR_ARGUMENT : CONS_ERR_MISMATCH) && error.replica == 0);
    CHECK(rank != 0 || (strstr(error.expected, expected) != NULL && strstr(error.found, found) != NULL));
}

static void calls(cons_comm comm, int rank, int size) {
    size_t bytes = COUNT * sizeof(double);
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load);
    enter(0);
    void *stream = new_stream();
    address data = new_memory(bytes), other = new_memory(bytes);
    double *in = new_pinned(bytes), *out = new_pinned(bytes), host[COUNT] = {0};
    cons_request request = 0;

    OK(cons_comm_set_stream(comm, 1, stream));
    put(data, in, rank, stream);
    OK(cons_all_reduce(comm, at(data), at(other), COUNT, F64, CONS_MAX));
    expect(other, out, size - 1, stream);
    OK(cons_broadcast(comm, at(data), COUNT, F64, 1));
    expect(data, out, 1, stream);
    OK(cons_iall_reduce(comm, at(data), at(data), COUNT, F64, CONS_MIN, &request));
    OK(cons_wait(request, 0, NULL));
    OK(cons_request_free(request));
    expect(data, out, 1, stream);
    OK(cons_all_reduce(comm, host, host, COUNT, CONS_F64, CONS_SUM));

    /* Rank 0 is wrong. */
    address freed = new_memory(bytes);
    CHECK(cuda.free(freed) == 0);
    void *right = at(data);
    refused(comm, rank, rank ? right : (void *)host, right, F64, "32 bytes of memory of cuda:0", "no memory that the driver knows");
    refused(comm, rank, rank ? right : (void *)in, right, F64, "32 bytes of memory of cuda:0", "memory of the host");
    refused(comm, rank, right, rank ? right : at(freed), F64, "32 bytes of memory of cuda:0", "no memory that the driver knows");
    refused(comm, rank, right, right, rank ? (int)F64 : (int)CONS_F64, "memory of the host", "memory of cuda:0");
    refused(comm, rank, right, right, rank ? (int)F64 : 99 + CONS_ON_GPU, "the number of an element type", "99");
    expect(data, out, 1, stream);

    /* A stream of another GPU. The one before stays. */
    enter(1);
    void *far = new_stream(), *context;
    CHECK(cuda.pop(&context) == 0);
    CHECK(cons_comm_set_stream(comm, 1, far) == CONS_ERR_ARGUMENT);
    put(data, in, rank, stream);
    OK(cons_all_reduce(comm, right, right, COUNT, F64, CONS_MAX));
    expect(data, out, size - 1, stream);

    /* Without a stream a call finds what is there. A part of the group is on the GPU, too. */
    cons_comm part = 0;
    OK(cons_comm_split(comm, 0, -rank, &part));
    OK(cons_comm_set_stream(comm, 0, NULL));
    OK(cons_all_reduce(part, right, right, COUNT, F64, CONS_MEAN));
    expect(data, out, size - 1, stream);
    OK(cons_comm_free(part));
}

int main(void) {
    gpu_of_ranks = 0;
    for (int as_processes = 1; as_processes >= 0; as_processes--) on_ranks(as_processes, 2, 20000, calls);

    cons_id id;
    /* Without a GPU, or with one that does not exist. */
    cons_comm comm = 0;
    double data[COUNT] = {0};
    OK(cons_unique_id(&id));
    CHECK(cons_comm_init_on_gpu(&comm, &id, 1, 0, NULL, 7) == CONS_ERR_ARGUMENT);
    CHECK(cons_comm_init_on_gpu(&comm, &id, 1, 0, NULL, -1) == CONS_ERR_ARGUMENT);
    OK(cons_comm_init(&comm, &id, 1, 0, NULL));
    CHECK(cons_all_reduce(comm, data, data, COUNT, F64, CONS_SUM) == CONS_ERR_ARGUMENT);
    CHECK(cons_comm_set_stream(comm, 0, NULL) == CONS_ERR_ARGUMENT);
    OK(cons_comm_free(comm));
    puts("gpu: all right");
    return 0;
}
