// Products of a tile with its values: P V in the forward; dO Vᵀ and Pᵀ dO in the backward. Buffers, where `pairs` is
// the number of bf16 pairs of a row (dots.h):
//
//     class           buffer          shape           contents
//     TileValues      copy            (TILE, padded)  values of the tile, if not read in place; or a product of few queries
//     ValueGradients  value_rows      (TILE, padded)  values of the tile
//     ValueGradients  transposed      (padded, TILE)  Vᵀ; (pairs, TILE) of bf16 pairs
//     ValueGradients  d_output_rows   (TILE, padded)  dO of the block, if not read in place
//     ValueGradients  value_pairs     (TILE, pairs)   values as bf16 pairs
//     ValueGradients  d_output_pairs  (TILE, pairs)   dO as bf16 pairs
//     Delta           output          (L, padded)     O of L = LANES queries; output_pairs: as bf16 pairs
//     Delta           d_output        (L, padded)     dO of the same queries; d_output_pairs: as bf16 pairs
#pragma once

#include "attention/tile.h"
#include "scorers/scorer.h"
#include "simd/dots.h"
#include "simd/gemm.h"

namespace anyscore::ANYSCORE_ISA {

// The values of a tile, for the forward.
template <class T> class TileValues {
    static constexpr int L = LANES<T>;

public:
    TileValues(Arena& arena, const Call& call) : padded(round_up(call.value_width, L)), copy(arena.take<T>(TILE * padded)) {}

    // Adds P V of a tile to output (queries, padded). The prefetcher fetches lines from memory meanwhile. Values may
    // be read in place if `whole`: every query attends every key.
    void add(const Tile& tile, bool whole, const T* p, T* output, Prefetcher& prefetcher) {
        read(tile, whole);
        if (decodes(tile.call) && rows != copy && padded > 2 * WIDE_BLOCK * L)
            add_in_order(tile.queries, tile.keys, p, output);
        else if (prefetcher.has_any())
            multiply(tile, p, output, prefetcher);
        else
            multiply(tile, p, output, no_prefetcher);
        add_nonfinite(tile, p, output);
    }

    const Size padded;

private:
    template <class Prefetches> void multiply(const Tile& tile, const T* p, T* output, Prefetches& prefetcher) const {
        gemm<ProductTerm, T>({output, padded}, {p, TILE}, {rows, stride}, tile.queries, padded, tile.keys, prefetcher);
    }

    void read(const Tile& tile, bool whole) {
        const Rows& from = tile.call.value;
        const Size width = tile.call.value_width;
        if (!from.data) {  // no values
            rows = copy, stride = 0, any_nonfinite = false;
            return;
        }
        bool same = from.type == TYPE_OF<T> && padded == width;
        if (whole && same && !tile.index) {
            rows = (const T*)from.data + from.at[tile.problem] + tile.first_key * from.stride;
            stride = from.stride, any_nonfinite = false;
            return;
        }
        any_nonfinite = read_tile(tile.keys_of(from, width), padded, largest_finite<T>(), copy, nonfinite);
        rows = copy, stride = padded;
    }

    // Adds P V for few queries and long rows: some whole rows after each other, in the order of memory. By columns
    // that fit the registers, as in a product, 64 × 50 rows of 512 took 1.35 times as long.
    void add_in_order(int queries, int keys, const T* p, T* output) {
        constexpr int AT_ONCE = 8;
        zero(copy, queries * padded);
        for (int j = 0; j < keys; j += AT_ONCE)
            gemm<ProductTerm, T>({copy, padded}, {p + j, TILE}, {rows + j * stride, stride}, queries, padded,
                                 remaining(keys, j, AT_ONCE));
        for (int i = 0; i < queries; i++)
            for (Size d = 0; d < padded; d += L)
                store(output + i * padded + d, load(output + i * padded + d) + load(copy + i * padded + d));
    }

    // Adds values that are not finite to the output rows that attend them: c[i] += p[i, j] value[j].
    void add_nonfinite(const Tile& tile, const T* p, T* c) {
        if (!any_nonfinite) return;
        const Size width = tile.call.value_width;
        for (int j = 0; j < tile.keys; j++) {
            if (!nonfinite[j]) continue;
            T* row = copy + j * padded;
            read_row(tile.call.value, tile.problem, tile.key(j), width, row);
            for (int i = 0; i < tile.queries; i++)
                if (AttendedColumns(tile, i).has(j))
                    for (Size d = 0; d < width; d++) c[i * padded + d] += p[i * TILE + j] * row[d];
        }
    }

    T* copy;
    const T* rows = nullptr;
    Size stride = 0;
    bool nonfinite[TILE], any_nonfinite = false;
};

// Returns whether dO Vᵀ multiplies bf16 pairs.
template <class T> bool takes_dots_of_values(const Call& call) {
    return TAKES_BF16_PAIRS<T> && call.dots && call.value_width > 0 && !decodes(call);
}

// Returns the width of values if dO Vᵀ multiplies bf16 pairs; else 0, so that their buffers are empty.
template <class T> Size width_of_dots(const Call& call) { return takes_dots_of_values<T>(call) ? call.value_width : 0; }

// For the backward: reads values for a tile of keys, and dO for a block of queries.
template <class T> class ValueGradients {
    static constexpr int L = LANES<T>;

public:
    ValueGradients(Arena& arena, const Call& call)
        : padded(round_up(call.value_width, L)), value_rows(arena.take<T>(TILE * padded)),
          transposed(arena.take<T>(TILE * padded)), d_output_rows(arena.take<T>(TILE * padded)),
          by_dots(takes_dots_of_values<T>(call)), value_pairs(arena, width_of_dots<T>(call)),
          d_output_pairs(arena, width_of_dots<T>(call)) {}

    // Reads and transposes the values of the tile's keys. Masked keys are read too, as weights tell which keys are
    // attended.
    void read_values(const Tile& tile) {
        const Call& call = tile.call;
        const int keys = tile.keys, end = int(round_up(keys, L));
        if constexpr (TAKES_BF16_PAIRS<T>)
            if (by_dots) {
                value_pairs.read(call.value, tile.problem, tile.first_key, keys, call.value_width);
                zero(value_pairs.rows + keys * value_pairs.pairs, (end - keys) * value_pairs.pairs);
                return transpose_rows(value_pairs.rows, value_pairs.pairs, 0, end);
            }
        int j = 0;
        if (!tile.index && call.value.data && call.value.type == TYPE_OF<T> &&
            call.value_width == padded)  // whole squares, read in place
            for (; j + L <= keys; j += L) {
                const T* from = find_row(call.value, tile.problem, tile.first_key + j, padded, value_rows);
                for (Size d = 0; d < padded; d += L)
                    transpose_square(from + d, call.value.stride, transposed + d * TILE + j, TILE);
            }
        if (call.value.data && j < keys) {
            RowRange rest = tile.keys_of(call.value, call.value_width);
            rest.first += j, rest.count -= j;
            read_rows(rest, padded, value_rows + j * padded);
        }
        zero(value_rows + keys * padded, (end - keys) * padded);
        transpose_rows(value_rows, padded, j, end);
    }

    // Reads dO of the tile's queries; rows that are not finite become 0.
    void read_output(const Tile& tile, const Backward& back) {
        any_nonfinite = false;
        if (!back.d_output.data) return;
        const Size width = tile.call.value_width;
        d_output = find_tile(tile.queries_of(back.d_output, width), padded, largest_finite<T>(), d_output_rows, nonfinite,
                             any_nonfinite);
        if constexpr (TAKES_BF16_PAIRS<T>)
            if (by_dots) d_output_pairs.take(d_output, padded, tile.queries, padded);  // exact: see Call::dots
    }

    // Returns whether dO of query i, of the block last read, is not finite.
    bool is_nonfinite(int i) const { return any_nonfinite && nonfinite[i]; }

    // Writes dO Vᵀ of the keys, and of the rest of their last vector.
    void multiply(const Tile& tile, T* dp) const {
        const int end = int(round_up(tile.keys, L));
        for (int i = 0; i < tile.queries; i++) zero(dp + i * TILE, end);
        if constexpr (TAKES_BF16_PAIRS<T>)
            if (by_dots) {
                const Size pairs = d_output_pairs.pairs;
                return gemm<DotTerm, T>({dp, TILE}, {d_output_pairs.rows, pairs}, {transposed, TILE}, tile.queries, end,
                                        pairs);
            }
        gemm<ProductTerm, T>({dp, TILE}, {d_output, padded}, {transposed, TILE}, tile.queries, end, padded);
    }

    // Adds Pᵀ dO to d_value (keys, padded).
    void add(const Tile& tile, const Backward& back, const T* p, T* d_value) {
        gemm<ProductTerm, T>({d_value, padded}, {p, 1, TILE}, {d_output, padded}, tile.keys, padded, tile.queries);
        add_nonfinite(tile, back, p, d_value);
    }

    const Size padded;

private:
    void transpose_rows(const T* from, Size width, int first, int end) {
        for (Size d = 0; d < width; d += L)
            for (int j = first; j < end; j += L)
                transpose_square(from + j * width + d, width, transposed + d * TILE + j, TILE);
    }

    void add_nonfinite(const Tile& tile, const Backward& back, const T* p, T* d_value) {
        if (!any_nonfinite) return;
        const Size width = tile.call.value_width;
        for (int i = 0; i < tile.queries; i++) {
            if (!nonfinite[i]) continue;
            AttendedColumns attended(tile, i);
            T* row = d_output_rows + i * padded;
            read_row(back.d_output, tile.problem, tile.first_query + i, width, row);
            for (int j = attended.from; j < attended.to; j++)
                for (Size d = 0; attended.has(j) && d < width; d++) d_value[j * padded + d] += p[i * TILE + j] * row[d];
        }
    }

    T *value_rows, *transposed, *d_output_rows;
    const T* d_output = nullptr;
    bool nonfinite[TILE], any_nonfinite = false;
    const bool by_dots;
    Bf16PairRows value_pairs, d_output_pairs;
};

// D_i = dO_i · O_i, summed in the order in which ValueGradients::multiply sums dO_i · v_j. So their difference is
// exactly 0 where one key has all the weight.
template <class T> class Delta {
    static constexpr int L = LANES<T>;

public:
    Delta(Arena& arena, const Call& call)
        : padded(round_up(call.value_width, L)), output(arena.take<T>(L * padded)), d_output(arena.take<T>(L * padded)),
          by_dots(takes_dots_of_values<T>(call)), output_pairs(arena, width_of_dots<T>(call)),
          d_output_pairs(arena, width_of_dots<T>(call)) {}

    void run(const Call& call, const Backward& back, Size n, Size first, T* delta) {
        int count = remaining(call.queries, first, L);
        bool nonfinite[L];
        zero(output, L * padded), zero(d_output, L * padded);
        for (int i = 0; i < count; i++) read_row(back.output, n, first + i, call.value_width, output + i * padded);
        read_tile({back.d_output, n, first, count, call.value_width}, padded, largest_finite<T>(), d_output, nonfinite);
        Vector<T> sum{};
        if constexpr (TAKES_BF16_PAIRS<T>)
            if (by_dots) sum = sum_of_halves();
        sum += multiply<ProductTerm>(output, d_output, padded);
        // A sigmoid has no D, but NaN must reach its gradients.
        const bool is_softmax = call.normalizer == Normalizer::SOFTMAX;
        for (int i = 0; i < count; i++)
            delta[n * call.queries + first + i] = nonfinite[i] ? nan<T>() : is_softmax ? sum[i] : T(0);
    }

private:
    // Returns D of the output rounded to bfloat16; leaves the rounding errors in `output`.
    Vector<T> sum_of_halves() {
        output_pairs.take(output, padded, L, padded), d_output_pairs.take(d_output, padded, L, padded);
        output_pairs.subtract_from(output, padded, L, padded);
        return multiply<DotTerm>(output_pairs.rows, d_output_pairs.rows, output_pairs.pairs);
    }

    // Returns the sums of products of L rows, `width` apart.
    template <class Term> static Vector<T> multiply(const T* output, const T* d_output, Size width) {
        Vector<T> sum{};
        for (Size from = 0; from < width; from += PIECE) {
            Vector<T> part{};
            for (Size d = from; d < width && d < from + PIECE; d += L) {
                Vector<T> x[L], y[L];
                for (int i = 0; i < L; i++) x[i] = load(output + i * width + d), y[i] = load(d_output + i * width + d);
                transpose<T>(x), transpose<T>(y);
                for (int l = 0; l < L; l++) part = Term::add(part, y[l], x[l], T());
            }
            sum += part;
        }
        return sum;
    }

    Size padded;
    T *output, *d_output;
    const bool by_dots;
    Bf16PairRows output_pairs, d_output_pairs;
};

}  // namespace anyscore::ANYSCORE_ISA
