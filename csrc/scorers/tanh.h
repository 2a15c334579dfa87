// tanh(a + b): scores of a tile, lanes along keys; docs/numerics.md has the derivation.
//
//     Σ_d w_d tanh(a_d + b_d) = −2 w_max Σ_d ±(1/x_d − 1/(2 C_d)),   x_d = C_d (1 + e^(2a_d) e^(2b_d))
//
// Here C_d = w_max/|w_d|, and the sign is that of w_d. An element costs a multiply-add and half a division. A small
// feature (tanh_range.h) takes u = e^(2a) (e^(2b) − 1) + (e^(2a) − 1):
//
//     Σ_d w_d tanh(a_d + b_d) = w_max Σ_d z_d / (2 ± C_d z_d),   z_d = ±u_d / C_d
#pragma once

#include "scorers/tanh_rows.h"

namespace anyscore::ANYSCORE_ISA {

// A scorer, see scorer.h.
template <class T, class Reciprocal> class Tanh : public TanhRows<T, Reciprocal> {
    using V = Vector<T>;
    using Limits = TanhLimits<T>;
    using Rows = TanhRows<T, Reciprocal>;
    using Rows::forms, Rows::padded, Rows::range, Rows::weight, Rows::GROUP;
    static constexpr int L = LANES<T>, M = 4;
    static constexpr int SPAN = 16 * GROUP;  // features of one partial sum, which is added to the score as a whole
    static constexpr int SHARE = Reciprocal::SHARE;
    static constexpr T CAP = Reciprocal::template CAP<T>;

public:
    using Literal = TanhOfSum;
    using Range = TanhRange<T>;
    static T limit() { return Limits::HUGE_INPUT; }
    static constexpr T FACTOR = T(4);

    Tanh(Arena& arena, const Call& call)
        : Rows(arena, call.width), width(call.width), query(arena.take<T>(2 * TILE * padded)), c(arena.take<T>(padded)),
          sorted_c(arena.take<T>(width + 4 * SHARE)), order(arena.take<int>(width + 4 * SHARE)),
          halves(arena.take<T>(width / GROUP + 4)), query_max(arena.take<T>(padded)) {}

    void begin(const T* weight, bool is_new, const Range& range) {
        bool was_wide = Rows::range.any_wide;
        if (!Rows::begin(weight, is_new, range) && !was_wide && !range.any_wide) return;
        max_weight = 0;
        for (Size d = 0; d < width; d++) max_weight = max(max_weight, abs(weight[d]));
        for (Size d = 0; d < padded; d++) {
            T w = abs(weight[d]);
            c[d] = w * Limits::C_MAX <= max_weight ? Limits::C_MAX : max_weight / w;
        }
        sort();
    }

    void gradient_queries(const T* rows, int count) { Rows::queries(rows, count); }
    void queries(const T* rows, int count) {
        gradient_queries(rows, count);
        zero(query_max, padded);
        for (int i = 0; i < count; i++)
            for (Size d = 0; d < padded; d += L) {
                const T* row = Rows::query + i * padded + d;
                V value, power{}, by = load(c + d);
                score_form(row, d, value, power);
                if (forms[d / L] == Rows::SMALL) {
                    value = min(load(row), fill(TanhLimits<T>::MAX_SMALL)), power = load(row + TILE * padded);
                    by = (load(weight + d) < T(0) ? fill(T(-1)) : fill(T(1))) / by;
                    power *= by;
                }
                value *= by;
                store(query + i * padded + d, value);
                store(query_max + d, max(load(query_max + d), value));
                if (forms[d / L] != Rows::ORDINARY) store(query + (TILE + i) * padded + d, power);
            }
    }

    // The size of a panel: (padded, LANES) numbers, and a second plane for exponents if a feature is wide.
    static Size panel_size(Size width, bool any_wide) { return round_up(width, L) * L * (any_wide ? 2 : 1); }

    // A last panel of few keys keeps them as rows: lanes along keys would be mostly empty.
    void panel(int first, int count, T* to) const {
        if (keeps_rows(count)) {
            for (Size k = 0; k < count * padded; k++) {
                const T* of_keys = Rows::key + first * padded + k;
                to[k] = of_keys[0], to[count * padded + k] = of_keys[TILE * padded];
            }
            return;
        }
        if (range.any_wide) return wide_panel(first, count, to);
        for (Size d = 0; d < padded; d += L) {
            const int row = forms[d / L] == Rows::SMALL ? TILE + first : first;
            transpose_square(Rows::key + row * padded + d, padded, to + d * L, L, count);
        }
    }

    void scores(int rows, const T* panels, Size stride, int keys, int all, T* s) const {
        for (int j = 0; j < keys; j += L, panels += stride, s += L) {
            if (keeps_rows(all - j)) {
                row_scores(rows, panels, (all - j) * padded, keys - j, s);
                continue;
            }
            int i = 0;
            if (rows >= 2 * M && is_bounded(panels, remaining(keys, j, L)))
                for (; i + M <= rows; i += M) score_tile<M, true>(i, panels, s + i * TILE);
            for (; i + M <= rows; i += M) score_tile<M>(i, panels, s + i * TILE);
            if (i + 2 <= rows) score_tile<2>(i, panels, s + i * TILE), i += 2;
            if (i < rows) score_tile<1>(i, panels, s + i * TILE);
        }
    }

private:
    bool keeps_rows(int left) const { return left <= L / 2 && !range.any_wide; }

    // tanh(a + b) = tanh(b + a), so each key takes the place of the one row, and all queries are its others.
    void row_scores(int rows, const T* keys, Size plane, int count, T* s) const {
        T of_key[TILE];
        for (int j = 0; j < count; j++) {
            Rows::decode_row(keys + j * padded, plane, Rows::query, TILE * padded, padded, rows, of_key);
            for (int i = 0; i < rows; i++) s[i * TILE + j] = of_key[i];
        }
        for (int i = 0; i < rows; i++)
            for (int j = count; j < L; j++) s[i * TILE + j] = 0;
    }

    // Writes a panel whose second plane holds the exponents of wide features.
    void wide_panel(int first, int count, T* to) const {
        for (Size d = 0; d < padded; d += L) {
            V values[L] = {}, powers[L] = {};
            for (int j = 0; j < count; j++) score_form(Rows::key + (first + j) * padded + d, d, values[j], powers[j]);
            transpose<T>(values), transpose<T>(powers);
            for (int j = 0; j < L; j++) store(to + (d + j) * L, values[j]), store(to + (padded + d + j) * L, powers[j]);
        }
    }

    // Writes e^(2x) of a vector of features as value · 2^power; minus 1 for small features. power is 0 where a
    // feature is not wide.
    ANYSCORE_INLINE void score_form(const T* row, Size d, V& value, V& power) const {
        value = load(forms[d / L] == Rows::SMALL ? row + TILE * padded : row);
        if (forms[d / L] != Rows::WIDE) return;
        V wide = load(range.wide + d);
        power = load(row + TILE * padded);
        V whole = times_power_saturated<T>(value, power);
        value = wide > fill(T(0)) ? value : whole, power = wide > fill(T(0)) ? power : V{};
    }

    // Sorts the features into segments, and leaves out features of weight 0:
    //
    //     0  positive weights    1  negative weights    2  positive and wide    3  negative and wide    4  small
    //
    // Segments 0 to 3 are filled up to a multiple of SHARE by features whose C is CAP; each adds about 1/CAP, less
    // than the rounding of a score. In segment 4, C has the sign of the weight.
    void sort() {
        Size count = 0, group = 0;
        for (int segment = 0; segment < SMALL_SEGMENT; segment++) {
            first[segment] = count, first_half[segment] = group;
            bool wide = segment >= 2, negative = segment % 2;
            for (Size d = 0; d < width && (!wide || range.any_wide); d++) {
                bool here = (weight[d] != 0) & ((range.wide[d] > 0) == wide) & ((weight[d] < 0) == negative);
                sorted_c[count] = c[d], order[count] = int(d), count += here & (forms[d / L] != Rows::SMALL);
            }
            while ((count - first[segment]) % SHARE) sorted_c[count] = CAP, order[count] = order[count - 1], count++;
            for (Size p = first[segment]; p < count; p += GROUP) {
                T half = 0;
                for (Size k = p; k < count && k < p + GROUP; k++) half += T(0.5) / sorted_c[k];
                halves[group++] = half;
            }
        }
        first[SMALL_SEGMENT] = count;
        for (Size d = 0; d < width; d++) {
            sorted_c[count] = weight[d] < 0 ? -c[d] : c[d], order[count] = int(d);
            count += (weight[d] != 0) & (forms[d / L] == Rows::SMALL);
        }
        first[SMALL_SEGMENT + 1] = count;
        for (segments = SMALL_SEGMENT + 1; segments > 0 && first[segments - 1] == count;) segments--;
    }

    // Returns whether x ≤ CAP for these keys of a panel with every query of the tile.
    bool is_bounded(const T* panel, int count) const {
        V high{};
        for (Size k = 0; k < first[2]; k++) {
            int d = order[k];
            high = max(high, query_max[d] * load(panel + Size(d) * L) + c[d]);
        }
        bool bounded = true;
        for (int j = 0; j < count; j++) bounded &= high[j] <= CAP;
        return bounded;
    }

    template <int ROWS, bool IS_BOUNDED = false> ANYSCORE_INLINE void score_tile(int i, const T* panel, T* s) const {
        V sums[ROWS] = {};
        const T* a = query + i * padded;
        for (int segment = 0; segment < segments; segment++) {
            const T factor = segment == SMALL_SEGMENT ? max_weight : segment % 2 ? 2 * max_weight : -2 * max_weight;
            const T* half = halves + first_half[segment];
            for (Size k = first[segment]; k < first[segment + 1]; k += SPAN, half += SPAN / GROUP) {
                V parts[ROWS];
                int count = remaining(first[segment + 1], k, SPAN);
                if (segment == SMALL_SEGMENT)
                    small<ROWS>(a, padded, panel, order + k, sorted_c + k, count, parts);
                else if (segment < 2)
                    narrow<ROWS, IS_BOUNDED>(a, padded, panel, order + k, sorted_c + k, half, count, parts);
                else
                    wide<ROWS>(a, panel, k, half, count, parts);
                for (int t = 0; t < ROWS; t++) sums[t] += factor * parts[t];
            }
        }
        for (int t = 0; t < ROWS; t++) store(s + t * TILE, sums[t]);
    }

    // Writes Σ z/(2 ± C z) over `count` small features.
    template <int ROWS>
    static ANYSCORE_NOINLINE void small(const T* a, Size padded, const T* panel, const int* order, const T* c, int count,
                                        V* sums) {
        V sum[ROWS] = {};
        int k = 0;
        for (; k + SHARE <= count; k += SHARE) add_small<ROWS, SHARE>(a, padded, panel, order + k, c + k, sum);
        for (; k < count; k++) add_small<ROWS, 1>(a, padded, panel, order + k, c + k, sum);
        for (int t = 0; t < ROWS; t++) sums[t] = sum[t];
    }

    template <int ROWS, int N>
    static ANYSCORE_INLINE void add_small(const T* a, Size padded, const T* panel, const int* order, const T* c, V* sum) {
        const Size plane = TILE * padded;
        for (int t = 0; t < ROWS; t++) {
            Fraction<V> terms[N];
            for (int n = 0; n < N; n++) {
                Size d = order[n];
                V z = a[t * padded + d] * load(panel + d * L) + a[t * padded + (plane + d)];
                terms[n] = {z, z * c[n] + T(2)};
            }
            auto all = sum_of_fractions<N>(terms);
            sum[t] += Reciprocal::ratio(all.above, all.below);
        }
    }

    // Writes Σ 1/x − 1/(2C) over `count` features. Not inlined: the loop needs all registers.
    template <int ROWS, bool IS_BOUNDED>
    static ANYSCORE_NOINLINE void narrow(const T* a, Size padded, const T* panel, const int* order, const T* c,
                                         const T* half, int count, V* sums) {
        V sum[ROWS];
        for (int t = 0; t < ROWS; t++) sum[t] = V{};
        for (; count > 0; count -= GROUP, order += GROUP, c += GROUP, half++) {
            V part[ROWS];
            for (int t = 0; t < ROWS; t++) part[t] = fill(-*half);
            if (count >= GROUP)
#pragma GCC unroll 8
                for (int k = 0; k < GROUP; k += SHARE) add<ROWS, IS_BOUNDED>(a, padded, panel, order + k, c + k, part);
            else
                for (int k = 0; k < count; k += SHARE) add<ROWS, IS_BOUNDED>(a, padded, panel, order + k, c + k, part);
            for (int t = 0; t < ROWS; t++) sum[t] += part[t];
        }
        for (int t = 0; t < ROWS; t++) sums[t] = sum[t];
    }

    // Adds Σ 1/x of SHARE features. Bounded panels skip the clamp; only the features that fill a segment up exceed
    // CAP there, by at most a factor of two.
    template <int ROWS, bool IS_BOUNDED>
    static ANYSCORE_INLINE void add(const T* a, Size padded, const T* panel, const int* order, const T* c, V* part) {
        for (int t = 0; t < ROWS; t++) {
            V x[SHARE];
            for (int n = 0; n < SHARE; n++) {
                x[n] = a[t * padded + order[n]] * load(panel + Size(order[n]) * L) + fill(c[n]);
                if (!IS_BOUNDED) x[n] = min(x[n], fill(CAP));
            }
            auto sum = sum_of_reciprocals<SHARE>(x);
            part[t] += Reciprocal::ratio(sum.above, sum.below);
        }
    }

    template <int ROWS>
    ANYSCORE_NOINLINE void wide(const T* a, const T* panel, Size from, const T* half, int count, V* sums) const {
        for (int t = 0; t < ROWS; t++) sums[t] = V{};
        for (int p = 0; p < count; p += GROUP, half++) {
            V part[ROWS];
            for (int t = 0; t < ROWS; t++) part[t] = fill(-*half);
            for (int k = p; k < count && k < p + GROUP; k += 2) add_two_wide<ROWS>(a, panel, from + k, part);
            for (int t = 0; t < ROWS; t++) sums[t] += part[t];
        }
    }

    template <int ROWS> ANYSCORE_INLINE void add_two_wide(const T* a, const T* panel, Size k, V* part) const {
        Size one = order[k], two = order[k + 1];
        const T *exponents = panel + padded * L, *e = a + TILE * padded;
        V b0 = load(panel + one * L), e0 = load(exponents + one * L), c0 = fill(sorted_c[k]);
        V b1 = load(panel + two * L), e1 = load(exponents + two * L), c1 = fill(sorted_c[k + 1]);
        for (int t = 0; t < ROWS; t++) {
            V x = times_power_clamped<T>(a[t * padded + one] * b0, e[t * padded + one] + e0) + c0;
            V y = times_power_clamped<T>(a[t * padded + two] * b1, e[t * padded + two] + e1) + c1;
            part[t] += Reciprocal::ratio(x + y, x * y);
        }
    }

    static constexpr int SMALL_SEGMENT = 4;  // the index of the small features in `first`
    Size width;
    // Of query, (2, TILE, padded): C e^(2a) and exponents; of small features ±e^(2a)/C and ±(e^(2a) − 1)/C.
    T *query, *c, *sorted_c;
    int* order;
    T *halves, *query_max;  // halves: Σ 1/(2C) of each group; query_max (padded): the largest C e^(2a)
    T max_weight = 0;
    int segments = 0;  // segments in use
    Size first[SMALL_SEGMENT + 2] = {}, first_half[SMALL_SEGMENT + 1] = {};
};

}  // namespace anyscore::ANYSCORE_ISA
