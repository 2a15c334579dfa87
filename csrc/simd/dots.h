// Products of bfloat16 numbers, two at a time: the instruction adds x₀y₀ + x₁y₁ to a float32 sum.
//
// A bf16 pair is two such numbers in 32 bits, the first in the lower half. Bf16 pairs are stored in arrays of floats,
// but never enter float arithmetic: they are only moved, or split as integers.
#pragma once

#include "runtime/memory.h"
#include "simd/rows.h"

namespace anyscore::ANYSCORE_ISA {

// ANYSCORE_DOTS: the assembler has the instructions. ANYSCORE_EMULATE_DOTS: tests run without them.
#if defined(ANYSCORE_EMULATE_DOTS)
#define ANYSCORE_DOT_INSTRUCTIONS 0
constexpr bool HAS_DOTS = true;
#elif defined(ANYSCORE_DOTS) && defined(__AVX512F__)
#define ANYSCORE_DOT_INSTRUCTIONS 1
constexpr bool HAS_DOTS = true;
#else
#define ANYSCORE_DOT_INSTRUCTIONS 0
constexpr bool HAS_DOTS = false;
#endif

// Whether sums of type T may be taken of bf16 pairs.
template <class T> constexpr bool TAKES_BF16_PAIRS = HAS_DOTS && TYPE_OF<T> == Type::F32;

using PairBits = VectorOf<std::uint32_t>::type;  // the bits of a vector of bf16 pairs

// Returns the sum of each lane plus the two products of its bf16 pairs.
ANYSCORE_INLINE Vector<float> dot(Vector<float> sum, Vector<float> x, Vector<float> y) {
#if ANYSCORE_DOT_INSTRUCTIONS
    asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(x), "v"(y));
    return sum;
#else
    const PairBits of_x = (PairBits)x, of_y = (PairBits)y;
    sum += (Vector<float>)(of_x & 0xffff0000u) * (Vector<float>)(of_y & 0xffff0000u);
    return sum + (Vector<float>)(of_x << 16) * (Vector<float>)(of_y << 16);
#endif
}

// Returns the numbers of two vectors, rounded to nearest, as bf16 pairs in the same order.
ANYSCORE_INLINE Vector<float> narrow(Vector<float> first, Vector<float> second) {
#if ANYSCORE_DOT_INSTRUCTIONS
    Vector<float> pairs;
    asm("vcvtne2ps2bf16 %2, %1, %0" : "=v"(pairs) : "v"(second), "v"(first));
    return pairs;
#else
    constexpr int L = LANES<float>;
    std::uint16_t halves[2 * L];
    for (int l = 0; l < L; l++) halves[l] = to_bf16(first[l]), halves[l + L] = to_bf16(second[l]);
    Vector<float> pairs;
    std::memcpy(&pairs, halves, sizeof pairs);
    return pairs;
#endif
}

// Returns the number of bf16 pairs that hold a row of `width` numbers, rounded up to whole vectors.
ANYSCORE_INLINE Size bf16_pairs_of(Size width) { return round_up((width + 1) / 2, LANES<float>); }

// The rows of a tile as bf16 pairs: (TILE, pairs).
class Bf16PairRows {
    static constexpr int L = LANES<float>;

public:
    Bf16PairRows(Arena& arena, Size width) : pairs(bf16_pairs_of(width)), rows(arena.take<float>(TILE * pairs)) {}

    // Rounds `count` rows, `stride` apart, of `numbers` numbers each, a multiple of LANES.
    void take(const float* from, Size stride, int count, Size numbers) {
        for (int i = 0; i < count; i++, from += stride) {
            float* to = rows + i * pairs;
            Size d = 0;
            for (; d + 2 * L <= numbers; d += 2 * L) store(to + d / 2, narrow(load(from + d), load(from + d + L)));
            if (d < numbers) store(to + d / 2, narrow(load(from + d), Vector<float>{}));
        }
    }

    // Subtracts the rounded rows from `numbers`: the rounding errors remain.
    void subtract_from(float* numbers, Size stride, int count, Size width) const {
        for (int i = 0; i < count; i++) {
            const auto* halves = (const char*)(rows + i * pairs);
            for (Size d = 0; d < width; d++) {
                std::uint16_t half;
                std::memcpy(&half, halves + 2 * d, sizeof half);
                numbers[i * stride + d] -= from_bf16(half);
            }
        }
    }

    // Reads rows [first, first + count) of problem n, which are bfloat16.
    void read(const Rows& from, Size n, Size first, int count, Size width) {
        for (int i = 0; i < count; i++) {
            char* to = (char*)(rows + i * pairs);
            std::memcpy(to, (const std::uint16_t*)from.data + from.at[n] + (first + i) * from.stride,
                        std::size_t(2 * width));
            zero(to + 2 * width, 4 * pairs - 2 * width);
        }
    }

    const Size pairs;  // bf16 pairs of a row
    float* const rows;
};

}  // namespace anyscore::ANYSCORE_ISA
