// Converts elements to another type, scales them, and compares them.

#include "combine.cuh"

struct Cast {
    u64 source;
    u64 target;
    u64 count;
    u32 from;
    u32 to;
};

// The numbers of the element types, in the order of the list in spec.
enum Type { BOOL, I8, I16, I32, I64, T_U8, T_U16, T_U32, T_U64, T_F16, T_BF16, T_F32, T_F64 };

// Rounds to odd: what is lost sets the last bit, so that a later rounding to fewer bits is right.
INLINE f32 to_odd(f64 value) {
    f32 nearer;
    asm("cvt.rz.f32.f64 %0, %1;" : "=f"(nearer) : "d"(value));
    bool exact = (f64)nearer == value || value != value;
    return exact ? nearer : __uint_as_float(__float_as_uint(nearer) | 1);
}

// Rounds an integer to odd.
INLINE f64 to_odd(u64 magnitude) {
    // Of 64 bits the upper 53 stay; a lost bit sets the last of them.
    int shift = magnitude == 0 ? 0 : 11 - __clzll(magnitude);
    if (shift <= 0) {
        return (f64)magnitude;
    }
    u64 upper = magnitude >> shift;
    u64 lost = magnitude & ((1ull << shift) - 1);
    return (f64)((upper | (lost != 0)) << shift);
}

INLINE u64 saturated(f64 value, f64 least, f64 greatest, u64 least_bits, u64 greatest_bits) {
    if (value != value) {
        return 0;
    }
    if (value <= least) {
        return least_bits;
    }
    if (value >= greatest) {
        return greatest_bits;
    }
    // Below 2^63 a signed conversion has the bits of an unsigned one.
    return value < 9223372036854775808.0 ? (u64)(s64)value : (u64)(s64)(value - 9223372036854775808.0) ^ 1ull << 63;
}

extern "C" __global__ void __launch_bounds__(256) cast(const __grid_constant__ Cast f) {
    u64 thread = (u64)blockIdx.x * blockDim.x + threadIdx.x, threads = (u64)gridDim.x * blockDim.x;
    #pragma unroll 1
    for (u64 at = thread; at < f.count; at += threads) {
        // An integer, or a float that holds any element exactly.
        u64 integer = 0;
        f64 real = 0;
        bool is_signed = false, is_real = false;
        switch (f.from) {
        case BOOL:
        case T_U8: integer = U8::load(f.source + at); break;
        case T_U16: integer = U16::load(f.source + 2 * at); break;
        case T_U32: integer = U32::load(f.source + 4 * at); break;
        case T_U64: integer = U64::load(f.source + 8 * at); break;
        case I8: integer = (s64)S8::load(f.source + at), is_signed = true; break;
        case I16: integer = (s64)S16::load(f.source + 2 * at), is_signed = true; break;
        case I32: integer = (s64)S32::load(f.source + 4 * at), is_signed = true; break;
        case I64: integer = U64::load(f.source + 8 * at), is_signed = true; break;
        case T_F16: real = F16::load(f.source + 2 * at), is_real = true; break;
        case T_BF16: real = Bf16::load(f.source + 2 * at), is_real = true; break;
        case T_F32: real = F32::load(f.source + 4 * at), is_real = true; break;
        default: real = F64::load(f.source + 8 * at), is_real = true; break;
        }
        bool negative = is_signed && (s64)integer < 0;
        if (f.to >= T_F16) {
            u64 magnitude = negative ? 0 - integer : integer;
            f64 exact = to_odd(magnitude);
            f32 odd = to_odd(is_real ? real : negative ? -exact : exact);
            f32 single = is_real ? (f32)real : negative ? -(f32)magnitude : (f32)magnitude;
            f64 twice = is_real ? real : negative ? -(f64)magnitude : (f64)magnitude;
            switch (f.to) {
            case T_F16: F16::store(f.target + 2 * at, odd); break;
            case T_BF16: Bf16::store(f.target + 2 * at, odd); break;
            case T_F32: F32::store(f.target + 4 * at, single); break;
            default: F64::store(f.target + 8 * at, twice); break;
            }
            continue;
        }
        if (f.to == BOOL) {
            U8::store(f.target + at, is_real ? real != 0 : integer != 0);
            continue;
        }
        u32 bytes = f.to >= T_U8 ? 1 << (f.to - T_U8) : 1 << (f.to - I8);
        if (is_real) {
            int bits = 8 * bytes - (f.to < T_U8);
            // 2^bits, which all of the type's numbers are below.
            f64 end = __longlong_as_double((u64)(1023 + bits) << 52);
            u64 greatest = bits == 64 ? ~0ull : (1ull << bits) - 1;
            integer = f.to < T_U8 ? saturated(real, -end, end, ~greatest, greatest) : saturated(real, 0, end, 0, greatest);
        }
        switch (bytes) {
        case 1: U8::store(f.target + at, (u32)integer); break;
        case 2: U16::store(f.target + 2 * at, (u32)integer); break;
        case 4: U32::store(f.target + 4 * at, (u32)integer); break;
        default: U64::store(f.target + 8 * at, integer); break;
        }
    }
}

// Multiplies by a factor, in the accumulation type.
struct Scale {
    u64 source;
    u64 target;
    u64 count;
    u64 head;
    u64 vectors;
    f64 by64;
    f32 by32;
};

INLINE f32 times(f32 value, const Scale& f) { return value * f.by32; }
INLINE f64 times(f64 value, const Scale& f) { return value * f.by64; }

template <class Format, int L> INLINE void scale(const Scale& f) {
    u64 thread = (u64)blockIdx.x * blockDim.x + threadIdx.x, threads = (u64)gridDim.x * blockDim.x;
    #pragma unroll 1
    for (u64 place = thread; place < f.count - f.vectors * (L - 1); place += threads) {
        bool whole = place < f.vectors;
        u64 single = place - f.vectors;
        u64 at = whole ? f.head + place * L : single < f.head ? single : place + f.vectors * (L - 1);
        u32 word[4];
        load_part<16, Format::BYTES>(word, f.source + at * Format::BYTES, whole);
        u32 result[4];
        #pragma unroll
        for (int lane = 0; lane < L; lane++) {
            Format::pack(result, lane, times(Format::unpack(word, lane), f));
        }
        store_part<16, Format::BYTES>(f.target + at * Format::BYTES, result, whole);
    }
}

#define SCALE(NAME, FORMAT, L)                                                                                       \
    extern "C" __global__ void __launch_bounds__(256) scale_##NAME(const __grid_constant__ Scale f) {                \
        scale<FORMAT, L>(f);                                                                                         \
    }

SCALE(f16, F16, 8)
SCALE(bf16, Bf16, 8)
SCALE(f32, F32, 4)
SCALE(f64, F64, 2)

// Finds the first element where two arrays differ. All NaN are equal.
struct Compare {
    u64 left;
    u64 right;
    u64 count;
    // An index for each block of the grid: of the first difference that the block found, else all
    // bits.
    u64 results;
    // The bits of infinity, and of the numbers without a sign. For integers no number is above
    // infinity.
    u64 infinity;
    u64 magnitude;
    u32 bytes;
};

INLINE u64 load_bits(u64 at, u32 bytes) {
    switch (bytes) {
    case 1: return U8::load(at);
    case 2: return U16::load(at);
    case 4: return U32::load(at);
    default: return U64::load(at);
    }
}

extern "C" __global__ void __launch_bounds__(256) compare(const __grid_constant__ Compare f) {
    __shared__ u64 shared[256];
    u64 thread = (u64)blockIdx.x * blockDim.x + threadIdx.x, threads = (u64)gridDim.x * blockDim.x;
    u64 first = ~0ull;
    #pragma unroll 1
    for (u64 at = thread; at < f.count; at += threads) {
        u64 left = load_bits(f.left + at * f.bytes, f.bytes), right = load_bits(f.right + at * f.bytes, f.bytes);
        bool both_nan = (left & f.magnitude) > f.infinity && (right & f.magnitude) > f.infinity;
        if (left != right && !both_nan && first == ~0ull) {
            first = at;
        }
    }
    shared[threadIdx.x] = first;
    #pragma unroll 1
    for (u32 distance = blockDim.x / 2; distance > 0; distance /= 2) {
        __syncthreads();
        if (threadIdx.x < distance) {
            u64 other = shared[threadIdx.x + distance];
            first = other < first ? other : first;
            shared[threadIdx.x] = first;
        }
    }
    if (threadIdx.x == 0) {
        U64::store(f.results + 8 * blockIdx.x, first);
    }
}
