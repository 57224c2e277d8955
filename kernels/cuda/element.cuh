// The formats of elements: how they are read from memory into registers, and written back.
//
// A format has a register type and the size of an element in memory. `load` and `store` move one
// element. `unpack` and `pack` move an element of a vector whose bytes are in 32-bit words. All
// accesses to global memory are the instructions below, in program order.

#pragma once

typedef signed char s8;
typedef unsigned char u8;
typedef short s16;
typedef unsigned short u16;
typedef int s32;
typedef unsigned int u32;
typedef long long s64;
typedef unsigned long long u64;
typedef float f32;
typedef double f64;

#define INLINE static __device__ __forceinline__
// The same for a method that is defined outside of its struct.
#define OUTSIDE __device__ __forceinline__

// Defines a format whose elements are loaded by one instruction. The other columns are the register
// type, the bytes in memory, the suffix of the instructions, and the register class of inline PTX.
#define PLAIN(NAME, REGISTER, SIZE, SUFFIX, CLASS)                                                                   \
    struct NAME {                                                                                                    \
        typedef REGISTER Register;                                                                                   \
        enum { BYTES = SIZE };                                                                                       \
        INLINE Register load(u64 at) {                                                                               \
            Register value;                                                                                          \
            asm volatile("ld.global." SUFFIX " %0, [%1];" : "=" CLASS(value) : "l"(at));                             \
            return value;                                                                                            \
        }                                                                                                            \
        INLINE void store(u64 at, Register value) {                                                                  \
            asm volatile("st.global." SUFFIX " [%0], %1;" : : "l"(at), CLASS(value));                                \
        }                                                                                                            \
        INLINE Register unpack(const u32* word, int lane);                                                           \
        INLINE void pack(u32* word, int lane, Register value);                                                       \
    };

PLAIN(U8, u32, 1, "u8", "r")
PLAIN(U16, u32, 2, "u16", "r")
PLAIN(U32, u32, 4, "u32", "r")
PLAIN(U64, u64, 8, "u64", "l")
PLAIN(S64, s64, 8, "s64", "l")
PLAIN(S32, s32, 4, "s32", "r")
PLAIN(F32, f32, 4, "f32", "f")
PLAIN(F64, f64, 8, "f64", "d")

OUTSIDE u32 U8::unpack(const u32* word, int lane) { return word[lane / 4] >> (lane % 4 * 8) & 0xff; }
OUTSIDE u32 U16::unpack(const u32* word, int lane) { return word[lane / 2] >> (lane % 2 * 16) & 0xffff; }
OUTSIDE void U16::pack(u32* word, int lane, u32 value) {
    word[lane / 2] = lane % 2 == 0 ? value & 0xffff : word[lane / 2] | value << 16;
}
OUTSIDE u32 U32::unpack(const u32* word, int lane) { return word[lane]; }
OUTSIDE void U32::pack(u32* word, int lane, u32 value) { word[lane] = value; }
OUTSIDE s32 S32::unpack(const u32* word, int lane) { return word[lane]; }
OUTSIDE void S32::pack(u32* word, int lane, s32 value) { word[lane] = value; }
OUTSIDE f32 F32::unpack(const u32* word, int lane) { return __uint_as_float(word[lane]); }
OUTSIDE void F32::pack(u32* word, int lane, f32 value) { word[lane] = __float_as_uint(value); }
OUTSIDE u64 U64::unpack(const u32* word, int lane) { return word[2 * lane] | (u64)word[2 * lane + 1] << 32; }
OUTSIDE void U64::pack(u32* word, int lane, u64 value) {
    word[2 * lane] = (u32)value;
    word[2 * lane + 1] = (u32)(value >> 32);
}
OUTSIDE s64 S64::unpack(const u32* word, int lane) { return U64::unpack(word, lane); }
OUTSIDE void S64::pack(u32* word, int lane, s64 value) { U64::pack(word, lane, value); }
OUTSIDE f64 F64::unpack(const u32* word, int lane) { return __longlong_as_double(U64::unpack(word, lane)); }
OUTSIDE void F64::pack(u32* word, int lane, f64 value) { U64::pack(word, lane, __double_as_longlong(value)); }

// Signed elements of 8 and 16 bits, sign-extended.
struct S8 {
    typedef s32 Register;
    enum { BYTES = 1 };
    INLINE s32 load(u64 at) { return (s8)U8::load(at); }
    INLINE void store(u64 at, s32 value) { U8::store(at, value); }
    INLINE s32 unpack(const u32* word, int lane) { return (s8)U8::unpack(word, lane); }
};
struct S16 {
    typedef s32 Register;
    enum { BYTES = 2 };
    INLINE s32 load(u64 at) { return (s16)U16::load(at); }
    INLINE void store(u64 at, s32 value) { U16::store(at, value); }
    INLINE s32 unpack(const u32* word, int lane) { return (s16)U16::unpack(word, lane); }
};

INLINE f32 widen_f16(u32 bits) {
    f32 value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"((u16)bits));
    return value;
}

INLINE u32 narrow_f16(f32 value) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

INLINE f32 widen_bf16(u32 bits) { return __uint_as_float(bits << 16); }

// Rounds to the nearest, ties to even, and keeps a NaN a NaN.
INLINE u32 narrow_bf16(f32 value) {
    u32 bits = __float_as_uint(value);
    u32 nearest = bits + 0x7fff + (bits >> 16 & 1);
    return ((bits & 0x7fffffff) > 0x7f800000 ? bits | 0x00400000 : nearest) >> 16;
}

// Elements of 16 bits that are accumulated as f32.
#define HALF(NAME, WIDEN, NARROW)                                                                                    \
    struct NAME {                                                                                                    \
        typedef f32 Register;                                                                                        \
        enum { BYTES = 2 };                                                                                          \
        INLINE f32 load(u64 at) { return WIDEN(U16::load(at)); }                                                     \
        INLINE void store(u64 at, f32 value) { U16::store(at, NARROW(value)); }                                      \
        INLINE f32 unpack(const u32* word, int lane) { return WIDEN(U16::unpack(word, lane)); }                      \
        INLINE void pack(u32* word, int lane, f32 value) { U16::pack(word, lane, NARROW(value)); }                   \
    };

HALF(F16, widen_f16, narrow_f16)
HALF(Bf16, widen_bf16, narrow_bf16)

// Maps the bits of each half of a word to an unsigned number that has the float's order, with -0
// below +0. The numbers are counted from `FIRST` on and wrap, so that NaN of either sign come last
// (for maxima) or first (for minima), as `Ordered` of the host does.
template <u32 FIRST> INLINE u32 place_of(u32 bits) {
    u32 order = bits ^ (bits >> 15 & 0x00010001) * 0x7fff;
    // Subtracts in each half: no borrow crosses, because the upper bit of the minuend is set.
    u32 first = FIRST * 0x00010001u;
    u32 less = (order | 0x80008000) - (first & 0x7fff7fff);
    return less ^ (~(order ^ first) & 0x80008000);
}

// The places that come first, for the format whose infinity has these bits. For maxima that is
// negative infinity, for minima the least NaN.
#define FIRST_OF_GREATEST(INFINITE) (0xffffu & ((INFINITE | 0x8000u) ^ 0x7fffu))
#define FIRST_OF_LEAST(INFINITE) ((INFINITE) + 1u)

// An integer of 128 bits: the exact sum of integers of 64 bits.
struct I128 {
    u64 low;
    u64 high;
};

struct Wide {
    typedef I128 Register;
    enum { BYTES = 16 };
    INLINE I128 load(u64 at) {
        I128 value = {U64::load(at), U64::load(at + 8)};
        return value;
    }
    INLINE void store(u64 at, I128 value) {
        U64::store(at, value.low);
        U64::store(at + 8, value.high);
    }
    INLINE I128 unpack(const u32* word, int lane) {
        I128 value = {U64::unpack(word, 2 * lane), U64::unpack(word, 2 * lane + 1)};
        return value;
    }
    INLINE void pack(u32* word, int lane, I128 value) {
        U64::pack(word, 2 * lane, value.low);
        U64::pack(word, 2 * lane + 1, value.high);
    }
};

INLINE I128 widen_to_128(u64 value) {
    I128 wide = {value, 0};
    return wide;
}

INLINE I128 widen_to_128(s64 value) {
    I128 wide = {(u64)value, (u64)(value >> 63)};
    return wide;
}

// Integers of a mean, as summands that do not overflow.
#define TOTAL(NAME, OF, REGISTER, WIDEN)                                                                             \
    struct NAME {                                                                                                    \
        typedef REGISTER Register;                                                                                   \
        enum { BYTES = OF::BYTES };                                                                                  \
        INLINE Register load(u64 at) { return WIDEN(OF::load(at)); }                                                 \
        INLINE Register unpack(const u32* word, int lane) { return WIDEN(OF::unpack(word, lane)); }                  \
    };

TOTAL(TotalU8, U8, s64, (s64))
TOTAL(TotalU16, U16, s64, (s64))
TOTAL(TotalU32, U32, s64, (s64))
TOTAL(TotalS8, S8, s64, (s64))
TOTAL(TotalS16, S16, s64, (s64))
TOTAL(TotalS32, S32, s64, (s64))
TOTAL(TotalU64, U64, I128, widen_to_128)
TOTAL(TotalS64, S64, I128, widen_to_128)

// Bytes of a vector, moved by instructions of at most 16 bytes.
template <int BYTES> INLINE void load_words(u32* word, u64 at) {
    if (BYTES == 4) {
        word[0] = U32::load(at);
    } else if (BYTES == 8) {
        asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(word[0]), "=r"(word[1]) : "l"(at));
    } else {
        #pragma unroll
        for (int part = 0; part < BYTES / 16; part++) {
            u32* four = word + 4 * part;
            asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(four[0]), "=r"(four[1]), "=r"(four[2]), "=r"(four[3])
                         : "l"(at + 16 * part));
        }
    }
}

template <int BYTES> INLINE void store_words(u64 at, const u32* word) {
    if (BYTES == 4) {
        U32::store(at, word[0]);
    } else if (BYTES == 8) {
        asm volatile("st.global.v2.u32 [%0], {%1, %2};" : : "l"(at), "r"(word[0]), "r"(word[1]));
    } else {
        #pragma unroll
        for (int part = 0; part < BYTES / 16; part++) {
            const u32* four = word + 4 * part;
            asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
                         :
                         : "l"(at + 16 * part), "r"(four[0]), "r"(four[1]), "r"(four[2]), "r"(four[3]));
        }
    }
}

// Loads one element of `ELEMENT` bytes into the first words; the other words are zero.
template <int BYTES, int ELEMENT> INLINE void load_single(u32* word, u64 at) {
    #pragma unroll
    for (int place = 0; place < BYTES / 4; place++) {
        word[place] = 0;
    }
    if (ELEMENT == 1) {
        word[0] = U8::load(at);
    } else if (ELEMENT == 2) {
        word[0] = U16::load(at);
    } else {
        #pragma unroll
        for (int place = 0; place < ELEMENT / 4; place++) {
            word[place] = U32::load(at + 4 * place);
        }
    }
}

template <int ELEMENT> INLINE void store_single(u64 at, const u32* word) {
    if (ELEMENT == 1) {
        U8::store(at, word[0]);
    } else if (ELEMENT == 2) {
        U16::store(at, word[0]);
    } else {
        #pragma unroll
        for (int place = 0; place < ELEMENT / 4; place++) {
            U32::store(at + 4 * place, word[place]);
        }
    }
}

// Moves a vector of `BYTES`, or only its first element.
template <int BYTES, int ELEMENT> INLINE void load_part(u32* word, u64 at, bool whole) {
    if (whole) {
        load_words<BYTES>(word, at);
    } else {
        load_single<BYTES, ELEMENT>(word, at);
    }
}

template <int BYTES, int ELEMENT> INLINE void store_part(u64 at, const u32* word, bool whole) {
    if (whole) {
        store_words<BYTES>(at, word);
    } else {
        store_single<ELEMENT>(at, word);
    }
}
