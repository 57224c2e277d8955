// Moves bytes: concatenation, and filling with an element.

#include "combine.cuh"

#define MOST 16

// Concatenates rows of different lengths: row `o` of the target has row `o` of each source, one
// after the other. All sizes are in units of `BYTES`, the largest that divides all of them.
struct Concat {
    u64 target;
    // From a row of the target to the next.
    u64 pitch;
    u64 outer;
    u64 sources;
    u64 source[MOST];
    // The first element of each source in a row, and the end of the last one.
    u64 start[MOST + 1];
};

template <int BYTES> INLINE void move(u64 to, u64 from) {
    if (BYTES < 4) {
        u32 word[1];
        load_single<4, BYTES < 4 ? BYTES : 4>(word, from);
        store_single<BYTES < 4 ? BYTES : 4>(to, word);
    } else {
        u32 word[(BYTES + 3) / 4];
        load_words<BYTES < 4 ? 4 : BYTES>(word, from);
        store_words<BYTES < 4 ? 4 : BYTES>(to, word);
    }
}

template <int BYTES> INLINE void concat(const Concat& f) {
    u64 thread = (u64)blockIdx.x * blockDim.x + threadIdx.x, threads = (u64)gridDim.x * blockDim.x;
    u64 row = f.start[f.sources];
    #pragma unroll 1
    for (u64 unit = thread; unit < f.outer * row; unit += threads) {
        u64 outer = unit / row, column = unit % row;
        u32 source = 0;
        #pragma unroll 1
        while (f.start[source + 1] <= column) {
            source++;
        }
        u64 start = f.start[source];
        u64 from = outer * (f.start[source + 1] - start) + column - start;
        move<BYTES>(f.target + (outer * f.pitch + column) * BYTES, f.source[source] + from * BYTES);
    }
}

#define CONCAT(BYTES)                                                                                                \
    extern "C" __global__ void __launch_bounds__(256) concat_##BYTES(const __grid_constant__ Concat f) {             \
        concat<BYTES>(f);                                                                                            \
    }

CONCAT(1)
CONCAT(2)
CONCAT(4)
CONCAT(8)
CONCAT(16)

// Fills bytes. The byte at an address is the byte of the pattern at this address modulo 8.
struct Fill {
    u64 target;
    u64 bytes;
    // Bytes before the first vector of 16, and the number of vectors.
    u64 head;
    u64 vectors;
    u64 pattern;
};

extern "C" __global__ void __launch_bounds__(256) fill(const __grid_constant__ Fill f) {
    u64 thread = (u64)blockIdx.x * blockDim.x + threadIdx.x, threads = (u64)gridDim.x * blockDim.x;
    u32 word[4] = {(u32)f.pattern, (u32)(f.pattern >> 32), (u32)f.pattern, (u32)(f.pattern >> 32)};
    #pragma unroll 1
    for (u64 place = thread; place < f.bytes - 15 * f.vectors; place += threads) {
        if (place < f.vectors) {
            store_words<16>(f.target + f.head + 16 * place, word);
        } else {
            u64 single = place - f.vectors;
            u64 at = f.target + (single < f.head ? single : single + 16 * f.vectors);
            U8::store(at, (u32)(f.pattern >> (at % 8 * 8)) & 0xff);
        }
    }
}
