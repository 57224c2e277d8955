/* A thousand groups, of threads and of processes, leave nothing. TMPDIR is a folder of this
 * program's own. */
#include "ranks.h"
#include <dirent.h>
#include <errno.h>

enum { FIRST = 20, GROUPS = 1000 };

/* The resources of a process. */
struct things {
    int descriptors, mappings, threads, children, shared_files, temporary_files;
};

static int entries(const char *folder) {
    DIR *open = opendir(folder);
    CHECK(open != NULL);
    int count = 0;
    while (readdir(open) != NULL) count++;
    closedir(open);
    return count;
}

static int lines(const char *path) {
    FILE *file = fopen(path, "r");
    CHECK(file != NULL);
    int count = 0;
    for (int next = getc(file); next != EOF; next = getc(file)) count += next == '\n';
    fclose(file);
    return count;
}

/* Counted by one thread at a time: it opens files itself. */
static struct things things(void) {
    struct things found;
    const char *temporary = getenv("TMPDIR");
    found.descriptors = entries("/proc/self/fd");
    found.mappings = lines("/proc/self/maps");
    found.threads = entries("/proc/self/task");
    found.children = waitpid(-1, NULL, WNOHANG) != -1 || errno != ECHILD;
    found.shared_files = entries("/dev/shm");
    found.temporary_files = entries(temporary != NULL ? temporary : "/tmp");
    return found;
}

/* Returns what this rank's process has, counted while no other rank makes or frees a group. */
static struct things things_in_turn(cons_comm comm, int rank, int size) {
    struct things found;
    memset(&found, 0, sizeof found);
    OK(cons_barrier(comm));
    for (int turn = 0; turn < size; turn++) {
        if (turn == rank) found = things();
        OK(cons_barrier(comm));
    }
    return found;
}

static void make_groups(const cons_id *ids, int count, int rank, int size) {
    for (int index = 0; index < count; index++) {
        cons_comm group = 0;
        int64_t data = rank + 1;
        OK(cons_comm_init(&group, &ids[index], size, rank, NULL));
        OK(cons_all_reduce(group, &data, &data, 1, CONS_I64, CONS_SUM));
        CHECK(data == size * (size + 1) / 2);
        OK(cons_comm_free(group));
    }
}

static void leave_nothing(cons_comm comm, int rank, int size) {
    cons_id *ids = (cons_id *)calloc(FIRST + GROUPS, sizeof *ids);
    for (int index = 0; rank == 0 && index < FIRST + GROUPS; index++) OK(cons_unique_id(&ids[index]));
    OK(cons_broadcast(comm, ids, (FIRST + GROUPS) * sizeof *ids, CONS_U8, 0));
    /* Later groups use the remains of the first ones. */
    make_groups(ids, FIRST, rank, size);
    struct things before = things_in_turn(comm, rank, size);
    make_groups(ids + FIRST, GROUPS, rank, size);
    struct things after = things_in_turn(comm, rank, size);
    /* A thread that served a group ends after the group does. */
    for (int wait = 0; wait < 3000 && after.threads > before.threads; wait++) {
        usleep(10 * 1000);
        after.threads = entries("/proc/self/task");
    }
    OK(cons_barrier(comm));
    CHECK(after.descriptors <= before.descriptors + 2);
#ifndef __SANITIZE_ADDRESS__ /* which keeps freed memory for a while */
    /* Of stacks and of malloc. */
    CHECK(after.mappings <= before.mappings + 20);
#endif
    CHECK(after.threads <= before.threads);
    CHECK(after.children == 0);
    CHECK(after.temporary_files == before.temporary_files);
    /* Other programs have files there, too. */
    CHECK(after.shared_files < before.shared_files + GROUPS / 10);
    free(ids);
}

int main(void) {
    for (int as_processes = 1; as_processes >= 0; as_processes--) on_ranks(as_processes, 2, 60000, leave_nothing);
    puts("leaves: all right");
    return 0;
}
