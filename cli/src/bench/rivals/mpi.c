// A rank of MPI: executes the requests that `consonance bench` sends over a socket. rank.rs
// describes the protocol.
//
// The line of a case continues with PERIOD SIZE TILES, three lists of segments and the counts of
// ranks. The lists are for the buffer that is sent, the other buffer before the call, and the other
// buffer after the call. Each begins with its length; a segment is TILE SHIFT COUNT. After the line
// come the bytes of TILES patterns of PERIOD elements of SIZE bytes.
#define _GNU_SOURCE
#include <fcntl.h>
#include <mpi.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>

enum { ALL_REDUCE, ALL_GATHER, ALL_GATHER_V, REDUCE_SCATTER, BROADCAST, ALL_TO_ALL, BARRIER, GATHER, SCATTER, REDUCE, GATHER_V, SCATTER_V,
       ALL_TO_ALL_V, SEND_RECV, COLLECTIVES };
static const char *const names[] = {"all_reduce", "all_gather", "all_gather_v", "reduce_scatter", "broadcast",
                                    "all_to_all", "barrier", "gather", "scatter", "reduce", "gather_v", "scatter_v",
                                    "all_to_all_v", "send_recv"};

typedef struct { long tile, shift, count; } Segment;
typedef struct { long length; Segment segments[1024]; long count; } Segments;

static int rank, ranks;
static FILE *from, *to;
static int collective;
static char dtype[16], op[16];
static long in_place, count, sets, period, size, tiles;
static Segments sent, before, after;
static int counts[1024], displacements[1024];
static char *patterns, **sends, **recvs;
static MPI_Datatype type;
static MPI_Op operation;

static void fail(const char *why) {
    fprintf(stderr, "rank %d: %s\n", rank, why);
    exit(1);
}

static double seconds(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return time.tv_sec + 1e-9 * time.tv_nsec;
}

static long number(void) {
    long value;
    if (fscanf(from, "%ld", &value) != 1) fail("expected a number");
    return value;
}

static void read_segments(Segments *list) {
    list->length = number();
    list->count = 0;
    if (list->length > 1024) fail("too many segments");
    for (long i = 0; i < list->length; i++) {
        Segment *segment = &list->segments[i];
        segment->tile = number(), segment->shift = number(), segment->count = number();
        list->count += segment->count;
    }
}

// Fills `buffer`, or counts the elements that differ from the pattern.
static long walk(char *buffer, const Segments *list, long turn, int fill) {
    long wrong = 0;
    for (long i = 0; i < list->length; i++) {
        const Segment *segment = &list->segments[i];
        const char *pattern = patterns + (segment->tile * 2 * period + (segment->shift + turn) % period) * size;
        for (long done = 0; done < segment->count; done += period) {
            long part = segment->count - done < period ? segment->count - done : period;
            if (fill) memcpy(buffer, pattern, part * size);
            else if (memcmp(buffer, pattern, part * size))
                for (long j = 0; j < part; j++) wrong += memcmp(buffer + j * size, pattern + j * size, size) != 0;
            buffer += part * size;
        }
    }
    return wrong;
}

static int reduces(void) {
    return collective == ALL_REDUCE || collective == REDUCE || collective == REDUCE_SCATTER;
}

// Returns why MPI has no such call, or NULL.
static const char *choose(void) {
    static const struct { const char *name; MPI_Datatype type; } types[] = {
        {"i8", MPI_INT8_T}, {"i16", MPI_INT16_T}, {"i32", MPI_INT32_T}, {"i64", MPI_INT64_T}, {"u8", MPI_UINT8_T},
        {"u16", MPI_UINT16_T}, {"u32", MPI_UINT32_T}, {"u64", MPI_UINT64_T}, {"f32", MPI_FLOAT}, {"f64", MPI_DOUBLE}};
    static const struct { const char *name; MPI_Op op; } operations[] = {
        {"sum", MPI_SUM}, {"product", MPI_PROD}, {"min", MPI_MIN}, {"max", MPI_MAX}, {"and", MPI_BAND}, {"or", MPI_BOR}, {"xor", MPI_BXOR}};
    type = MPI_DATATYPE_NULL, operation = MPI_OP_NULL;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) if (!strcmp(dtype, types[i].name)) type = types[i].type;
    for (size_t i = 0; i < sizeof operations / sizeof *operations; i++) if (!strcmp(op, operations[i].name)) operation = operations[i].op;
    if (reduces() && type == MPI_DATATYPE_NULL) return "MPI has no operations on this type";
    if (reduces() && operation == MPI_OP_NULL) return "MPI has no such operation";
    // Elements that are only moved may have any type of their size.
    if (type == MPI_DATATYPE_NULL) type = size == 1 ? MPI_UINT8_T : MPI_UINT16_T;
    return NULL;
}

static void prepare(void) {
    for (long set = 0; set < sets; set++) free(sends[set]), free(recvs[set]);
    free(sends), free(recvs), free(patterns);
    char name[32];
    if (fscanf(from, "%31s %15s %15s", name, dtype, op) != 3) fail("expected a case");
    for (collective = 0; collective < COLLECTIVES && strcmp(names[collective], name); collective++) {}
    in_place = number(), number(), count = number(), sets = number(), number(), period = number(), size = number(), tiles = number();
    read_segments(&sent), read_segments(&before), read_segments(&after);
    long place = 0;
    for (int i = 0; i < ranks; i++) counts[i] = number(), displacements[i] = place, place += counts[i];
    fgetc(from);
    // Each pattern twice in a row, so that a period from anywhere in the first half is contiguous.
    patterns = malloc(tiles * 2 * period * size);
    for (long i = 0; i < tiles; i++) {
        char *pattern = patterns + i * 2 * period * size;
        if (fread(pattern, size, period, from) != (size_t)period) fail("expected patterns");
        memcpy(pattern + period * size, pattern, period * size);
    }
    sends = malloc(sets * sizeof *sends), recvs = malloc(sets * sizeof *recvs);
    // Ordinary memory, as a user's and as our ranks' vectors: no alignment but the allocator's.
    for (long set = 0; set < sets; set++) {
        sends[set] = malloc(sent.count ? sent.count * size : 1), recvs[set] = malloc(before.count ? before.count * size : 1);
        if (!sends[set] || !recvs[set]) fail("no memory for the buffers");
    }
    const char *why = collective == COLLECTIVES ? "no call of MPI for this collective" : choose();
    if (why) fprintf(to, "none %s\n", why);
    else fputs("ok\n", to);
    fflush(to);
}

static void call(void *send, void *recv) {
    MPI_Comm world = MPI_COMM_WORLD;
    int root = rank == 0;
    const void *own = in_place ? MPI_IN_PLACE : send;
    switch (collective) {
    case ALL_REDUCE: MPI_Allreduce(own, recv, count, type, operation, world); break;
    case ALL_GATHER: MPI_Allgather(own, count, type, recv, count, type, world); break;
    case ALL_GATHER_V: MPI_Allgatherv(own, counts[rank], type, recv, counts, displacements, type, world); break;
    case ALL_TO_ALL: MPI_Alltoall(own, count, type, recv, count, type, world); break;
    case REDUCE_SCATTER: MPI_Reduce_scatter_block(own, recv, count, type, operation, world); break;
    case REDUCE: MPI_Reduce(in_place && !root ? recv : own, recv, count, type, operation, 0, world); break;
    case BROADCAST: MPI_Bcast(recv, count, type, 0, world); break;
    case BARRIER: MPI_Barrier(world); break;
    case GATHER: MPI_Gather(in_place && root ? MPI_IN_PLACE : send, count, type, recv, count, type, 0, world); break;
    case SCATTER: MPI_Scatter(send, count, type, in_place && root ? MPI_IN_PLACE : recv, count, type, 0, world); break;
    case GATHER_V:
        MPI_Gatherv(in_place && root ? MPI_IN_PLACE : send, counts[rank], type, recv, counts, displacements, type, 0, world);
        break;
    case SCATTER_V:
        MPI_Scatterv(send, counts, displacements, type, in_place && root ? MPI_IN_PLACE : recv, counts[rank], type, 0, world);
        break;
    case ALL_TO_ALL_V: MPI_Alltoallv(send, counts, displacements, type, recv, counts, displacements, type, world); break;
    case SEND_RECV:
        if (rank == 0) MPI_Send(send, count, type, 1, 0, world);
        if (rank == 1) MPI_Recv(recv, count, type, 0, 0, world, MPI_STATUS_IGNORE);
        break;
    default: fail("an unknown collective");
    }
}

// The gate: kernels/src/os/gate.rs describes the file.
typedef struct { _Atomic uint64_t numbers[16]; } Place;
static Place *gate;
enum { LOOK = 4096 };

static void open_gate(const char *socket) {
    char path[sizeof ((struct sockaddr_un *)0)->sun_path + 8];
    strcpy(path, socket);
    char *name = strrchr(path, '/');
    strcpy(name ? name + 1 : path, "gate");
    int file = open(path, O_RDWR | O_CLOEXEC);
    struct stat stat;
    if (file < 0 || fstat(file, &stat) || stat.st_size < (off_t)((1 + ranks) * sizeof *gate)) fail("no gate beside the socket");
    gate = mmap(NULL, stat.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (gate == MAP_FAILED) fail("the gate cannot be mapped");
    if (atomic_load(&gate->numbers[0]) != (uint64_t)ranks) fail("a gate of another number of ranks");
}

static void meet(void) {
    static uint64_t round;
    uint64_t polls = atomic_load_explicit(&gate->numbers[1], memory_order_relaxed), polled = 0;
    double deadline = 0;
    atomic_store_explicit(&gate[1 + rank].numbers[0], ++round, memory_order_release);
    for (int other = 0; other < ranks; other++)
        while (atomic_load_explicit(&gate[1 + other].numbers[0], memory_order_acquire) < round) {
            if (++polled % LOOK == 0) {
                double now = seconds(CLOCK_MONOTONIC);
                if (!deadline) deadline = now + 1e-3 * atomic_load(&gate->numbers[2]);
                if (now >= deadline) fail("another rank did not come to a call");
            }
            // MPI may do the rest of a call only in a later call. A rank that waits for long lets
            // it, so that nobody waits for ever.
            if (polled >= LOOK || polled % (4 * polls) == 0) {
                int is_there;
                MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &is_there, MPI_STATUS_IGNORE);
            }
            if (polled % polls == 0) sched_yield();
#if defined __x86_64__ || defined __i386__
            else __builtin_ia32_pause();
#elif defined __aarch64__
            else __asm__ volatile("isb");
#endif
        }
}

// The computation of pace.rs.
static void compute(long rounds) {
    volatile uint64_t first = 1;
    uint64_t value = first;
    while (rounds-- > 0) value = (value ^ value >> 29) * 6364136223846793005u;
    first = value;
}

static void steps(void) {
    long batches = number(), turn = number(), rounds = number(), wrong = 0;
    for (long set = 0; set < sets; set++) walk(sends[set], &sent, turn + set, 1), walk(recvs[set], &before, turn + set, 1);
    double cpu = seconds(CLOCK_PROCESS_CPUTIME_ID);
    meet();
    double begin = seconds(CLOCK_MONOTONIC);
    for (long batch = 0; batch < batches; batch++)
        for (long set = 0; set < sets; set++) compute(rounds), call(sends[set], recvs[set]);
    double mean = (seconds(CLOCK_MONOTONIC) - begin) / (batches * sets);
    cpu = (seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu) / (batches * sets);
    for (long set = 0; set < sets; set++) wrong += walk(recvs[set], &after, turn + set, 0);
    fprintf(to, "done 1 %e %ld\n", cpu, wrong);
    fwrite(&mean, sizeof mean, 1, to);
    fflush(to);
}

static void run(void) {
    long batches = number(), turn = number(), warm_up = batches > 1, calls = batches * sets, wrong = 0, done = 0;
    double *times = malloc((calls + sets) * sizeof *times), cpu = 0;
    for (long batch = 0; batch < batches + warm_up; batch++, turn += sets) {
        for (long set = 0; set < sets; set++) walk(sends[set], &sent, turn + set, 1), walk(recvs[set], &before, turn + set, 1);
        double cpu_begin = seconds(CLOCK_PROCESS_CPUTIME_ID);
        for (long set = 0; set < sets; set++) {
            meet();
            double begin = seconds(CLOCK_MONOTONIC);
            call(sends[set], recvs[set]);
            times[done + set] = seconds(CLOCK_MONOTONIC) - begin;
        }
        if (batch >= warm_up) done += sets, cpu += seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu_begin;
        for (long set = 0; set < sets; set++) wrong += walk(recvs[set], &after, turn + set, 0);
    }
    fprintf(to, "done %ld %e %ld\n", calls, cpu, wrong);
    fwrite(times, sizeof *times, calls, to);
    fflush(to);
    free(times);
}

// Pins this rank to its core, the same with every library, before MPI chooses memory by the core
// that it runs on.
static void pin(void) {
    const char *number = getenv("OMPI_COMM_WORLD_RANK");
    if (!number) number = getenv("PMI_RANK");
    cpu_set_t allowed, only;
    if (!number || sched_getaffinity(0, sizeof allowed, &allowed)) fail("no core for this rank");
    int left = atoi(number) % CPU_COUNT(&allowed), cpu = 0;
    while (!CPU_ISSET(cpu, &allowed) || left-- > 0) cpu++;
    CPU_ZERO(&only);
    CPU_SET(cpu, &only);
    if (sched_setaffinity(0, sizeof only, &only)) fail("no core for this rank");
}

int main(int argc, char **argv) {
    // This process must not outlive the bench.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    // pace.rs: ranks of steps may move between cores.
    if (!getenv("CONSONANCE_BENCH_FREE")) pin();
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank), MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (argc < 2 || strlen(argv[1]) >= sizeof address.sun_path || ranks > 1024) fail("expected a socket and at most 1024 ranks");
    strcpy(address.sun_path, argv[1]);
    int link = socket(AF_UNIX, SOCK_STREAM, 0);
    if (connect(link, (struct sockaddr *)&address, sizeof address)) fail("no bench at the socket");
    from = fdopen(link, "r"), to = fdopen(dup(link), "w");
    open_gate(argv[1]);
    fprintf(to, "rank %d gate\n", rank), fflush(to);
    for (char word[8]; fscanf(from, "%7s", word) == 1;) {
        if (!strcmp(word, "case")) prepare();
        else if (!strcmp(word, "run")) run();
        else if (!strcmp(word, "steps")) steps();
        else fail("expected a case or a run");
    }
    MPI_Finalize();
}
