// The operations on registers, the balanced tree over them, and the division of means.

#pragma once

#include "element.cuh"

struct Sum {
    enum { LONG = 0 };
    template <class R> INLINE R combine(R a, R b) { return a + b; }
    INLINE I128 combine(I128 a, I128 b) {
        I128 sum = {a.low + b.low, a.high + b.high};
        sum.high += sum.low < a.low;
        return sum;
    }
};

struct Product {
    enum { LONG = 0 };
    template <class R> INLINE R combine(R a, R b) { return a * b; }
};

// Of equal or unordered operands a comparison with its choice gives the second. In both orders it
// gives both zeros, or the NaN and the other operand. The bitwise or of the two is the lesser zero,
// or a NaN.
struct Min {
    enum { LONG = 0 };
    template <class R> INLINE R combine(R a, R b) { return a < b ? a : b; }
    INLINE f32 combine(f32 a, f32 b) {
        f32 x = a < b ? a : b, y = b < a ? b : a;
        return __uint_as_float(__float_as_uint(x) | __float_as_uint(y));
    }
    INLINE f64 combine(f64 a, f64 b) {
        f64 x = a < b ? a : b, y = b < a ? b : a;
        return __longlong_as_double(__double_as_longlong(x) | __double_as_longlong(y));
    }
};

// The bitwise and of both zeros is the greater zero. A NaN needs a test of its own.
struct Max {
    enum { LONG = 0 };
    template <class R> INLINE R combine(R a, R b) { return a > b ? a : b; }
    INLINE f32 combine(f32 a, f32 b) {
        f32 x = a > b ? a : b, y = b > a ? b : a;
        bool ordered = a == a && b == b;
        return __uint_as_float(ordered ? __float_as_uint(x) & __float_as_uint(y) : 0x7fffffff);
    }
    INLINE f64 combine(f64 a, f64 b) {
        f64 x = a > b ? a : b, y = b > a ? b : a;
        bool ordered = a == a && b == b;
        return __longlong_as_double(ordered ? __double_as_longlong(x) & __double_as_longlong(y) : 0x7fffffffffffffff);
    }
};

struct And {
    enum { LONG = 0 };
    template <class R> INLINE R combine(R a, R b) { return a & b; }
};
struct Or {
    enum { LONG = 0 };
    template <class R> INLINE R combine(R a, R b) { return a | b; }
};
struct Xor {
    enum { LONG = 0 };
    template <class R> INLINE R combine(R a, R b) { return a ^ b; }
};

// Operations on words of several elements. `TOP` has the highest bit of each element.
template <u32 TOP> struct PackedSum {
    enum { LONG = 0 };
    // No carry crosses, because the highest bits are added apart.
    INLINE u32 combine(u32 a, u32 b) { return ((a & ~TOP) + (b & ~TOP)) ^ ((a ^ b) & TOP); }
};

template <int BITS> struct PackedProduct {
    enum { LONG = 1 };
    INLINE u32 combine(u32 a, u32 b) {
        u32 mask = (1u << BITS) - 1, result = 0;
        for (int shift = 0; shift < 32; shift += BITS) {
            result |= ((a >> shift) * (b >> shift) & mask) << shift;
        }
        return result;
    }
};

// Returns all bits of the elements where unsigned `a` is at least `b`.
template <u32 TOP> INLINE u32 at_least(u32 a, u32 b) {
    u32 less = (a | TOP) - (b & ~TOP);
    u32 top = ((a & ~b) | (~(a ^ b) & less)) & TOP;
    // From the highest bit of each element to all of its bits.
    return top | (top - (top >> (TOP == 0x80808080 ? 7 : 15)));
}

// `SIGN` is `TOP` for signed elements, else 0.
template <u32 TOP, u32 SIGN> struct PackedMin {
    enum { LONG = 1 };
    INLINE u32 combine(u32 a, u32 b) {
        u32 second = at_least<TOP>(a ^ SIGN, b ^ SIGN);
        return (b & second) | (a & ~second);
    }
};
template <u32 TOP, u32 SIGN> struct PackedMax {
    enum { LONG = 1 };
    INLINE u32 combine(u32 a, u32 b) {
        u32 first = at_least<TOP>(a ^ SIGN, b ^ SIGN);
        return (a & first) | (b & ~first);
    }
};

// Minima and maxima of two half-precision floats in a word. `FIRST` is the first place.
template <u32 FIRST> struct HalfMin {
    enum { LONG = 1 };
    INLINE u32 combine(u32 a, u32 b) {
        u32 second = at_least<0x80008000>(place_of<FIRST>(a), place_of<FIRST>(b));
        return (b & second) | (a & ~second);
    }
};
template <u32 FIRST> struct HalfMax {
    enum { LONG = 1 };
    INLINE u32 combine(u32 a, u32 b) {
        u32 first = at_least<0x80008000>(place_of<FIRST>(a), place_of<FIRST>(b));
        return (a & first) | (b & ~first);
    }
};

// The divisor of a mean. Both numbers are the count, rounded once.
struct Divisor {
    f64 by64;
    f32 by32;
    u32 divides;
};

// Rounds an exact sum to f64, to the nearest, ties to even.
INLINE f64 round_128(I128 value) {
    bool negative = (s64)value.high < 0;
    u64 low = negative ? 0 - value.low : value.low;
    u64 high = negative ? ~value.high + (value.low == 0) : value.high;
    f64 magnitude;
    if (high == 0) {
        magnitude = (f64)low;
    } else {
        // The upper 64 bits with a sticky bit for the others, which is far below the last bit of
        // the result.
        int shift = 64 - __clzll(high);
        u64 upper = shift == 64 ? high : high << (64 - shift) | low >> shift;
        u64 lost = shift == 64 ? low : low << (64 - shift);
        f64 scale = __longlong_as_double((u64)(1023 + shift) << 52);
        magnitude = (f64)(upper | (lost != 0)) * scale;
    }
    return negative ? -magnitude : magnitude;
}

// Makes a result for the format `To` of an accumulator.
template <class To> struct Finish {
    template <class A> INLINE A result(A accumulator, const Divisor&) { return accumulator; }
};

template <> struct Finish<F32> {
    INLINE f32 result(f32 value, const Divisor& divisor) { return divisor.divides ? value / divisor.by32 : value; }
    INLINE f32 result(s64 value, const Divisor& divisor) { return result((f32)value, divisor); }
};
template <> struct Finish<F16> : Finish<F32> {};
template <> struct Finish<Bf16> : Finish<F32> {};

template <> struct Finish<F64> {
    INLINE f64 result(f64 value, const Divisor& divisor) { return divisor.divides ? value / divisor.by64 : value; }
    INLINE f64 result(s64 value, const Divisor& divisor) { return result((f64)value, divisor); }
    INLINE f64 result(I128 value, const Divisor& divisor) { return result(round_128(value), divisor); }
};

// Whether the result of an accumulator takes a long program: the quotient of an exact sum.
template <class To, class A> struct IsLong { enum { VALUE = 0 }; };
template <> struct IsLong<F32, s64> { enum { VALUE = 1 }; };
template <> struct IsLong<F64, s64> { enum { VALUE = 1 }; };
template <> struct IsLong<F64, I128> { enum { VALUE = 1 }; };

// Some neighbouring elements of a source, in registers.
template <class R, int L> struct Tile {
    R lane[L];
};

template <class Op, class R, int L> INLINE Tile<R, L> combine(Tile<R, L> a, Tile<R, L> b) {
    if (Op::LONG && L > 1) {
        // A loop that rotates the registers keeps the program small.
        #pragma unroll 1
        for (int turn = 0; turn < L; turn++) {
            R first = Op::combine(a.lane[0], b.lane[0]);
            #pragma unroll
            for (int lane = 0; lane + 1 < L; lane++) {
                a.lane[lane] = a.lane[lane + 1];
                b.lane[lane] = b.lane[lane + 1];
            }
            a.lane[L - 1] = first;
        }
        return a;
    }
    #pragma unroll
    for (int lane = 0; lane < L; lane++) {
        a.lane[lane] = Op::combine(a.lane[lane], b.lane[lane]);
    }
    return a;
}

// Makes the results of all lanes, as words.
template <class To, class A, int L> INLINE void finish_all(u32* word, Tile<A, L> tile, const Divisor& divisor) {
    if (IsLong<To, A>::VALUE) {
        const int WORDS = (To::BYTES + 3) / 4;
        #pragma unroll 1
        for (int turn = 0; turn < L; turn++) {
            u32 last[WORDS];
            To::pack(last, 0, Finish<To>::result(tile.lane[0], divisor));
            #pragma unroll
            for (int lane = 0; lane + 1 < L; lane++) {
                tile.lane[lane] = tile.lane[lane + 1];
            }
            #pragma unroll
            for (int place = 0; place < (L - 1) * WORDS; place++) {
                word[place] = word[place + WORDS];
            }
            #pragma unroll
            for (int place = 0; place < WORDS; place++) {
                word[(L - 1) * WORDS + place] = last[place];
            }
        }
    } else {
        #pragma unroll
        for (int lane = 0; lane < L; lane++) {
            To::pack(word, lane, Finish<To>::result(tile.lane[lane], divisor));
        }
    }
}

// Number of sources whose loads are in flight together. An aligned group of this many is a complete
// subtree of the canonical order.
#define GROUP 4

// Combines the tiles that `load(first)`, …, `load(first + count - 1)` read, at most four, by the
// balanced tree. All loads come before the first use.
template <class Op, class R, int L, class Load> INLINE Tile<R, L> fold_group(u32 first, u32 count, const Load& load) {
    Tile<R, L> a = load(first), b, c, d;
    if (count > 1) {
        b = load(first + 1);
    }
    if (count > 2) {
        c = load(first + 2);
    }
    if (count > 3) {
        d = load(first + 3);
        c = combine<Op>(c, d);
    }
    if (count > 1) {
        a = combine<Op>(a, b);
    }
    if (count > 2) {
        a = combine<Op>(a, c);
    }
    return a;
}

// Finished subtrees of the binary counter: digit `k` has the tile of 2^k groups.
template <class R, int L, int LEVELS> struct Digits {
    Tile<R, L> digit[LEVELS];
};

// Combines `count` tiles in canonical order. Groups are combined as a binary counter carries. A
// counter has room for `GROUP << LEVELS` tiles. Few levels are registers.
template <class Op, class R, int L, int LEVELS, class Load> INLINE Tile<R, L> fold(u32 count, const Load& load) {
    Digits<R, L, LEVELS> digits;
    #pragma unroll 1
    for (u32 group = 0;; group++) {
        u32 first = group * GROUP;
        bool last = count - first <= GROUP;
        Tile<R, L> tile = fold_group<Op, R, L>(first, count - first, load);
        // The carries of the counter; after the last group all digits are combined.
        u32 carries = last ? group : group & ~(group + 1);
        if (LEVELS <= 4) {
            #pragma unroll
            for (int level = 0; level < LEVELS; level++) {
                if (carries >> level & 1) {
                    tile = combine<Op>(digits.digit[level], tile);
                }
            }
        } else {
            #pragma unroll 1
            for (int level = 0; carries >> level != 0; level++) {
                if (carries >> level & 1) {
                    tile = combine<Op>(digits.digit[level], tile);
                }
            }
        }
        if (last) {
            return tile;
        }
        if (LEVELS <= 4) {
            #pragma unroll
            for (int level = 0; level < LEVELS; level++) {
                if (carries + 1 == 1u << level) {
                    digits.digit[level] = tile;
                }
            }
        } else {
            digits.digit[31 - __clz(carries + 1)] = tile;
        }
    }
}
