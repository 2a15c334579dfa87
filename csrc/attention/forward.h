// Output and statistics, by an online softmax over tiles of keys; and scores, if asked for.
#pragma once

#include <algorithm>

#include "attention/gathered.h"
#include "attention/tile_scores.h"
#include "attention/tile_values.h"

namespace anyscore::ANYSCORE_ISA {

// Returns the threads of a call: below 10⁶ elements a second one costs more than it saves.
inline int threads_for(const Call& call, int threads) {
    double elements = double(call.problems) * double(call.scores()) * double(call.width + call.value_width / 2 + 8);
    return elements < 1e6 ? 1 : threads;
}

// Returns whether to prefetch: only for calls larger than the caches are likely to hold. Small calls would take a
// twentieth longer.
template <class T> bool prefetches(const Call& call) {
    const Size tokens = call.problems * (call.queries + call.keys), width = call.width + call.value_width;
    return !decodes(call) && tokens * width * Size(sizeof(T)) > 1 << 20;
}

// Returns whether several tasks, of one block of queries each, share the panels of their keys.
inline bool shares_panels(const Call& call) {
    return !decodes(call) && call.problems * tiles_of(call.queries) > call.key_sets;
}

template <class Scorer, class T> class ForwardBlock {
    static constexpr int L = LANES<T>;

public:
    ForwardBlock(Arena& arena, const Call& call)
        : is_large(prefetches<T>(call)), scores(arena, call), values(arena, call),
          output(arena.take<T>(TILE * values.padded)), top(arena.take<T>(TILE)), sum(arena.take<T>(TILE * L)),
          factors(arena.take<T>(TILE)) {}

    // Sets the block of queries that this thread will compute after its next one. Its queries, keys without panels
    // and output are prefetched meanwhile.
    void prepare_prefetch(const Call& call, const KeySets<Scorer, T>& sets, Size n, Size first, const Forward& to) {
        prefetcher.clear();
        if (n >= call.problems || !is_large) return;
        const int count = remaining(call.queries, first);
        if (QueryBounds bounds; !sets.has_panels()) {
            bounds.read(call, n, first, count);
            prefetcher.add({call.b, n, bounds.low, remaining(bounds.high, bounds.low), call.width});
        }
        prefetcher.add({call.a, n, first, count, call.width});
        const Size bytes = call.value_width * bytes_of(to.output_type);
        if (to.output) prefetcher.add((const char*)to.output + (n * call.queries + first) * bytes, bytes, bytes, count);
    }

    // Computes the queries of problem n in one tile from `first` on. `to` holds the results of all problems.
    void run(const Call& call, const KeySets<Scorer, T>& sets, Size n, Size first, const Forward& to) {
        Tile tile(call, n);
        scores->begin(tile, sets);
        const int count = remaining(call.queries, first, call.is_graph() ? NODES : TILE);
        for (Size i = first; i < first + count; i += tile.queries) {
            tile.move_to_queries(i);
            block(tile, sets, to);
        }
    }

private:
    // Computes one block of queries: an online softmax, or a sigmoid, over all tiles of keys that it attends.
    void block(Tile& tile, const KeySets<Scorer, T>& sets, const Forward& to) {
        const Call& call = tile.call;
        const Size n = tile.problem, at = n * call.queries + tile.first_query;
        const int count = tile.queries;
        scores->queries(tile);
        zero(output, count * values.padded);
        const bool is_softmax = call.normalizer == Normalizer::SOFTMAX;
        for (int i = 0; i < count; i++)
            top[i] = is_softmax ? minus_infinity<T>() : shift_of<T>(tile, i), poisoned[i] = false;
        zero(sum, count * L);
        T* all_scores = to.scores ? (T*)to.scores + n * call.scores() : nullptr;
        if (all_scores && !call.is_graph()) {
            T* rows = all_scores + tile.first_query * call.keys;
            std::fill(rows, rows + count * call.keys, minus_infinity<T>());
        }
        const Size high = tile.bounds.high;
        for (Size j0 = sets.first_key(tile), end; j0 < high; j0 = end) {
            end = sets.end_of_tile(tile, j0);
            tile.move_to_keys(j0, end < high ? end : high);
            scores->keys_for_scores(tile, sets);
            scores->compute(tile);
            if (all_scores) write_scores(tile, all_scores);
            bool whole = true, any_poison = has_poison(scores->s, count, int(round_up(tile.keys, L)));
            // Whether the values of these keys are read for the first time.
            const bool are_new = is_large && tile.first_query == 0 && call.value.data;
            for (int i = 0; i < count; i++) {
                if (are_new) prefetch_values(tile, i);
                whole &= is_softmax ? raise_top(tile, i, any_poison) : weights_by_sigmoid(tile, i, any_poison);
            }
            for (int i = 0; is_softmax && i < count; i++) softmax(tile, i);
            values.add(tile, whole, scores->s, output, prefetcher);
        }
        for (int i = 0; i < count; i++) {
            T* row = output + i * values.padded;
            T total = sum_lanes<T>(load(sum + i * L));
            T scale = poisoned[i] ? nan<T>() : !is_softmax ? T(1) : total > 0 ? 1 / total : T(0);
            for (Size d = 0; d < call.value_width; d++) row[d] *= scale;
            write(to.output, to.output_type, (at + i) * call.value_width, call.value_width, row);
            T* stats = (T*)to.stats + 2 * n * call.queries + tile.first_query + i;
            stats[0] = poisoned[i] ? nan<T>() : top[i];
            stats[call.queries] = poisoned[i] ? nan<T>() : is_softmax && total > 0 ? T(std::log(total)) : T(0);
        }
    }

    // Prefetches query i's share of the tile's values.
    static ANYSCORE_NOINLINE void prefetch_values(const Tile& tile, int i) {
        const Call& call = tile.call;
        RowRange part = tile.keys_of(call.value, call.value_width);
        const int from = tile.keys * i / tile.queries;
        part.first += from, part.count = tile.keys * (i + 1) / tile.queries - from;
        prefetch(part);
    }

    // Writes the scores of a tile into those of the problem, −∞ where not attended.
    void write_scores(const Tile& tile, T* all_scores) {
        for (int i = 0; i < tile.queries; i++) {
            AttendedColumns attended(tile, i);
            const T* s = scores->s + i * TILE;
            T* to = all_scores + tile.scores_of(i);
            if (tile.call.is_graph()) {  // the other columns belong to other queries
                std::copy(s + attended.from, s + attended.to, to + attended.from);
                continue;
            }
            std::copy(s, s + tile.keys, to);
            attended.fill_others(to, tile.keys, minus_infinity<T>());
        }
    }

    // Returns whether a score is NaN or +∞, perhaps a masked one; an attended one makes its query NaN. As signed
    // integers, the bits of +∞ and NaN are the highest; as unsigned integers, the bits of a negative NaN.
    static bool has_poison(const T* s, int rows, int end) {
        using V = Vector<T>;
        SignedOf<V> highest{};
        UnsignedOf<V> highest_unsigned{};
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < end; j += L) {
                const V x = load(s + i * TILE + j);
                highest = max(highest, (SignedOf<V>)x), highest_unsigned = max(highest_unsigned, (UnsignedOf<V>)x);
            }
        bool found = false;
        for (int l = 0; l < L; l++)
            found |=
                highest[l] >= typename Bits<T>::Signed(Bits<T>::INFINITE) || highest_unsigned[l] > bits(minus_infinity<T>());
        return found;
    }

    // Raises the running maximum of query i to its scores. Returns whether it attends all keys of the tile.
    bool raise_top(const Tile& tile, int i, bool any_poison) {
        AttendedColumns attended(tile, i);
        T* s = scores->s + i * TILE;
        int keys = tile.keys, end = int(round_up(keys, L));
        bool whole = attended.is_whole(keys);
        if (!whole || end != keys) attended.fill_others(s, end, minus_infinity<T>());
        if (any_poison && has_poison(s, 1, end)) poisoned[i] = true;
        Vector<T> highest = fill(minus_infinity<T>());
        for (int j = 0; j < end; j += L) highest = max(highest, load(s + j));
        const T most = largest_lane<T>(highest);
        if (most > top[i]) {
            if (top[i] != minus_infinity<T>()) rescale(i, exp_or_zero(top[i] - most));
            top[i] = most;
        }
        return whole;
    }

    // Turns the scores of query i into weights relative to the running maximum. This loop over queries is separate,
    // so that the latencies of one query overlap the work for others.
    void softmax(const Tile& tile, int i) {
        T *s = scores->s + i * TILE, here = top[i];
        const int end = int(round_up(tile.keys, L));
        if (poisoned[i] || here == minus_infinity<T>())
            return zero(s, end);  // the query has attended no key so far, or only scores of −∞
        Vector<T> total = load(sum + i * L);
        for (int j = 0; j < end; j += L) {
            const Vector<T> weight = exp_or_zero<T>(load(s + j) - here);
            store(s + j, weight), total += weight;
        }
        store(sum + i * L, total);
        drop(tile, i, end);
    }

    ANYSCORE_NOINLINE void rescale(int i, T factor) {
        store(sum + i * L, factor * load(sum + i * L));
        T* row = output + i * values.padded;
        for (Size d = 0; d < values.padded; d++) row[d] *= factor;
    }

    // Turns the scores of query i into weights by the sigmoid. Returns whether it attends all keys of the tile.
    bool weights_by_sigmoid(const Tile& tile, int i, bool any_poison) {
        AttendedColumns attended(tile, i);
        T* s = scores->s + i * TILE;
        int keys = tile.keys, end = int(round_up(keys, L));
        bool whole = attended.is_whole(keys);
        if (any_poison)
            for (int j = attended.from; j < attended.to; j++) poisoned[i] |= attended.has(j) && is_nan(s[j]);
        bool nothing = poisoned[i] || attended.from == attended.to;
        T shift = nothing ? T(0) : top[i];
        for (int j = 0; j < end; j++) s[j] = nothing ? T(0) : sigmoid(s[j] - shift);
        if (!whole || end != keys) attended.fill_others(s, end, T(0));
        drop(tile, i, end);
        return whole;
    }

    void drop(const Tile& tile, int i, int end) {
        const Dropout& dropout = tile.call.dropout;
        if (!(dropout.rate > 0)) return;
        dropout_factors(dropout, tile.problem, tile.row_of(i), tile.first_key, end, factors);
        for (int j = 0; j < end; j++) scores->s[i * TILE + j] *= factors[j];
    }

    const bool is_large;
    ScoresOf<Scorer, T> scores;
    TileValues<T> values;
    Prefetcher prefetcher;
    // top: the running maximum, or the shift of the sigmoid; sum (TILE, L): Σ e^(s − top), lane by lane.
    T *output, *top, *sum, *factors;
    bool poisoned[TILE];
};

template <class Scorer, class T> void forward(const Call& call, const Forward& to, int threads) {
    threads = threads_for(call, threads);
    Size blocks = tiles_of(call.queries);
    bool shared = shares_panels(call);
    KeySets<Scorer, T> sets(call, shared || call.is_graph(), shared, threads);
    Slots<ForwardBlock<Scorer, T>> slots(call, threads);
    if (call.is_graph()) {
        ContiguousRows rows(call, threads);
        const Size at_once = rows.problems_at_once(call.problems);
        for (Size from = 0; from < call.problems; from += at_once) {
            const Call here = rows.with_keys(call, from);
            for_each(threads, tiles_of(call.queries, NODES), [&](Size t, int slot) {
                for (Size n = from; n < from + at_once; n++) slots.task(slot).run(here, sets, n, t * NODES, to);
            });
        }
        return;
    }
    for_each(threads, call.problems * blocks, [&](Size index, int slot) {
        const Size next = index + threads;  // probably the next task of this thread
        slots.task(slot).prepare_prefetch(call, sets, next / blocks, next % blocks * TILE, to);
        slots.task(slot).run(call, sets, index / blocks, index % blocks * TILE, to);
    });
}

}  // namespace anyscore::ANYSCORE_ISA
