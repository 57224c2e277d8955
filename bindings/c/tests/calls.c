/* Every function, on threads and on processes. */
#include "ranks.h"
#include <stdbool.h>

enum { COUNT = 3000 };

static void fill(float *data, int count, int value) {
    for (int index = 0; index < count; index++) data[index] = (float)(value * 1000 + index % 100);
}

static int holds(const float *data, int count, int value) {
    for (int index = 0; index < count; index++) {
        if (data[index] != (float)(value * 1000 + index % 100)) return 0;
    }
    return 1;
}

/* Waits for a request, frees it, and returns its code. */
static int finish(cons_request request) {
    int done = 0;
    int code = cons_wait(request, 0, &done);
    CHECK(done == 1);
    OK(cons_request_free(request));
    return code;
}

/* Makes a call, or starts it. */
#define CALL(name, ...) OK(starts ? (cons_i##name(comm, __VA_ARGS__, &request) || finish(request)) : cons_##name(comm, __VA_ARGS__))

static void collectives(cons_comm comm, int rank, int size, int starts) {
    float *own = (float *)malloc(sizeof(float) * COUNT), *all = (float *)malloc(sizeof(float) * COUNT * (size_t)size);
    float *other = (float *)malloc(sizeof(float) * COUNT * (size_t)size);
    size_t *counts = (size_t *)malloc(sizeof(size_t) * (size_t)size);
    size_t *same = (size_t *)malloc(sizeof(size_t) * (size_t)size);
    size_t total = 0;
    for (int peer = 0; peer < size; peer++) {
        counts[peer] = 100 + 7 * (size_t)peer;
        same[peer] = 100 + 7 * (size_t)rank;
        total += counts[peer];
    }
    cons_request request = 0;

    float ones[2] = {1, (float)rank}, sums[2] = {0, 0};
    float ranks_sum = (float)(size * (size - 1) / 2);
    CALL(all_reduce, ones, sums, 2, CONS_F32, CONS_SUM);
    CHECK(sums[0] == (float)size && sums[1] == ranks_sum && ones[0] == 1);
    CALL(all_reduce, ones, ones, 2, CONS_F32, CONS_MEAN);
    CHECK(ones[0] == 1);

    bool truth = rank == 0;
    CALL(all_reduce, &truth, &truth, 1, CONS_BOOL, CONS_OR);
    CHECK(truth);

    int64_t first[3] = {rank, 1, 2}, second[1] = {5};
    void *buffers[2] = {first, second};
    size_t lengths[2] = {3, 1};
    CALL(all_reduce_coalesced, buffers, lengths, 2, CONS_I64, CONS_MAX);
    CHECK(first[0] == size - 1 && first[2] == 2 && second[0] == 5);

    uint32_t bits = 1u << rank, folded = 0;
    CALL(reduce, &bits, rank == 1 ? &folded : NULL, 1, CONS_U32, CONS_XOR, 1);
    CHECK(folded == (rank == 1 ? (1u << size) - 1 : 0));

    fill(own, COUNT, rank);
    CALL(all_gather, own, all, COUNT, CONS_F32);
    for (int peer = 0; peer < size; peer++) CHECK(holds(all + peer * COUNT, COUNT, peer));
    memset(all, 0, sizeof(float) * COUNT * (size_t)size);
    fill(all + rank * COUNT, COUNT, rank);
    CALL(all_gather, all, all, COUNT, CONS_F32);
    for (int peer = 0; peer < size; peer++) CHECK(holds(all + peer * COUNT, COUNT, peer));
    CALL(all_gather_v, own, all, counts, CONS_F32);
    float *place = all;
    for (int peer = 0; peer < size; place += counts[peer], peer++) CHECK(holds(place, (int)counts[peer], peer));

    CALL(gather, own, rank == 0 ? all : NULL, COUNT, CONS_F32, 0);
    if (rank == 0) CHECK(holds(all + (size - 1) * COUNT, COUNT, size - 1));
    CALL(gather_v, own, rank == 0 ? all : NULL, counts, CONS_F32, 0);
    if (rank == 0) CHECK(holds(all + total - counts[size - 1], (int)counts[size - 1], size - 1));

    for (int peer = 0; peer < size; peer++) fill(all + peer * COUNT, COUNT, rank * 10 + peer);
    CALL(scatter, rank == 1 ? all : NULL, own, COUNT, CONS_F32, 1);
    CHECK(holds(own, COUNT, 10 + rank));
    place = all;
    for (int peer = 0; peer < size; place += counts[peer], peer++) fill(place, (int)counts[peer], 20 + peer);
    CALL(scatter_v, rank == 1 ? all : NULL, own, counts, CONS_F32, 1);
    CHECK(holds(own, (int)counts[rank], 20 + rank));

    for (int peer = 0; peer < size; peer++) fill(all + peer * COUNT, COUNT, rank * 10 + peer);
    CALL(all_to_all, all, other, COUNT, CONS_F32);
    for (int peer = 0; peer < size; peer++) CHECK(holds(other + peer * COUNT, COUNT, peer * 10 + rank));
    place = all;
    for (int peer = 0; peer < size; place += counts[peer], peer++) fill(place, (int)counts[peer], rank * 10 + peer);
    CALL(all_to_all_v, all, counts, other, same, CONS_F32);
    for (int peer = 0; peer < size; peer++)
        CHECK(holds(other + (size_t)peer * counts[rank], (int)counts[rank], peer * 10 + rank));

    for (int index = 0; index < COUNT * size; index++) all[index] = (float)(index % 50);
    CALL(reduce_scatter, all, own, COUNT, CONS_F32, CONS_SUM);
    CHECK(own[7] == (float)(size * ((rank * COUNT + 7) % 50)));
    CALL(reduce_scatter, all, all, COUNT, CONS_F32, CONS_SUM);
    CHECK(all[rank * COUNT + 7] == (float)(size * ((rank * COUNT + 7) % 50)));

    size_t before = 0;
    for (int peer = 0; peer < rank; peer++) before += counts[peer];
    for (int index = 0; index < (int)total; index++) all[index] = (float)(index % 50);
    CALL(reduce_scatter_v, all, own, counts, CONS_F32, CONS_SUM);
    CHECK(own[7] == (float)(size * (((int)before + 7) % 50)));
    CALL(reduce_scatter_v, all, all, counts, CONS_F32, CONS_SUM);
    CHECK(all[before + 7] == own[7]);

    fill(own, COUNT, rank == size - 1 ? 77 : 0);
    CALL(broadcast, own, COUNT, CONS_F32, size - 1);
    CHECK(holds(own, COUNT, 77));
    OK(starts ? (cons_ibarrier(comm, &request) || finish(request)) : cons_barrier(comm));
    free(own), free(all), free(other), free(counts), free(same);
}

/* The parts of the complex number at a place in the data of a rank. The sum and the mean of all
 * ranks are whole numbers. */
static double part(int is_imaginary, size_t place, int rank, int size) {
    return is_imaginary ? -size * ((double)(place % 7) + rank) : size * ((double)(place % 50) + 10 * rank);
}

static double total(int is_imaginary, size_t place, int size) {
    double sum = 0;
    for (int rank = 0; rank < size; rank++) sum += part(is_imaginary, place, rank, size);
    return sum;
}

/* Complex numbers lie as C's and C++'s do. */
static double at(const void *data, int dtype, size_t index) {
    return dtype == CONS_C64 ? (double)((const float *)data)[index] : ((const double *)data)[index];
}

/* Writes `count` numbers behind the first `before`. */
static void fill_complex(void *data, int dtype, size_t before, size_t count, int rank, int size) {
    for (size_t index = 0; index < 2 * count; index++) {
        double value = part(index % 2, index / 2, rank, size);
        if (dtype == CONS_C64) ((float *)data)[2 * before + index] = (float)value;
        else ((double *)data)[2 * before + index] = value;
    }
}

static int holds_complex(const void *data, int dtype, size_t before, size_t count, int rank, int size) {
    for (size_t index = 0; index < 2 * count; index++) {
        if (at(data, dtype, 2 * before + index) != part(index % 2, index / 2, rank, size)) return 0;
    }
    return 1;
}

/* Whether the numbers behind the first `before` are the sums, or means, from the place `first`
 * on. */
static int holds_totals(const void *data, int dtype, size_t before, size_t count, size_t first, int size, int op) {
    for (size_t index = 0; index < 2 * count; index++) {
        double expected = total(index % 2, first + index / 2, size) / (op == CONS_MEAN ? size : 1);
        if (at(data, dtype, 2 * before + index) != expected) return 0;
    }
    return 1;
}

/* Sums, means and moves of complex numbers. */
static void complex_numbers(cons_comm comm, int rank, int size, int starts, int dtype) {
    size_t bytes = dtype == CONS_C64 ? 8 : 16, ranks = (size_t)size, own_place = (size_t)rank;
    void *own = malloc(bytes * COUNT), *all = malloc(bytes * COUNT * ranks), *other = malloc(bytes * COUNT * ranks);
    size_t *counts = (size_t *)malloc(sizeof(size_t) * ranks), *same = (size_t *)malloc(sizeof(size_t) * ranks);
    size_t sum = 0, before = 0;
    for (size_t peer = 0; peer < ranks; peer++) {
        counts[peer] = 100 + 7 * peer;
        same[peer] = 100 + 7 * own_place;
        if (peer < own_place) before += counts[peer];
        sum += counts[peer];
    }
    cons_request request = 0;

    int ops[2] = {CONS_SUM, CONS_MEAN};
    for (int which = 0; which < 2; which++) {
        int op = ops[which];
        fill_complex(own, dtype, 0, COUNT, rank, size);
        CALL(all_reduce, own, other, COUNT, dtype, op);
        CHECK(holds_totals(other, dtype, 0, COUNT, 0, size, op) && holds_complex(own, dtype, 0, COUNT, rank, size));
        memset(other, 0, bytes * COUNT);
        CALL(reduce, own, rank == 1 ? other : NULL, COUNT, dtype, op, 1);
        if (rank == 1) CHECK(holds_totals(other, dtype, 0, COUNT, 0, size, op));
        CALL(all_reduce, own, own, COUNT, dtype, op);
        CHECK(holds_totals(own, dtype, 0, COUNT, 0, size, op));
        void *buffers[2] = {own, other};
        size_t lengths[2] = {COUNT, 1};
        fill_complex(own, dtype, 0, COUNT, rank, size);
        fill_complex(other, dtype, 0, 1, rank, size);
        CALL(all_reduce_coalesced, buffers, lengths, 2, dtype, op);
        CHECK(holds_totals(own, dtype, 0, COUNT, 0, size, op) && holds_totals(other, dtype, 0, 1, 0, size, op));
        fill_complex(all, dtype, 0, COUNT * ranks, rank, size);
        CALL(reduce_scatter, all, own, COUNT, dtype, op);
        CHECK(holds_totals(own, dtype, 0, COUNT, own_place * COUNT, size, op));
        CALL(reduce_scatter_v, all, own, counts, dtype, op);
        CHECK(holds_totals(own, dtype, 0, counts[rank], before, size, op));
        CALL(reduce_scatter, all, all, COUNT, dtype, op);
        CHECK(holds_totals(all, dtype, own_place * COUNT, COUNT, own_place * COUNT, size, op));
    }

    fill_complex(own, dtype, 0, COUNT, rank, size);
    CALL(all_gather, own, all, COUNT, dtype);
    for (int peer = 0; peer < size; peer++) CHECK(holds_complex(all, dtype, (size_t)peer * COUNT, COUNT, peer, size));
    CALL(all_gather_v, own, all, counts, dtype);
    size_t place = 0;
    for (int peer = 0; peer < size; place += counts[peer], peer++)
        CHECK(holds_complex(all, dtype, place, counts[peer], peer, size));
    memset(all, 0, bytes * COUNT * ranks);
    CALL(gather, own, rank == 0 ? all : NULL, COUNT, dtype, 0);
    for (int peer = 0; rank == 0 && peer < size; peer++)
        CHECK(holds_complex(all, dtype, (size_t)peer * COUNT, COUNT, peer, size));
    memset(all, 0, bytes * COUNT * ranks);
    CALL(gather_v, own, rank == 0 ? all : NULL, counts, dtype, 0);
    if (rank == 0) CHECK(holds_complex(all, dtype, sum - counts[size - 1], counts[size - 1], size - 1, size));

    for (int peer = 0; peer < size; peer++) fill_complex(all, dtype, (size_t)peer * COUNT, COUNT, rank * 10 + peer, size);
    CALL(scatter, rank == 1 ? all : NULL, own, COUNT, dtype, 1);
    CHECK(holds_complex(own, dtype, 0, COUNT, 10 + rank, size));
    CALL(all_to_all, all, other, COUNT, dtype);
    for (int peer = 0; peer < size; peer++)
        CHECK(holds_complex(other, dtype, (size_t)peer * COUNT, COUNT, peer * 10 + rank, size));
    place = 0;
    for (int peer = 0; peer < size; place += counts[peer], peer++)
        fill_complex(all, dtype, place, counts[peer], rank * 10 + peer, size);
    CALL(scatter_v, rank == 1 ? all : NULL, own, counts, dtype, 1);
    CHECK(holds_complex(own, dtype, 0, counts[rank], 10 + rank, size));
    CALL(all_to_all_v, all, counts, other, same, dtype);
    for (int peer = 0; peer < size; peer++)
        CHECK(holds_complex(other, dtype, (size_t)peer * counts[rank], counts[rank], peer * 10 + rank, size));

    fill_complex(own, dtype, 0, COUNT, rank == size - 1 ? 77 : 0, size);
    CALL(broadcast, own, COUNT, dtype, size - 1);
    CHECK(holds_complex(own, dtype, 0, COUNT, 77, size));
    /* Each rank receives before it sends, or sends first what fits a ring. */
    int next = (rank + 1) % size, last = (rank + size - 1) % size;
    fill_complex(own, dtype, 0, COUNT, rank, size);
    if (starts) {
        cons_request sends = 0;
        OK(cons_irecv(comm, other, COUNT, dtype, last, 3, &request));
        OK(cons_isend(comm, own, COUNT, dtype, next, 3, &sends));
        OK(finish(sends) || finish(request));
        CHECK(holds_complex(other, dtype, 0, COUNT, last, size));
    } else {
        OK(cons_send(comm, own, 100, dtype, next, 3));
        OK(cons_recv(comm, other, 100, dtype, last, 3, NULL));
        CHECK(holds_complex(other, dtype, 0, 100, last, size));
    }
    free(own), free(all), free(other), free(counts), free(same);
}

static void count_ends(void *argument, int code) {
    __atomic_fetch_add((int *)argument, code == CONS_OK ? 1 : 1000, __ATOMIC_SEQ_CST);
}

/* The first message of a communicator does not wait for a collective that was started before. */
static void first_message(cons_comm comm, int rank, int size) {
    int64_t sum = 1, message = rank == 0 ? 7 : 0;
    cons_request request = 0;
    if (rank == 0) {
        OK(cons_iall_reduce(comm, &sum, &sum, 1, CONS_I64, CONS_SUM, &request));
        OK(cons_send(comm, &message, 1, CONS_I64, 1, 1));
        OK(finish(request));
    } else {
        if (rank == 1) OK(cons_recv(comm, &message, 1, CONS_I64, 0, 1, NULL));
        OK(cons_all_reduce(comm, &sum, &sum, 1, CONS_I64, CONS_SUM));
    }
    CHECK(sum == size && message == (rank < 2 ? 7 : 0));
}

static void messages(cons_comm comm, int rank, int size) {
    int next = (rank + 1) % size, before = (rank + size - 1) % size, source = -1;
    enum { LONG = 100000 };
    float *sent = (float *)malloc(sizeof(float) * LONG), *received = (float *)malloc(sizeof(float) * LONG);
    fill(sent, LONG, rank);
    /* Each rank sends first, more than fits a ring. */
    OK(cons_send(comm, sent, LONG, CONS_F32, next, 5));
    OK(cons_send(comm, sent, 3, CONS_F32, next, 6));
    OK(cons_recv(comm, received, 3, CONS_F32, CONS_ANY, 6, &source));
    CHECK(source == before && holds(received, 3, before));
    OK(cons_recv(comm, received, LONG, CONS_F32, before, 5, NULL));
    CHECK(holds(received, LONG, before));

    cons_request sends = 0, receives = 0;
    int done = 0, ends = 0;
    OK(cons_irecv(comm, received, LONG, CONS_F32, CONS_ANY, 9, &receives));
    OK(cons_on_done(receives, count_ends, &ends));
    OK(cons_isend(comm, sent, LONG, CONS_F32, next, 9, &sends));
    OK(cons_barrier(comm));
    while (!done) OK(cons_test(receives, &done));
    CHECK(holds(received, LONG, before));
    OK(cons_request_source(receives, &source));
    CHECK(source == before);
    OK(finish(sends));
    OK(finish(receives));
    while (__atomic_load_n(&ends, __ATOMIC_SEQ_CST) == 0) usleep(100);
    CHECK(ends == 1);
    CHECK(cons_wait(receives, 0, NULL) == CONS_ERR_FREED);
    free(sent), free(received);
}

static void all_functions(cons_comm comm, int rank, int size) {
    int number = -1;
    CHECK(cons_abi_version() == CONS_ABI_VERSION);
    OK(cons_comm_rank(comm, &number));
    CHECK(number == rank);
    OK(cons_comm_size(comm, &number));
    CHECK(number == size);
    OK(cons_comm_state(comm, &number));
    CHECK(number == 0);
    OK(cons_comm_set_timeout(comm, 30000));
    for (int starts = 0; starts < 2; starts++) {
        collectives(comm, rank, size, starts);
        complex_numbers(comm, rank, size, starts, CONS_C64);
        complex_numbers(comm, rank, size, starts, CONS_C128);
    }
    first_message(comm, rank, size);
    messages(comm, rank, size);

    cons_comm part = 0;
    OK(cons_comm_split(comm, rank == 0 ? -1 : 7, -rank, &part));
    CHECK((part == 0) == (rank == 0));
    if (part != 0) {
        OK(cons_comm_rank(part, &number));
        CHECK(number == size - 1 - rank);
        OK(cons_barrier(part));
        OK(cons_comm_free(part));
        CHECK(cons_barrier(part) == CONS_ERR_FREED);
    }

    void *memory = NULL;
    OK(cons_alloc(comm, sizeof(double) * 50000, &memory));
    double *shared = (double *)memory;
    for (int index = 0; index < 50000; index++) shared[index] = rank;
    OK(cons_all_reduce(comm, shared, shared, 50000, CONS_F64, CONS_SUM));
    CHECK(shared[49999] == size * (size - 1) / 2);
    OK(cons_free(shared));
    CHECK(strcmp(cons_code_name(CONS_ERR_FREED), "handle freed") == 0);
}

int main(void) {
#ifndef __SANITIZE_ADDRESS__ /* which takes the memory that UCX keeps for leaks */
    across_hosts = 1;
    on_ranks(1, 3, 60000, all_functions);
    across_hosts = 0;
#endif
    for (int as_processes = 1; as_processes >= 0; as_processes--) {
        on_ranks(as_processes, 2, 60000, all_functions);
        on_ranks(as_processes, 3, 60000, all_functions);
    }
    puts("calls: all right");
    return 0;
}
