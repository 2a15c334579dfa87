// A column of keys: a vector of features of each key of a tile, and the sums that gradients make there.
//
// Gradients go over a column once for every few queries. Where rows crowd each other out of the first cache, it is
// copied side by side for them.
#pragma once

#include "simd/rows.h"

namespace anyscore::ANYSCORE_ISA {

template <class T> class KeyColumn {
    static constexpr int L = LANES<T>;

public:
    // rows, sums: of the first key, both `padded` apart. queries: how many there are.
    KeyColumn(const T* rows, T* sums, Size padded, int keys, int queries)
        : keys(keys), key(rows), sum(sums), stride(padded), sums(sums), padded(padded) {
        if (queries < 16 || !has_set_conflicts<T>(2 * keys, padded)) return;
        for (int j = 0; j < keys; j++)
            store(key_copy + j * L, load(rows + j * padded)), store(sum_copy + j * L, Vector<T>{});
        key = key_copy, sum = sum_copy, stride = L;
    }

    // Adds the sums to their rows.
    void finish() const {
        for (int j = 0; sum != sums && j < keys; j++)
            store(sums + j * padded, load(sums + j * padded) + load(sum_copy + j * L));
    }

    const int keys;
    const T* key;  // of the first; the others' `stride` apart
    T* sum;
    Size stride;

private:
    T* const sums;
    const Size padded;
    alignas(64) T key_copy[TILE * L], sum_copy[TILE * L];
};

}  // namespace anyscore::ANYSCORE_ISA
