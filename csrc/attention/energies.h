// Energies of one step of location-sensitive attention, whose keys have features beside them:
//
//     e_j = Σ_d v_d tanh(x_jd)        x_j = k_j + f_j S
//
// and the gradients of a loss from g_j = ∂loss/∂e_j. Hidden units x exist for a few keys at a time.
#pragma once

#include "runtime/parallel.h"
#include "simd/gemm.h"
#include "simd/tanh_of.h"

namespace anyscore::ANYSCORE_ISA {

// The hidden units of up to ROWS keys of one item, and their operands, in rows of `padded` numbers.
template <class T> class HiddenUnits {
    static constexpr int L = LANES<T>, ROWS = 16, AT_ONCE = 4;

public:
    HiddenUnits(Arena& arena, const Energies& of)
        : of(of), padded(round_up(of.width, L)), vector(arena.take<T>(padded)), stacked(arena.take<T>(of.features * padded)),
          x(arena.take<T>(ROWS * padded)), d_vector(arena.take<T>(padded)), d_stacked(arena.take<T>(of.features * padded)),
          transposed(arena.take<T>(padded * round_up(of.features, L))),
          d_feature(arena.take<T>(ROWS * round_up(of.features, L))) {}

    // Writes the energies of keys [from, to) of an item.
    void forward(Size item, Size from, Size to) {
        read(item);
        Size j = from;
        for (; j + AT_ONCE <= to; j += AT_ONCE) add_energies<AT_ONCE>(item, j);
        for (; j < to; j++) add_energies<1>(item, j);
    }

    // Adds the gradients of keys [from, to) to d_key; writes those of their features, of S, and of v to d_v (width).
    // Rows of other keys stay as they are.
    void backward(Size item, Size from, Size to, T* d_v) {
        const Size wide = round_up(of.features, L);
        read(item);
        zero(d_vector, padded), zero(d_stacked, of.features * padded), zero(transposed, padded * wide);
        for (Size m = 0; m < of.features; m++)
            for (Size d = 0; d < of.width; d++) transposed[d * wide + m] = stacked[m * padded + d];
        for (Size j = from; j < to; j += ROWS) {
            const int count = remaining(to, j, ROWS);
            const T *g = (const T*)of.upstream + item * of.keys + j, *f = feature(item, j);
            add_up(item, j, count);
            for (int i = 0; i < count; i++) slopes(x + i * padded, g[i]);
            zero(d_feature, count * wide);
            gemm<ProductTerm, T>({d_feature, wide}, {x, padded}, {transposed, wide}, count, wide, padded);
            gemm<ProductTerm, T>({d_stacked, padded}, {f, 1, of.features}, {x, padded}, int(of.features), padded, count);
            for (int i = 0; i < count; i++) {
                const Size key = item * of.keys + j + i;
                std::memcpy((T*)of.d_feature + key * of.features, d_feature + i * wide, of.features * sizeof(T));
                if (!of.d_key) continue;
                T* to_key = (T*)of.d_key + key * of.width;
                for (Size d = 0; d < of.width; d++) to_key[d] += x[i * padded + d];
            }
        }
        for (Size m = 0; m < of.features; m++)
            std::memcpy((T*)of.d_stacked + (item * of.features + m) * of.width, d_stacked + m * padded,
                        of.width * sizeof(T));
        std::memcpy(d_v, d_vector, of.width * sizeof(T));
    }

private:
    const T* feature(Size item, Size j) const { return (const T*)of.feature + (item * of.keys + j) * of.features; }

    void read(Size item) {
        const T* rows = (const T*)of.stacked + item * of.features * of.width;
        for (Size m = 0; m < of.features; m++) fill_up(rows + m * of.width, stacked + m * padded);
        fill_up((const T*)of.vector, vector);
        Vector<T> sum{};
        for (Size d = 0; d < padded; d += L) sum += load(vector + d);
        total = sum_lanes<T>(sum);
    }
    void fill_up(const T* from, T* to) const {
        std::memcpy(to, from, of.width * sizeof(T));
        for (Size d = of.width; d < padded; d++) to[d] = 0;
    }

    // Writes x of keys [j, j + count).
    void add_up(Size item, Size j, int count) {
        const T* keys = (const T*)of.key + (item * of.keys + j) * of.width;
        for (int i = 0; i < count; i++) fill_up(keys + i * of.width, x + i * padded);
        gemm<ProductTerm, T>({x, padded}, {feature(item, j), of.features}, {stacked, padded}, count, padded, of.features);
    }

    // Writes the energies of keys [j, j + ROWS); hidden units stay in registers.
    template <int ROWS> void add_energies(Size item, Size j) {
        const T *key = (const T*)of.key + (item * of.keys + j) * of.width, *f = feature(item, j);
        const Size whole = of.width / L * L, paired = of.width / (2 * L) * 2 * L;
        Vector<T> sums[ROWS] = {}, traces[ROWS] = {};
        for (Size d = 0; d < paired; d += 2 * L) add_features<ROWS, 2>(key + d, of.width, f, d, sums, traces);
        if (paired < whole) add_features<ROWS, 1>(key + paired, of.width, f, paired, sums, traces);
        if (whole < of.width) {
            T rest[ROWS * L] = {};
            for (int i = 0; i < ROWS; i++)
                std::memcpy(rest + i * L, key + i * of.width + whole, (of.width - whole) * sizeof(T));
            add_features<ROWS, 1>(rest, L, f, whole, sums, traces);
        }
        for (int i = 0; i < ROWS; i++) {
            T e = total - sum_lanes<T>(sums[i]);
            if (!is_finite(total + sum_lanes<T>(traces[i]))) add_up(item, j + i, 1), e = energy(x);
            ((T*)of.energies)[item * of.keys + j + i] = e;
        }
    }

    // Adds 2 v / (e²ˣ + 1) of N vectors of features to the sums, and x to the traces, which tell whether x is finite.
    template <int ROWS, int N>
    ANYSCORE_INLINE void add_features(const T* key, Size stride, const T* f, Size d, Vector<T>* sums,
                                      Vector<T>* traces) const {
        Vector<T> hidden[ROWS][N];
        for (int i = 0; i < ROWS; i++)
            for (int n = 0; n < N; n++) hidden[i][n] = load(key + i * stride + n * L);
        for (Size m = 0; m < of.features; m++) {
            Vector<T> right[N];
            for (int n = 0; n < N; n++) right[n] = load(stacked + m * padded + d + n * L);
            for (int i = 0; i < ROWS; i++)
                for (int n = 0; n < N; n++) hidden[i][n] += fill(f[i * of.features + m]) * right[n];
        }
        for (int i = 0; i < ROWS; i++)
            for (int n = 0; n < N; n++) {
                traces[i] += hidden[i][n];
                sums[i] += T(2) * load(vector + d + n * L) / (exp_of_twice(hidden[i][n]) + T(1));
            }
    }

    // Returns e²ˣ of every lane, clamped, as a power of 2: tanh hides the rounding of a large x.
    static ANYSCORE_INLINE Vector<T> exp_of_twice(Vector<T> x) {
        using E = Exp<T>;
        typedef typename Bits<T>::Unsigned Unsigned __attribute__((vector_size(ANYSCORE_VECTOR_BYTES)));
        constexpr T LIMIT = E::LIMIT * E::LOG2_E, LN_2 = T(0.69314718055994531);
        Vector<T> y = max(min(x * (2 * E::LOG2_E), fill(LIMIT)), fill(-LIMIT));
        Vector<T> t = y + Bits<T>::ROUND, r = (y - (t - Bits<T>::ROUND)) * LN_2;
        Vector<T> power = T(1) + r * series<T, 1, E::DEGREE>(r);
        return (Vector<T>)((Unsigned)power + ((Unsigned)t << Bits<T>::MANTISSA));
    }

    static ANYSCORE_INLINE bool is_finite(T x) { return bits(x) << 1 < Bits<T>::INFINITE << 1; }

    // Replaces a row of x by tanh x = 1 − 2/(e²ˣ + 1), which is exact enough for a sum with others.
    void activate(T* row) const {
        Vector<T> trace{};
        for (Size d = 0; d < padded; d += L) trace += load(row + d);
        if (is_finite(sum_lanes<T>(trace)))
            for (Size d = 0; d < padded; d += L) store(row + d, T(1) - T(2) / (exp_of_twice(load(row + d)) + T(1)));
        else
            for (Size d = 0; d < padded; d++) row[d] = tanh_of(row[d]);
    }

    // Returns the energy of a row of x, and replaces the row by tanh(x).
    T energy(T* row) const {
        activate(row);
        Vector<T> sum{};
        for (Size d = 0; d < padded; d += L) sum += load(vector + d) * load(row + d);
        return sum_lanes<T>(sum);
    }

    // Replaces a row of x by g v (1 − tanh² x), and adds g tanh x to the gradient of v.
    void slopes(T* row, T g) {
        activate(row);
        const Vector<T> upstream = fill(g);
        for (Size d = 0; d < padded; d += L) {
            Vector<T> y = load(row + d);
            store(d_vector + d, load(d_vector + d) + upstream * y);
            store(row + d, upstream * load(vector + d) * (T(1) - y * y));
        }
    }

    const Energies& of;
    Size padded;
    T total = 0;  // the sum of v
    T *vector, *stacked, *x, *d_vector, *d_stacked, *transposed, *d_feature;
};

// Keys of one task of the forward.
constexpr Size SPAN = 128;

template <class T> void energies(const Energies& of, int threads) {
    const Size spans = tiles_of(of.keys, SPAN);
    Slots<HiddenUnits<T>> slots(of, threads);
    for_each(threads, of.batch * spans, [&](Size index, int slot) {
        const Size item = index / spans, first = index % spans * SPAN;
        const Size from = of.start(item) > first ? of.start(item) : first, end = first + SPAN;
        const Size to = of.stop(item) < end ? of.stop(item) : end;
        if (from < to) slots.task(slot).forward(item, from, to);
    });
}

// Each item is one task, so that its sums have one order.
template <class T> void energies_backward(const Energies& of, int threads) {
    Slots<HiddenUnits<T>> slots(of, threads);
    for_each(threads, of.batch, [&](Size item, int slot) {
        slots.task(slot).backward(item, of.start(item), of.stop(item), (T*)of.d_vector + item * of.width);
    });
}

}  // namespace anyscore::ANYSCORE_ISA
