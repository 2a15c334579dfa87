// What a decoder keeps of its keys from step to step.
#pragma once

#include "key_sets.h"

namespace anyscore::ANYSCORE_ISA {

template <class Scorer, class T> class PreparedTile {
public:
    PreparedTile(Arena& arena, const Call& call)
        : padded(round_up(call.width, LANES<T>)), scorer(arena, call), rows(arena.take<T>(TILE * padded)),
          made(arena.take<T>(TILE * padded)), weight(arena.take<T>(padded)) {}

    // The keys of one set from the first-th on; `to` is where the set's rows begin.
    void run(const Call& call, const KeySets<Scorer, T>& sets, Size set, Size first, T* to) {
        using Range = typename Scorer::Range;
        Tile tile(call, call.first_problem[set]);
        tile.move_to_keys(first, call.keys);
        zero(weight, padded);
        scorer.begin(weight, true, Range(sets.numbers(set), padded));
        if (first == 0) Range::pack(sets.numbers(set), call.width, padded, to);
        bool irregular[TILE];
        sets.read_keys(tile, padded, rows, irregular);
        const T* keys = scorer.decode_keys(rows, tile.keys, made);
        for (int j = 0; j < tile.keys; j++) {
            T* row = to + (1 + first + j) * call.width;
            for (Size d = 0; d < call.width; d++) row[d] = keys[j * padded + d];
            if (irregular[j] && call.width) row[0] = nan<T>();
        }
    }

private:
    Size padded;
    Scorer scorer;
    T *rows, *made, *weight;
};

// For each set a row for the range, and the keys' rows.
template <class Scorer, class T> void prepare(const Call& call, void* packed, int threads) {
    KeySets<Scorer, T> sets(call, true, false, threads);
    Slots<PreparedTile<Scorer, T>> slots(call, threads);
    Size tiles = call.keys ? tiles_of(call.keys) : 1;
    for_each(threads, call.key_sets * tiles, [&](Size index, int slot) {
        Size set = index / tiles;
        T* to = (T*)packed + set * (call.keys + 1) * call.width;
        slots.task(slot).run(call, sets, set, index % tiles * TILE, to);
    });
}

}  // namespace anyscore::ANYSCORE_ISA
