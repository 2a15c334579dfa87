// Packed keys, which a decoder keeps from step to step: a header row for the range, and converted rows of keys.
#pragma once

#include <algorithm>

#include "attention/key_sets.h"

namespace anyscore::ANYSCORE_ISA {

// Packing fewer numbers than this uses one thread: a second one costs more than it saves.
constexpr Size FEW = 1 << 16;

// Packs the keys of one key set, a tile at a time.
template <class Scorer, class T> class KeyPacker {
    using Range = typename Scorer::Range;

public:
    KeyPacker(Arena& arena, const Call& call)
        : padded(round_up(call.width, LANES<T>)), scorer(arena, call), rows(arena.take<T>((TILE + 2) * padded)),
          packed_rows(arena.take<T>(TILE * padded)), weight(arena.take<T>(padded)) {}

    // Writes the range of a key set to `numbers`. Keeps the range in the header row if it holds for the new keys.
    // Else makes the range of the first `all` keys, and rewrites the row. Returns whether the range changed.
    bool range(const Call& call, Size set, Size all, const NewKeys& keys, T* numbers, T* to) {
        bool is_new = keys.start == 0;
        if (!is_new) {
            Range::unpack(to, call.width, padded, numbers);
            Range known(numbers, padded);
            keys.pieces(call.keys, [&](Size from, Size end) {
                for (Size first = from; first < end && !is_new; first += TILE) is_new = !takes(call, known, set, first, end);
            });
        }
        if (!is_new) return false;
        KeySets<Scorer, T>::make_range(call, call.first_problem[set], 0, all, rows, numbers);
        Range::pack(numbers, call.width, padded, to);
        return true;
    }

    // Packs keys [from, end), at most TILE of them. An irregular key is marked by a NaN in its first number.
    void run(const Call& call, Size set, Size from, Size end, const T* numbers, T* to) {
        zero(weight, padded);
        scorer.begin(weight, true, Range(numbers, padded));
        bool irregular[TILE];
        Tile tile(call, call.first_problem[set]);
        tile.move_to_keys(from, end);
        const T* key_rows = KeySets<Scorer, T>::find_keys(tile, padded, rows, irregular);
        const T* keys = scorer.decode_keys(key_rows, tile.keys, packed_rows);
        for (int j = 0; j < tile.keys; j++) {
            T* row = to + (1 + from + j) * call.width;
            for (Size d = 0; d < call.width; d++) row[d] = keys[j * padded + d];
            if (irregular[j] && call.width) row[0] = nan<T>();
        }
    }

private:
    // Returns whether a range holds for the regular keys in [first, end), at most TILE of them.
    bool takes(const Call& call, const Range& range, Size set, Size first, Size end) {
        bool irregular[TILE], all = true;
        Tile tile(call, call.first_problem[set]);
        tile.move_to_keys(first, end);
        const T* key_rows = KeySets<Scorer, T>::find_keys(tile, padded, rows, irregular);
        for (int j = 0; j < tile.keys; j++) all &= irregular[j] || range.takes(key_rows + j * padded, padded);
        return all;
    }

    Size padded;
    Scorer scorer;
    T *rows, *packed_rows, *weight;
};

// Packs the new keys of each key set; all keys so far, where new keys are outside its range.
template <class Scorer, class T> void prepare(const Call& call, void* packed, const NewKeys& keys, int threads) {
    using Range = typename Scorer::Range;
    const Size all = keys.start < call.keys - keys.count ? keys.start + keys.count : call.keys;
    const Size size = Range::size(round_up(call.width, LANES<T>)), tiles = tiles_of(all);
    const auto threads_of = [&](Size rows) { return call.key_sets * rows * call.width < FEW ? 1 : threads; };
    Block numbers = allocate(size * Size(sizeof(T)), call.key_sets), changed = allocate(1, call.key_sets);
    Slots<KeyPacker<Scorer, T>> slots(call, threads);
    auto of = [&](Size set) { return (T*)packed + set * (call.keys + 1) * call.width; };
    auto numbers_of = [&](Size set) { return (T*)numbers.data + set * size; };
    auto pack = [&](Size set, int slot, Size first, Size end) {
        for (; first < end; first += TILE)
            slots.task(slot).run(call, set, first, first + remaining(end, first), numbers_of(set), of(set));
    };
    for_each(threads_of(keys.count), call.key_sets, [&](Size set, int slot) {
        bool is_new = slots.task(slot).range(call, set, all, keys, numbers_of(set), of(set));
        ((bool*)changed.data)[set] = is_new;
        if (!is_new) keys.pieces(call.keys, [&](Size first, Size end) { pack(set, slot, first, end); });
    });
    const bool* is_new = (const bool*)changed.data;
    if (std::none_of(is_new, is_new + call.key_sets, [](bool x) { return x; })) return;
    for_each(threads_of(all), call.key_sets * tiles, [&](Size index, int slot) {
        const Size set = index / tiles, first = index % tiles * TILE;
        if (is_new[set]) pack(set, slot, first, first + remaining(all, first));
    });
}

}  // namespace anyscore::ANYSCORE_ISA
