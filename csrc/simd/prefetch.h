// Memory that is read next, brought near while something else is computed.
//
// Lines come many times as fast one after another as by columns, which is how products of tiles read them. And what a
// task reads first is another array each time, where the processor foresees nothing.
#pragma once

#include "simd/rows.h"

namespace anyscore::ANYSCORE_ISA {

constexpr Size LINE = 64;  // bytes of a line of a cache

// Brings a line to the second cache. The empty statement is there because GCC leaves out loops and functions that do
// nothing but prefetch.
ANYSCORE_INLINE void prefetch(const char* line) {
    __builtin_prefetch(line, 0, 2);
    asm volatile("");
}

inline const char* address_of(const RowRange& range, int i) {
    return (const char*)range.rows.data +
           (range.rows.at[range.problem] + range.at(i) * range.rows.stride) * bytes_of(range.rows.type);
}

// Brings some rows to the second cache, at once.
ANYSCORE_INLINE void prefetch(const RowRange& range) {
    const Size bytes = range.width * bytes_of(range.rows.type);
    for (int i = 0; i < range.count; i++)
        for (Size k = 0; k < bytes; k += LINE) prefetch(address_of(range, i) + k);
}

// The same bit by bit, of up to MOST arrays.
class Prefetcher {
public:
    void clear() { pieces = piece = 0, at = nullptr; }

    void add(const RowRange& range) {
        const Size size = bytes_of(range.rows.type);
        if (range.rows.data) add(address_of(range, 0), range.width * size, range.rows.stride * size, range.count);
    }

    // `count` rows of `bytes`, which begin `stride` bytes apart.
    void add(const char* from, Size bytes, Size stride, Size count) {
        if (stride == bytes) bytes *= count, count = count > 0;
        if (bytes <= 0 || count <= 0) return;
        all[pieces++] = {from, bytes, stride, count};
        if (!at) next_row();
    }

    bool has_any() const { return at; }

    // Brings the next `lines` of what was added to the second cache.
    ANYSCORE_INLINE void next(int lines) {
        if (at) next_of_rows(lines);
    }

private:
    struct Piece {
        const char* from;
        Size bytes, stride, rows;
    };

    // Not inlined: products need their registers.
    ANYSCORE_NOINLINE void next_of_rows(int lines) {
        while (at && lines > 0) {
            const char* from = at;
            for (; from < end && lines > 0; from += LINE, lines--) prefetch(from);
            at = from;
            if (at >= end) next_row();
        }
    }

    void next_row() {
        if (piece == pieces) {
            at = nullptr;
            return;
        }
        Piece& of = all[piece];
        at = of.from, end = at + of.bytes;
        of.from += of.stride;
        if (--of.rows == 0) piece++;
    }

    static constexpr int MAX_PIECES = 4;
    Piece all[MAX_PIECES];
    int pieces = 0, piece = 0;
    const char *at = nullptr, *end = nullptr;  // what is left of a row; null if nothing is left at all
};

// In the place of a Prefetcher that has nothing.
struct NoPrefetcher {
    ANYSCORE_INLINE void next(int) const {}
};
constexpr NoPrefetcher no_prefetcher;

}  // namespace anyscore::ANYSCORE_ISA
