/* Every kind of bad input, on threads and on processes. */
#include "ranks.h"

static cons_error last(cons_comm comm) {
    cons_error error = sized_error();
    OK(cons_last_error(comm, &error));
    return error;
}

/* Returns the end of this rank's last call. Between processes a rank that gives or takes few data
 * may hear of it at the next call, which is made all the same. */
static int told(cons_comm comm, int code) {
    int next = cons_barrier(comm);
    if (code == CONS_OK) return next;
    OK(next);
    return code;
}

/* One rank differs in the call, the type, the operation, the count or the root. */
static void differences(cons_comm comm, int rank, int size) {
    double data[8] = {0};
    int odd = rank == size - 1;
    const char *arguments[5] = {"call", "dtype", "op", "count", "root"};
    int codes[5];
    codes[0] = odd ? cons_barrier(comm) : cons_all_reduce(comm, data, data, 4, CONS_F64, CONS_SUM);
    codes[1] = cons_all_reduce(comm, data, data, 4, odd ? CONS_I64 : CONS_F64, CONS_SUM);
    codes[2] = cons_all_reduce(comm, data, data, 4, CONS_F64, odd ? CONS_MAX : CONS_SUM);
    codes[3] = cons_all_reduce(comm, data, data, odd ? 3 : 4, CONS_F64, CONS_SUM);
    codes[4] = told(comm, cons_broadcast(comm, data, 4, CONS_F64, odd));
    for (int index = 0; index < 5; index++) CHECK(codes[index] == CONS_ERR_MISMATCH);
    CHECK(cons_all_reduce(comm, data, data, 4, CONS_F64, odd ? CONS_MEAN : CONS_SUM) == CONS_ERR_MISMATCH);
    cons_error error = last(comm);
    CHECK(error.code == CONS_ERR_MISMATCH && strcmp(error.call, "all_reduce") == 0 && error.missing_count == 0);
    CHECK(strcmp(error.argument, arguments[2]) == 0);
    if (size > 2) {
        CHECK(error.replica == size - 1);
        CHECK(strcmp(error.expected, "sum") == 0 && strcmp(error.found, "mean") == 0);
    }
    CHECK(cons_all_reduce(comm, data, data, odd ? 2 : 1, odd ? CONS_F64 : CONS_C128, CONS_SUM) == CONS_ERR_MISMATCH);
    OK(cons_barrier(comm));
}

/* One rank passes a wrong argument: the others are told. */
static void arguments(cons_comm comm, int rank, int size) {
    int64_t data[8] = {0};
    unsigned char truth[2] = {1, 2};
    int odd = rank == 1, expected = odd ? CONS_ERR_ARGUMENT : CONS_ERR_MISMATCH;
    size_t counts[8] = {0};
    void *misaligned = (char *)data + 4;
    cons_request request = 0;
    CHECK(cons_all_reduce(comm, odd ? NULL : data, data, 4, CONS_I64, CONS_SUM) == expected);
    if (odd) {
        cons_error error = last(comm);
        CHECK(error.replica == 1 && strcmp(error.argument, "send") == 0 && strcmp(error.found, "null") == 0);
    } else {
        CHECK(last(comm).replica == 1);
    }
    CHECK(cons_all_reduce(comm, odd ? misaligned : data, odd ? misaligned : data, 2, CONS_I64, CONS_SUM) == expected);
    CHECK(cons_all_reduce(comm, data, data, 2, odd ? 99 : (int)CONS_I64, CONS_SUM) == expected);
    CHECK(cons_all_reduce(comm, data, data, 2, CONS_I64, odd ? -1 : (int)CONS_SUM) == expected);
    CHECK(cons_all_reduce(comm, data, data, 2, odd ? CONS_F32 : CONS_I64, odd ? CONS_XOR : CONS_SUM) == expected);
    for (int op = CONS_PRODUCT; op <= CONS_XOR; op++) {
        CHECK(cons_all_reduce(comm, data, data, 2, odd ? CONS_C64 : CONS_I64, odd ? op : (int)CONS_SUM) == expected);
        CHECK(cons_all_reduce(comm, data, data, 2, odd ? CONS_C128 : CONS_I64, odd ? op : (int)CONS_SUM) == expected);
        CHECK(!odd || strcmp(last(comm).expected, "sum or mean, for complex numbers") == 0);
    }
    CHECK(cons_all_reduce(comm, data, data, odd ? SIZE_MAX / 4 : 2, CONS_I64, CONS_SUM) == expected);
    CHECK(told(comm, cons_broadcast(comm, data, 2, CONS_I64, odd ? size : 0)) == expected);
    CHECK(told(comm, cons_broadcast(comm, data, 2, CONS_I64, odd ? -1 : 0)) == expected);
    CHECK(cons_all_gather_v(comm, data, data, odd ? NULL : counts, CONS_I64) == expected);
    truth[1] = odd ? 2 : 1;
    CHECK(cons_all_reduce(comm, truth, truth, 2, CONS_BOOL, CONS_AND) == expected);
    if (odd) {
        CHECK(cons_ireduce(comm, data, NULL, 2, CONS_I64, CONS_SUM, 7, &request) == CONS_ERR_ARGUMENT);
    } else {
        CHECK(cons_reduce(comm, data, data, 2, CONS_I64, CONS_SUM, 0) == CONS_ERR_MISMATCH);
    }
    if (odd) {
        CHECK(cons_iall_reduce(comm, data, data, 2, CONS_I64, CONS_SUM, NULL) == CONS_ERR_ARGUMENT);
        CHECK(strcmp(last(comm).argument, "request") == 0);
    } else {
        CHECK(cons_all_reduce(comm, data, data, 2, CONS_I64, CONS_SUM) == CONS_ERR_MISMATCH);
    }
    cons_comm part = 0;
    CHECK(cons_comm_split(comm, 0, 0, odd ? NULL : &part) == expected && part == 0);
    CHECK(odd ? strcmp(last(comm).argument, "part") == 0 : last(comm).replica == 1);
    OK(cons_barrier(comm));

    /* Calls for which no other rank waits. */
    cons_error small = sized_error();
    small.size = 8;
    CHECK(cons_last_error(comm, &small) == CONS_ERR_ARGUMENT);
    CHECK(cons_last_error(comm, NULL) == CONS_ERR_ARGUMENT);
    CHECK(cons_isend(comm, data, 2, CONS_I64, 0, 0, NULL) == CONS_ERR_ARGUMENT);
    CHECK(cons_send(comm, data, 2, CONS_I64, size, 0) == CONS_ERR_ARGUMENT);
    CHECK(cons_send(comm, NULL, 2, CONS_I64, 0, 0) == CONS_ERR_ARGUMENT);
    CHECK(cons_recv(comm, data, 2, 50, 0, 0, NULL) == CONS_ERR_ARGUMENT);
    CHECK(cons_comm_set_timeout(comm, -5) == CONS_ERR_ARGUMENT);
    cons_error refused = last(comm);
    CHECK(strcmp(refused.call, "cons_comm_set_timeout") == 0 && strcmp(refused.argument, "timeout_ms") == 0);
    CHECK(strcmp(refused.expected, "0 or more milliseconds") == 0 && strcmp(refused.found, "-5") == 0);
    CHECK(cons_comm_rank(comm, NULL) == CONS_ERR_ARGUMENT);
    CHECK(cons_free(data) == CONS_ERR_ARGUMENT);
    CHECK(cons_barrier(0) == CONS_ERR_ARGUMENT);
    CHECK(cons_barrier(12345) == CONS_ERR_FREED);
    CHECK(strcmp(last(0).call, "cons_barrier") == 0 && strcmp(last(0).argument, "comm") == 0);
    CHECK(cons_wait(comm, 0, NULL) == CONS_ERR_FREED);
    cons_comm other = 0;
    cons_id id;
    OK(cons_unique_id(&id));
    cons_config config = sized_config(0, 0);
    config.size = 3;
    CHECK(cons_comm_init(&other, &id, 2, 0, &config) == CONS_ERR_ARGUMENT);
    CHECK(cons_comm_init(&other, &id, 2, 2, NULL) == CONS_ERR_ARGUMENT);
    CHECK(cons_comm_init(&other, &id, -1, 0, NULL) == CONS_ERR_ARGUMENT);
    CHECK(cons_comm_init(&other, &id, 1 << 30, 0, NULL) == CONS_ERR_ARGUMENT);
    CHECK(cons_comm_init(&other, NULL, 2, 0, NULL) == CONS_ERR_ARGUMENT);
    CHECK(cons_comm_init(NULL, &id, 2, 0, NULL) == CONS_ERR_ARGUMENT);
    CHECK(cons_unique_id_across_hosts(NULL) == CONS_ERR_ARGUMENT);
    cons_id across;
    OK(cons_unique_id_across_hosts(&across));
    /* A rank that is alone needs no network. */
    OK(cons_comm_init(&other, &across, 1, 0, NULL));
    OK(cons_comm_free(other));
    other = 0;
    config = sized_config(0, 50);
    CHECK(cons_comm_init(&other, &id, 2, 0, &config) == CONS_ERR_MEETING && other == 0);
    cons_error error = last(0);
    CHECK(strstr(error.text, "rank 1") != NULL && strcmp(error.call, "ProcessGroup") == 0);
    CHECK(error.replica == 1 && error.missing_count == 1 && error.missing[0] == 1);
    memset(&id, 7, sizeof id);
    CHECK(cons_comm_init(&other, &id, 1, 0, NULL) == CONS_ERR_ARGUMENT);
}

static void unlike_messages(cons_comm comm, int rank, int size) {
    float data[4000] = {0};
    (void)size;
    if (rank == 0) {
        CHECK(cons_send(comm, data, 4000, CONS_F32, 1, 3) == CONS_ERR_MISMATCH);
        cons_error error = last(comm);
        CHECK(error.replica == 0 && strcmp(error.expected, "3999") == 0 && strcmp(error.found, "4000") == 0);
    } else if (rank == 1) {
        CHECK(cons_recv(comm, data, 3999, CONS_F32, 0, 3, NULL) == CONS_ERR_MISMATCH);
    }
    OK(cons_barrier(comm));
    /* Complex numbers are not twice as many reals. */
    if (rank == 0) {
        CHECK(cons_send(comm, data, 2000, CONS_C64, 1, 3) == CONS_ERR_MISMATCH);
        cons_error error = last(comm);
        CHECK(strcmp(error.expected, "f32") == 0 && strcmp(error.found, "c64") == 0);
    } else if (rank == 1) {
        CHECK(cons_recv(comm, data, 4000, CONS_F32, 0, 3, NULL) == CONS_ERR_MISMATCH);
        CHECK(strstr(last(comm).argument, "dtype") != NULL);
    }
    OK(cons_comm_set_timeout(comm, 100));
    CHECK(cons_recv(comm, data, 1, CONS_F32, CONS_ANY, 4, NULL) == CONS_ERR_TIMEOUT);
    CHECK(last(comm).missing_count == size - 1);
    OK(cons_comm_set_timeout(comm, 0));
    OK(cons_barrier(comm));
}

/* This call's deadline has passed, or before that another rank's, because of one rank. */
static void is_missing(cons_comm comm, int code, int missing) {
    cons_error error = last(comm);
    CHECK(code == CONS_ERR_TIMEOUT || code == CONS_ERR_ABORTED);
    CHECK(error.replica == missing);
    CHECK(code != CONS_ERR_TIMEOUT || (error.missing_count == 1 && error.missing[0] == missing));
}

/* The last rank makes no call. */
static void missing(cons_comm comm, int rank, int size) {
    if (rank == size - 1) {
        usleep(1500 * 1000);
        CHECK(cons_barrier(comm) == CONS_ERR_ABORTED);
        return;
    }
    is_missing(comm, cons_barrier(comm), size - 1);
}

/* The last rank is stopped, until it is killed. */
static void stopped(cons_comm comm, int rank, int size) {
    OK(cons_barrier(comm));
    if (rank == size - 1) raise(SIGSTOP);
    OK(cons_comm_set_timeout(comm, 300));
    is_missing(comm, cons_barrier(comm), size - 1);
}

/* The last rank is killed. */
static void killed(cons_comm comm, int rank, int size) {
    OK(cons_barrier(comm));
    if (rank == size - 1) raise(SIGKILL);
    CHECK(cons_barrier(comm) == CONS_ERR_LOST);
    CHECK(last(comm).replica == size - 1);
}

static void *abort_later(void *comm) {
    usleep(50 * 1000);
    OK(cons_comm_abort(*(cons_comm *)comm));
    return NULL;
}

/* The rank that aborted the group may have left since. */
static int is_end(int code) {
    return code == CONS_ERR_ABORTED || code == CONS_ERR_LOST;
}

/* Rank 0 aborts the group from another thread, while it waits itself. */
static void aborted(cons_comm comm, int rank, int size) {
    pthread_t thread;
    int state = 0;
    (void)size;
    if (rank == 0) CHECK(pthread_create(&thread, NULL, abort_later, &comm) == 0);
    if (rank != 1) CHECK(is_end(cons_barrier(comm)));
    if (rank == 0) pthread_join(thread, NULL);
    while (!state) OK(cons_comm_state(comm, &state));
    CHECK(is_end(cons_barrier(comm)) && last(comm).replica == 0);
}

/* A fork may call nothing. The parent goes on. */
static void forked(cons_comm comm, int rank, int size) {
    int status = 0;
    (void)size;
    OK(cons_barrier(comm));
    if (rank == 0) {
        pid_t child = fork();
        if (child == 0) {
            cons_id id;
            cons_comm other;
            int number, right = cons_barrier(comm) == CONS_ERR_FORKED && cons_unique_id(&id) == CONS_ERR_FORKED;
            right = right && cons_comm_free(comm) == CONS_ERR_FORKED && cons_comm_rank(comm, &number) == CONS_ERR_FORKED;
            right = right && cons_comm_init(&other, &id, 1, 0, NULL) == CONS_ERR_FORKED;
            _exit(right ? 17 : 1);
        }
        CHECK(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 17);
    }
    OK(cons_barrier(comm));
}

static void *sums(void *comm) {
    for (int round = 0; round < 300; round++) {
        int64_t one = 1;
        OK(cons_all_reduce(*(cons_comm *)comm, &one, &one, 1, CONS_I64, CONS_SUM));
        CHECK(one == 2);
    }
    return NULL;
}

/* Two threads on one communicator take turns. */
static void turns(cons_comm comm, int rank, int size) {
    pthread_t thread;
    (void)rank, (void)size;
    CHECK(pthread_create(&thread, NULL, sums, &comm) == 0);
    sums(&comm);
    pthread_join(thread, NULL);
}

/* Checks the requests and handles that outlive their group. */
static void left(cons_comm comm, int rank, int size) {
    OK(cons_barrier(comm));
    if (rank == size - 1) {
        OK(cons_comm_free(comm));
        CHECK(cons_comm_free(comm) == CONS_ERR_FREED);
        CHECK(cons_comm_rank(comm, &rank) == CONS_ERR_FREED);
        return;
    }
    CHECK(cons_barrier(comm) == CONS_ERR_LOST);
    CHECK(last(comm).replica == size - 1);
}

int main(void) {
    /* As processes first: a fork of a process that uses the library cannot use it. */
    on_ranks(1, 2, 60000, forked);
    killed_rank = 2;
    on_ranks(1, 3, 60000, killed);
    on_ranks(1, 3, 60000, stopped);
    killed_rank = -1;
    for (int as_processes = 1; as_processes >= 0; as_processes--) {
        on_ranks(as_processes, 3, 60000, differences);
        on_ranks(as_processes, 2, 60000, differences);
        on_ranks(as_processes, 3, 60000, arguments);
        on_ranks(as_processes, 2, 60000, unlike_messages);
        on_ranks(as_processes, 3, 300, missing);
        on_ranks(as_processes, 3, 60000, aborted);
        on_ranks(as_processes, 2, 60000, turns);
        on_ranks(as_processes, 3, 60000, left);
    }
    puts("errors: all right");
    return 0;
}
