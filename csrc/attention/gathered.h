// Rows of one problem side by side, for the edges of a graph, which gather them from anywhere.
//
// Heads come as views of rows of all heads, so that what one head gathers falls into a few sets of a cache, and many
// pages: of four heads, into a quarter of the cache. Where rows are gathered often, one problem is taken after the other,
// and its rows are copied together first. Else problems are taken together, node by node: what a node has for all heads
// is near each other.
#pragma once

#include <cstring>

#include "runtime/memory.h"
#include "runtime/parallel.h"
#include "scorers/scorer.h"

namespace anyscore::ANYSCORE_ISA {

// How often a row is gathered, on average, from which on a copy pays.
constexpr Size OFTEN = 4;

class ContiguousRows {
public:
    ContiguousRows(const Call& call, int threads)
        : is_wanted(call.keys >= OFTEN * call.edges.rows && call.keys >= OFTEN * call.queries), threads(threads),
          zeros(allocate(Size(sizeof(Size)), call.problems)) {
        if (zeros.data) std::memset(zeros.data, 0, std::size_t(call.problems) * sizeof(Size));
    }

    // How many problems are taken together, of at most so many.
    Size together(Size most) const { return is_wanted ? 1 : most; }

    // The call with keys and values of problem n side by side.
    Call with_keys(const Call& call, Size n) {
        Call here = call;
        if (!is_wanted) return here;
        const Rows &b = call.b, &value = call.value;
        here.b = copy(b, n, call.edges.rows, call.width, first);
        bool same = value.data && value.data == b.data && value.at[n] == b.at[n] && value.type == b.type &&
                    value.stride == b.stride && call.value_width == call.width;
        here.value = same ? here.b : copy(value, n, call.edges.rows, call.value_width, second);
        return here;
    }

    // The call with queries, and what comes from above with dO, of problem n side by side.
    Call with_queries(const Call& call, Size n) {
        Call here = call;
        if (is_wanted) here.a = copy(call.a, n, call.queries, call.width, third);
        return here;
    }
    template <class Upstream> Upstream with_output(const Call& call, const Upstream& back, Size n) {
        Upstream here = back;
        if (is_wanted) here.d_output = copy(back.d_output, n, call.queries, call.value_width, fourth);
        return here;
    }

private:
    static constexpr Size MANY = 512;  // rows that one task copies

    Rows copy(const Rows& from, Size n, Size count, Size width, Block& room) {
        if (!from.data || from.stride == width || !width) return from;
        const Size size = bytes_of(from.type);
        if (!room.data) room = allocate(size * width, count);
        const char* rows = (const char*)from.data + from.at[n] * size;
        char* to = (char*)room.data;
        for_each(threads, tiles_of(count, MANY), [&](Size t, int) {
            for (Size i = t * MANY, end = i + left_of(count, i, int(MANY)); i < end; i++)
                std::memcpy(to + i * width * size, rows + i * from.stride * size, std::size_t(width * size));
        });
        return {room.data, from.type, (const Size*)zeros.data, width};
    }

    bool is_wanted;
    int threads;
    Block zeros, first, second, third, fourth;
};

}  // namespace anyscore::ANYSCORE_ISA
