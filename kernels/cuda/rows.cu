// Adds rows of a tensor: those of equal index of a sparse tensor, in canonical order, rounded once.
//
// Group `g` has the rows `order[starts[g]]` to `order[starts[g + 1] - 1]`, one or more, at most
// 2^26. Its sum becomes row `places[g]` of the target, or row `g` if there are no places.

#include "combine.cuh"

struct Rows {
    u64 source;
    u64 target;
    u64 order;
    u64 starts;
    u64 places;
    u64 groups;
    // Elements of a row.
    u64 width;
};

// Levels of the counter, which is in local memory.
#define DEEP 24

template <class From> struct Listed {
    typedef typename From::Register R;
    u64 source;
    u64 order;
    u64 pitch;

    __device__ __forceinline__ Tile<R, 1> operator()(u32 item) const {
        Tile<R, 1> tile = {{From::load(source + U64::load(order + 8 * (u64)item) * pitch)}};
        return tile;
    }
};

template <class Format> INLINE void rows(const Rows& f) {
    u64 thread = (u64)blockIdx.x * blockDim.x + threadIdx.x, threads = (u64)gridDim.x * blockDim.x;
    u64 pitch = f.width * Format::BYTES;
    #pragma unroll 1
    for (u64 value = thread; value < f.groups * f.width; value += threads) {
        u64 group = value / f.width, column = value % f.width * Format::BYTES;
        u64 first = U64::load(f.starts + 8 * group);
        u32 count = U64::load(f.starts + 8 * group + 8) - first;
        Listed<Format> load = {f.source + column, f.order + 8 * first, pitch};
        auto sum = fold<Sum, typename Format::Register, 1, DEEP>(count, load);
        u64 place = f.places == 0 ? group : U64::load(f.places + 8 * group);
        Format::store(f.target + place * pitch + column, sum.lane[0]);
    }
}

#define ROWS(NAME, FORMAT)                                                                                           \
    extern "C" __global__ void __launch_bounds__(256) rows_sum_##NAME(const __grid_constant__ Rows f) {              \
        rows<FORMAT>(f);                                                                                             \
    }

ROWS(u8, U8)
ROWS(u16, U16)
ROWS(u32, U32)
ROWS(u64, U64)
ROWS(f16, F16)
ROWS(bf16, Bf16)
ROWS(f32, F32)
ROWS(f64, F64)
