/* Exact sums and means are rounded once, where plain ones lose digits. */
#include "ranks.h"
#include <float.h>
#include <math.h>

enum { COUNT = 200000 };

static cons_error last_error(cons_comm comm) {
    cons_error error = sized_error();
    OK(cons_last_error(comm, &error));
    return error;
}

/* Makes the call, or starts it and waits for it. */
static int reduce(int starts, cons_comm comm, const void *send, void *recv, size_t count, int dtype, int op) {
    if (!starts) return cons_all_reduce_exact(comm, send, recv, count, dtype, op);
    cons_request request = 0;
    int code = cons_iall_reduce_exact(comm, send, recv, count, dtype, op, &request);
    if (code != CONS_OK) return code;
    code = cons_wait(request, 0, NULL);
    OK(cons_request_free(request));
    return code;
}

/* Ranks 0, 1 and 2 have 1e16, 1 and -1e16. */
static double own(int rank) {
    return rank == 0 ? 1e16 : rank == 1 ? 1 : -1e16;
}

/* The rounded sum of `factor` times those. A sum of two is rounded once anyway. */
static double whole(int size, double factor) {
    return size == 1 ? 1e16 * factor : size == 2 ? 1e16 * factor + factor : factor;
}

static void results(cons_comm comm, int rank, int size) {
    double *data = (double *)malloc(2 * COUNT * sizeof(double)), *sums = data + COUNT;
    for (int starts = 0; starts < 2; starts++) {
        /* Apart, of several rounds; the elements stay. */
        for (size_t index = 0; index < COUNT; index++) data[index] = own(rank) * (double)(index % 4), sums[index] = 7;
        OK(reduce(starts, comm, data, sums, COUNT, CONS_F64, CONS_SUM));
        for (size_t index = 0; index < COUNT; index++) {
            CHECK(sums[index] == whole(size, (double)(index % 4)));
            CHECK(data[index] == own(rank) * (double)(index % 4));
        }
        /* In place; of floats; complex numbers. */
        double mean = own(rank);
        OK(reduce(starts, comm, &mean, &mean, 1, CONS_F64, CONS_MEAN));
        CHECK(mean == (size == 3 ? 1.0 / 3 : size == 2 ? 5e15 : 1e16));
        float small[2] = {(float)own(rank), 1};
        OK(reduce(starts, comm, small, small, 2, CONS_F32, CONS_SUM));
        CHECK(small[0] == (float)(size == 3 ? 1 : 1e16) && small[1] == (float)size);
        double complex_number[2] = {own(rank), -own(rank)};
        OK(reduce(starts, comm, complex_number, complex_number, 1, CONS_C128, CONS_SUM));
        CHECK(complex_number[0] == whole(size, 1) && complex_number[1] == -whole(size, 1));
        /* Values that are not finite, and sums in between that are not. */
        double odd[4] = {rank == 0 ? NAN : 1, rank == 0 ? INFINITY : 1, rank == 0 ? INFINITY : -INFINITY, rank == 2 ? -DBL_MAX : DBL_MAX};
        OK(reduce(starts, comm, odd, odd, 4, CONS_F64, CONS_SUM));
        CHECK(isnan(odd[0]) && odd[1] == INFINITY && (size == 1 ? odd[2] == INFINITY : isnan(odd[2])));
        CHECK(odd[3] == (size == 2 ? INFINITY : DBL_MAX));
        OK(reduce(starts, comm, NULL, NULL, 0, CONS_F32, CONS_SUM));
    }
    if (size == 3) {
        /* The plain sum loses the 1. */
        double plain = own(rank);
        OK(cons_all_reduce(comm, &plain, &plain, 1, CONS_F64, CONS_SUM));
        CHECK(plain == 0);
    }
    free(data);
}

/* Rank 1 makes another call: it fails on all ranks, with both facts. */
static void other_calls(cons_comm comm, int rank, int size) {
    double data[4] = {1, 2, 3, 4};
    int32_t whole_numbers[4] = {1, 2, 3, 4};
    int odd = rank == 1, code = odd ? CONS_ERR_ARGUMENT : CONS_ERR_MISMATCH;
    for (int starts = 0; starts < 2; starts++) {
        CHECK(reduce(starts, comm, data, data, odd ? 3 : 4, CONS_F64, CONS_SUM) == CONS_ERR_MISMATCH);
        cons_error error = last_error(comm);
        CHECK(error.replica == 1 && strcmp(error.call, "all_reduce_exact") == 0);
        CHECK(strcmp(error.argument, "count") == 0 && strcmp(error.expected, "4") == 0 && strcmp(error.found, "3") == 0);
        CHECK(reduce(starts, comm, data, data, 2, odd ? CONS_F64 : CONS_C128, CONS_SUM) == CONS_ERR_MISMATCH);
        CHECK(strcmp(last_error(comm).argument, "type") == 0);
        int plain = odd ? cons_all_reduce(comm, data, data, 4, CONS_F64, CONS_SUM) : reduce(starts, comm, data, data, 4, CONS_F64, CONS_SUM);
        CHECK(plain == CONS_ERR_MISMATCH && strcmp(last_error(comm).found, "all_reduce") == 0);
        /* Arguments that are wrong on rank 1. */
        CHECK(reduce(starts, comm, data, data, 4, CONS_F64, odd ? CONS_MAX : CONS_SUM) == code);
        error = last_error(comm);
        CHECK(error.replica == 1 && (!odd || (strcmp(error.argument, "op") == 0 && strcmp(error.expected, "sum or mean") == 0 && strcmp(error.found, "max") == 0)));
        void *elements = odd ? (void *)whole_numbers : (void *)data;
        CHECK(reduce(starts, comm, elements, elements, 4, odd ? CONS_I32 : CONS_F64, CONS_SUM) == code);
        error = last_error(comm);
        CHECK(error.replica == 1 && (!odd || (strcmp(error.expected, "elements of f32 or f64") == 0 && strcmp(error.found, "elements of i32") == 0)));
        CHECK(reduce(starts, comm, odd ? NULL : data, data, 4, CONS_F64, CONS_SUM) == code);
    }
    CHECK(data[0] == 1 && data[3] == 4);
    OK(reduce(0, comm, data, data, 4, CONS_F64, CONS_SUM));
    CHECK(data[3] == 4 * size);
}

int main(void) {
    /* As processes first: a fork of a process that uses the library cannot use it. */
    for (int as_processes = 1; as_processes >= 0; as_processes--) {
        for (int size = 1; size <= 3; size++) on_ranks(as_processes, size, 60000, results);
        on_ranks(as_processes, 3, 60000, other_calls);
    }
    puts("exact: all right");
    return 0;
}
