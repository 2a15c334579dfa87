// Scores and gradients of a tile by the formula of a pair: for every pair but tanh.
#pragma once

#include <type_traits>

#include "scorers/columns.h"
#include "scorers/pairs.h"
#include "scorers/scorer.h"
#include "simd/gemm.h"
#include "simd/sums.h"

namespace anyscore::ANYSCORE_ISA {

// A Range without numbers: these pairs compute any tile of keys without knowing the others.
template <class T> struct NoRange {
    static constexpr bool any_wide = false;
    static Size size(Size) { return 0; }
    NoRange(const T*, Size) {}
    bool takes(const T*, Size) const { return true; }
    static bool from_largest(const T*, Size, T*) { return true; }
    static void from_ends(const T*, const T*, Size, T*) {}
    static void pack(const T*, Size, Size, T*) {}
    static void unpack(const T*, Size, Size, T*) {}
};

// A scorer, see scorer.h.
template <class Pair, class T> class Plain {
    static constexpr int L = LANES<T>;
    static constexpr bool IS_PRODUCT = std::is_same_v<Pair, Product>;
    using Term = std::conditional_t<IS_PRODUCT, ProductTerm, WeightedTerm<Pair>>;

public:
    using Literal = Pair;
    using Range = NoRange<T>;
    static T limit() { return largest_finite<T>(); }
    static constexpr T FACTOR = T(1);

    Plain(Arena& arena, const Call& call)
        : width(call.width), padded(round_up(width, L)), has_weight(call.weight.data),
          weighted(arena.take<T>(IS_PRODUCT ? TILE * padded : 0)), product(arena.take<T>(IS_PRODUCT ? TILE * padded : 0)) {}

    void begin(const T* weight, bool, const Range&) { this->weight = weight; }

    void keys(const T* rows, int) { key_row = rows; }
    void gradient_queries(const T* rows, int) { query_row = rows; }
    void queries(const T* rows, int count) {
        query_row = rows;
        if constexpr (IS_PRODUCT) {
            for (int i = 0; i < count; i++)
                for (Size d = 0; d < padded; d++) weighted[i * padded + d] = rows[i * padded + d] * weight[d];
            a = weighted;
        } else {
            a = rows;
        }
    }

    static Size panel_size(Size width, bool) { return round_up(width, L) * L; }

    // Transposes the keys: LANES keys of one feature are one vector.
    void panel(int first, int count, T* to) const {
        for (Size d = 0; d < padded; d += L) transpose_square(key_row + first * padded + d, padded, to + d * L, L, count);
    }

    void scores(int rows, const T* panels, Size stride, int keys, int, T* s) const {
        Sums<Term, T>{a, weight, panels, width, padded, stride}.write(rows, int(round_up(keys, L)) / L, s);
    }

    void decode_queries(const T* rows, int count) { queries(rows, count); }
    const T* decode_keys(const T* rows, int, T*) const { return rows; }

    void decode_scores(int rows, const T* keys, Size stride, int count, T* s) const {
        constexpr int KEYS = L < 4 ? L : 4;
        for (int i = 0; i < rows; i++)
            for (int j0 = 0; j0 < count; j0 += L) {
                Vector<T> sums[L] = {};
                const T* x = a + i * padded;
                int n = remaining(count, j0, L), j = 0;
                for (; j + KEYS <= n; j += KEYS) by_halves<KEYS>(x, keys + (j0 + j) * stride, stride, 0, padded, sums + j);
                for (; j < n; j++) by_halves<1>(x, keys + (j0 + j) * stride, stride, 0, padded, sums + j);
                transpose<T>(sums);
                store(s + i * TILE + j0, sum<L>(sums));
            }
    }

    void gradients(int rows, int keys, const T* ds, T* da, T* db, T* dw) const {
        if constexpr (IS_PRODUCT) {
            T* to = has_weight ? product : da;
            if (has_weight) zero(product, rows * padded);
            gemm<ProductTerm, T>({to, padded}, {ds, TILE}, {key_row, padded}, rows, padded, keys);
            gemm<ProductTerm, T>({db, padded}, {ds, 1, TILE}, {query_row, padded}, keys, padded, rows);
            for (int i = 0; has_weight && i < rows; i++)
                for (Size d = 0; d < padded; d++) {
                    T sum = product[i * padded + d];
                    da[i * padded + d] += sum;
                    dw[d] += sum * query_row[i * padded + d];
                }
        } else {
            constexpr int M = 4;
            for (Size d = 0; d < padded; d += L) {
                const KeyColumn<T> column(key_row + d, db + d, padded, keys, rows);
                int i = 0;
                for (; i + M <= rows; i += M) gradient_tile<M>(i, d, column, ds, da, dw);
                for (; i < rows; i++) gradient_tile<1>(i, d, column, ds, da, dw);
                column.finish();
            }
        }
    }

protected:
    // Writes Σ of the terms of a query with each of KEYS keys, over the features [from, to), in each lane. Several
    // keys at a time: each sum waits for its last addition.
    template <int KEYS>
    ANYSCORE_INLINE void by_halves(const T* a, const T* keys, Size stride, Size from, Size to, Vector<T>* sums) const {
        if (to - from > PIECE * L)
            split<KEYS>(a, keys, stride, from, to, sums);
        else
            decode_sums<KEYS>(a, keys, stride, from, to, sums);
    }

    template <int KEYS>
    ANYSCORE_NOINLINE void split(const T* a, const T* keys, Size stride, Size from, Size to, Vector<T>* sums) const {
        Size middle = from + round_up((to - from) / 2, L);
        Vector<T> right[KEYS];
        by_halves<KEYS>(a, keys, stride, from, middle, sums);
        by_halves<KEYS>(a, keys, stride, middle, to, right);
        for (int j = 0; j < KEYS; j++) sums[j] += right[j];
    }

    template <int KEYS>
    ANYSCORE_INLINE void decode_sums(const T* a, const T* keys, Size stride, Size from, Size to, Vector<T>* sums) const {
        Vector<T> sum[KEYS] = {};
        for (Size d = from; d < to; d += L) {
            Vector<T> x = load(a + d);
            for (int j = 0; j < KEYS; j++) {
                Vector<T> y = load(keys + j * stride + d);
                sum[j] += IS_PRODUCT ? x * y : load(weight + d) * Pair::value(x, y);
            }
        }
        for (int j = 0; j < KEYS; j++) sums[j] = sum[j];
    }

    template <int ROWS>
    ANYSCORE_INLINE void gradient_tile(int i, Size d, const KeyColumn<T>& column, const T* ds, T* da, T* dw) const {
        Vector<T> x[ROWS], sum_a[ROWS], sum_w[ROWS];
        for (int t = 0; t < ROWS; t++) {
            x[t] = load(query_row + (i + t) * padded + d);
            sum_a[t] = sum_w[t] = Vector<T>{};
        }
        const T *g_row = ds + i * TILE, *key = column.key;
        T* to = column.sum;
        const Size next = column.stride;
        for (int j = 0, keys = column.keys; j < keys; j++, key += next, to += next) {
            Vector<T> y = load(key), sum_b[ROWS];
            for (int t = 0; t < ROWS; t++) {
                Vector<T> value, by_a, by_b;
                T g = g_row[t * TILE + j];
                Pair::gradient(x[t], y, value, by_a, by_b);
                sum_b[t] = g * by_b, sum_a[t] += g * by_a, sum_w[t] += g * value;
            }
            store(to, load(to) + sum<ROWS>(sum_b));
        }
        for (int t = 0; t < ROWS; t++) {
            T* to = da + (i + t) * padded + d;
            store(to, load(to) + sum_a[t]);
        }
        store(dw + d, load(dw + d) + sum<ROWS>(sum_w));
    }

    Size width, padded;
    bool has_weight;  // whether the weight is more than the scale
    T *weighted, *product;
    const T *weight = nullptr, *a = nullptr, *query_row = nullptr, *key_row = nullptr;
};

}  // namespace anyscore::ANYSCORE_ISA
