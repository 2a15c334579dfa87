// Rows of any type, read into rows of T that are padded with zeros; and rows written.
#pragma once

#include <cstring>

#include "runtime/call.h"
#include "simd/vector.h"

namespace anyscore::ANYSCORE_ISA {

constexpr int PIECE = 64;  // terms of one partial sum: sums of such pieces keep their digits at any width

ANYSCORE_INLINE Size round_up(Size n, Size multiple) { return (n + multiple - 1) / multiple * multiple; }
ANYSCORE_INLINE Size tiles_of(Size n, int size = TILE) { return (n + size - 1) / size; }

// Returns how many of n items remain from `first` on, at most `most`.
ANYSCORE_INLINE int remaining(Size n, Size first, int most = TILE) { return int(n - first < most ? n - first : most); }

inline Size bytes_of(Type type) { return type == Type::F64 ? 8 : type == Type::F32 ? 4 : 2; }
template <class T> constexpr Type TYPE_OF = sizeof(T) == 4 ? Type::F32 : Type::F64;
template <class T> ANYSCORE_INLINE T largest_finite() { return from_bits<T>(Bits<T>::INFINITE - 1); }

ANYSCORE_INLINE float from_bf16(std::uint16_t x) { return from_bits<float>(std::uint32_t(x) << 16); }

ANYSCORE_INLINE float from_f16(std::uint16_t x) {
    std::uint32_t magnitude = x & 0x7fff, sign = std::uint32_t(x & 0x8000) << 16;
    // Subnormals are multiples of 2⁻²⁴, the unit of a number near ½; no float on the way is subnormal.
    std::uint32_t u =
        magnitude < 0x400 ? bits(from_bits<float>(bits(0.5f) + magnitude) - 0.5f) : (magnitude << 13) + 0x38000000u;
    u = magnitude >= 0x7c00 ? magnitude << 13 | 0x7f800000u : u;
    return from_bits<float>(u | sign);
}

// Returns x rounded to nearest, ties to even.
ANYSCORE_INLINE std::uint16_t to_bf16(float x) {
    std::uint32_t u = bits(x);
    if (is_nan(x)) return 0x7fc0;
    return std::uint16_t((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

ANYSCORE_INLINE std::uint16_t to_f16(float x) {
    std::uint32_t u = bits(x) & 0x7fffffffu, sign = (bits(x) >> 16) & 0x8000u;
    if (u > 0x7f800000u) return std::uint16_t(sign | 0x7e00);
    if (u >= 0x47800000u) return std::uint16_t(sign | 0x7c00);  // from 65536 on
    if (u < 0x38800000u)  // subnormal: the unit of a number near ½ is 2⁻²⁴
        return std::uint16_t(sign | (bits(from_bits<float>(u) + 0.5f) - bits(0.5f)));
    return std::uint16_t(sign | ((u - 0x38000000u + 0xfff + ((u >> 13) & 1)) >> 13));
}

// Writes x[0 … n) = elements first, first + stride, … of an array.
template <class T> ANYSCORE_NOINLINE void read(const Rows& from, Size first, Size n, Size stride, T* x) {
    switch (from.type) {
        case Type::F32: {
            const float* p = (const float*)from.data + first;
            if (stride == 1)
                for (Size i = 0; i < n; i++) x[i] = T(p[i]);
            else
                for (Size i = 0; i < n; i++) x[i] = T(p[i * stride]);
            break;
        }
        case Type::F64: {
            const double* p = (const double*)from.data + first;
            for (Size i = 0; i < n; i++) x[i] = T(p[i * stride]);
            break;
        }
        case Type::F16: {
            const std::uint16_t* p = (const std::uint16_t*)from.data + first;
            for (Size i = 0; i < n; i++) x[i] = T(from_f16(p[i * stride]));
            break;
        }
        case Type::BF16: {
            const std::uint16_t* p = (const std::uint16_t*)from.data + first;
            for (Size i = 0; i < n; i++) x[i] = T(from_bf16(p[i * stride]));
            break;
        }
    }
}

template <class T> ANYSCORE_NOINLINE void write(void* to, Type type, Size first, Size n, const T* x) {
    switch (type) {
        case Type::F32: {
            float* p = (float*)to + first;
            for (Size i = 0; i < n; i++) p[i] = float(x[i]);
            break;
        }
        case Type::F64: {
            double* p = (double*)to + first;
            for (Size i = 0; i < n; i++) p[i] = double(x[i]);
            break;
        }
        case Type::F16: {
            std::uint16_t* p = (std::uint16_t*)to + first;
            for (Size i = 0; i < n; i++) p[i] = to_f16(float(x[i]));
            break;
        }
        case Type::BF16: {
            std::uint16_t* p = (std::uint16_t*)to + first;
            for (Size i = 0; i < n; i++) p[i] = to_bf16(float(x[i]));
            break;
        }
    }
}

// Returns whether a column of `rows` vectors, `stride` numbers apart, has cache-set conflicts: fills more than half
// of its sets of the first cache. Of 64 sets of 8 lines, a distance of 2ᵏ lines reaches one in 2ᵏ.
template <class T> ANYSCORE_INLINE bool has_set_conflicts(int rows, Size stride) {
    const Size bytes = stride * Size(sizeof(T));
    return bytes % 64 == 0 && rows * (bytes / 64 & -(bytes / 64)) > 64 * 8 / 2;
}

template <class T> ANYSCORE_INLINE void zero(T* x, Size n) {
    if (n > 0) std::memset(x, 0, std::size_t(n) * sizeof(T));
}

// Reads row i of problem n, without padding.
template <class T> ANYSCORE_NOINLINE void read_row(const Rows& from, Size n, Size i, Size width, T* x) {
    read(from, from.at[n] + i * from.stride, width, 1, x);
}

// Returns row i of problem n: a pointer into the array if it is of type T, else x with the row read into it.
template <class T> inline const T* find_row(const Rows& from, Size n, Size i, Size width, T* x) {
    if (from.type == TYPE_OF<T>) return (const T*)from.data + from.at[n] + i * from.stride;
    read_row(from, n, i, width, x);
    return x;
}

// Returns the largest |x| of n numbers, as bits: NaN counts as the largest.
template <class T> inline typename Bits<T>::Unsigned largest_bits(const T* x, Size n) {
    typename Bits<T>::Unsigned most = 0;
    for (Size i = 0; i < n; i++) {
        auto u = bits(x[i]) << 1;
        most = u > most ? u : most;
    }
    return most >> 1;
}

// Rows of a problem: [first, first + count), or the rows in `index`.
struct RowRange {
    const Rows& rows;
    Size problem, first;
    int count;
    Size width;
    const std::int64_t* index = nullptr;

    Size at(int i) const { return index ? index[i] : first + i; }
};

// Reads rows to x (count, padded), with zeros as padding.
template <class T> inline void read_rows(const RowRange& from, Size padded, T* x) {
    // A short path: rows of a graph wait for memory, and for little else.
    if (from.rows.type == TYPE_OF<T> && from.width == padded) {
        const T* rows = (const T*)from.rows.data + from.rows.at[from.problem];
        for (int i = 0; i < from.count; i++) {
            const T* row = rows + from.at(i) * from.rows.stride;
            for (Size d = 0; d < padded; d += LANES<T>) store(x + i * padded + d, load(row + d));
        }
        return;
    }
    for (int i = 0; i < from.count; i++) {
        read_row(from.rows, from.problem, from.at(i), from.width, x + i * padded);
        for (Size d = from.width; d < padded; d++) x[i * padded + d] = 0;
    }
}

// Marks rows with an entry that is not finite, or beyond `limit`, as irregular, and sets them to 0. Kernels for
// finite numbers pass over them; the literal formula computes their scores. Returns whether a row is irregular.
template <class T> ANYSCORE_NOINLINE bool mark_irregular(T* x, int count, Size padded, T limit, bool* irregular) {
    for (int i = 0; i < count; i++) irregular[i] = false;
    if (largest_bits(x, count * padded) <= bits(limit)) return false;
    for (int i = 0; i < count; i++) {
        irregular[i] = largest_bits(x + i * padded, padded) > bits(limit);
        if (irregular[i]) zero(x + i * padded, padded);
    }
    return true;
}

// Reads rows as read_rows and marks irregular ones. Returns whether a row is irregular.
template <class T> ANYSCORE_NOINLINE bool read_tile(const RowRange& from, Size padded, T limit, T* x, bool* irregular) {
    read_rows(from, padded, x);
    return mark_irregular(x, from.count, padded, limit, irregular);
}

// Returns a pointer into the array if its rows are of type T, consecutive and without padding; else nullptr.
template <class T> inline const T* rows_in_place(const RowRange& from, Size padded) {
    const Rows& rows = from.rows;
    if (from.index || rows.type != TYPE_OF<T> || from.width != padded || rows.stride != padded) return nullptr;
    return (const T*)rows.data + rows.at[from.problem] + from.first * padded;
}

// As read_tile, without a copy where possible. Returns a pointer into the array if rows_in_place does and no row is
// irregular; else x with the rows read into it. Sets `any` to whether a row is irregular.
template <class T> inline const T* find_tile(const RowRange& from, Size padded, T limit, T* x, bool* irregular, bool& any) {
    const T* rows = rows_in_place<T>(from, padded);
    if (rows && largest_bits(rows, from.count * padded) <= bits(limit)) {
        for (int i = 0; i < from.count; i++) irregular[i] = false;
        any = false;
        return rows;
    }
    any = read_tile(from, padded, limit, x, irregular);
    return x;
}

// Writes the transpose of a square of LANES rows, of which rows from `count` on are 0.
template <class T>
ANYSCORE_INLINE void transpose_square(const T* rows, Size stride, T* to, Size to_stride, int count = LANES<T>) {
    constexpr int L = LANES<T>;
    Vector<T> square[L];
    if (count == L)
        for (int i = 0; i < L; i++) square[i] = load(rows + i * stride);
    else
        for (int i = 0; i < L; i++) square[i] = i < count ? load(rows + i * stride) : Vector<T>{};
    transpose<T>(square);
    for (int i = 0; i < L; i++) store(to + i * to_stride, square[i]);
}

}  // namespace anyscore::ANYSCORE_ISA
