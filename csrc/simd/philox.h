// Random numbers of dropout: Philox4x32-10 (Salmon et al. 2011), as anyscore/modifiers/dropout.py defines it.
#pragma once

#include <cmath>

#include "simd/rows.h"

namespace anyscore::ANYSCORE_ISA {

// Writes factors[j] = 1/(1 − rate) where weight (row, 4 first + j) of a stream is kept, else 0, for 4 · QUADS weights.
template <int QUADS, class T> inline void draw(double rate, const Stream& stream, Size row, Size first, T* factors) {
    double threshold = std::ceil(rate * 4294967296.0);
    std::uint64_t least = threshold < 4294967296.0 ? std::uint64_t(threshold) : 4294967296u;
    T kept = T(1 / (1 - rate));
    const std::uint64_t seed = stream.seed, counter = stream.counter;
    std::uint32_t c[4][QUADS], k0 = std::uint32_t(seed), k1 = std::uint32_t(seed >> 32);
    for (int q = 0; q < QUADS; q++) {
        c[0][q] = std::uint32_t(first + q), c[1][q] = std::uint32_t(row);
        c[2][q] = std::uint32_t(counter), c[3][q] = std::uint32_t(counter >> 32);
    }
    for (int round = 0; round < 10; round++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u)
        for (int q = 0; q < QUADS; q++) {
            std::uint64_t x = std::uint64_t(0xD2511F53u) * c[0][q], y = std::uint64_t(0xCD9E8D57u) * c[2][q];
            std::uint32_t c1 = c[1][q], c3 = c[3][q];
            c[0][q] = std::uint32_t(y >> 32) ^ c1 ^ k0, c[1][q] = std::uint32_t(y);
            c[2][q] = std::uint32_t(x >> 32) ^ c3 ^ k1, c[3][q] = std::uint32_t(x);
        }
    for (int q = 0; q < QUADS; q++)
        for (int word = 0; word < 4; word++) factors[4 * q + word] = c[word][q] >= least ? kept : T(0);
}

// Writes factors[j] = 1/(1 − p) where weight (n, row, first + j) is kept, else 0, for `count` keys of a tile. The
// rest of the tile's factors may be anything.
template <class T> inline void dropout_factors(const Dropout& dropout, Size n, Size row, Size first, int count, T* factors) {
    const Stream& stream = dropout.streams[n];
    row += stream.first_query, first += stream.first_key;
    const int skipped = int(first % 4), quads = (skipped + count + 3) / 4;
    if (!skipped && quads > 4) return draw<TILE / 4>(dropout.rate, stream, row, first / 4, factors);
    T drawn[TILE + 4];  // a tile that begins within four numbers ends within four others
    if (quads > 4) {
        draw<TILE / 4>(dropout.rate, stream, row, first / 4, drawn);
        draw<1>(dropout.rate, stream, row, first / 4 + TILE / 4, drawn + TILE);
    } else {  // most nodes of a graph have so few edges
        draw<4>(dropout.rate, stream, row, first / 4, drawn);
    }
    std::memcpy(factors, drawn + skipped, std::size_t(count) * sizeof(T));
}

}  // namespace anyscore::ANYSCORE_ISA
