// tanh(a + b) with lanes along features: gradients of a tile, and scores of a decoder's step.
#pragma once

#include "tanh_range.h"

namespace anyscore::ANYSCORE_ISA {

template <class T> class TanhRows {
    using V = Vector<T>;
    static constexpr int L = LANES<T>, M = ANYSCORE_VECTOR_BYTES < 64 ? 2 : 4;
    // How e^(2a) and e^(2b) are kept for a vector of features.
    //   NORMAL  as they are
    //   SMALL   e^(2a), e^(2a) − 1 and e^(2b) − 1: |b| ≤ ½, and tanh keeps its digits near 0
    //   WIDE    mantissas and exponents
    enum Form { NORMAL, SMALL, WIDE };

public:
    TanhRows(Arena& arena, Size width)
        : padded(round_up(width, L)), forms(arena.take<Form>(padded / L + 1)),
          query(arena.take<T>(2 * TILE * padded)), key(arena.take<T>(2 * TILE * padded)),
          few_query(arena.take<T>(2 * padded)), middle(arena.take<T>(L)) {}

    void begin(const T* weight, const TanhRange<T>& range) {
        this->weight = weight, this->range = range;
        for (int l = 0; l < L; l++) middle[l] = 0;
        for (Size d = 0; d < padded; d += L) {
            bool wide = false, small = true;
            for (int l = 0; l < L; l++) {
                wide |= range.wide[d + l] > 0, small &= range.small[d + l] > 0;
                middle[l] += weight[d + l] / 2;
            }
            forms[d / L] = wide ? WIDE : small ? SMALL : NORMAL;
        }
    }

    // Gradients

    void query_rows(const T* rows, int count) { transform<true>(rows, count, query); }
    void key_rows(const T* rows, int count) { transform<false>(rows, count, key); }

    // With r = 1/(1 + e^(2a) e^(2b)):  tanh = 1 − 2r,  1 − tanh² = 4 r(1 − r); the 4 comes later.
    void gradients(int rows, int keys, const T* ds, T* da, T* db, T* dw) const {
        for (Size d = 0; d < padded; d += L) {
            int i = 0;
            for (; i + M <= rows; i += M) gradient_rows<M>(i, d, keys, ds, da, db, dw);
            for (; i < rows; i++) gradient_rows<1>(i, d, keys, ds, da, db, dw);
        }
    }

    // Decoder steps: at most two queries

    void few_queries(const T* rows, int count) {
        for (int i = 0; i < count; i++)
            for (Size d = 0; d < padded; d++) {
                T x = rows[i * padded + d] + range.centre[d];
                few_query[i * padded + d] = range.wide[d] > 0 ? x : exp_clamped(2 * x);
            }
    }

    // Rows of keys as few_scores takes them: e^(2b), or b where it is wide.
    const T* few_keys(const T* rows, int count, T* to) const {
        for (int j = 0; j < count; j++)
            for (Size d = 0; d < padded; d++) {
                T x = rows[j * padded + d] - range.centre[d];
                to[j * padded + d] = range.wide[d] > 0 ? x : exp_clamped(2 * x);
            }
        return to;
    }

    void few_scores(int rows, const T* keys, Size stride, int count, T* s) const {
        for (int i = 0; i < rows; i++)
            for (int j0 = 0; j0 < count; j0 += L) {
                V sums[L];
                int n = count - j0 < L ? count - j0 : L, j = 0;
                for (; j + 4 <= n; j += 4) few_tile<4>(few_query + i * padded, keys + (j0 + j) * stride, stride, sums + j);
                for (; j < n; j++) few_tile<1>(few_query + i * padded, keys + (j0 + j) * stride, stride, sums + j);
                for (; j < L; j++) sums[j] = V{};
                transpose<T>(sums);
                store(s + i * TILE + j0, T(-2) * sum<L>(sums));
            }
    }

private:
    template <bool IS_QUERY> void transform(const T* rows, int count, T* to) const {
        for (int i = 0; i < count; i++)
            for (Size d = 0; d < padded; d += L) {
                const T *x = rows + i * padded + d, *centre = range.centre + d;
                T *one = to + i * padded + d, *two = one + TILE * padded, y[L];
                for (int l = 0; l < L; l++) y[l] = IS_QUERY ? x[l] + centre[l] : x[l] - centre[l];
                switch (forms[d / L]) {
                    case NORMAL:
                        for (int l = 0; l < L; l++) one[l] = exp_clamped(2 * y[l]);
                        break;
                    case SMALL:
                        for (int l = 0; l < L; l++) two[l] = expm1_clamped(2 * y[l]);
                        for (int l = 0; l < L; l++) one[l] = IS_QUERY ? exp_clamped(2 * y[l]) : two[l];
                        break;
                    case WIDE:
                        for (int l = 0; l < L; l++) split(y[l], one[l], two[l]);
                }
            }
    }

    template <int ROWS>
    void gradient_rows(int i, Size d, int keys, const T* ds, T* da, T* db, T* dw) const {
        switch (forms[d / L]) {
            case NORMAL: return gradient_tile<NORMAL, ROWS>(i, d, keys, ds, da, db, dw);
            case SMALL: return gradient_tile<SMALL, ROWS>(i, d, keys, ds, da, db, dw);
            case WIDE: return gradient_tile<WIDE, ROWS>(i, d, keys, ds, da, db, dw);
        }
    }

    template <Form FORM, int ROWS>
    ANYSCORE_INLINE void gradient_tile(int i, Size d, int keys, const T* ds, T* da, T* db, T* dw) const {
        V a[ROWS], more[ROWS], sum_a[ROWS], sum_w[ROWS];
        for (int t = 0; t < ROWS; t++) {
            const T* x = query + (i + t) * padded + d;
            a[t] = load(x), more[t] = FORM == NORMAL ? V{} : load(x + TILE * padded);
            sum_a[t] = sum_w[t] = V{};
        }
        const T *g_row = ds + i * TILE, *y = key + d;
        T* to = db + d;
        const Size next = padded, plane = TILE * padded;
        for (int j = 0; j < keys; j++, y += next, to += next) {
            V b = load(y), e = FORM == WIDE ? load(y + plane) : V{}, sum_b[ROWS];
            for (int t = 0; t < ROWS; t++) {
                T g = g_row[t * TILE + j];
                V r, tanh;
                if (FORM == SMALL) {
                    V u = a[t] * b + more[t];  // e^(2a+2b) − 1
                    r = T(1) / (u + T(2)), tanh = u * r;
                } else {
                    V power = FORM == WIDE ? times_power<T>(a[t] * b, more[t] + e) : a[t] * b;
                    r = T(1) / (power + T(1)), tanh = T(1) - T(2) * r;
                }
                V gr = g * r;
                sum_b[t] = gr - gr * r;
                sum_a[t] += sum_b[t];
                sum_w[t] += g * tanh;
            }
            store(to, load(to) + sum<ROWS>(sum_b));
        }
        for (int t = 0; t < ROWS; t++) {
            T* to = da + (i + t) * padded + d;
            store(to, load(to) + sum_a[t]);
        }
        store(dw + d, load(dw + d) + sum<ROWS>(sum_w));
    }

    // Σ w (r − ½) over the vectors of features, for KEYS keys at a time.
    template <int KEYS> ANYSCORE_INLINE void few_tile(const T* a, const T* keys, Size stride, V* sums) const {
        V sum[KEYS], cap = fill(TanhLimits<T>::CAP);
        for (int j = 0; j < KEYS; j++) sum[j] = -load(middle);
        Size d = 0;
        for (; d + 2 * L <= padded; d += 2 * L) {
            if (forms[d / L] == WIDE || forms[d / L + 1] == WIDE) {
                few_single<KEYS>(a, keys, stride, d, sum);
                few_single<KEYS>(a, keys, stride, d + L, sum);
                continue;
            }
            V a0 = load(a + d), a1 = load(a + d + L), w0 = load(weight + d), w1 = load(weight + d + L);
            for (int j = 0; j < KEYS; j++) {
                const T* b = keys + j * stride + d;
                V x = min(a0 * load(b) + T(1), cap), y = min(a1 * load(b + L) + T(1), cap);
                sum[j] += (w0 * y + w1 * x) / (x * y);
            }
        }
        if (d < padded) few_single<KEYS>(a, keys, stride, d, sum);
        for (int j = 0; j < KEYS; j++) sums[j] = sum[j];
    }

    template <int KEYS> ANYSCORE_INLINE void few_single(const T* a, const T* keys, Size stride, Size d, V* sum) const {
        V w = load(weight + d);
        for (int j = 0; j < KEYS; j++) {
            const T* b = keys + j * stride + d;
            T power[L];
            for (int l = 0; l < L; l++) power[l] = min(a[d + l] * b[l], TanhLimits<T>::CAP);
            if (forms[d / L] == WIDE)
                for (int l = 0; l < L; l++)
                    power[l] = range.wide[d + l] > 0 ? exp_clamped(2 * (a[d + l] + b[l])) : power[l];
            sum[j] += w / (load(power) + T(1));
        }
    }

    Size padded;
    Form* forms;
    T *query, *key, *few_query, *middle;
    const T* weight = nullptr;
    TanhRange<T> range{};
};

}  // namespace anyscore::ANYSCORE_ISA
