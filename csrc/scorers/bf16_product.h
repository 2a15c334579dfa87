// Scores of products of bfloat16 numbers, by an instruction that multiplies two at a time. Gradients are Plain's:
// slopes rounded to bfloat16 would lose digits.
#pragma once

#include "scorers/plain.h"
#include "simd/dots.h"

namespace anyscore::ANYSCORE_ISA {

// A scorer, see scorer.h, for many queries and a weight that is only the scale.
class Bf16Product : public Plain<Product, float> {
    static constexpr int L = LANES<float>;
    using Base = Plain<Product, float>;

public:
    Bf16Product(Arena& arena, const Call& call) : Base(arena, call), query(arena, width), key(arena, width) {}

    // Returns whether this scorer can compute a call.
    static bool takes(const Call& call) {
        return HAS_DOTS && call.dots && !call.weight.data && call.width > 0 && !decodes(call);
    }

    void queries(const float* rows, int count) { query_row = rows, query.take(rows, padded, count, padded); }
    void keys(const float* rows, int count) { key_row = rows, key.take(rows, padded, count, padded); }

    static Size panel_size(Size width, bool) { return bf16_pairs_of(width) * L; }
    void panel(int first, int count, float* to) const {
        for (Size c = 0; c < key.pairs; c += L)
            transpose_square(key.rows + first * key.pairs + c, key.pairs, to + c * L, L, count);
    }

    void scores(int rows, const float* panels, Size stride, int keys, int, float* s) const {
        const int end = int(round_up(keys, L));
        Sums<DotTerm, float>{query.rows, weight, panels, (width + 1) / 2, query.pairs, stride}.write(rows, end / L, s);
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < end; j++) s[i * TILE + j] *= weight[0];
    }

private:
    Bf16PairRows query, key;
};

}  // namespace anyscore::ANYSCORE_ISA
