// What is made of the keys before the tiles: their ranges, and their panels.
#pragma once

#include <new>

#include "isa.h"
#include "parallel.h"
#include "tile.h"

namespace anyscore::ANYSCORE_ISA {

template <class Function> inline void for_each(int threads, Size count, Function&& function) {
    parallel_for(threads, count, [](void* f, Size index, int slot) { (*(Function*)f)(index, slot); }, (void*)&function);
}

// `count` tasks, each with the memory it takes from its arena: one for each thread, kept from index to
// index.
template <class Task> class Slots {
public:
    Slots(const Call& call, int count) : size(measure(call)), block(allocate(size, count)) {
        for (int slot = 0; slot < count; slot++) {
            Arena arena((char*)block.data + size * slot);
            Task* place = arena.take<Task>(1);
            new (place) Task(arena, call);
        }
    }
    Task& task(int slot) const { return *(Task*)((char*)block.data + size * slot); }

private:
    static Size measure(const Call& call) {
        Arena arena(nullptr);
        arena.take<Task>(1);
        Task task(arena, call);
        return round_up(arena.used + 64, 4096);
    }
    Size size;
    Block block;
};

// What is made of the keys that problems share. Where each task has its own, it makes it itself.
template <class Scorer, class T> class KeySets {
    static constexpr int L = LANES<T>;
    using Range = typename Scorer::Range;

public:
    // with_ranges, with_panels: whether several tasks work with one set.
    KeySets(const Call& call, bool with_ranges, bool with_panels, int threads)
        : padded(round_up(call.width, L)),
          ranges(with_ranges ? allocate(Range::size(padded) * Size(sizeof(T)), call.key_sets) : Block()) {
        if (ranges.data) make_ranges(call, threads);
        for (Size set = 0; ranges.data && set < call.key_sets; set++) any_wide |= Range(numbers(set), padded).any_wide;
        if (with_panels) make_panels(call, threads);
    }

    bool has_panels() const { return panels.data; }
    const T* panel(Size set, Size first_key) const {
        return (const T*)panels.data + (set * per_set + first_key / L) * Scorer::panel_size(padded, any_wide);
    }
    const bool* odd(Size set, Size first_key) const { return (const bool*)odds.data + set * per_set * L + first_key; }

    // Whether what `prepare` wrote is there to be used.
    static bool is_prepared(const Call& call) { return call.packed.data && Range::size(1); }
    const T* numbers(Size set) const { return (const T*)ranges.data + set * Range::size(padded); }

    // The range of the keys of problem n; `own` is where it is made if it is not shared, with room
    // for TILE + 2 rows to work in.
    Range range(const Call& call, Size n, T* own, T* room) const {
        if (ranges.data) return Range(numbers(call.key_set[n]), padded);
        if (is_prepared(call)) {
            Range::unpack((const T*)call.packed.data + call.packed.at[n], call.width, padded, own);
        } else if (Range::size(1)) {
            Size from = call.keys, to = 0;
            widen(call, n, from, to);
            make_range(call, n, from, to, room, own);
        }
        return Range(own, padded);
    }

    // `count` rows of keys from the first-th; the rest of their last panel becomes 0.
    static void read_keys(const Call& call, Size n, Size first, int count, Size padded, T* rows, bool* odd) {
        read_tile(call.b, n, first, count, call.width, padded, Scorer::limit(), rows, odd);
        for (int j = count; j < TILE; j++) odd[j] = false;
        zero(rows + count * padded, (round_up(count, L) - count) * padded);
    }

    // Their panels, one after the other.
    static void make_panels_of(Scorer& scorer, const T* rows, int count, Size panel_size, T* to) {
        scorer.keys(rows, int(round_up(count, L)));
        for (int j = 0; j < count; j += L) scorer.panel(j, left_of(count, j, L), to + j / L * panel_size);
    }

    bool any_wide = false;

private:
    struct Reader {
        Reader(Arena& arena, const Call& call)
            : scorer(arena, call.width), rows(arena.take<T>((TILE + 2) * round_up(call.width, L))),
              weight(arena.take<T>(round_up(call.width, L))) {}
        Scorer scorer;
        T *rows, *weight;
    };

    void make_ranges(const Call& call, int threads) {
        Block spans = allocate(Size(2 * sizeof(Size)), call.key_sets);
        Size* span = (Size*)spans.data;
        for (Size set = 0; set < call.key_sets; set++) span[2 * set] = call.keys, span[2 * set + 1] = 0;
        for (Size n = 0; n < call.problems; n++)
            widen(call, n, span[2 * call.key_set[n]], span[2 * call.key_set[n] + 1]);
        Slots<Reader> slots(call, threads);
        for_each(threads, call.key_sets, [&](Size set, int slot) {
            Reader& reader = slots.task(slot);
            make_range(call, call.first_problem[set], span[2 * set], span[2 * set + 1], reader.rows, (T*)numbers(set));
        });
    }

    static void make_range(const Call& call, Size n, Size from, Size to, T* room, T* numbers) {
        Size padded = round_up(call.width, L);
        T* most = room;
        zero(most, padded);
        for (Size j = from; j < to; j++) {
            const T* row = find_row(call.b, n, j, call.width, room + padded);
            for (Size d = 0; d < call.width; d++) {
                auto now = bits(most[d]), next = bits(row[d]) << 1 >> 1;
                most[d] = from_bits<T>(next > now ? next : now);
            }
        }
        if (largest(most, padded) <= bits(Scorer::limit()) && Range::make(most, padded, numbers)) return;
        // Some are large: both ends of what each feature holds, odd rows left out.
        T *low = room, *high = room + padded, *rows = room + 2 * padded;
        bool odd[TILE], first = true;
        zero(low, 2 * padded);
        for (Size j0 = from; j0 < to; j0 += TILE) {
            int count = left_of(to, j0);
            read_tile(call.b, n, j0, count, call.width, padded, Scorer::limit(), rows, odd);
            for (int j = 0; j < count; j++) {
                if (odd[j]) continue;
                const T* row = rows + j * padded;
                for (Size d = 0; d < padded; d++) {
                    low[d] = first ? row[d] : min(low[d], row[d]);
                    high[d] = first ? row[d] : max(high[d], row[d]);
                }
                first = false;
            }
        }
        Range::make(low, high, padded, numbers);
    }

    void make_panels(const Call& call, int threads) {
        Size tiles = tiles_of(call.keys), size = Scorer::panel_size(padded, any_wide);
        per_set = tiles * TILE / L;
        panels = allocate(size * Size(sizeof(T)), call.key_sets * per_set);
        odds = allocate(L, call.key_sets * per_set);
        Slots<Reader> slots(call, threads);
        for_each(threads, call.key_sets * tiles, [&](Size index, int slot) {
            Reader& reader = slots.task(slot);
            Size set = index / tiles, j0 = index % tiles * TILE;
            zero(reader.weight, padded);
            reader.scorer.begin(reader.weight, true, Range(numbers(set), padded));
            int count = left_of(call.keys, j0);
            read_keys(call, call.first_problem[set], j0, count, padded, reader.rows, (bool*)odd(set, j0));
            make_panels_of(reader.scorer, reader.rows, count, size, (T*)panel(set, j0));
        });
    }

    Size padded, per_set = 0;
    Block ranges, panels, odds;
};

}  // namespace anyscore::ANYSCORE_ISA
