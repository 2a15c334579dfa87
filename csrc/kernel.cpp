// The kernels of one instruction set, for every pair of pair_list.h.
#include "energies.h"
#include "gradients.h"
#include "halves.h"
#include "pair_list.h"
#include "plain.h"
#include "prepare.h"
#include "sparse.h"
#include "split.h"
#include "tanh.h"

namespace anyscore::ANYSCORE_ISA {

template <class Scorer, class T> constexpr Kernels make() {
    return {forward<Scorer, T>, backward<Scorer, T>, prepare<Scorer, T>};
}

// The product by HalfProduct where that takes the call.
template <> constexpr Kernels make<Plain<Product, float>, float>() {
    using Whole = Plain<Product, float>;
    if constexpr (!HAS_DOTS) return {forward<Whole, float>, backward<Whole, float>, prepare<Whole, float>};
    return {[](const Call& call, const Forward& to, int threads) {
                HalfProduct::takes(call) ? forward<HalfProduct, float>(call, to, threads)
                                         : forward<Whole, float>(call, to, threads);
            },
            [](const Call& call, const Backward& back, int threads) {
                HalfProduct::takes(call) ? backward<HalfProduct, float>(call, back, threads)
                                         : backward<Whole, float>(call, back, threads);
            },
            prepare<Whole, float>};
}

// product_kernels<T, Reciprocal>() and so on, one of each pair.
#define ANYSCORE_KERNELS(name, ...) \
    template <class T, class Reciprocal> constexpr Kernels name##_kernels() { return make<__VA_ARGS__, T>(); }
ANYSCORE_PAIRS(ANYSCORE_KERNELS)
#undef ANYSCORE_KERNELS

// Reciprocal: that of float32; double divides.
template <class Reciprocal> constexpr KernelTable make_all() {
#define ANYSCORE_ROW(name, ...) {name##_kernels<float, Reciprocal>(), name##_kernels<double, Divide>()},
    return {{ANYSCORE_PAIRS(ANYSCORE_ROW)},
            {{sparse<float>, sparse_backward<float>}, {sparse<double>, sparse_backward<double>}},
            {{energies<float>, energies_backward<float>}, {energies<double>, energies_backward<double>}}};
#undef ANYSCORE_ROW
}

// Made by the compiler: no instruction of the set runs before it is chosen.
extern const KernelTable DIVIDING;
constexpr KernelTable DIVIDING = make_all<Divide>();
#if defined(__AVX512F__)
extern const KernelTable ESTIMATING;
constexpr KernelTable ESTIMATING = make_all<Estimate>();
#endif

}  // namespace anyscore::ANYSCORE_ISA
