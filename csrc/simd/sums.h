// Sums over features of the terms of queries and panels of keys: the innermost loop of scores.
#pragma once

#include "simd/gemm.h"

namespace anyscore::ANYSCORE_ISA {

template <class Function> struct WeightedTerm {
    template <class V, class T> static ANYSCORE_INLINE V add(V sum, V x, V y, T w) {
        return sum + w * Function::value(x, y);
    }
};

template <class Term> constexpr bool IS_PRODUCT = std::is_same_v<Term, ProductTerm> || std::is_same_v<Term, DotTerm>;

// The sums of queries a (rows, padded) and panels of keys, `stride` numbers apart.
template <class Term, class T> struct Sums {
    static constexpr int L = LANES<T>;
    // Queries and panels of keys at a time: as many as registers hold.
    static constexpr int M = 4, N = ANYSCORE_VECTOR_BYTES == 64 && IS_PRODUCT<Term> ? 4 : 2;

    const T *a, *weight, *panels;
    Size width, padded, stride;
    const T *of_rows = nullptr, *of_columns = nullptr;  // added to the sums of each query, and of each key; or none

    // Writes s[i · TILE + j] = the sum of query i and key j, for `count` panels. Few rows take more panels at a time:
    // each sum waits for its last addition.
    void write(int rows, int count, T* s) const {
        const int whole = rows / M * M;
        if (whole) write_rows<M, N>(0, whole, count, s);
        if (whole + 2 <= rows) write_rows<2, 4>(whole, whole + 2, count, s);
        if (rows % 2) write_rows<1, 4>(rows - 1, rows, count, s);
    }

private:
    template <int ROWS, int PANELS> void write_rows(int from, int to, int count, T* s) const {
        // Whether registers hold one more panel, so that none is left over alone.
        constexpr bool JOINS = IS_PRODUCT<Term> && ROWS == M;
        int p = 0;
        for (; p + PANELS <= count && !(JOINS && count - p == PANELS + 1); p += PANELS)
            write_panels<ROWS, PANELS>(from, to, p, s);
        if constexpr (JOINS)
            if (p + PANELS + 1 == count) return write_panels<ROWS, PANELS + 1>(from, to, p, s);
        if constexpr (PANELS > 2)
            if (p + 2 <= count) write_panels<ROWS, 2>(from, to, p, s), p += 2;
        for (; p < count; p++) write_panels<ROWS, 1>(from, to, p, s);
    }

    // Not inlined: its loops need all registers.
    template <int ROWS, int COUNT> ANYSCORE_NOINLINE void write_panels(int from, int to, int p, T* s) const {
        for (int i = from; i < to; i += ROWS) write_tile<ROWS, COUNT>(i, p, s);
    }

    // The features of a SPAN have a sum of their own, which adds up sums of PIECE features.
    template <int ROWS, int COUNT> ANYSCORE_INLINE void write_tile(int i, int p, T* s) const {
        constexpr int SPAN = 8 * PIECE;
        Size from = 0;
        do {
            Vector<T> sum[ROWS][COUNT] = {};
            for (Size end = from + remaining(width, from, SPAN), d = from; d < end;) {
                Vector<T> part[ROWS][COUNT] = {};
                const Size piece = d + remaining(end, d, PIECE);
                const T *x = a + i * padded, *y = panels + p * stride;
                for (; d < piece; d++) add_feature(x + d, y + d * L, weight[d], part);
                for (int t = 0; t < ROWS; t++)
                    for (int q = 0; q < COUNT; q++) sum[t][q] += part[t][q];
            }
            for (int t = 0; t < ROWS; t++)
                for (int q = 0; q < COUNT; q++) {
                    T* to = s + (i + t) * TILE + (p + q) * L;
                    if (from)
                        sum[t][q] += load(to);
                    else if (of_rows)
                        sum[t][q] += load(of_columns + (p + q) * L) + of_rows[i + t];
                    store(to, sum[t][q]);
                }
            from += SPAN;
        } while (from < width);
    }

    template <int ROWS, int COUNT>
    ANYSCORE_INLINE void add_feature(const T* x, const T* y, T w, Vector<T> (&sum)[ROWS][COUNT]) const {
        Vector<T> keys[COUNT];
        for (int p = 0; p < COUNT; p++) keys[p] = load(y + p * stride);
        for (int i = 0; i < ROWS; i++) {
            Vector<T> query = fill(x[i * padded]);
            for (int p = 0; p < COUNT; p++) sum[i][p] = Term::add(sum[i][p], query, keys[p], w);
        }
    }
};

}  // namespace anyscore::ANYSCORE_ISA
