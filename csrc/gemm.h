// C += A · B for tiles, the accumulators in registers; of numbers, or of cells: see dots.h.
#pragma once

#include "dots.h"

namespace anyscore::ANYSCORE_ISA {

// A term adds what one feature gives to a sum: x of a query, y of LANES keys, w of the weight.
struct ProductTerm {
    template <class V, class T> static ANYSCORE_INLINE V add(V sum, V x, V y, T) { return sum + x * y; }
};

struct DotTerm {
    template <class V> static ANYSCORE_INLINE V add(V sum, V x, V y, float) { return dot(sum, x, y); }
};

// M rows and N vectors of C; the product is added up before it meets C. A[i, k] stands at
// a[i · row + k · column]; B is row-major.
template <class Term, class T, int M, int N>
ANYSCORE_INLINE void gemm_tile(T* c, Size ldc, const T* a, Size row, Size column, const T* b, Size ldb, int depth) {
    constexpr int L = LANES<T>;
    Vector<T> sum[M][N];
    for (int i = 0; i < M; i++)
        for (int n = 0; n < N; n++) sum[i][n] = Vector<T>{};
    for (int k = 0; k < depth; k++) {
        Vector<T> right[N];
        for (int n = 0; n < N; n++) right[n] = load(b + k * ldb + n * L);
        for (int i = 0; i < M; i++)
            for (int n = 0; n < N; n++) sum[i][n] = Term::add(sum[i][n], fill(a[i * row + k * column]), right[n], T());
    }
    for (int i = 0; i < M; i++)
        for (int n = 0; n < N; n++) store(c + i * ldc + n * L, load(c + i * ldc + n * L) + sum[i][n]);
}

template <class Term, class T, int N>
inline void gemm_columns(T* c, Size ldc, const T* a, Size row, Size column, const T* b, Size ldb, int rows, int depth) {
    int i = 0;
    for (; i + 4 <= rows; i += 4) gemm_tile<Term, T, 4, N>(c + i * ldc, ldc, a + i * row, row, column, b, ldb, depth);
    if (i + 2 <= rows) gemm_tile<Term, T, 2, N>(c + i * ldc, ldc, a + i * row, row, column, b, ldb, depth), i += 2;
    if (i < rows) gemm_tile<Term, T, 1, N>(c + i * ldc, ldc, a + i * row, row, column, b, ldb, depth);
}

// `columns` is a multiple of LANES, `depth` at most PIECE.
template <class Term, class T>
inline void gemm_piece(T* c, Size ldc, const T* a, Size row, Size column, const T* b, Size ldb, int rows, Size columns,
                       int depth) {
    constexpr int L = LANES<T>, N = ANYSCORE_VECTOR_BYTES == 64 ? 4 : 2;
    Size n = 0;
    if (rows < 4)  // a row alone needs more vectors to keep the units busy
        for (; n + 2 * N * L <= columns; n += 2 * N * L)
            gemm_columns<Term, T, 2 * N>(c + n, ldc, a, row, column, b + n, ldb, rows, depth);
    for (; n + N * L <= columns; n += N * L) gemm_columns<Term, T, N>(c + n, ldc, a, row, column, b + n, ldb, rows, depth);
    for (; n < columns; n += L) gemm_columns<Term, T, 1>(c + n, ldc, a, row, column, b + n, ldb, rows, depth);
}

template <class Term, class T>
inline void gemm(T* c, Size ldc, const T* a, Size row, Size column, const T* b, Size ldb, int rows, Size columns,
                 Size depth) {
    for (Size k = 0; k < depth; k += PIECE)
        gemm_piece<Term>(c, ldc, a + k * column, row, column, b + k * ldb, ldb, rows, columns, left_of(depth, k, PIECE));
}

}  // namespace anyscore::ANYSCORE_ISA
