// C += A · B for tiles, with accumulators in registers; of numbers, or of bf16 pairs (dots.h).
#pragma once

#include "simd/dots.h"
#include "simd/prefetch.h"

namespace anyscore::ANYSCORE_ISA {

// The functor of a product: adds the product of one x and LANES ys to LANES sums. w: a weight, which only the terms
// of sums.h use.
struct ProductTerm {
    template <class V, class T> static ANYSCORE_INLINE V add(V sum, V x, V y, T) { return sum + x * y; }
};

struct DotTerm {
    template <class V> static ANYSCORE_INLINE V add(V sum, V x, V y, float) { return dot(sum, x, y); }
};

// A strided matrix: entry (i, k) is data[i · row + k · column].
template <class T> struct Matrix {
    T* data;
    Size row, column = 1;

    T* at(Size i, Size k) const { return data + i * row + k * column; }
    Matrix from(Size i, Size k) const { return {at(i, k), row, column}; }
};

constexpr int BLOCK = ANYSCORE_VECTOR_BYTES == 64 ? 4 : 2;  // vectors of a row of C in registers
constexpr int WIDE_BLOCK = 2 * BLOCK;  // for fewer than four rows: more vectors keep the units busy
template <int N> using Count = std::integral_constant<int, N>;

// Adds to M rows and N vectors of C; the product is summed before it is added. Columns of B and C are contiguous.
// COPIES: writes the numbers read from B to copy (depth, N · LANES).
template <class Term, class T, int M, int N, bool COPIES = false>
ANYSCORE_INLINE void gemm_tile(Matrix<T> c, Matrix<const T> a, Matrix<const T> b, int depth, T* copy = nullptr) {
    constexpr int L = LANES<T>;
    Vector<T> sum[M][N];
    for (int i = 0; i < M; i++)
        for (int n = 0; n < N; n++) sum[i][n] = Vector<T>{};
    for (int k = 0; k < depth; k++) {
        Vector<T> right[N];
        for (int n = 0; n < N; n++) right[n] = load(b.data + k * b.row + n * L);
        for (int n = 0; COPIES && n < N; n++) store(copy + (k * N + n) * L, right[n]);
        for (int i = 0; i < M; i++)
            for (int n = 0; n < N; n++) sum[i][n] = Term::add(sum[i][n], fill(*a.at(i, k)), right[n], T());
    }
    for (int i = 0; i < M; i++)
        for (int n = 0; n < N; n++) {
            T* to = c.data + i * c.row + n * L;
            store(to, load(to) + sum[i][n]);
        }
}

template <class Term, class T, int N, class Prefetches>
inline void gemm_columns(Matrix<T> c, Matrix<const T> a, Matrix<const T> b, int rows, int depth, Prefetches& prefetcher) {
    constexpr int L = LANES<T>;
    const int lines = N * depth / 8;  // one line for about 16 cycles of multiply-adds
    auto tile = [&](auto count, int i) { gemm_tile<Term, T, count, N>(c.from(i, 0), a.from(i, 0), b, depth); };
    // One or two remaining rows join the last four, if registers hold so many: alone they keep no unit busy.
    const int more = N <= BLOCK && rows >= 4 && rows % 4 <= 2 ? rows % 4 : 0;
    int i = 0;
    // The first tile copies rows of B that have cache-set conflicts. Products of few rows are compiled without this
    // code: a decoder's step took 1.4 times as long with it.
    constexpr bool COPIES = N < WIDE_BLOCK;
    alignas(64) T copy[COPIES ? PIECE * N * L : 1];
    if (COPIES && rows >= 8 && has_set_conflicts<T>(depth, b.row)) {
        prefetcher.next(lines);
        gemm_tile<Term, T, 4, N, true>(c, a, b, depth, copy);
        i = 4, b = {copy, N * L};
    }
    for (; rows - i >= (more ? 8 : 4); i += 4) prefetcher.next(lines), tile(Count<4>(), i);
    if constexpr (N <= BLOCK) {
        if (more == 2) return tile(Count<6>(), i);
        if (more == 1) return tile(Count<5>(), i);
    }
    if (i + 2 <= rows) tile(Count<2>(), i), i += 2;
    if (i < rows) tile(Count<1>(), i);
}

// Adds a product of depth ≤ PIECE. columns: a multiple of LANES.
template <class Term, class T, class Prefetches>
inline void gemm_piece(Matrix<T> c, Matrix<const T> a, Matrix<const T> b, int rows, Size columns, int depth,
                       Prefetches& prefetcher) {
    constexpr int L = LANES<T>;
    Size n = 0;
    if (rows < 4)
        for (; n + WIDE_BLOCK * L <= columns; n += WIDE_BLOCK * L)
            gemm_columns<Term, T, WIDE_BLOCK>(c.from(0, n), a, b.from(0, n), rows, depth, prefetcher);
    for (; n + BLOCK * L <= columns && columns - n != (BLOCK + 1) * L; n += BLOCK * L)
        gemm_columns<Term, T, BLOCK>(c.from(0, n), a, b.from(0, n), rows, depth, prefetcher);
    if (columns - n == (BLOCK + 1) * L)
        return gemm_columns<Term, T, BLOCK + 1>(c.from(0, n), a, b.from(0, n), rows, depth, prefetcher);
    for (; n < columns; n += L) gemm_columns<Term, T, 1>(c.from(0, n), a, b.from(0, n), rows, depth, prefetcher);
}

// C (rows, columns) += A (rows, depth) · B (depth, columns), in pieces of PIECE terms. prefetcher: fetches lines from
// memory meanwhile; or a NoPrefetcher.
template <class Term, class T, class Prefetches>
inline void gemm(Matrix<T> c, Matrix<const T> a, Matrix<const T> b, int rows, Size columns, Size depth,
                 Prefetches& prefetcher) {
    for (Size k = 0; k < depth; k += PIECE)
        gemm_piece<Term, T>(c, a.from(0, k), b.from(k, 0), rows, columns, remaining(depth, k, PIECE), prefetcher);
}

template <class Term, class T>
inline void gemm(Matrix<T> c, Matrix<const T> a, Matrix<const T> b, int rows, Size columns, Size depth) {
    gemm<Term>(c, a, b, rows, columns, depth, no_prefetcher);
}

}  // namespace anyscore::ANYSCORE_ISA
