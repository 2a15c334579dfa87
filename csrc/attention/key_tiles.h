// Tiles of keys: each has up to TILE keys, and a packed sequence begins a new one, so that no tile holds keys of two.
#pragma once

#include "attention/tile.h"

namespace anyscore::ANYSCORE_ISA {

// The tiles of a call, for all of its problems: tasks that share gradients share them by tiles. So a sequence begins
// a new tile only if it begins there in all problems. A forward has the same tiles as a backward that computes its
// scores again.
class KeyTiles {
public:
    explicit KeyTiles(const Call& call) : count(tiles_of(call.keys)), keys(call.keys) {
        if (call.is_graph() || call.kept || !is_one_for_all(call)) return;
        count = find(call, nullptr);
        begins = allocate(Size(sizeof(Size)), count);
        find(call, (Size*)begins.data);
    }

    Size begin(Size t) const { return begins.data ? ((const Size*)begins.data)[t] : t * TILE; }
    Size end(Size t) const { return t + 1 < count ? begin(t + 1) : keys; }
    // Returns the tile that holds a key.
    Size holding(Size key) const {
        if (!begins.data) return key / TILE;
        Size low = 0, high = count;
        while (high - low > 1) {
            const Size middle = (low + high) / 2;
            (begin(middle) <= key ? low : high) = middle;
        }
        return low;
    }

    Size count;

private:
    // Returns whether keys have a lower bound, and all problems have the same bounds.
    static bool is_one_for_all(const Call& call) {
        if (!call.start.data) return false;
        for (Size n = 1; n < call.problems; n++)
            if (call.start.at[n] != call.start.at[0] || (call.stop.data && call.stop.at[n] != call.stop.at[0])) return false;
        return call.problems > 0;
    }

    // Writes the first key of each tile to `to`, unless null. Returns the number of tiles.
    static Size find(const Call& call, Size* to) {
        Size count = 0, begun = 0, reached = 0;
        auto cut_up = [&](Size end) {
            for (; begun < end; begun += remaining(end, begun), count++)
                if (to) to[count] = begun;
        };
        QueryBounds block;
        for (Size i = 0, queries; i < call.queries; i += queries) {
            queries = block.read(call, 0, i, remaining(call.queries, i));
            if (block.low == block.high) continue;
            if (block.low >= reached) cut_up(block.low);
            reached = block.high > reached ? block.high : reached;
        }
        cut_up(call.keys);
        return count;
    }

    Size keys;
    Block begins;
};

}  // namespace anyscore::ANYSCORE_ISA
