// Reduces a tensor of the shape [outer, axis, inner] along its middle axis, to accumulators.
//
// A block has 4096 consecutive elements along the axis. In a block, lane `j` of 32 takes the
// elements `j`, `j + 32`, …; the lanes are combined by the balanced tree. The results have the
// shape [outer, blocks, inner]. `tree` combines the blocks by the balanced tree, 16 at a time.
//
// A block of threads reduces a tile of neighbouring results. If the elements of a result are
// contiguous (inner = 1), a warp has the lanes of a result; else a warp has a lane of 32 results.
// In both cases it reads neighbouring elements. Lanes meet in shared memory.

#include "combine.cuh"

#define LANES 32
#define BLOCK 4096
// Elements of a lane whose loads are in flight together.
#define FLIGHT 4
// Threads of a block: 8 warps.
#define WARPS 8

struct Along {
    u64 source;
    u64 target;
    u64 axis;
    u64 inner;
    u64 blocks;
    // outer * blocks * inner
    u64 values;
};

template <class From, class To, class Op> INLINE void along(const Along& f) {
    typedef typename From::Register R;
    __shared__ R shared[LANES][32];
    __shared__ u32 counts[32];
    u32 x = threadIdx.x % 32, warp = threadIdx.x / 32;
    bool contiguous = f.inner == 1;
    u32 tile = contiguous ? WARPS : 32;
    #pragma unroll 1
    for (u64 first = (u64)blockIdx.x * tile; first < f.values; first += (u64)gridDim.x * tile) {
        #pragma unroll 1
        for (u32 pass = warp; pass < tile; pass += WARPS) {
            u32 lane = contiguous ? x : pass, place = contiguous ? pass : x;
            u64 value = first + place;
            if (value < f.values) {
                u64 slice = value / f.inner, outer = slice / f.blocks;
                u64 begin = (slice - outer * f.blocks) * BLOCK;
                u32 count = f.axis - begin < BLOCK ? f.axis - begin : BLOCK;
                if (lane == 0) {
                    counts[place] = count;
                }
                if (lane < count) {
                    u64 column = value - slice * f.inner;
                    u64 at = f.source + ((outer * f.axis + begin + lane) * f.inner + column) * From::BYTES;
                    u64 pitch = f.inner * LANES * From::BYTES;
                    u32 left = (count - lane - 1) / LANES;
                    R accumulator = From::load(at);
                    at += pitch;
                    #pragma unroll 1
                    for (; left >= FLIGHT; left -= FLIGHT) {
                        R next[FLIGHT];
                        #pragma unroll
                        for (int i = 0; i < FLIGHT; i++) {
                            next[i] = From::load(at);
                            at += pitch;
                        }
                        #pragma unroll
                        for (int i = 0; i < FLIGHT; i++) {
                            accumulator = Op::combine(accumulator, next[i]);
                        }
                    }
                    #pragma unroll 1
                    for (; left > 0; left--) {
                        accumulator = Op::combine(accumulator, From::load(at));
                        at += pitch;
                    }
                    shared[lane][place] = accumulator;
                }
            }
        }
        __syncthreads();
        bool live = x < tile && first + x < f.values;
        u32 lanes = live ? counts[x] : 0;
        #pragma unroll 1
        for (u32 distance = 1; distance < LANES; distance *= 2) {
            #pragma unroll 1
            for (u32 lane = warp * 2 * distance; lane < LANES; lane += WARPS * 2 * distance) {
                if (lane + distance < lanes) {
                    shared[lane][x] = Op::combine(shared[lane][x], shared[lane + distance][x]);
                }
            }
            __syncthreads();
        }
        if (live && warp == 0) {
            To::store(f.target + (first + x) * To::BYTES, shared[0][x]);
        }
        // The next tile overwrites what was stored.
        __syncthreads();
    }
}

// Rows of accumulators that `tree` combines at a time.
#define FAN 16

struct Tree {
    u64 source;
    u64 target;
    // Rows of each slice before, and after.
    u64 rows;
    u64 groups;
    u64 inner;
    // outer * groups * inner
    u64 values;
};

template <class From> struct Row {
    typedef typename From::Register R;
    u64 source;
    u64 pitch;

    __device__ __forceinline__ Tile<R, 1> operator()(u32 row) const {
        Tile<R, 1> tile = {{From::load(source + row * pitch)}};
        return tile;
    }
};

template <class From, class Op> INLINE void tree(const Tree& f) {
    u64 thread = (u64)blockIdx.x * blockDim.x + threadIdx.x, threads = (u64)gridDim.x * blockDim.x;
    #pragma unroll 1
    for (u64 value = thread; value < f.values; value += threads) {
        u64 slice = value / f.inner, outer = slice / f.groups, first = (slice - outer * f.groups) * FAN;
        u32 count = f.rows - first < FAN ? f.rows - first : FAN;
        u64 source = f.source + ((outer * f.rows + first) * f.inner + value - slice * f.inner) * From::BYTES;
        Row<From> load = {source, f.inner * From::BYTES};
        auto result = fold<Op, typename From::Register, 1, 2>(count, load);
        From::store(f.target + value * From::BYTES, result.lane[0]);
    }
}

#define ALONG(NAME, FROM, TO, OP)                                                                                    \
    extern "C" __global__ void __launch_bounds__(256) along_##NAME(const __grid_constant__ Along f) {                \
        along<FROM, TO, OP>(f);                                                                                      \
    }

#define TREE(NAME, FORMAT, OP)                                                                                       \
    extern "C" __global__ void __launch_bounds__(256) tree_##NAME(const __grid_constant__ Tree f) {                  \
        tree<FORMAT, OP>(f);                                                                                         \
    }

// Reductions whose accumulators are elements.
#define SAME(NAME, FORMAT, OP) ALONG(NAME, FORMAT, FORMAT, OP) TREE(NAME, FORMAT, OP)

#if defined(TYPE_bits)
SAME(and, U8, And)
SAME(or, U8, Or)
SAME(xor, U8, Xor)
#elif defined(TYPE_total)
TREE(i128, Wide, Sum)
#elif defined(TYPE_u8)
SAME(sum_u8, U8, Sum)
SAME(product_u8, U8, Product)
SAME(min_u8, U8, Min)
SAME(max_u8, U8, Max)
ALONG(mean_u8, TotalU8, S64, Sum)
#elif defined(TYPE_i8)
SAME(min_i8, S8, Min)
SAME(max_i8, S8, Max)
ALONG(mean_i8, TotalS8, S64, Sum)
#elif defined(TYPE_u16)
SAME(sum_u16, U16, Sum)
SAME(product_u16, U16, Product)
SAME(min_u16, U16, Min)
SAME(max_u16, U16, Max)
ALONG(mean_u16, TotalU16, S64, Sum)
#elif defined(TYPE_i16)
SAME(min_i16, S16, Min)
SAME(max_i16, S16, Max)
ALONG(mean_i16, TotalS16, S64, Sum)
#elif defined(TYPE_u32)
SAME(sum_u32, U32, Sum)
SAME(product_u32, U32, Product)
SAME(min_u32, U32, Min)
SAME(max_u32, U32, Max)
ALONG(mean_u32, TotalU32, S64, Sum)
#elif defined(TYPE_i32)
SAME(min_i32, S32, Min)
SAME(max_i32, S32, Max)
ALONG(mean_i32, TotalS32, S64, Sum)
#elif defined(TYPE_u64)
SAME(sum_u64, U64, Sum)
SAME(product_u64, U64, Product)
SAME(min_u64, U64, Min)
SAME(max_u64, U64, Max)
ALONG(mean_u64, TotalU64, Wide, Sum)
#elif defined(TYPE_i64)
SAME(min_i64, S64, Min)
SAME(max_i64, S64, Max)
ALONG(mean_i64, TotalS64, Wide, Sum)
#elif defined(TYPE_f16)
// A minimum or maximum is one of the elements, so that it fits the type again.
ALONG(sum_f16, F16, F32, Sum)
ALONG(product_f16, F16, F32, Product)
SAME(min_f16, F16, Min)
SAME(max_f16, F16, Max)
#elif defined(TYPE_bf16)
ALONG(sum_bf16, Bf16, F32, Sum)
ALONG(product_bf16, Bf16, F32, Product)
SAME(min_bf16, Bf16, Min)
SAME(max_bf16, Bf16, Max)
#elif defined(TYPE_f32)
SAME(sum_f32, F32, Sum)
SAME(product_f32, F32, Product)
SAME(min_f32, F32, Min)
SAME(max_f32, F32, Max)
#elif defined(TYPE_f64)
SAME(sum_f64, F64, Sum)
SAME(product_f64, F64, Product)
SAME(min_f64, F64, Min)
SAME(max_f64, F64, Max)
#endif
