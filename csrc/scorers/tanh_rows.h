// tanh(a + b) with lanes along features: the gradients of a tile, and the scores of a decoder's step.
#pragma once

#include "scorers/columns.h"
#include "scorers/tanh_range.h"
#include "simd/reciprocal.h"

namespace anyscore::ANYSCORE_ISA {

template <class T, class Reciprocal> class TanhRows {
    using V = Vector<T>;
    static constexpr int L = LANES<T>, M = ANYSCORE_VECTOR_BYTES < 64 ? 2 : 4;

public:
    // The form of a vector of features: see the table in tanh_range.h. Rows of queries and keys have two planes of
    // TILE rows.
    //
    //     form      first plane    second plane
    //     ORDINARY  e^(2x)         unused
    //     SMALL     e^(2x)         e^(2x) − 1
    //     WIDE      mantissas      exponents
    enum FeatureForm { ORDINARY, SMALL, WIDE };

    TanhRows(Arena& arena, Size width)
        : padded(round_up(width, L)), forms(arena.take<FeatureForm>(padded / L + 1)),
          query_forms(arena.take<FeatureForm>(padded / L + 1)), query(arena.take<T>(2 * TILE * padded)),
          key(arena.take<T>(2 * TILE * padded)), decode_query(arena.take<T>(2 * DECODE_QUERIES * padded)),
          half_weights(arena.take<T>(padded / GROUP + L)) {}

    // Starts a problem. Returns whether the weight or a form has changed.
    bool begin(const T* weight, bool is_new, const TanhRange<T>& range) {
        this->weight = weight, this->range = range;
        for (Size d = 0; d < padded; d += L) {
            bool wide = false;
            for (int l = 0; l < L && range.any_wide; l++) wide |= range.wide[d + l] > 0;
            FeatureForm form = wide ? WIDE : range.small[d] > 0 ? SMALL : ORDINARY;
            is_new = is_new || form != forms[d / L];
            forms[d / L] = form;
        }
        for (Size from = 0; is_new && from < padded; from += GROUP * L) {
            V sum{};
            for (Size d = from; d < padded && d < from + GROUP * L; d += L)
                if (forms[d / L] != SMALL) sum += load(weight + d) / 2;
            store(half_weights + from / GROUP, sum);
        }
        return is_new;
    }

    // Takes queries for `gradients`. A small feature whose |a| exceeds 8 for some query takes the ordinary form
    // there: its slope is then 0 where tanh is ±1.
    void queries(const T* rows, int count) {
        for (Size d = 0; d < padded; d += L) {
            query_forms[d / L] = forms[d / L];
            if (forms[d / L] != SMALL) continue;
            V most{};
            for (int i = 0; i < count; i++) most = max(most, abs(load(rows + i * padded + d) + load(range.centre + d)));
            for (int l = 0; l < L; l++)
                if (most[l] > 8) query_forms[d / L] = ORDINARY;
        }
        transform<true>(rows, count, query);
    }
    void keys(const T* rows, int count) { transform<false>(rows, count, key); }

    // Scorer::gradients (scorer.h). With r = 1/(1 + e^(2a) e^(2b)), tanh = 1 − 2r and 1 − tanh² = 4 r(1 − r). FACTOR
    // multiplies by the 4 later.
    void gradients(int rows, int keys, const T* ds, T* da, T* db, T* dw) const {
        T total[TILE];
        for (int i = 0; i < rows; i++) {
            V sum{};
            for (int j = 0; j < keys; j += L) sum += load(ds + i * TILE + j);
            total[i] = sum_lanes<T>(sum);
        }
        for (Size d = 0; d < padded; d += L) {
            const FeatureForm form = query_forms[d / L];
            const T* one = key + (form == SMALL ? TILE * padded : 0) + d;
            // KeyColumn copies one plane, so wide keys pass 1 query and are never copied.
            const KeyColumn<T> column(one, db + d, padded, keys, form == WIDE ? 1 : rows);
            int i = 0;
            if (Reciprocal::template HAS_BOUNDED<T> && are_bounded(rows, keys, d))
                for (; i + M <= rows; i += M) gradient_rows<M, true>(i, d, column, ds, total, da, dw);
            for (; i + M <= rows; i += M) gradient_rows<M>(i, d, column, ds, total, da, dw);
            if (M > 2 && i + 2 <= rows) gradient_rows<2>(i, d, column, ds, total, da, dw), i += 2;
            for (; i < rows; i++) gradient_rows<1>(i, d, column, ds, total, da, dw);
            column.finish();
        }
    }

    void decode_queries(const T* rows, int count) {
        for (int i = 0; i < count; i++)
            for (Size d = 0; d < padded; d += L) {
                T* to = decode_query + i * padded + d;
                V x = load(rows + i * padded + d) + load(range.centre + d), twice = x + x, power = exp_saturated<T>(twice);
                if (forms[d / L] == SMALL) {
                    store(to, min(power, fill(MAX_SMALL)));
                    store(to + DECODE_QUERIES * padded, min(expm1_clamped<T>(twice), fill(MAX_SMALL)));
                } else {
                    store(to, load(range.wide + d) > V{} ? x : power);
                }
            }
    }

    // Writes e^(2b) of each key; e^(2b) − 1 of a small feature; b of a wide one.
    const T* decode_keys(const T* rows, int count, T* to) const {
        for (int j = 0; j < count; j++)
            for (Size d = 0; d < padded; d += L) {
                V x = load(rows + j * padded + d) - load(range.centre + d), twice = x + x;
                if (forms[d / L] == SMALL)
                    store(to + j * padded + d, min(expm1_clamped<T>(twice), fill(MAX_SMALL)));
                else
                    store(to + j * padded + d, load(range.wide + d) > V{} ? x : exp_clamped<T>(twice));
            }
        return to;
    }

    void decode_scores(int rows, const T* keys, Size stride, int count, T* s) const {
        for (int i = 0; i < rows; i++)
            decode_row(decode_query + i * padded, DECODE_QUERIES * padded, keys, 0, stride, count, s + i * TILE);
    }

protected:
    // Features of a partial sum, which starts at its middle for accuracy: see docs/numerics.md.
    static constexpr int GROUP = 16;
    static constexpr T MAX_SMALL = TanhLimits<T>::MAX_SMALL;
    Size padded;
    FeatureForm *forms, *query_forms;
    T *query, *key;  // (2, TILE, padded) each
    const T* weight = nullptr;
    TanhRange<T> range{};

    // Writes the scores of one row with `count` others, in the forms of decode_queries and decode_keys. Of small
    // features, e^(2a) − 1 is `plane` numbers after the row, and e^(2b) − 1 is `small` numbers after each other row.
    void decode_row(const T* one, Size plane, const T* others, Size small, Size stride, int count, T* s) const {
        for (int j0 = 0; j0 < count; j0 += L) {
            V sums[L];
            int n = remaining(count, j0, L), j = 0;
            for (; j + 4 <= n; j += 4) decode_tile<4>(one, plane, others + (j0 + j) * stride, small, stride, sums + j);
            for (; j < n; j++) decode_tile<1>(one, plane, others + (j0 + j) * stride, small, stride, sums + j);
            for (; j < L; j++) sums[j] = V{};
            transpose<T>(sums);
            store(s + j0, T(-2) * sum<L>(sums));
        }
    }

private:
    template <bool IS_QUERY> void transform(const T* rows, int count, T* to) const {
        for (int i = 0; i < count; i++)
            for (Size d = 0; d < padded; d += L) {
                V x = load(rows + i * padded + d), centre = load(range.centre + d), y = IS_QUERY ? x + centre : x - centre;
                T *one = to + i * padded + d, *two = one + TILE * padded;
                if (forms[d / L] == WIDE) {
                    T lanes[L];
                    store(lanes, y);
                    for (int l = 0; l < L; l++) split(lanes[l], one[l], two[l]);
                    continue;
                }
                // Attended keys are in range: the clamp changes masked keys alone.
                store(one, IS_QUERY ? exp_saturated<T>(y + y) : exp_clamped<T>(y + y));
                if (forms[d / L] == SMALL) store(two, min(expm1_clamped<T>(y + y), fill(MAX_SMALL)));
            }
    }

    // Returns whether 2⁻²⁰ ≤ e^(2a + 2b) < 2³⁰ in a vector of features, for all pairs of rows. Then no feature is
    // saturated, and a product of four terms 1 + e^(2a + 2b) cannot overflow.
    bool are_bounded(int rows, int keys, Size d) const {
        if (query_forms[d / L] == WIDE) return false;
        V low = fill(T(1)), high = fill(T(1)), low_key = low, high_key = high;
        for (int i = 0; i < rows; i++) {
            V x = load(query + i * padded + d);
            low = min(low, x), high = max(high, x);
        }
        for (int j = 0; j < keys; j++) {
            V x = load(key + j * padded + d);
            low_key = min(low_key, x), high_key = max(high_key, x);
        }
        low *= low_key, high *= high_key;
        bool bounded = true;
        for (int l = 0; l < L; l++) bounded &= low[l] >= T(0x1p-20) && high[l] < T(0x1p30);
        return bounded;
    }

    template <int ROWS, bool IS_BOUNDED = false>
    void gradient_rows(int i, Size d, const KeyColumn<T>& column, const T* ds, const T* total, T* da, T* dw) const {
        auto tile = query_forms[d / L] == WIDE    ? gradient_tile<WIDE, ROWS, false>
                    : query_forms[d / L] == SMALL ? gradient_tile<SMALL, ROWS, IS_BOUNDED>
                                                  : gradient_tile<ORDINARY, ROWS, IS_BOUNDED>;
        tile(query + i * padded + d, padded, column, ds + i * TILE, total + i, da + i * padded + d, dw + d);
    }

    // Adds the gradients of one vector of features. Not inlined: the loop needs all registers.
    template <FeatureForm FORM, int ROWS, bool IS_BOUNDED>
    static ANYSCORE_NOINLINE void gradient_tile(const T* query, Size padded, const KeyColumn<T>& column, const T* ds,
                                                const T* total, T* da, T* dw) {
        const Size plane = TILE * padded, next = column.stride;
        const T* key = column.key;
        T* db = column.sum;
        const int keys = column.keys;
        V a[ROWS], second[ROWS], sum_a[ROWS], sums_w[ROWS];
        for (int t = 0; t < ROWS; t++) {
            a[t] = load(query + t * padded), sum_a[t] = sums_w[t] = V{};
            second[t] = FORM == ORDINARY ? V{} : load(query + plane + t * padded);
        }
#pragma GCC unroll 2
        for (int j = 0; j < keys; j++, key += next, db += next, ds++) {
            V b = load(key), e = FORM == WIDE ? load(key + plane) : V{};
            V u[ROWS], x[ROWS], r[ROWS];
            for (int t = 0; t < ROWS; t++) {
                V power = FORM == WIDE ? times_power_saturated<T>(a[t] * b, second[t] + e) : a[t] * b;
                u[t] = FORM == SMALL ? power + second[t] : power;  // e^(2a + 2b); minus 1 if small
                x[t] = u[t] + T(FORM == SMALL ? 2 : 1);
            }
            Reciprocal::template reciprocals<T, ROWS, IS_BOUNDED>(x, r);
            if constexpr (Reciprocal::SPARES_ADDITIONS) {
                V sum_b = load(db);
                for (int t = 0; t < ROWS; t++) {
                    V by = r[t] - r[t] * r[t], g = fill(ds[t * TILE]);
                    sum_a[t] += g * by, sum_b += g * by;
                    sums_w[t] += g * (FORM == SMALL ? r[t] * u[t] : r[t]);
                }
                store(db, sum_b);
            } else {
                V by_b[ROWS], by_w[ROWS];
                for (int t = 0; t < ROWS; t++) {
                    V gr = ds[t * TILE] * r[t];
                    by_b[t] = gr - gr * r[t];
                    by_w[t] = FORM == SMALL ? gr * u[t] : gr;
                    sum_a[t] += by_b[t];
                }
                store(db, load(db) + sum<ROWS>(by_b));
                sums_w[0] += sum<ROWS>(by_w);
            }
        }
        V sum_w = sum<ROWS>(sums_w);
        if (FORM != SMALL) {  // Σ g tanh = Σ g − 2 Σ g r
            T sum_g = 0;
            for (int t = 0; t < ROWS; t++) sum_g += total[t];
            sum_w = sum_g - T(2) * sum_w;
        }
        for (int t = 0; t < ROWS; t++) store(da + t * padded, load(da + t * padded) + sum_a[t]);
        store(dw, load(dw) + sum_w);
    }

    // Adds Σ w (r − ½) over the features to sums[j], lane by lane, for KEYS keys at a time.
    template <int KEYS>
    ANYSCORE_INLINE void decode_tile(const T* a, Size plane, const T* keys, Size small, Size stride, V* sums) const {
        V sum[KEYS] = {}, cap = fill(Divide::CAP<T>);
        for (Size from = 0; from < padded; from += GROUP * L) {
            V part[KEYS];
            for (int j = 0; j < KEYS; j++) part[j] = -load(half_weights + from / GROUP);
            Size d = from, end = from + remaining(padded, from, GROUP * L);
            for (; d + 2 * L <= end; d += 2 * L) {
                FeatureForm form = forms[d / L];
                if (form != forms[d / L + 1] || form == WIDE) {
                    decode_single<KEYS>(a, plane, keys, small, stride, d, part);
                    decode_single<KEYS>(a, plane, keys, small, stride, d + L, part);
                    continue;
                }
                if (form == SMALL) {
                    decode_small<KEYS, 2>(a, plane, keys + small, stride, d, part);
                    continue;
                }
                V a0 = load(a + d), a1 = load(a + d + L), w0 = load(weight + d), w1 = load(weight + d + L);
                for (int j = 0; j < KEYS; j++) {
                    const T* b = keys + j * stride + d;
                    V x = min(a0 * load(b) + T(1), cap), y = min(a1 * load(b + L) + T(1), cap);
                    part[j] += Reciprocal::ratio(w0 * y + w1 * x, x * y);
                }
            }
            if (d < end) decode_single<KEYS>(a, plane, keys, small, stride, d, part);
            for (int j = 0; j < KEYS; j++) sum[j] += part[j];
        }
        for (int j = 0; j < KEYS; j++) sums[j] = sum[j];
    }

    template <int KEYS>
    ANYSCORE_INLINE void decode_single(const T* a, Size plane, const T* keys, Size small, Size stride, Size d,
                                       V* sum) const {
        if (forms[d / L] == SMALL) {
            decode_small<KEYS, 1>(a, plane, keys + small, stride, d, sum);
            return;
        }
        V w = load(weight + d);
        for (int j = 0; j < KEYS; j++) {
            const T* b = keys + j * stride + d;
            T power[L];
            for (int l = 0; l < L; l++) power[l] = min(a[d + l] * b[l], Divide::CAP<T>);
            if (forms[d / L] == WIDE)
                for (int l = 0; l < L; l++) power[l] = range.wide[d + l] > 0 ? exp_clamped(2 * (a[d + l] + b[l])) : power[l];
            sum[j] += Reciprocal::ratio(w, load(power) + T(1));
        }
    }

    // Adds w (r − ½) of N vectors of small features: r − ½ = −½ u/(u + 2) with u = e^(2a + 2b) − 1.
    template <int KEYS, int N>
    ANYSCORE_INLINE void decode_small(const T* a, Size plane, const T* keys, Size stride, Size d, V* sum) const {
        V power[N], expm1_query[N], half[N];
        for (int n = 0; n < N; n++) {
            power[n] = load(a + d + n * L), expm1_query[n] = load(a + plane + d + n * L);
            half[n] = load(weight + d + n * L) / 2;
        }
        for (int j = 0; j < KEYS; j++) {
            Fraction<V> terms[N];
            for (int n = 0; n < N; n++) {
                V u = power[n] * load(keys + j * stride + d + n * L) + expm1_query[n];
                terms[n] = {half[n] * u, u + T(2)};
            }
            auto all = sum_of_fractions<N>(terms);
            sum[j] -= Reciprocal::ratio(all.above, all.below);
        }
    }

    T *decode_query, *half_weights;
};

}  // namespace anyscore::ANYSCORE_ISA
