// Pairs that split into a part of the query, a part of the key, and a joint part of one instruction.
//
// An example: Squared, (a − b)² = a² + b² − 2ab, with one feature, a query a = 3, keys b = 1 and 5, and a weight w =
// 1:
//
//     part     formula       value                   buffer
//     query    Σ w a²        9                       query_sums: one sum for each query of a tile
//     key      Σ w b²        1, 25                   key_sums: one sum for each key of a tile
//     joint    Σ (−2 w a) b  −6, −30                 joint_query holds −2 w a = −6 for each query and feature
//     score    their sum     9 + 1 − 6 = 4, 9 + 25 − 30 = 4
//
// An element costs one multiply-add, of joint_query and the key. Parts may be large where their sum is small, and
// their roundings with them. For a = 1000 and b = 1000.1 the distance is 0.01, and float32 rounds numbers near 10⁶ to
// multiples of 0.0625. So each tile has a bound on its parts. Plain computes the tile where the bound is exceeded.
#pragma once

#include <cmath>
#include <limits>

#include "scorers/columns.h"
#include "scorers/plain.h"

namespace anyscore::ANYSCORE_ISA {

// A scorer, see scorer.h; pairs.h defines Pair::Parts.
template <class Pair, class T> class Split : public Plain<Pair, T> {
    static constexpr int L = LANES<T>;
    using Base = Plain<Pair, T>;
    using Parts = typename Pair::Parts;
    using Joint = std::conditional_t<Parts::IS_PRODUCT, ProductTerm, WeightedTerm<Parts>>;
    using Base::padded, Base::weight, Base::width, Base::query_row, Base::key_row;

    // The largest excess of parts over a score: roundings grow with the parts, and beyond this limit exceed the error
    // budget. Where weights have both signs, sums of parts are less than sums of their magnitudes.
    static constexpr T LIMIT = Parts::LIMIT, LIMIT_OF_BOTH_SIGNS = 2 * LIMIT;
    // The largest ratio of the parts to the largest distance of a tile: tokens near each other, but far from 0,
    // exceed it.
    static constexpr T RATIO = 3;

    struct KeyPartTerm {
        template <class V> static ANYSCORE_INLINE V add(V sum, V x, V y, T) { return sum + x * Parts::of_key(y); }
    };
    struct KeyMagnitudeTerm {
        template <class V> static ANYSCORE_INLINE V add(V sum, V x, V y, T) { return sum + x * abs(Parts::of_key(y)); }
    };

public:
    Split(Arena& arena, const Call& call)
        : Base(arena, call), outer(call.outer), outer_scale(T(call.outer_scale)), joint_query(arena.take<T>(TILE * padded)),
          joint_weight(arena.take<T>(padded)), abs_weight(arena.take<T>(padded)), query_sums(arena.take<T>(TILE)),
          query_magnitudes(arena.take<T>(TILE)), key_sums(arena.take<T>(TILE)), key_magnitudes(arena.take<T>(TILE)) {}

    void begin(const T* weight, bool is_new, const NoRange<T>& range) {
        Base::begin(weight, is_new, range);
        if (!is_new) return;
        has_positive = has_negative = false;
        for (Size d = 0; d < padded; d++) {
            joint_weight[d] = Parts::weight(weight[d]), abs_weight[d] = abs(weight[d]);
            has_positive |= weight[d] > 0, has_negative |= weight[d] < 0;
        }
    }

    void queries(const T* rows, int count) {
        Base::queries(rows, count);
        for (int i = 0; i < count; i++) {
            Vector<T> sum{}, sum_of_magnitudes{};
            for (Size d = 0; d < padded; d += L) {
                Vector<T> x = load(rows + i * padded + d), w = load(weight + d), part = w * Parts::of_query(x);
                sum += part, sum_of_magnitudes += abs(part);
                store(joint_query + i * padded + d, Parts::query(x, w));
            }
            query_sums[i] = sum_lanes<T>(sum), query_magnitudes[i] = sum_lanes<T>(sum_of_magnitudes);
        }
    }

    void scores(int rows, const T* panels, Size stride, int keys, int all, T* s) const {
        if (!by_parts(rows, panels, stride, keys, s)) Base::scores(rows, panels, stride, keys, all, s);
    }

    void gradients(int rows, int keys, const T* ds, T* da, T* db, T* dw) const {
        constexpr int M = ANYSCORE_VECTOR_BYTES == 64 ? 8 : 4;  // rows whose sums fit the registers
        for (Size d = 0; d < padded; d += L) {
            const KeyColumn<T> column(key_row + d, db + d, padded, keys, rows);
            int i = 0;
            for (; i + M <= rows; i += M) gradient_tile<M>(i, d, column, ds, da, dw);
            for (; i + 2 <= rows; i += 2) gradient_tile<2>(i, d, column, ds, da, dw);
            for (; i < rows; i++) gradient_tile<1>(i, d, column, ds, da, dw);
            column.finish();
        }
    }

private:
    // Writes the scores by parts. Returns whether they are exact enough.
    bool by_parts(int rows, const T* panels, Size stride, int keys, T* s) const {
        if (outer == Outer::OWN) return false;  // the slope has no bound
        const int count = int(round_up(keys, L)) / L;
        const bool is_distance = Parts::IS_DISTANCE && has_positive != has_negative;
        Sums<KeyPartTerm, T>{weight, weight, panels, width, padded, stride}.write(1, count, key_sums);
        if (!is_distance)
            Sums<KeyMagnitudeTerm, T>{abs_weight, abs_weight, panels, width, padded, stride}.write(1, count, key_magnitudes);
        const T most = from_bits<T>(largest_bits(query_magnitudes, rows)) +
                       from_bits<T>(largest_bits(is_distance ? key_sums : key_magnitudes, keys));
        if (bits(most) > bits(largest_finite<T>())) return false;
        if (!is_distance && most * slope_from(0) > (has_positive && has_negative ? LIMIT_OF_BOTH_SIGNS : LIMIT))
            return false;
        Sums<Joint, T>{joint_query, joint_weight, panels, width, padded, stride, query_sums, key_sums}.write(rows, count, s);
        return !is_distance || are_exact_distances(rows, keys, most, s);
    }

    // Returns whether the distances s are exact enough, whose parts are at most `most`. Clamps distances of the wrong
    // sign to 0.
    bool are_exact_distances(int rows, int keys, T most, T* s) const {
        T low[TILE], high[TILE];  // the smallest and the largest distance of each key
        const Vector<T> sign = fill<T>(has_positive ? 1 : -1);
        for (int j = 0; j < keys; j += L) {
            Vector<T> lowest = fill(largest_finite<T>()), highest{};
            for (int i = 0; i < rows; i++) {
                T* at = s + i * TILE + j;
                Vector<T> distance = max(sign * load(at), Vector<T>{});
                store(at, sign * distance);
                lowest = min(lowest, distance), highest = max(highest, distance);
            }
            store(low + j, lowest), store(high + j, highest);
        }
        T least = largest_finite<T>(), greatest = 0;
        for (int j = 0; j < keys; j++) least = min(least, low[j]), greatest = max(greatest, high[j]);
        return (most - least) * slope_from(least) <= LIMIT && most <= RATIO * greatest;
    }

    // Returns the largest derivative of the outer function for sums ≥ x.
    T slope_from(T x) const {
        switch (outer) {
            case Outer::SQRT: return outer_scale / 2 / std::sqrt(max(x, std::numeric_limits<T>::min()));
            case Outer::LOG1P: return outer_scale / (1 + x);
            case Outer::ARCOSH: return outer_scale / std::sqrt(max(x * (x + 2), std::numeric_limits<T>::min()));
            default: return 1;
        }
    }

    template <int ROWS>
    ANYSCORE_INLINE void gradient_tile(int i, Size d, const KeyColumn<T>& column, const T* ds, T* da, T* dw) const {
        Vector<T> x[ROWS], sum_a[ROWS] = {}, sum_w[ROWS] = {};
        for (int t = 0; t < ROWS; t++) x[t] = Parts::gradient_query(load(query_row + (i + t) * padded + d));
        const T *g = ds + i * TILE, *key = column.key;
        T* to = column.sum;
        const Size next = column.stride;
        for (int j = 0, keys = column.keys; j < keys; j++, key += next, to += next) {
            Vector<T> y = load(key), sum_b;
            for (int t = 0; t < ROWS; t++) {
                Vector<T> z = Parts::join(x[t], y), slope = Parts::slope(fill(g[t * TILE + j]), z);
                sum_a[t] += slope, sum_w[t] += slope * z, sum_b = t ? sum_b + slope : slope;
            }
            store(to, load(to) + Parts::template FACTOR_B<T> * sum_b);
        }
        for (int t = 0; t < ROWS; t++) {
            T* to = da + (i + t) * padded + d;
            store(to, load(to) + Parts::template FACTOR_A<T> * sum_a[t]);
        }
        store(dw + d, load(dw + d) + Parts::template FACTOR_W<T> * sum<ROWS>(sum_w));
    }

    Outer outer;
    T outer_scale;
    bool has_positive = false, has_negative = false;  // signs among the weights
    T *joint_query, *joint_weight, *abs_weight;  // joint_query: (TILE, padded); the others: (padded)
    T *query_sums, *query_magnitudes, *key_sums,
        *key_magnitudes;  // (TILE) each: sums of the query and key parts, and of their magnitudes
};

}  // namespace anyscore::ANYSCORE_ISA
