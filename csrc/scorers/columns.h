// A column of keys: one vector of features of each key of a tile, and the sums of their gradients.
//
// Gradients pass over a column once for every few queries. Rows a power of two apart fall into few sets of the first
// cache and evict each other: a cache-set conflict. Then the column is copied to consecutive memory first.
#pragma once

#include "simd/rows.h"

namespace anyscore::ANYSCORE_ISA {

template <class T> class KeyColumn {
    static constexpr int L = LANES<T>;

public:
    // rows, sums: the vectors of the first key, and the gradients' sums; both `padded` numbers apart. queries: how
    // many rows will pass over the column.
    KeyColumn(const T* rows, T* sums, Size padded, int keys, int queries)
        : keys(keys), key(rows), sum(sums), stride(padded), sums(sums), padded(padded) {
        if (queries < 16 || !has_set_conflicts<T>(2 * keys, padded)) return;
        for (int j = 0; j < keys; j++)
            store(key_copy + j * L, load(rows + j * padded)), store(sum_copy + j * L, Vector<T>{});
        key = key_copy, sum = sum_copy, stride = L;
    }

    // Adds the sums to their rows, where they were made in the copy.
    void finish() const {
        for (int j = 0; sum != sums && j < keys; j++)
            store(sums + j * padded, load(sums + j * padded) + load(sum_copy + j * L));
    }

    const int keys;
    const T* key;  // the vector of the first key; keys are `stride` numbers apart
    T* sum;
    Size stride;

private:
    T* const sums;
    const Size padded;
    alignas(64) T key_copy[TILE * L], sum_copy[TILE * L];
};

}  // namespace anyscore::ANYSCORE_ISA
