// The scores of a tile, by panels of keys or as a decoder's step.
#pragma once

#include "attention/key_sets.h"
#include "scorers/outer.h"
#include "scorers/pairs.h"

namespace anyscore::ANYSCORE_ISA {

// Scores s[i · TILE + j] of the queries and keys of a tile. Columns beyond the keys, and keys that may not be
// attended, hold anything. Lanes go along keys in PanelScores, and along features in RowScores.
template <class Scorer, class T> class TileScores {
public:
    // Starts the problem of a tile. Then call queries and keys, whenever they change, and compute.
    void begin(const Tile& tile, const KeySets<Scorer, T>& sets) {
        bool is_new = weight.read_for(tile.call, tile.problem, padded);
        auto of_keys = sets.range(tile.call, tile.problem, range, workspace);
        panel_size = Scorer::panel_size(padded, sets.has_panels() ? sets.any_wide : of_keys.any_wide);
        scorer.begin(weight.finite, is_new, of_keys);
    }

    virtual void queries(const Tile& tile) = 0;
    virtual void keys(const Tile& tile, const KeySets<Scorer, T>& sets) = 0;
    // Reads keys whose scores alone are needed, without gradients.
    virtual void keys_for_scores(const Tile& tile, const KeySets<Scorer, T>& sets) { keys(tile, sets); }
    virtual void compute(const Tile& tile) = 0;
    // Passes the scorer the rows that gradients need, unless queries and keys have done so.
    virtual void queries_for_gradients(const Tile&) {}
    virtual void keys_for_gradients(const Tile&) {}

    bool has_irregular() const { return any_irregular_query || any_irregular_key; }
    bool is_irregular(int i, int j) const { return irregular_query[i] || irregular_key[j]; }

    Size padded;
    Scorer scorer;
    Weight<T> weight;
    IrregularRows<typename Scorer::Literal, T> irregular_rows;
    T* s;
    T* outer_slopes = nullptr;  // (TILE, TILE): derivatives of the outer function; null if the call needs none

protected:
    static constexpr int L = LANES<T>;
    static_assert(check_scorer<Scorer, T>());

    TileScores(Arena& arena, const Call& call)
        : padded(round_up(call.width, L)), scorer(arena, call), weight(arena, padded), irregular_rows(arena, call.width),
          s(arena.take<T>(TILE * TILE)), query_copy(arena.take<T>(TILE * padded)), key(arena.take<T>(TILE * padded)),
          range(arena.take<T>(Scorer::Range::size(padded))),
          workspace(arena.take<T>(Scorer::panel_size(padded, true) * (TILE / L) + 2 * padded)), bias(arena.take<T>(TILE)),
          row(arena.take<T>(TILE)) {}

    // Reads the queries of a tile. A query without keys reads as 0: a scorer chooses one form for all of them.
    void read_queries(const Tile& tile) {
        const Call& call = tile.call;
        query = find_tile(tile.queries_of(call.a, call.width), padded, Scorer::limit(), query_copy, irregular_query,
                          any_irregular_query);
        for (int i = 0; i < tile.queries; i++) {
            if (attends_any(tile, i)) continue;
            if (query != query_copy) std::memcpy(query_copy, query, tile.queries * padded * sizeof(T));
            query = query_copy;
            zero(query_copy + i * padded, padded);
        }
        if (weight.has_nonfinite)
            for (int i = 0; i < tile.queries; i++) irregular_query[i] = true;
        any_irregular_query |= weight.has_nonfinite;
    }

    // Reads the key bias of the keys last read, and finds whether a key is irregular.
    void finish_keys(const Tile& tile) {
        any_irregular_key = false;
        for (int j = 0; j < tile.keys; j++) any_irregular_key |= irregular_key[j];
        const Rows& from = tile.call.key_bias;
        if (!from.data) return;
        const Size at = from.at[tile.problem];
        if (tile.index)
            for (int j = 0; j < tile.keys; j++) read(from, at + tile.index[j] * from.stride, 1, 1, bias + j);
        else
            read(from, at + tile.first_key * from.stride, tile.keys, from.stride, bias);
        for (int j = tile.keys; j < TILE; j++) bias[j] = 0;
    }

    // Turns the scorer's sums into scores: computes irregular rows, and adds biases and the outer function.
    void finish(const Tile& tile) {
        if (has_irregular())
            for (int i = 0; i < tile.queries; i++) {
                AttendedColumns attended(tile, i);
                for (int j = attended.from; j < attended.to; j++) {
                    if (!is_irregular(i, j) || !attended.has(j)) continue;
                    irregular_rows.read(tile.call, tile.problem, tile.first_query + i, tile.key(j), tile.first_key + j);
                    s[i * TILE + j] = irregular_rows.score(weight.raw);
                }
            }
        if (tile.call.key_bias.data)
            for (int i = 0; i < tile.queries; i++)
                for (int j = 0; j < TILE; j++) s[i * TILE + j] += bias[j];
        const Bias& of_pairs = tile.call.bias;
        if (of_pairs.entries.data && !of_pairs.after) add(tile, of_pairs);
        if (tile.call.outer != Outer::NONE) apply(tile.call, s, outer_slopes, tile.queries * TILE);
        if (of_pairs.entries.data && of_pairs.after) add(tile, of_pairs);
    }

    // Adds a bias of pairs of queries and keys to the scores.
    void add(const Tile& tile, const Bias& of_pairs) {
        const Rows& from = of_pairs.entries;
        const Size at = from.at[tile.problem] + of_pairs.first + tile.first_key * of_pairs.column;
        for (int i = 0; i < tile.queries; i++) {
            read(from, at + (tile.first_query + i) * from.stride, tile.keys, of_pairs.column, row);
            for (int j = 0; j < tile.keys; j++) s[i * TILE + j] += row[j];
        }
    }

    const T* query = nullptr;
    T *query_copy, *key, *range, *workspace, *bias, *row;  // workspace: for panels, converted keys, or a range
    Size panel_size = 0;
    bool irregular_query[TILE], irregular_key[TILE], any_irregular_query = false, any_irregular_key = false;
};

// For many queries: lanes along keys, in panels that this task makes, or that KeySets made for all tasks.
template <class Scorer, class T> class PanelScores final : public TileScores<Scorer, T> {
    using Base = TileScores<Scorer, T>;
    using Base::irregular_key, Base::key, Base::padded, Base::panel_size, Base::query, Base::workspace, Base::s,
        Base::scorer;

public:
    PanelScores(Arena& arena, const Call& call) : Base(arena, call) {}

    void queries(const Tile& tile) override {
        Base::read_queries(tile);
        scorer.queries(query, tile.queries);
    }

    void keys(const Tile& tile, const KeySets<Scorer, T>& sets) override {
        Size set = tile.call.key_set[tile.problem];
        if (sets.has_panels()) {
            const Size t = sets.tiles.holding(tile.first_key);
            panels = sets.panel(set, t), all_keys = int(sets.tiles.end(t) - tile.first_key);
            std::memcpy(irregular_key, sets.irregular(set, t), TILE);
        } else {
            const T* rows = sets.find_keys(tile, padded, key, irregular_key);
            sets.make_panels_of(scorer, rows, tile.keys, panel_size, workspace);
            panels = workspace, all_keys = tile.keys;
        }
        Base::finish_keys(tile);
    }

    void compute(const Tile& tile) override {
        scorer.scores(tile.queries, panels, panel_size, tile.attended_keys(), all_keys, s);
        Base::finish(tile);
    }

private:
    const T* panels = nullptr;
    int all_keys = 0;  // keys in the panels
};

// For a decoder's step: lanes along features, of keys that may be packed. Also for a backward of kept scores, which
// reads rows for gradients alone.
template <class Scorer, class T> class RowScores final : public TileScores<Scorer, T> {
    using Base = TileScores<Scorer, T>;
    using Base::irregular_key, Base::key, Base::padded, Base::query, Base::workspace, Base::s, Base::scorer,
        Base::outer_slopes;

public:
    RowScores(Arena& arena, const Call& call) : Base(arena, call) {}

    void queries(const Tile& tile) override {
        Base::read_queries(tile);
        if (!tile.call.kept) scorer.decode_queries(query, tile.queries);
    }

    void keys(const Tile& tile, const KeySets<Scorer, T>& sets) override {
        const Call& call = tile.call;
        const int count = tile.keys;
        rows = key, stride = padded, knows_irregular = true;
        if (sets.is_prepared(call)) {
            const T* packed = (const T*)call.packed.data + call.packed.at[tile.problem] + call.packed.stride;
            auto row = [&](int j) { return packed + tile.key(j) * call.packed.stride; };
            for (int j = 0; j < count; j++) irregular_key[j] = is_nan(*row(j));
            if (padded == call.width && !tile.index)
                rows = row(0), stride = call.packed.stride;
            else
                for (int j = 0; j < count; j++)
                    for (Size d = 0; d < padded; d++) key[j * padded + d] = d < call.width ? row(j)[d] : T(0);
        } else {
            find_keys(tile);
        }
        Base::finish_keys(tile);
    }

    void keys_for_scores(const Tile& tile, const KeySets<Scorer, T>& sets) override {
        if constexpr (SHOWS_NONFINITE<typename Scorer::Literal>)
            if (const T* in_place = rows_in_place<T>(tile.keys_of(tile.call.b, tile.call.width), padded)) {
                for (int j = 0; j < tile.keys; j++) irregular_key[j] = false;
                rows = in_place, stride = padded, knows_irregular = false;
                return Base::finish_keys(tile);
            }
        keys(tile, sets);
    }

    void compute(const Tile& tile) override {
        if (tile.call.kept) return read_kept(tile);
        scorer.decode_scores(tile.queries, rows, stride, tile.keys, s);
        if constexpr (SHOWS_NONFINITE<typename Scorer::Literal>)
            if (!knows_irregular && !are_finite(tile)) {
                find_keys(tile);
                knows_irregular = true;
                Base::finish_keys(tile);
                scorer.decode_scores(tile.queries, rows, stride, tile.keys, s);
            }
        Base::finish(tile);
    }

    void queries_for_gradients(const Tile& tile) override { scorer.gradient_queries(query, tile.queries); }
    void keys_for_gradients(const Tile& tile) override { scorer.keys(key_rows, tile.keys); }

private:
    // Not inlined: the forward of many queries, which never calls this, took 5 % longer with it inlined.
    ANYSCORE_NOINLINE void find_keys(const Tile& tile) {
        key_rows = KeySets<Scorer, T>::find_keys(tile, padded, key, irregular_key);
        if (!tile.call.kept) rows = scorer.decode_keys(key_rows, tile.keys, workspace);
    }

    ANYSCORE_NOINLINE void read_kept(const Tile& tile) {
        const Call& call = tile.call;
        const T* kept = (const T*)call.kept + tile.problem * call.scores();
        for (int i = 0; i < tile.queries; i++)
            std::memcpy(s + i * TILE, kept + tile.scores_of(i), std::size_t(tile.keys) * sizeof(T));
        if (outer_slopes) slopes_of(call.outer, T(call.outer_scale), s, outer_slopes, tile.queries * TILE);
    }

    bool are_finite(const Tile& tile) const {
        typename Bits<T>::Unsigned most = 0;
        for (int i = 0; i < tile.queries; i++) {
            auto here = largest_bits(s + i * TILE, tile.keys);
            most = here > most ? here : most;
        }
        return most < Bits<T>::INFINITE;
    }

    // key_rows: as read, if not packed; rows: converted, for decode_scores.
    const T *key_rows = nullptr, *rows = nullptr;
    Size stride = 0;  // of `rows`
    bool knows_irregular = true;  // whether irregular_key is set; else finite scores show that no key is irregular
};

// PanelScores or RowScores, by the number of queries. A backward that computes scores again takes the same class as
// its forward, so that both have the same scores.
template <class Scorer, class T> class ScoresOf {
    using Panel = PanelScores<Scorer, T>;
    using Rows = RowScores<Scorer, T>;

public:
    ScoresOf(Arena& arena, const Call& call) {
        if (call.kept || decodes(call))
            scores = new (memory) Rows(arena, call);
        else
            scores = new (memory) Panel(arena, call);
    }
    ScoresOf(const ScoresOf&) = delete;
    TileScores<Scorer, T>* operator->() { return scores; }

private:
    alignas(Panel) alignas(Rows) char memory[sizeof(Panel) > sizeof(Rows) ? sizeof(Panel) : sizeof(Rows)];
    TileScores<Scorer, T>* scores;
};

}  // namespace anyscore::ANYSCORE_ISA
