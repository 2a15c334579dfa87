// Prefetching: memory that is read next comes near while something else is computed.
//
// Lines arrive many times as fast in order as by columns, the order in which products of tiles read them. And each
// task begins with other arrays, so the processor's own prefetcher foresees nothing.
#pragma once

#include "simd/rows.h"

namespace anyscore::ANYSCORE_ISA {

constexpr Size LINE = 64;  // bytes of a line of a cache

// Prefetches a line to the second cache. The empty statement is there because GCC drops loops and functions that only
// prefetch.
ANYSCORE_INLINE void prefetch(const char* line) {
    __builtin_prefetch(line, 0, 2);
    asm volatile("");
}

// Returns the address of row i of a range.
inline const char* address_of(const RowRange& range, int i) {
    return (const char*)range.rows.data +
           (range.rows.at[range.problem] + range.at(i) * range.rows.stride) * bytes_of(range.rows.type);
}

// Prefetches all rows of a range to the second cache.
ANYSCORE_INLINE void prefetch(const RowRange& range) {
    const Size bytes = range.width * bytes_of(range.rows.type);
    for (int i = 0; i < range.count; i++)
        for (Size k = 0; k < bytes; k += LINE) prefetch(address_of(range, i) + k);
}

// Prefetches up to MAX_PIECES arrays, some lines at a time.
class Prefetcher {
public:
    void clear() { pieces = piece = 0, at = nullptr; }

    void add(const RowRange& range) {
        const Size size = bytes_of(range.rows.type);
        if (range.rows.data) add(address_of(range, 0), range.width * size, range.rows.stride * size, range.count);
    }

    // Adds `count` rows of `bytes` each, which begin `stride` bytes apart.
    void add(const char* from, Size bytes, Size stride, Size count) {
        if (stride == bytes) bytes *= count, count = count > 0;
        if (bytes <= 0 || count <= 0) return;
        all[pieces++] = {from, bytes, stride, count};
        if (!at) next_row();
    }

    bool has_any() const { return at; }

    // Prefetches the next `lines` of the added rows to the second cache.
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
    const char *at = nullptr, *end = nullptr;  // the rest of a row; null if no row is left
};

// A Prefetcher without rows.
struct NoPrefetcher {
    ANYSCORE_INLINE void next(int) const {}
};
constexpr NoPrefetcher no_prefetcher;

}  // namespace anyscore::ANYSCORE_ISA
