// tanh(a + b): scores of a tile, lanes along keys; docs/kernel.md has the derivation.
//
//     Σ_d w_d tanh(a_d + b_d) = −2 w_max Σ_d ±(1/x_d − 1/(2 C_d)),   x_d = C_d (1 + e^(2a_d) e^(2b_d)),
//
// C_d = w_max/|w_d|, the sign that of w_d. An element costs a multiply-add and half a division.
#pragma once

#include "tanh_rows.h"

namespace anyscore::ANYSCORE_ISA {

template <class T, class Reciprocal> class Tanh : public TanhRows<T, Reciprocal> {
    using V = Vector<T>;
    using Limits = TanhLimits<T>;
    using Rows = TanhRows<T, Reciprocal>;
    using Rows::forms, Rows::padded, Rows::range, Rows::weight;
    static constexpr int L = LANES<T>, M = 4;
    static constexpr int GROUP = 16;  // features whose sum starts at its middle, for accuracy
    static constexpr int SHARE = Reciprocal::SHARE;
    static constexpr T CAP = Reciprocal::template CAP<T>;

public:
    using Literal = TanhOfSum;
    using Range = TanhRange<T>;
    static T limit() { return Limits::HUGE_INPUT; }
    static constexpr T FACTOR = T(4);

    Tanh(Arena& arena, Size width)
        : Rows(arena, width), width(width), query(arena.take<T>(TILE * padded)), exponent(arena.take<T>(TILE * padded)),
          c(arena.take<T>(padded)), c_at(arena.take<T>(width + 4 * SHARE)), order(arena.take<int>(width + 4 * SHARE)),
          halves(arena.take<T>(width / GROUP + 4)) {}

    void begin(const T* weight, bool is_new, const Range& range, bool gradients) {
        bool was_wide = Rows::range.any_wide;
        Rows::begin(weight, range, gradients);
        if (!is_new && !was_wide && !range.any_wide) return;
        most = 0;
        for (Size d = 0; d < width; d++) most = max(most, abs(weight[d]));
        for (Size d = 0; d < padded; d++) {
            T w = abs(weight[d]);
            c[d] = w * Limits::C_MAX <= most ? Limits::C_MAX : most / w;
        }
        sort();
    }

    void queries(const T* rows, int count) {
        Rows::queries(rows, count);
        for (int i = 0; i < count; i++)
            for (Size d = 0; d < padded; d += L) {
                V value, power{};
                score_form(Rows::query + i * padded + d, d, value, power);
                store(query + i * padded + d, load(c + d) * value);
                if (forms[d / L] == Rows::WIDE) store(exponent + i * padded + d, power);
            }
    }

    // Where a feature of the keys is wide, a second plane holds the exponents.
    static Size panel_size(Size width, bool any_wide) { return round_up(width, L) * L * (any_wide ? 2 : 1); }

    // Few keys of a last panel stay rows: lanes along them would be mostly empty.
    void panel(int first, int count, T* to) const {
        if (are_rows(count)) {
            for (Size k = 0; k < count * padded; k++) to[k] = Rows::key[first * padded + k];
            return;
        }
        for (Size d = 0; d < padded; d += L) {
            V values[L], powers[L] = {};
            for (int j = 0; j < L; j++) score_form(Rows::key + (first + j) * padded + d, d, values[j], powers[j]);
            transpose<T>(values);
            for (int j = 0; j < L; j++) store(to + (d + j) * L, values[j]);
            if (forms[d / L] != Rows::WIDE) continue;
            transpose<T>(powers);
            for (int j = 0; j < L; j++) store(to + (padded + d + j) * L, powers[j]);
        }
    }

    void scores(int rows, const T* panels, Size stride, int keys, int all, T* s) const {
        for (int j = 0; j < keys; j += L, panels += stride, s += L) {
            if (are_rows(all - j)) {
                row_scores(rows, panels, keys - j, s);
                continue;
            }
            int i = 0;
            for (; i + M <= rows; i += M) score_tile<M>(i, panels, s + i * TILE);
            if (i + 2 <= rows) score_tile<2>(i, panels, s + i * TILE), i += 2;
            if (i < rows) score_tile<1>(i, panels, s + i * TILE);
        }
    }

private:
    bool are_rows(int left) const { return left <= L / 2 && !range.any_wide; }

    // tanh(a + b) is as good as tanh(b + a): each key meets all queries.
    void row_scores(int rows, const T* keys, int count, T* s) const {
        T of_key[TILE];
        for (int j = 0; j < count; j++) {
            Rows::few_row(keys + j * padded, Rows::query, padded, rows, of_key);
            for (int i = 0; i < rows; i++) s[i * TILE + j] = of_key[i];
        }
        for (int i = 0; i < rows; i++)
            for (int j = count; j < L; j++) s[i * TILE + j] = 0;
    }

    // e^(2x) of a vector of features as value · 2^power; power is 0 where the feature is not wide.
    ANYSCORE_INLINE void score_form(const T* row, Size d, V& value, V& power) const {
        value = load(row);
        if (forms[d / L] != Rows::WIDE) return;
        V wide = load(range.wide + d);
        power = load(row + TILE * padded);
        V whole = times_power_saturated<T>(value, power);
        value = wide > fill(T(0)) ? value : whole, power = wide > fill(T(0)) ? power : V{};
    }

    // Features of weight 0 are left out. The others come in four segments: positive, negative, wide
    // positive, wide negative; each is made a multiple of SHARE by some whose C is CAP, which adds 1/CAP.
    void sort() {
        Size count = 0, group = 0;
        for (int segment = 0; segment < 4; segment++) {
            first[segment] = count, first_half[segment] = group;
            bool wide = segment >= 2, negative = segment % 2;
            for (Size d = 0; d < width && (!wide || range.any_wide); d++) {
                bool here = (weight[d] != 0) & ((range.wide[d] > 0) == wide) & ((weight[d] < 0) == negative);
                c_at[count] = c[d], order[count] = int(d), count += here;
            }
            while ((count - first[segment]) % SHARE) c_at[count] = CAP, order[count] = order[count - 1], count++;
            for (Size p = first[segment]; p < count; p += GROUP) {
                T half = 0;
                for (Size k = p; k < count && k < p + GROUP; k++) half += T(0.5) / c_at[k];
                halves[group++] = half;
            }
        }
        first[4] = count;
    }

    template <int ROWS> ANYSCORE_INLINE void score_tile(int i, const T* panel, T* s) const {
        V sums[ROWS];
        for (int t = 0; t < ROWS; t++) sums[t] = V{};
        for (int segment = 0; segment < 4; segment++) {
            Size from = first[segment], count = first[segment + 1] - from;
            const T* half = halves + first_half[segment];
            if (count == 0) continue;
            V parts[ROWS];
            if (segment < 2)
                narrow<ROWS>(query + i * padded, padded, panel, order + from, c_at + from, half, count, parts);
            else
                wide<ROWS>(i, panel, from, half, count, parts);
            for (int t = 0; t < ROWS; t++) sums[t] += segment % 2 ? -parts[t] : parts[t];
        }
        for (int t = 0; t < ROWS; t++) store(s + t * TILE, -2 * most * sums[t]);
    }

    // Σ 1/x − 1/(2C) over `count` features. A function of its own: it needs all registers.
    template <int ROWS>
    static __attribute__((noinline)) void narrow(const T* a, Size padded, const T* panel, const int* order, const T* c,
                                                 const T* half, Size count, V* sums) {
        V sum[ROWS];
        for (int t = 0; t < ROWS; t++) sum[t] = V{};
        for (; count > 0; count -= GROUP, order += GROUP, c += GROUP, half++) {
            V part[ROWS];
            for (int t = 0; t < ROWS; t++) part[t] = fill(-*half);
            if (count >= GROUP)
#pragma GCC unroll 8
                for (int k = 0; k < GROUP; k += SHARE) add<ROWS>(a, padded, panel, order + k, c + k, part);
            else
                for (int k = 0; k < count; k += SHARE) add<ROWS>(a, padded, panel, order + k, c + k, part);
            for (int t = 0; t < ROWS; t++) sum[t] += part[t];
        }
        for (int t = 0; t < ROWS; t++) sums[t] = sum[t];
    }

    // SHARE features.
    template <int ROWS>
    static ANYSCORE_INLINE void add(const T* a, Size padded, const T* panel, const int* order, const T* c, V* part) {
        for (int t = 0; t < ROWS; t++) {
            V x[SHARE];
            for (int n = 0; n < SHARE; n++)
                x[n] = min(a[t * padded + order[n]] * load(panel + Size(order[n]) * L) + fill(c[n]), fill(CAP));
            auto sum = sum_of_reciprocals<SHARE>(x);
            part[t] += Reciprocal::ratio(sum.above, sum.below);
        }
    }

    template <int ROWS>
    __attribute__((noinline)) void wide(int i, const T* panel, Size from, const T* half, Size count, V* sums) const {
        for (int t = 0; t < ROWS; t++) sums[t] = V{};
        for (Size p = 0; p < count; p += GROUP, half++) {
            V part[ROWS];
            for (int t = 0; t < ROWS; t++) part[t] = fill(-*half);
            for (Size k = p; k < count && k < p + GROUP; k += 2) add_two_wide<ROWS>(i, panel, from + k, part);
            for (int t = 0; t < ROWS; t++) sums[t] += part[t];
        }
    }

    template <int ROWS> ANYSCORE_INLINE void add_two_wide(int i, const T* panel, Size k, V* part) const {
        Size one = order[k], two = order[k + 1];
        const T* exponents = panel + padded * L;
        V b0 = load(panel + one * L), e0 = load(exponents + one * L), c0 = fill(c_at[k]);
        V b1 = load(panel + two * L), e1 = load(exponents + two * L), c1 = fill(c_at[k + 1]);
        const T *a = query + i * padded, *e = exponent + i * padded;
        for (int t = 0; t < ROWS; t++) {
            V x = times_power_clamped<T>(a[t * padded + one] * b0, e[t * padded + one] + e0) + c0;
            V y = times_power_clamped<T>(a[t * padded + two] * b1, e[t * padded + two] + e1) + c1;
            part[t] += Reciprocal::ratio(x + y, x * y);
        }
    }

    Size width;
    T *query, *exponent, *c, *c_at;
    int* order;
    T* halves;
    T most = 0;
    Size first[5] = {}, first_half[4] = {};
};

}  // namespace anyscore::ANYSCORE_ISA
