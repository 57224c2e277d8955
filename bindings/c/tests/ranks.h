/* Runs a function on each rank of a group: of threads, or of processes. In C and in C++. */
#ifndef RANKS_H
#define RANKS_H

#ifndef _GNU_SOURCE /* which C++ compilers define */
#define _GNU_SOURCE
#endif
#include <consonance.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static inline cons_error sized_error(void) {
    cons_error error;
    memset(&error, 0, sizeof error);
    error.size = sizeof error;
    return error;
}

static inline cons_config sized_config(int64_t timeout_ms, int64_t join_timeout_ms) {
    cons_config config = {sizeof config, timeout_ms, join_timeout_ms};
    return config;
}

#define CHECK(what)                                                                    \
    do {                                                                               \
        if (!(what)) {                                                                 \
            cons_error error_ = sized_error();                                         \
            cons_last_error(0, &error_);                                               \
            fprintf(stderr, "%s:%d: %s; last error: %s\n", __FILE__, __LINE__, #what, error_.text); \
            exit(1);                                                                   \
        }                                                                              \
    } while (0)

#define OK(call) CHECK((call) == CONS_OK)

/* The rank that is killed, at the latest when those before it have ended; -1 for none. */
static int killed_rank = -1;

/* Whether groups have an id across hosts, and send over UCX. */
static int across_hosts = 0;

/* The GPU of each rank; -1 for none. */
static int gpu_of_ranks = -1;

typedef void (*body)(cons_comm comm, int rank, int size);

struct meeting {
    cons_id id;
    volatile int is_made;
};

struct place {
    struct meeting *meeting;
    int rank, size, timeout_ms;
    body run;
};

static void take_part(struct place place) {
    if (place.rank == 0) {
        OK(across_hosts ? cons_unique_id_across_hosts(&place.meeting->id) : cons_unique_id(&place.meeting->id));
        __atomic_store_n(&place.meeting->is_made, 1, __ATOMIC_RELEASE);
    }
    while (!__atomic_load_n(&place.meeting->is_made, __ATOMIC_ACQUIRE)) usleep(1000);
    cons_config config = sized_config(place.timeout_ms, 60000);
    cons_comm comm = 0;
    cons_id *id = &place.meeting->id;
    int code = gpu_of_ranks < 0 ? cons_comm_init(&comm, id, place.size, place.rank, &config)
                                : cons_comm_init_on_gpu(&comm, id, place.size, place.rank, &config, gpu_of_ranks);
    cons_error error = sized_error();
    cons_last_error(0, &error);
    if (across_hosts && code == CONS_ERR_MEETING && strstr(error.text, "there is no UCX") != NULL) {
        fprintf(stderr, "skipped a group across hosts: %s\n", error.text);
        return;
    }
    OK(code);
    place.run(comm, place.rank, place.size);
    cons_comm_free(comm);
}

static void *take_part_as_thread(void *place) {
    take_part(*(struct place *)place);
    return NULL;
}

/* As processes first, then as threads: a fork of a process that uses the library cannot use it. A
 * process that hangs is ended by its alarm. */
static void on_ranks(int as_processes, int size, int timeout_ms, body run) {
    enum { MOST = 16 };
    void *memory = mmap(NULL, sizeof(struct meeting), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED && size <= MOST);
    struct meeting *meeting = (struct meeting *)memory;
    struct place places[MOST];
    pthread_t threads[MOST];
    pid_t processes[MOST];
    for (int rank = 0; rank < size; rank++) {
        struct place place = {meeting, rank, size, timeout_ms, run};
        places[rank] = place;
        if (!as_processes) {
            CHECK(pthread_create(&threads[rank], NULL, take_part_as_thread, &places[rank]) == 0);
        } else if ((processes[rank] = fork()) == 0) {
            alarm(120);
            /* A process that is stopped hears no alarm. */
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            take_part(places[rank]);
            exit(0);
        }
    }
    for (int rank = 0; rank < size; rank++) {
        int status = 0;
        if (as_processes) {
            if (rank == killed_rank) kill(processes[rank], SIGKILL);
            CHECK(waitpid(processes[rank], &status, 0) == processes[rank]);
        } else {
            pthread_join(threads[rank], NULL);
        }
        if (rank == killed_rank ? status != SIGKILL : status != 0) {
            fprintf(stderr, "rank %d ended with status %d\n", rank, status);
            exit(1);
        }
    }
    munmap(meeting, sizeof *meeting);
}

#endif
