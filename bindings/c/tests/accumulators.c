/* Leaves on any number of ranks have the bits of as many ranks with a leaf each. */
#include "ranks.h"

enum { LEAVES = 8, RANKS = 3, COUNT = 30000 };

/* The counts of leaves: nodes that all ranks get, and nodes of which each gets its block. */
static const size_t counts[2] = {6, COUNT};

/* The results of a rank for each leaf, in memory of all processes. */
static float *expected[2];

static cons_error last_error(cons_comm comm) {
    cons_error error = sized_error();
    OK(cons_last_error(comm, &error));
    return error;
}

/* Numbers whose sum depends on the order. */
static void fill(float *leaf, size_t count, int number) {
    for (size_t index = 0; index < count; index++) {
        float small = (float)((index * 7919 + (size_t)number * 104729) % 10007) / 37;
        leaf[index] = number % 3 == 1 ? small * 4096 : -small;
    }
}

static void a_rank_for_each_leaf(cons_comm comm, int rank, int size) {
    CHECK(size == LEAVES);
    float *leaf = (float *)malloc(sizeof(float) * COUNT);
    for (int which = 0; which < 2; which++) {
        fill(leaf, counts[which], rank);
        OK(cons_all_reduce(comm, leaf, leaf, counts[which], CONS_F32, CONS_MEAN));
        if (rank == 0) memcpy(expected[which], leaf, sizeof(float) * counts[which]);
    }
    free(leaf);
}

/* Makes the accumulator of this rank: 3, 3 and 2 leaves. */
static cons_accumulator init(cons_comm comm, size_t count, int rank) {
    size_t start = 3 * (size_t)rank, end = rank == 2 ? 8 : start + 3;
    cons_accumulator sum = 0;
    OK(cons_accumulator_init(comm, count, CONS_F32, CONS_MEAN, start, end, LEAVES, &sum));
    return sum;
}

/* Adds all leaves but the last, and fills in that one. */
static void add(cons_accumulator sum, float *leaf, size_t count, int rank) {
    int end = rank == 2 ? 8 : 3 * rank + 3;
    size_t added = 99;
    for (int number = 3 * rank; number < end; number++) {
        fill(leaf, count, number);
        if (number < end - 1) OK(cons_accumulator_add(sum, leaf, count, CONS_F32));
    }
    OK(cons_accumulator_added(sum, &added));
    CHECK(added == (rank == 2 ? 1 : 2));
}

/* Makes a call, or starts it and waits for it. */
#define CALL(name, ...)                                                      \
    do {                                                                     \
        OK(starts ? cons_i##name(__VA_ARGS__, &request) : cons_##name(__VA_ARGS__)); \
        if (starts) OK(cons_wait(request, 0, NULL) || cons_request_free(request)); \
    } while (0)

static void fewer_ranks(cons_comm comm, int rank, int size) {
    CHECK(size == RANKS);
    float *leaf = (float *)malloc(sizeof(float) * COUNT), *recv = (float *)malloc(sizeof(float) * COUNT);
    cons_request request = 0;
    for (int which = 0; which < 2; which++) {
        size_t count = counts[which], bytes = sizeof(float) * count, part = count / RANKS;
        float *own = expected[which] + part * (size_t)rank;
        cons_accumulator sum = init(comm, count, rank);
        for (int starts = 0; starts < 2; starts++) {
            add(sum, leaf, count, rank);
            CALL(all_reduce_accumulated, comm, sum, leaf, leaf, count, CONS_F32);
            CHECK(memcmp(leaf, expected[which], bytes) == 0);
            add(sum, leaf, count, rank);
            CALL(all_reduce_accumulated, comm, sum, leaf, recv, count, CONS_F32);
            CHECK(memcmp(recv, expected[which], bytes) == 0);
            add(sum, leaf, count, rank);
            CALL(reduce_accumulated, comm, sum, leaf, rank == 1 ? recv : NULL, count, CONS_F32, 1);
            CHECK(memcmp(recv, expected[which], bytes) == 0);
            add(sum, leaf, count, rank);
            CALL(reduce_scatter_accumulated, comm, sum, leaf, leaf, part, CONS_F32);
            CHECK(memcmp(leaf + part * (size_t)rank, own, bytes / RANKS) == 0);
            add(sum, leaf, count, rank);
            CALL(reduce_scatter_accumulated, comm, sum, leaf, recv, part, CONS_F32);
            CHECK(memcmp(recv, own, bytes / RANKS) == 0);
        }
        OK(cons_accumulator_free(sum));
    }
    free(leaf), free(recv);
}

/* Complex numbers are summed in their parts, and are not taken for twice as many reals. */
static void complex_leaves(cons_comm comm, int rank, int size) {
    size_t start = (size_t)rank, end = start + (rank == size - 1 ? 2 : 1);
    double leaf[4] = {1, 2, 3, (double)rank};
    cons_accumulator sum = 0;
    OK(cons_accumulator_init(comm, 2, CONS_C128, CONS_SUM, start, end, (size_t)size + 1, &sum));
    if (rank == size - 1) OK(cons_accumulator_add(sum, leaf, 2, CONS_C128));
    CHECK(cons_all_reduce_accumulated(comm, sum, leaf, leaf, 4, CONS_F64) == CONS_ERR_ARGUMENT);
    CHECK(strcmp(last_error(comm).argument, "dtype") == 0);
    OK(cons_all_reduce_accumulated(comm, sum, leaf, leaf, 2, CONS_C128));
    CHECK(leaf[0] == size + 1 && leaf[1] == 2 * (size + 1));
    CHECK(leaf[3] == size * (size - 1) / 2 + size - 1);
    OK(cons_accumulator_free(sum));
}

/* Leaves that are wrong whatever the other ranks do. */
static void bad_leaves(cons_comm comm, int rank, int size) {
    float leaf[6] = {1, 2, 3, 4, 5, 6};
    size_t added = 0;
    cons_accumulator sum = init(comm, 6, rank);
    (void)size;
    CHECK(cons_accumulator_add(sum, leaf, 5, CONS_F32) == CONS_ERR_ARGUMENT);
    cons_error error = last_error(comm);
    CHECK(strcmp(error.argument, "leaf") == 0 && strcmp(error.call, "add") == 0);
    CHECK(strcmp(error.expected, "6 elements") == 0 && strcmp(error.found, "5 elements") == 0);
    CHECK(cons_accumulator_add(sum, leaf, 6, CONS_F64) == CONS_ERR_ARGUMENT);
    CHECK(strcmp(last_error(comm).argument, "dtype") == 0);
    CHECK(cons_accumulator_add(sum, NULL, 6, CONS_F32) == CONS_ERR_ARGUMENT);
    add(sum, leaf, 6, rank);
    CHECK(cons_accumulator_add(sum, leaf, 6, CONS_F32) == CONS_ERR_ARGUMENT);
    error = last_error(comm);
    CHECK(strcmp(error.argument, "leaves") == 0);
    CHECK(strcmp(error.found, rank == 2 ? "2 leaves" : "3 leaves") == 0);
    OK(cons_accumulator_clear(sum));
    OK(cons_accumulator_added(sum, &added));
    CHECK(added == 0 && cons_accumulator_added(sum, NULL) == CONS_ERR_ARGUMENT);
    OK(cons_accumulator_free(sum));
    CHECK(cons_accumulator_add(sum, leaf, 6, CONS_F32) == CONS_ERR_FREED);
    CHECK(cons_accumulator_free(sum) == CONS_ERR_FREED);
    OK(cons_barrier(comm));
}

/* One rank's call is wrong: the others are told, and all accumulators are as before. */
static void bad_calls(cons_comm comm, int rank, int size) {
    float leaf[6] = {1, 2, 3, 4, 5, 6};
    int odd = rank == 1, code = odd ? CONS_ERR_ARGUMENT : CONS_ERR_MISMATCH;
    cons_accumulator sum = init(comm, 6, rank), none = 0;
    /* Leaves outside those of all ranks. */
    if (odd) {
        CHECK(cons_accumulator_init(comm, 6, CONS_F32, CONS_SUM, 3, 9, LEAVES, &none) == code && none == 0);
        CHECK(strcmp(last_error(comm).found, "3..9") == 0);
        CHECK(cons_accumulator_init(comm, 6, CONS_F32, CONS_SUM, 3, 6, LEAVES, NULL) == code);
        CHECK(strcmp(last_error(comm).argument, "sum") == 0);
    } else {
        CHECK(cons_barrier(comm) == code && cons_barrier(comm) == code);
    }
    /* A leaf is missing on rank 1. */
    if (!odd) add(sum, leaf, 6, rank);
    CHECK(cons_all_reduce_accumulated(comm, sum, leaf, leaf, 6, CONS_F32) == code);
    CHECK(strcmp(last_error(comm).found, "0 leaves") == 0 || !odd);
    CHECK(last_error(comm).replica == 1);
    if (odd) add(sum, leaf, 6, rank);
    /* Other wrong arguments. */
    CHECK(cons_all_reduce_accumulated(comm, sum, odd ? NULL : leaf, leaf, 6, CONS_F32) == code);
    CHECK(cons_all_reduce_accumulated(comm, sum, leaf, leaf, odd ? 5 : 6, CONS_F32) == code);
    CHECK(cons_reduce_accumulated(comm, sum, leaf, leaf, 6, CONS_F32, odd ? size : 0) == code);
    CHECK(cons_reduce_scatter_accumulated(comm, sum, leaf, leaf, odd ? 6 : 2, CONS_F32) == code);
    /* An accumulator that was freed. */
    int freed = cons_all_reduce_accumulated(comm, odd ? 12345 : sum, leaf, leaf, 6, CONS_F32);
    CHECK(freed == (odd ? CONS_ERR_FREED : CONS_ERR_MISMATCH));
    OK(cons_all_reduce_accumulated(comm, sum, leaf, leaf, 6, CONS_F32));
    CHECK(memcmp(leaf, expected[0], sizeof leaf) == 0);
    OK(cons_accumulator_free(sum));
    /* The mean of integers is no integer. */
    int64_t whole[2] = {1, 2};
    size_t start = (size_t)rank;
    OK(cons_accumulator_init(comm, 2, CONS_I64, CONS_MEAN, start, start + 1, RANKS, &sum));
    CHECK(cons_all_reduce_accumulated(comm, sum, whole, whole, 2, CONS_I64) == CONS_ERR_ARGUMENT);
    OK(cons_accumulator_free(sum));
    OK(cons_barrier(comm));
}

/* Runs that do not follow each other. */
static void gap(cons_comm comm, int rank, int size) {
    float leaf[6] = {1, 2, 3, 4, 5, 6};
    size_t start = rank == 1 ? 3 : 2 * (size_t)rank, end = 2 * (size_t)rank + 2;
    cons_accumulator sum = 0;
    OK(cons_accumulator_init(comm, 6, CONS_F32, CONS_SUM, start, end, 2 * (size_t)size, &sum));
    if (rank != 1) OK(cons_accumulator_add(sum, leaf, 6, CONS_F32));
    CHECK(cons_all_reduce_accumulated(comm, sum, leaf, leaf, 6, CONS_F32) == CONS_ERR_MISMATCH);
    cons_error error = last_error(comm);
    CHECK(error.replica == 1 && strcmp(error.argument, "leaves") == 0 && strcmp(error.found, "3..4") == 0);
    OK(cons_accumulator_free(sum));
    OK(cons_barrier(comm));
}

int main(void) {
    size_t bytes = sizeof(float) * (counts[0] + counts[1]);
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    expected[0] = (float *)memory;
    expected[1] = expected[0] + counts[0];
    /* As processes first: a fork of a process that uses the library cannot use it. */
    for (int as_processes = 1; as_processes >= 0; as_processes--) {
        memset(memory, 0, bytes);
        on_ranks(as_processes, LEAVES, 60000, a_rank_for_each_leaf);
        on_ranks(as_processes, RANKS, 60000, fewer_ranks);
        on_ranks(as_processes, RANKS, 60000, complex_leaves);
        on_ranks(as_processes, RANKS, 60000, bad_leaves);
        on_ranks(as_processes, RANKS, 60000, bad_calls);
        on_ranks(as_processes, RANKS, 60000, gap);
    }
    puts("accumulators: all right");
    return 0;
}
