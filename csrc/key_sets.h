// What is made of the keys before the tiles: their ranges, and panels where several tasks read them.
#pragma once

#include <new>

#include "isa.h"
#include "parallel.h"
#include "tile.h"

namespace anyscore::ANYSCORE_ISA {

template <class Function> inline void for_each(int threads, Size count, Function&& function) {
    parallel_for(threads, count, [](void* f, Size index, int slot) { (*(Function*)f)(index, slot); }, (void*)&function);
}

// Memory for `count` slots of what `Task(arena, call)` takes.
template <class Task> class Slots {
public:
    Slots(const Call& call, int count) : size(measure(call)), block(allocate(size, count)) {}
    Task task(const Call& call, int slot) const {
        Arena arena((char*)block.data + size * slot);
        return Task(arena, call);
    }

private:
    static Size measure(const Call& call) {
        Arena arena(nullptr);
        Task task(arena, call);
        return round_up(arena.used + 64, 4096);
    }
    Size size;
    Block block;
};

template <class Scorer, class T> class KeySets {
    static constexpr int L = LANES<T>;
    using Range = typename Scorer::Range;

public:
    // shared: whether to make panels.
    KeySets(const Call& call, bool shared, int threads)
        : padded(round_up(call.width, L)), ranges(allocate(Range::size(padded) * Size(sizeof(T)), call.key_sets)) {
        if (is_prepared(call))
            take_ranges(call);
        else if (Range::size(padded))
            make_ranges(call, threads);
        for (Size set = 0; set < call.key_sets; set++) any_wide |= range(set).any_wide;
        if (shared) make_panels(call, threads);
    }

    // Whether what `prepare` wrote is there to be used.
    static bool is_prepared(const Call& call) { return call.packed.data && Range::size(1); }

    Range range(Size set) const { return Range(numbers(set), padded); }
    const T* numbers(Size set) const { return (const T*)ranges.data + set * Range::size(padded); }
    bool has_panels() const { return panels.data; }
    const T* panel(Size set, Size first_key) const {
        return (const T*)panels.data + (set * per_set + first_key / L) * Scorer::panel_size(padded, any_wide);
    }
    const bool* odd(Size set, Size first_key) const { return (const bool*)odds.data + set * per_set * L + first_key; }

    bool any_wide = false;

private:
    struct Reader {
        Reader(Arena& arena, const Call& call)
            : scorer(arena, call.width), rows(arena.take<T>(TILE * round_up(call.width, L))),
              low(arena.take<T>(round_up(call.width, L))), high(arena.take<T>(round_up(call.width, L))),
              zero(arena.take<T>(round_up(call.width, L))) {}
        Scorer scorer;
        T *rows, *low, *high, *zero;
    };

    void take_ranges(const Call& call) {
        for (Size set = 0; set < call.key_sets; set++) {
            const T* centre = (const T*)call.packed.data + call.packed.at[call.first_problem[set]];
            Range::unpack(centre, call.width, padded, (T*)ranges.data + set * Range::size(padded));
        }
    }

    void make_ranges(const Call& call, int threads) {
        // Keys that nobody may attend are not read.
        Block spans = allocate(Size(2 * sizeof(Size)), call.key_sets);
        Size* span = (Size*)spans.data;
        for (Size set = 0; set < call.key_sets; set++) span[2 * set] = call.keys, span[2 * set + 1] = 0;
        for (Size n = 0; n < call.problems; n++)
            for (Size i = 0; i < call.queries; i += TILE) {
                Size* of_set = span + 2 * call.key_set[n];
                if (of_set[0] == 0 && of_set[1] == call.keys) break;
                Spans block(call, n, i, int(call.queries - i < TILE ? call.queries - i : TILE));
                if (block.low == block.high) continue;
                of_set[0] = block.low < of_set[0] ? block.low : of_set[0];
                of_set[1] = block.high > of_set[1] ? block.high : of_set[1];
            }
        Slots<Reader> slots(call, threads);
        for_each(threads, call.key_sets, [&](Size set, int slot) {
            Reader reader = slots.task(call, slot);
            bool odd[TILE], first = true;
            T *low = reader.low, *high = reader.high;
            for (Size d = 0; d < padded; d++) low[d] = high[d] = 0;
            for (Size j0 = span[2 * set]; j0 < span[2 * set + 1]; j0 += TILE) {
                int count = int(span[2 * set + 1] - j0 < TILE ? span[2 * set + 1] - j0 : TILE);
                read_tile(call.b, call.first_problem[set], j0, count, call.width, padded, Scorer::limit(), reader.rows, odd);
                for (int j = 0; j < count; j++) {
                    if (odd[j]) continue;
                    const T* row = reader.rows + j * padded;
                    for (Size d = 0; d < padded; d++) {
                        low[d] = first ? row[d] : min(low[d], row[d]);
                        high[d] = first ? row[d] : max(high[d], row[d]);
                    }
                    first = false;
                }
            }
            Range::make(low, high, padded, (T*)ranges.data + set * Range::size(padded));
        });
    }

    void make_panels(const Call& call, int threads) {
        per_set = round_up(call.keys, TILE) / L;
        panels = allocate(Scorer::panel_size(padded, any_wide) * Size(sizeof(T)), call.key_sets * per_set);
        odds = allocate(L, call.key_sets * per_set);
        Slots<Reader> slots(call, threads);
        Size tiles = round_up(call.keys, TILE) / TILE;
        for_each(threads, call.key_sets * tiles, [&](Size index, int slot) {
            Reader reader = slots.task(call, slot);
            Size set = index / tiles, j0 = index % tiles * TILE;
            for (Size d = 0; d < padded; d++) reader.zero[d] = 0;
            reader.scorer.begin(reader.zero, range(set));
            make_panels_of(call, reader.scorer, call.first_problem[set], j0, (T*)panel(set, j0), reader.rows,
                           (bool*)odd(set, j0));
        });
    }

public:
    // The panels of a tile, `stride` as in shared ones; says which rows are odd.
    void make_panels_of(const Call& call, const Scorer& scorer, Size n, Size j0, T* to, T* rows, bool* odd) const {
        for (Size j = 0; j < TILE; j += L, to += Scorer::panel_size(padded, any_wide)) {
            Size left = call.keys - j0 - j;
            int count = int(left < 0 ? 0 : left < L ? left : L);
            read_tile(call.b, n, j0 + j, count, call.width, padded, Scorer::limit(), rows, odd + j);
            for (int i = count; i < L; i++) odd[j + i] = false;
            if (count < L) std::memset(rows + count * padded, 0, std::size_t((L - count) * padded) * sizeof(T));
            scorer.panel(rows, to);
        }
    }

private:
    Size padded, per_set = 0;
    Block ranges, panels, odds;
};

}  // namespace anyscore::ANYSCORE_ISA
