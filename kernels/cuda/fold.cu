// Combines several sources element by element in canonical order, and writes the result to all
// targets in one pass.
//
// `fold` makes results of elements, `keep` accumulators of elements, `partial` accumulators of
// accumulators, `finish` results of accumulators. Each thread reads a vector of each source, four
// in flight, and writes a vector of each target. At the ends, and where sources and targets are not
// aligned alike, it does the same with one element in the place of a vector.

#include "combine.cuh"

// Limit on the sources, and on the targets.
#define MOST 16
// Levels of the counter: `GROUP << LEVELS` is the limit.
#define LEVELS 2

struct Fold {
    // Elements: of each source, before the first vector. Then the number of vectors.
    u64 count;
    u64 head;
    u64 vectors;
    Divisor divisor;
    u32 sources;
    u32 targets;
    u64 source[MOST];
    u64 target[MOST];
};

// The place of a thread: `L` registers at an element, or only one element.
template <class From, int L, int BYTES> struct Place {
    typedef typename From::Register R;
    const Fold& fold;
    u64 at;
    bool whole;

    __device__ __forceinline__ Tile<R, L> operator()(u32 source) const {
        u32 word[L * From::BYTES / 4];
        load_part<L * From::BYTES, BYTES>(word, fold.source[source] + at * BYTES, whole);
        Tile<R, L> tile;
        #pragma unroll
        for (int lane = 0; lane < L; lane++) {
            tile.lane[lane] = From::unpack(word, lane);
        }
        return tile;
    }
};

// A vector has `L` registers. A register of `From` or `To` may have several elements, of `FROM` and
// `TO` bytes in memory.
template <class From, int FROM, class To, int TO, class Op, int L> INLINE void fold_all(const Fold& f) {
    const u64 LANES = L * From::BYTES / FROM;
    u64 thread = (u64)blockIdx.x * blockDim.x + threadIdx.x, threads = (u64)gridDim.x * blockDim.x;
    u64 places = f.count - f.vectors * (LANES - 1);
    #pragma unroll 1
    for (u64 place = thread; place < places; place += threads) {
        bool whole = place < f.vectors;
        u64 single = place - f.vectors;
        u64 at = whole ? f.head + place * LANES : single < f.head ? single : place + f.vectors * (LANES - 1);
        Place<From, L, FROM> load = {f, at, whole};
        auto tile = fold<Op, typename From::Register, L, LEVELS>(f.sources, load);
        u32 word[L * To::BYTES / 4];
        finish_all<To>(word, tile, f.divisor);
        #pragma unroll 1
        for (u32 target = 0; target < f.targets; target++) {
            store_part<L * To::BYTES, TO>(f.target[target] + at * TO, word, whole);
        }
    }
}

// A kernel whose registers have one element each.
#define KERNEL(NAME, FROM, TO, OP, L) PACKED(NAME, FROM, FROM::BYTES, TO, TO::BYTES, OP, L)

// A kernel with the bytes of elements in memory beside the formats of registers.
#define PACKED(NAME, FROM, FROM_BYTES, TO, TO_BYTES, OP, L)                                                          \
    extern "C" __global__ void __launch_bounds__(256) NAME(const __grid_constant__ Fold fold) {                      \
        fold_all<FROM, FROM_BYTES, TO, TO_BYTES, OP, L>(fold);                                                       \
    }

#define COMMA ,
#define TOP8 0x80808080u
#define TOP16 0x80008000u

#if defined(TYPE_bits)
PACKED(fold_and, U32, 1, U32, 1, And, 4)
PACKED(fold_or, U32, 1, U32, 1, Or, 4)
PACKED(fold_xor, U32, 1, U32, 1, Xor, 4)
#elif defined(TYPE_total)
// Exact sums of integers, of which means are made.
KERNEL(finish_i64_f32, S64, F32, Sum, 2)
KERNEL(finish_i64_f64, S64, F64, Sum, 2)
KERNEL(finish_i128_f64, Wide, F64, Sum, 2)
KERNEL(partial_i128, Wide, Wide, Sum, 1)
#elif defined(TYPE_u8)
PACKED(fold_sum_u8, U32, 1, U32, 1, PackedSum<TOP8>, 4)
PACKED(fold_product_u8, U32, 1, U32, 1, PackedProduct<8>, 4)
PACKED(fold_min_u8, U32, 1, U32, 1, PackedMin<TOP8 COMMA 0>, 4)
PACKED(fold_max_u8, U32, 1, U32, 1, PackedMax<TOP8 COMMA 0>, 4)
KERNEL(fold_mean_u8, TotalU8, F32, Sum, 4)
KERNEL(keep_mean_u8, TotalU8, S64, Sum, 4)
#elif defined(TYPE_i8)
PACKED(fold_min_i8, U32, 1, U32, 1, PackedMin<TOP8 COMMA TOP8>, 4)
PACKED(fold_max_i8, U32, 1, U32, 1, PackedMax<TOP8 COMMA TOP8>, 4)
KERNEL(fold_mean_i8, TotalS8, F32, Sum, 4)
KERNEL(keep_mean_i8, TotalS8, S64, Sum, 4)
#elif defined(TYPE_u16)
PACKED(fold_sum_u16, U32, 2, U32, 2, PackedSum<TOP16>, 4)
PACKED(fold_product_u16, U32, 2, U32, 2, PackedProduct<16>, 4)
PACKED(fold_min_u16, U32, 2, U32, 2, PackedMin<TOP16 COMMA 0>, 4)
PACKED(fold_max_u16, U32, 2, U32, 2, PackedMax<TOP16 COMMA 0>, 4)
KERNEL(fold_mean_u16, TotalU16, F32, Sum, 4)
KERNEL(keep_mean_u16, TotalU16, S64, Sum, 4)
#elif defined(TYPE_i16)
PACKED(fold_min_i16, U32, 2, U32, 2, PackedMin<TOP16 COMMA TOP16>, 4)
PACKED(fold_max_i16, U32, 2, U32, 2, PackedMax<TOP16 COMMA TOP16>, 4)
KERNEL(fold_mean_i16, TotalS16, F32, Sum, 4)
KERNEL(keep_mean_i16, TotalS16, S64, Sum, 4)
#elif defined(TYPE_u32)
KERNEL(fold_sum_u32, U32, U32, Sum, 4)
KERNEL(fold_product_u32, U32, U32, Product, 4)
KERNEL(fold_min_u32, U32, U32, Min, 4)
KERNEL(fold_max_u32, U32, U32, Max, 4)
KERNEL(fold_mean_u32, TotalU32, F64, Sum, 4)
KERNEL(keep_mean_u32, TotalU32, S64, Sum, 4)
#elif defined(TYPE_i32)
KERNEL(fold_min_i32, S32, S32, Min, 4)
KERNEL(fold_max_i32, S32, S32, Max, 4)
KERNEL(fold_mean_i32, TotalS32, F64, Sum, 4)
KERNEL(keep_mean_i32, TotalS32, S64, Sum, 4)
#elif defined(TYPE_u64)
KERNEL(fold_sum_u64, U64, U64, Sum, 2)
KERNEL(fold_product_u64, U64, U64, Product, 2)
KERNEL(fold_min_u64, U64, U64, Min, 2)
KERNEL(fold_max_u64, U64, U64, Max, 2)
KERNEL(fold_mean_u64, TotalU64, F64, Sum, 1)
KERNEL(keep_mean_u64, TotalU64, Wide, Sum, 2)
#elif defined(TYPE_i64)
KERNEL(fold_min_i64, S64, S64, Min, 2)
KERNEL(fold_max_i64, S64, S64, Max, 2)
KERNEL(fold_mean_i64, TotalS64, F64, Sum, 1)
KERNEL(keep_mean_i64, TotalS64, Wide, Sum, 2)
#elif defined(TYPE_f16)
#define LEAST FIRST_OF_LEAST(0x7c00)
#define GREATEST FIRST_OF_GREATEST(0x7c00)
KERNEL(fold_sum_f16, F16, F16, Sum, 8)
KERNEL(keep_sum_f16, F16, F32, Sum, 8)
KERNEL(finish_sum_f16, F32, F16, Sum, 4)
KERNEL(fold_product_f16, F16, F16, Product, 8)
KERNEL(keep_product_f16, F16, F32, Product, 8)
KERNEL(finish_product_f16, F32, F16, Product, 4)
PACKED(fold_min_f16, U32, 2, U32, 2, HalfMin<LEAST>, 4)
PACKED(fold_max_f16, U32, 2, U32, 2, HalfMax<GREATEST>, 4)
#elif defined(TYPE_bf16)
#define LEAST FIRST_OF_LEAST(0x7f80)
#define GREATEST FIRST_OF_GREATEST(0x7f80)
KERNEL(fold_sum_bf16, Bf16, Bf16, Sum, 8)
KERNEL(keep_sum_bf16, Bf16, F32, Sum, 8)
KERNEL(finish_sum_bf16, F32, Bf16, Sum, 4)
KERNEL(fold_product_bf16, Bf16, Bf16, Product, 8)
KERNEL(keep_product_bf16, Bf16, F32, Product, 8)
KERNEL(finish_product_bf16, F32, Bf16, Product, 4)
PACKED(fold_min_bf16, U32, 2, U32, 2, HalfMin<LEAST>, 4)
PACKED(fold_max_bf16, U32, 2, U32, 2, HalfMax<GREATEST>, 4)
#elif defined(TYPE_f32)
KERNEL(fold_sum_f32, F32, F32, Sum, 4)
KERNEL(fold_product_f32, F32, F32, Product, 4)
KERNEL(fold_min_f32, F32, F32, Min, 4)
KERNEL(fold_max_f32, F32, F32, Max, 4)
#elif defined(TYPE_f64)
KERNEL(fold_sum_f64, F64, F64, Sum, 2)
KERNEL(fold_product_f64, F64, F64, Product, 2)
KERNEL(fold_min_f64, F64, F64, Min, 2)
KERNEL(fold_max_f64, F64, F64, Max, 2)
#endif
