// One block of queries and one tile of keys: the scores, wherever they come from.
#pragma once

#include "gemm.h"
#include "key_sets.h"

namespace anyscore::ANYSCORE_ISA {

// Scores s[i · TILE + j] of the queries of a block with the keys of a tile; columns beyond the keys,
// and keys that may not be attended, hold anything.
template <class Scorer, class T> class TileScores {
    static constexpr int L = LANES<T>;
    using Literal = typename Scorer::Literal;

public:
    TileScores(Arena& arena, const Call& call)
        : padded(round_up(call.width, L)), scorer(arena, call.width), weight(arena, padded), odd_rows(arena, call.width),
          query(arena.take<T>(TILE * padded)), key(arena.take<T>(TILE * padded)),
          range(arena.take<T>(Scorer::Range::size(padded))),
          panels(arena.take<T>(Scorer::panel_size(padded, true) * (TILE / L) + 2 * padded)), s(arena.take<T>(TILE * TILE)),
          bias(arena.take<T>(TILE)) {}

    void begin(const Call& call, const KeySets<Scorer, T>& sets, Size n) {
        bool is_new = weight.read_for(call, n, padded);
        auto of_keys = sets.range(call, n, range, panels);
        panel_size = Scorer::panel_size(padded, sets.has_panels() ? sets.any_wide : of_keys.any_wide);
        scorer.begin(weight.finite, is_new, of_keys);
    }

    void queries(const Call& call, Size n, Size first, int count) {
        any_odd_query = read_tile(call.a, n, first, count, call.width, padded, Scorer::limit(), query, odd_query);
        if (weight.is_odd)
            for (int i = 0; i < count; i++) odd_query[i] = true;
        any_odd_query |= weight.is_odd;
    }

    void keys(const Call& call, const KeySets<Scorer, T>& sets, Size n, Size first, int count) {
        Size set = call.key_set[n];
        if (sets.has_panels()) {
            tile_panels = sets.panel(set, first), tile_keys = left_of(call.keys, first);
            std::memcpy(odd_key, sets.odd(set, first), TILE);
        } else {
            sets.read_keys(call, n, first, count, padded, key, odd_key);
            sets.make_panels_of(scorer, key, count, panel_size, panels);
            tile_panels = panels, tile_keys = count;
        }
        finish_keys(call, n, first, count);
    }

    void compute(const Call& call, const Spans& spans, Size n, Size first_query, int queries, Size first_key, int keys) {
        scorer.scores(queries, tile_panels, panel_size, keys, tile_keys, s);
        finish(call, spans, n, first_query, queries, first_key, keys);
    }

    // The same for a decoder's step: lanes go along features. Keys may come prepared.
    void few_keys(const Call& call, Size n, Size first, int count) {
        few_rows = key, few_stride = padded;
        if (KeySets<Scorer, T>::is_prepared(call)) {
            const T* packed = (const T*)call.packed.data + call.packed.at[n] + (1 + first) * call.packed.stride;
            for (int j = 0; j < count; j++) odd_key[j] = is_nan(packed[j * call.packed.stride]);
            if (padded == call.width)
                few_rows = packed, few_stride = call.packed.stride;
            else
                for (int j = 0; j < count; j++)
                    for (Size d = 0; d < padded; d++)
                        key[j * padded + d] = d < call.width ? packed[j * call.packed.stride + d] : T(0);
        } else {
            KeySets<Scorer, T>::read_keys(call, n, first, count, padded, key, odd_key);
            few_rows = scorer.few_keys(key, count, panels);
        }
        finish_keys(call, n, first, count);
    }

    void few_compute(const Call& call, const Spans& spans, Size n, Size first_query, int queries, Size first_key, int keys) {
        scorer.few_scores(queries, few_rows, few_stride, keys, s);
        finish(call, spans, n, first_query, queries, first_key, keys);
    }

private:
    // What is not finite or too large, and the key bias.
    void finish(const Call& call, const Spans& spans, Size n, Size first_query, int queries, Size first_key, int keys) {
        if (any_odd_query || any_odd_key)
            for (int i = 0; i < queries; i++) {
                Part part(call, spans, n, first_query, i, first_key, keys);
                for (int j = part.from; j < part.to; j++)
                    if ((odd_query[i] || odd_key[j]) && part.has(j))
                        s[i * TILE + j] = odd_rows.score(call, n, first_query + i, first_key + j, weight.raw);
            }
        if (call.key_bias.data)
            for (int i = 0; i < queries; i++)
                for (int j = 0; j < TILE; j++) s[i * TILE + j] += bias[j];
    }

    void finish_keys(const Call& call, Size n, Size first, int count) {
        any_odd_key = false;
        for (int j = 0; j < count; j++) any_odd_key |= odd_key[j];
        if (!call.key_bias.data) return;
        read(call.key_bias, call.key_bias.at[n] + first * call.key_bias.stride, count, call.key_bias.stride, bias);
        for (int j = count; j < TILE; j++) bias[j] = 0;
    }

public:
    Size padded;
    Scorer scorer;
    Weight<T> weight;
    OddRows<Literal, T> odd_rows;
    T *query, *key, *range, *panels, *s, *bias;
    Size panel_size = 0;
    const T *tile_panels = nullptr, *few_rows = nullptr;
    int tile_keys = 0;
    Size few_stride = 0;
    bool odd_query[TILE], odd_key[TILE], any_odd_query = false, any_odd_key = false;
};

// The values of a tile, as rows `stride` apart.
template <class T> class TileValues {
    static constexpr int L = LANES<T>;

public:
    TileValues(Arena& arena, const Call& call) : padded(round_up(call.value_width, L)), copy(arena.take<T>(TILE * padded)) {}

    // whole: every query attends every key, so nothing has to be kept from being read.
    void read_for(const Call& call, Size n, Size first, int count, bool whole) {
        bool same = call.value.type == TYPE_OF<T> && padded == call.value_width;
        if (whole && same) {
            rows = (const T*)call.value.data + call.value.at[n] + first * call.value.stride;
            stride = call.value.stride, any_odd = false;
            return;
        }
        any_odd = read_tile(call.value, n, first, count, call.value_width, padded, largest_finite<T>(), copy, odd);
        rows = copy, stride = padded;
    }

    // Adds what odd values are to the rows of output that attend them: c[i] += p[i, j] value[j].
    void add_odd(const Call& call, const Spans& spans, Size n, Size first_query, int queries, Size first_key, int keys,
                 const T* p, T* c) {
        if (!any_odd) return;
        for (int j = 0; j < keys; j++) {
            if (!odd[j]) continue;
            T* row = copy + j * padded;
            read_row(call.value, n, first_key + j, call.value_width, row);
            for (int i = 0; i < queries; i++)
                if (Part(call, spans, n, first_query, i, first_key, keys).has(j))
                    for (Size d = 0; d < call.value_width; d++) c[i * padded + d] += p[i * TILE + j] * row[d];
        }
    }

    Size padded;
    const T* rows = nullptr;
    Size stride = 0;
    bool odd[TILE], any_odd = false;

private:
    T* copy;
};

}  // namespace anyscore::ANYSCORE_ISA
