// Key sets: ranges and panels of keys, made before the tiles.
#pragma once

#include "attention/key_tiles.h"
#include "runtime/parallel.h"
#include "scorers/scorer.h"

namespace anyscore::ANYSCORE_ISA {

// Widens [from, to) to all keys that any query of problem n may attend. For a graph: to all rows of b, or to all
// edges if they have terms.
inline void widen(const Call& call, Size n, Size& from, Size& to) {
    if (call.is_graph()) from = 0, to = call.has_terms() ? call.keys : call.edges.rows;
    QueryBounds block;
    for (Size i = 0, count; i < call.queries && !call.is_graph() && (from > 0 || to < call.keys); i += count) {
        count = block.read(call, n, i, remaining(call.queries, i));
        if (block.low == block.high) continue;
        from = block.low < from ? block.low : from;
        to = block.high > to ? block.high : to;
    }
}

// The data of key sets: problems with the same keys share one.
//
//     data    shape, for each key set                    made by                        read by
//     ranges  (Range::size(padded))                      make_ranges, if with_ranges    range()
//     panels  (tiles.count, TILE / LANES, panel_size)    make_panels, if with_panels    PanelScores::keys
//     marks   (tiles.count, TILE), bool                  make_panels, if with_panels    PanelScores::keys
//
// Without shared ranges, each task makes the range of its problem, or reads it from packed keys. Without shared
// panels, it makes the panels of its tiles.
template <class Scorer, class T> class KeySets {
    static constexpr int L = LANES<T>;
    using Range = typename Scorer::Range;

public:
    // with_ranges, with_panels: whether to make them for all tasks, as several tasks read one key set.
    KeySets(const Call& call, bool with_ranges, bool with_panels, int threads)
        : tiles(call), padded(round_up(call.width, L)),
          ranges(with_ranges ? allocate(Range::size(padded) * Size(sizeof(T)), call.key_sets) : Block()) {
        if (ranges.data) make_ranges(call, threads);
        for (Size set = 0; ranges.data && set < call.key_sets; set++) any_wide |= Range(numbers(set), padded).any_wide;
        if (with_panels) make_panels(call, threads);
    }

    bool has_panels() const { return panels.data; }
    // Returns the panels of tile t of a key set.
    const T* panel(Size set, Size t) const {
        return (const T*)panels.data + (set * tiles.count + t) * (TILE / L) * Scorer::panel_size(padded, any_wide);
    }
    // Returns, for each key of that tile, whether it is irregular.
    const bool* irregular(Size set, Size t) const { return (const bool*)marks.data + (set * tiles.count + t) * TILE; }

    // first_key: the beginning of the first tile of keys of a block of queries; end_of_tile: the end of the tile that
    // holds a key.
    Size first_key(const Tile& tile) const {
        const Size low = tile.bounds.low;
        return tile.call.is_graph() ? low : tiles.begin(tiles.holding(low));
    }
    Size end_of_tile(const Tile& tile, Size key) const {
        return tile.call.is_graph() ? key + TILE : tiles.end(tiles.holding(key));
    }

    // Returns whether packed keys hold the ranges, and marks of irregular keys: rows of width 0 hold nothing.
    static bool is_prepared(const Call& call) { return call.packed.data && call.width && Range::size(1); }
    const T* numbers(Size set) const { return (const T*)ranges.data + set * Range::size(padded); }

    // Returns the range of the keys of problem n. A range that is not shared is written to own_numbers. workspace:
    // (TILE + 2) rows.
    Range range(const Call& call, Size n, T* own_numbers, T* workspace) const {
        if (ranges.data) return Range(numbers(call.key_set[n]), padded);
        if (is_prepared(call)) {
            Range::unpack((const T*)call.packed.data + call.packed.at[n], call.width, padded, own_numbers);
        } else if (Range::size(1)) {
            Size from = call.keys, to = 0;
            widen(call, n, from, to);
            make_range(call, n, from, to, workspace, own_numbers);
        }
        return Range(own_numbers, padded);
    }

    // Returns the keys of a tile as rows (keys, padded): in place where possible, else read into `workspace`. Marks
    // irregular ones.
    static const T* find_keys(const Tile& tile, Size padded, T* workspace, bool* irregular) {
        const T* rows = workspace;
        bool any = false;
        if (tile.call.has_terms())
            read_tile_of_keys(tile, padded, Scorer::limit(), workspace, irregular);
        else
            rows = find_tile(tile.keys_of(tile.call.b, tile.call.width), padded, Scorer::limit(), workspace, irregular, any);
        for (int j = tile.keys; j < TILE; j++) irregular[j] = false;
        return rows;
    }

    // Writes the panels of `count` rows of keys, one after the other.
    static void make_panels_of(Scorer& scorer, const T* rows, int count, Size panel_size, T* to) {
        scorer.keys(rows, count);
        for (int j = 0; j < count; j += L) scorer.panel(j, remaining(count, j, L), to + j / L * panel_size);
    }

    // Writes the range of keys [from, to) of problem n to `numbers`. workspace: (TILE + 2) rows.
    static void make_range(const Call& call, Size n, Size from, Size to, T* workspace, T* numbers) {
        Size padded = round_up(call.width, L);
        T *most = workspace, *copy = workspace + padded;
        zero(most, padded);
        for (Size j = from; j < to; j++) {
            const T* row = call.has_terms() ? copy : find_row(call.b, n, j, call.width, copy);
            if (call.has_terms()) read_row(call.b, n, call.edges.col[j], call.width, copy), add_term(call, n, j, copy);
            for (Size d = 0; d < call.width; d++) {
                auto now = bits(most[d]), next = bits(row[d]) << 1 >> 1;
                most[d] = from_bits<T>(next > now ? next : now);
            }
        }
        if (largest_bits(most, padded) <= bits(Scorer::limit()) && Range::from_largest(most, padded, numbers)) return;
        // Some keys are large: the range needs the lowest and the highest number of each feature, without irregular
        // rows.
        T *low = workspace, *high = workspace + padded, *rows = workspace + 2 * padded;
        bool irregular[TILE], first = true;
        zero(low, 2 * padded);
        for (Size j0 = from; j0 < to; j0 += TILE) {
            Tile tile(call, n);
            tile.first_key = j0, tile.keys = remaining(to, j0);
            if (call.has_terms()) tile.index = call.edges.col + j0;
            const int count = tile.keys;
            read_tile_of_keys(tile, padded, Scorer::limit(), rows, irregular);
            for (int j = 0; j < count; j++) {
                if (irregular[j]) continue;
                const T* row = rows + j * padded;
                for (Size d = 0; d < padded; d++) {
                    low[d] = first ? row[d] : min(low[d], row[d]);
                    high[d] = first ? row[d] : max(high[d], row[d]);
                }
                first = false;
            }
        }
        Range::from_ends(low, high, padded, numbers);
    }

    const KeyTiles tiles;
    bool any_wide = false;

private:
    struct Reader {
        Reader(Arena& arena, const Call& call)
            : scorer(arena, call), rows(arena.take<T>((TILE + 2) * round_up(call.width, L))),
              weight(arena.take<T>(round_up(call.width, L))) {}
        Scorer scorer;
        T *rows, *weight;
    };

    void make_ranges(const Call& call, int threads) {
        Block ends = allocate(Size(2 * sizeof(Size)), call.key_sets);
        Size* end = (Size*)ends.data;
        for (Size set = 0; set < call.key_sets; set++) end[2 * set] = call.keys, end[2 * set + 1] = 0;
        for (Size n = 0; n < call.problems; n++) widen(call, n, end[2 * call.key_set[n]], end[2 * call.key_set[n] + 1]);
        Slots<Reader> slots(call, threads);
        for_each(threads, call.key_sets, [&](Size set, int slot) {
            Reader& reader = slots.task(slot);
            make_range(call, call.first_problem[set], end[2 * set], end[2 * set + 1], reader.rows, (T*)numbers(set));
        });
    }

    void make_panels(const Call& call, int threads) {
        const Size size = Scorer::panel_size(padded, any_wide), all = call.key_sets * tiles.count;
        panels = allocate(size * Size(sizeof(T)) * (TILE / L), all);
        marks = allocate(TILE, all);
        Slots<Reader> slots(call, threads);
        for_each(threads, all, [&](Size index, int slot) {
            Reader& reader = slots.task(slot);
            const Size set = index / tiles.count, t = index % tiles.count;
            zero(reader.weight, padded);
            reader.scorer.begin(reader.weight, true, Range(numbers(set), padded));
            Tile tile(call, call.first_problem[set]);
            tile.move_to_keys(tiles.begin(t), tiles.end(t));
            const T* rows = find_keys(tile, padded, reader.rows, (bool*)irregular(set, t));
            make_panels_of(reader.scorer, rows, tile.keys, size, (T*)panel(set, t));
        });
    }

    Size padded;
    Block ranges, panels, marks;
};

}  // namespace anyscore::ANYSCORE_ISA
