// Scores of a tile for tanh(a + b), lanes along keys; docs/kernel.md has the derivation.
//
//     Σ_d w_d tanh(a_d + b_d) = −2 w_max Σ_d ±(1/x_d − 1/(2 C_d)),   x_d = C_d (1 + e^(2a_d) e^(2b_d)),
//
// C_d = w_max/|w_d|, the sign that of w_d. An element costs a multiply-add and half a division.
#pragma once

#include "tanh_range.h"

namespace anyscore::ANYSCORE_ISA {

template <class T> class TanhScores {
    using V = Vector<T>;
    using Limits = TanhLimits<T>;
    static constexpr int L = LANES<T>, M = 4;
    static constexpr int GROUP = 16;  // features whose sum starts at its middle, for accuracy

public:
    TanhScores(Arena& arena, Size width)
        : width(width), padded(round_up(width, L)), stride(padded + L), query(arena.take<T>(TILE * stride)),
          exponent(arena.take<T>(TILE * stride)), c(arena.take<T>(stride)),
          transformed(arena.take<T>(2 * L * padded)), places(arena.take<Place>(width + 4)),
          halves(arena.take<T>(width / GROUP + 4)) {}

    void begin(const T* weight, const TanhRange<T>& range) {
        this->range = range;
        most = 0;
        for (Size d = 0; d < width; d++) most = max(most, abs(weight[d]));
        for (Size d = 0; d < padded; d++) {
            T w = abs(weight[d]);
            c[d] = w * Limits::C_MAX <= most ? Limits::C_MAX : most / w;
        }
        c[padded] = Limits::CAP;
        sort(weight);
    }

    void queries(const T* rows, int count) {
        for (int i = 0; i < count; i++) {
            const T* x = rows + i * padded;
            T *to = query + i * stride, *e = exponent + i * stride;
            for (Size d = 0; d < padded; d++) to[d] = c[d] * exp_clamped(2 * (x[d] + range.centre[d]));
            to[padded] = 1, e[padded] = 0;
            for (Size p = first[2]; p < first[4]; p++) {
                int d = places[p].query;
                if (d == padded) continue;
                split(x[d] + range.centre[d], to[d], e[d]);
                to[d] *= c[d];
            }
        }
    }

    // Where a feature of the keys is wide, a second plane holds the exponents.
    static Size panel_size(Size width, bool any_wide) { return round_up(width, L) * L * (any_wide ? 2 : 1); }

    void panel(const T* rows, T* to) const {
        for (int j = 0; j < L; j++)
            for (Size d = 0; d < padded; d++)
                transformed[j * padded + d] = exp_clamped(2 * (rows[j * padded + d] - range.centre[d]));
        if (range.any_wide) {
            std::memset(transformed + L * padded, 0, std::size_t(L * padded) * sizeof(T));
            for (Size d = 0; d < padded; d++)
                for (int j = 0; range.wide[d] > 0 && j < L; j++)
                    split(rows[j * padded + d] - range.centre[d], transformed[j * padded + d],
                          transformed[(L + j) * padded + d]);
        }
        for (int plane = 0; plane < (range.any_wide ? 2 : 1); plane++)
            for (Size d = 0; d < padded; d += L) {
                V square[L];
                for (int j = 0; j < L; j++) square[j] = load(transformed + (plane * L + j) * padded + d);
                transpose<T>(square);
                for (int j = 0; j < L; j++) store(to + (plane * padded + d + j) * L, square[j]);
            }
    }

    void scores(int rows, const T* panels, Size panel_stride, int count, T* s) const {
        for (int p = 0; p < count; p++, panels += panel_stride, s += L) {
            int i = 0;
            for (; i + M <= rows; i += M) score_tile<M>(i, panels, s + i * TILE);
            for (; i < rows; i++) score_tile<1>(i, panels, s + i * TILE);
        }
    }

private:
    // Where a feature stands in a row of queries, and in a panel of keys.
    struct Place {
        int query, key;
    };

    // Features of weight 0 are left out. The others come in four segments: positive, negative, wide
    // positive, wide negative; each is made even by a place beyond the last, which adds 1/CAP.
    void sort(const T* weight) {
        Size count = 0, group = 0;
        for (int segment = 0; segment < 4; segment++) {
            first[segment] = count, first_half[segment] = group;
            bool wide = segment >= 2, negative = segment % 2;
            for (Size d = 0; d < width; d++)
                if (weight[d] != 0 && (range.wide[d] > 0) == wide && (weight[d] < 0) == negative)
                    places[count++] = {int(d), int(d) * L};
            if ((count - first[segment]) % 2) places[count++] = {int(padded), 0};
            for (Size p = first[segment]; p < count; p += GROUP) {
                T half = 0;
                for (Size k = p; k < count && k < p + GROUP; k++) half += T(0.5) / c[places[k].query];
                halves[group++] = half;
            }
        }
        first[4] = count;
    }

    template <int ROWS> ANYSCORE_INLINE void score_tile(int i, const T* panel, T* s) const {
        V sum[ROWS];
        for (int t = 0; t < ROWS; t++) sum[t] = V{};
        for (int segment = 0; segment < 4; segment++) {
            T sign = segment % 2 ? T(-1) : T(1);
            const T* half = halves + first_half[segment];
            for (Size p = first[segment]; p < first[segment + 1]; p += GROUP, half++) {
                V part[ROWS];
                for (int t = 0; t < ROWS; t++) part[t] = fill(-*half);
                Size end = p + GROUP < first[segment + 1] ? p + GROUP : first[segment + 1];
                if (segment < 2)
                    for (Size k = p; k < end; k += 2) add_two<ROWS>(i, panel, places[k], places[k + 1], part);
                else
                    for (Size k = p; k < end; k += 2) add_two_wide<ROWS>(i, panel, places[k], places[k + 1], part);
                for (int t = 0; t < ROWS; t++) sum[t] += sign * part[t];
            }
        }
        for (int t = 0; t < ROWS; t++) store(s + t * TILE, -2 * most * sum[t]);
    }

    // 1/x + 1/y = (x + y)/(xy): two features share a division.
    template <int ROWS>
    ANYSCORE_INLINE void add_two(int i, const T* panel, Place one, Place two, V* part) const {
        V b0 = load(panel + one.key), b1 = load(panel + two.key), cap = fill(Limits::CAP);
        V c0 = fill(c[one.query]), c1 = fill(c[two.query]);
        const T *a0 = query + i * stride + one.query, *a1 = query + i * stride + two.query;
        for (int t = 0; t < ROWS; t++) {
            V x = min(a0[t * stride] * b0 + c0, cap), y = min(a1[t * stride] * b1 + c1, cap);
            part[t] += (x + y) / (x * y);
        }
    }

    template <int ROWS>
    ANYSCORE_INLINE void add_two_wide(int i, const T* panel, Place one, Place two, V* part) const {
        const T* exponents = panel + padded * L;
        V b0 = load(panel + one.key), e0 = load(exponents + one.key), c0 = fill(c[one.query]);
        V b1 = load(panel + two.key), e1 = load(exponents + two.key), c1 = fill(c[two.query]);
        for (int t = 0; t < ROWS; t++) {
            const T *a = query + (i + t) * stride, *e = exponent + (i + t) * stride;
            V x = times_power<T>(a[one.query] * b0, e[one.query] + e0) + c0;
            V y = times_power<T>(a[two.query] * b1, e[two.query] + e1) + c1;
            part[t] += (x + y) / (x * y);
        }
    }

    Size width, padded, stride;
    T *query, *exponent, *c, *transformed;
    Place* places;
    T* halves;
    TanhRange<T> range{};
    T most = 0;
    Size first[5] = {}, first_half[4] = {};
};

}  // namespace anyscore::ANYSCORE_ISA
