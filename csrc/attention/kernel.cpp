// The kernels of every pair in pair_list.h, for one instruction set, ANYSCORE_ISA, and one type of the sums,
// ANYSCORE_SUMS.
#include "attention/energies.h"
#include "attention/gradients.h"
#include "attention/pack_keys.h"
#include "attention/sparse.h"
#include "runtime/pair_list.h"
#include "scorers/bf16_product.h"
#include "scorers/plain.h"
#include "scorers/split.h"
#include "scorers/tanh.h"

namespace anyscore::ANYSCORE_ISA {

template <class Scorer, class T> constexpr Kernels make() {
    return {forward<Scorer, T>, backward<Scorer, T>, prepare<Scorer, T>};
}

// The kernels of products: Bf16Product where it can compute the call, else Plain.
template <> constexpr Kernels make<Plain<Product, float>, float>() {
    using Whole = Plain<Product, float>;
    if constexpr (!HAS_DOTS) return {forward<Whole, float>, backward<Whole, float>, prepare<Whole, float>};
    return {[](const Call& call, const Forward& to, int threads) {
                Bf16Product::takes(call) ? forward<Bf16Product, float>(call, to, threads)
                                         : forward<Whole, float>(call, to, threads);
            },
            [](const Call& call, const Backward& back, int threads) {
                Bf16Product::takes(call) ? backward<Bf16Product, float>(call, back, threads)
                                         : backward<Whole, float>(call, back, threads);
            },
            prepare<Whole, float>};
}

// Defines product_kernels<T, Reciprocal>() and so on, one for each pair.
#define ANYSCORE_KERNELS(name, ...) \
    template <class T, class Reciprocal> constexpr Kernels name##_kernels() { return make<__VA_ARGS__, T>(); }
ANYSCORE_PAIRS(ANYSCORE_KERNELS)
#undef ANYSCORE_KERNELS

template <class T, class Reciprocal> constexpr KernelTable make_all() {
#define ANYSCORE_ROW(name, ...) name##_kernels<T, Reciprocal>(),
    return {{ANYSCORE_PAIRS(ANYSCORE_ROW)}, {sparse<T>, sparse_backward<T>}, {energies<T>, energies_backward<T>}};
#undef ANYSCORE_ROW
}

// Constants: no instruction of the set runs before it is chosen.
template <class T> struct Tables {
    static const KernelTable DIVIDING, ESTIMATING;
};
constexpr KernelTable OF_DIVISIONS = make_all<ANYSCORE_SUMS, Divide>();
template <> const KernelTable Tables<ANYSCORE_SUMS>::DIVIDING = OF_DIVISIONS;
#if defined(__AVX512F__)  // float64 always divides
using Reciprocal = std::conditional_t<sizeof(ANYSCORE_SUMS) == 4, Estimate, Divide>;
constexpr KernelTable OF_ESTIMATES = make_all<ANYSCORE_SUMS, Reciprocal>();
template <> const KernelTable Tables<ANYSCORE_SUMS>::ESTIMATING = OF_ESTIMATES;
#endif

}  // namespace anyscore::ANYSCORE_ISA
