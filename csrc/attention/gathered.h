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
        : copies(call.keys >= OFTEN * call.edges.rows && call.keys >= OFTEN * call.queries), threads(threads),
          zeros(allocate(Size(sizeof(Size)), call.problems)) {
        if (zeros.data) std::memset(zeros.data, 0, std::size_t(call.problems) * sizeof(Size));
    }

    // How many problems are taken together, of at most so many.
    Size problems_at_once(Size most) const { return copies ? 1 : most; }

    // The call with keys and values of problem n side by side.
    Call with_keys(const Call& call, Size n) {
        Call here = call;
        if (!copies) return here;
        const Rows &b = call.b, &value = call.value;
        here.b = copy(b, n, call.edges.rows, call.width, b_rows);
        bool same = value.data && value.data == b.data && value.at[n] == b.at[n] && value.type == b.type &&
                    value.stride == b.stride && call.value_width == call.width;
        here.value = same ? here.b : copy(value, n, call.edges.rows, call.value_width, value_rows);
        return here;
    }

    // The call with queries, and what comes from above with dO, of problem n side by side.
    Call with_queries(const Call& call, Size n) {
        Call here = call;
        if (copies) here.a = copy(call.a, n, call.queries, call.width, a_rows);
        return here;
    }
    template <class Upstream> Upstream with_output(const Call& call, const Upstream& back, Size n) {
        Upstream here = back;
        if (copies) here.d_output = copy(back.d_output, n, call.queries, call.value_width, d_output_rows);
        return here;
    }

private:
    static constexpr Size MANY = 512;  // rows that one task copies

    Rows copy(const Rows& from, Size n, Size count, Size width, Block& to_block) {
        if (!from.data || from.stride == width || !width) return from;
        const Size size = bytes_of(from.type);
        if (!to_block.data) to_block = allocate(size * width, count);
        const char* rows = (const char*)from.data + from.at[n] * size;
        char* to = (char*)to_block.data;
        for_each(threads, tiles_of(count, MANY), [&](Size t, int) {
            for (Size i = t * MANY, end = i + remaining(count, i, int(MANY)); i < end; i++)
                std::memcpy(to + i * width * size, rows + i * from.stride * size, std::size_t(width * size));
        });
        return {to_block.data, from.type, (const Size*)zeros.data, width};
    }

    bool copies;
    int threads;
    Block zeros, b_rows, value_rows, a_rows, d_output_rows;
};

}  // namespace anyscore::ANYSCORE_ISA
