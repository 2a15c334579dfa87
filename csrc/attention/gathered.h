// Rows of one problem copied to consecutive memory, for the edges of a graph, which gather rows in any order.
//
// Heads are views of rows of all heads. So the rows of one head fall into a part of the cache's sets, a quarter for
// four heads, and into many pages. Where rows are gathered often, problems are computed one after the other, and each
// copies its rows first. Else problems are computed together, node by node, as the heads of a node are near each
// other.
#pragma once

#include <cstring>

#include "runtime/memory.h"
#include "runtime/parallel.h"
#include "scorers/scorer.h"

namespace anyscore::ANYSCORE_ISA {

// A copy pays if each row is gathered at least this often, on average.
constexpr Size OFTEN = 4;

class ContiguousRows {
public:
    ContiguousRows(const Call& call, int threads)
        : copies(call.keys >= OFTEN * call.edges.rows && call.keys >= OFTEN * call.queries), threads(threads),
          zeros(allocate(Size(sizeof(Size)), call.problems)) {
        if (zeros.data) std::memset(zeros.data, 0, std::size_t(call.problems) * sizeof(Size));
    }

    // Returns how many problems to compute together, at most `most`.
    Size problems_at_once(Size most) const { return copies ? 1 : most; }

    // Returns the call with the keys and values of problem n in consecutive rows.
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

    // Returns the call with the queries of problem n in consecutive rows; with_output returns the backward with its
    // dO so.
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
    static constexpr Size MANY = 512;  // rows copied by one task

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
