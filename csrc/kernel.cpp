// The kernels of one instruction set. A pair is one line here, once for each type of the sums.
#include "gradients.h"
#include "tanh.h"

namespace anyscore::ANYSCORE_ISA {

template <class Scorer, class T> constexpr Kernels make() {
    return {forward<Scorer, T>, weights<Scorer, T>, backward<Scorer, T>, prepare<Scorer, T>};
}

template <class Reciprocal> constexpr KernelTable make_all() {
    return {{
        {make<Plain<Product, float>, float>(), make<Plain<Product, double>, double>()},
        {make<Tanh<float, Reciprocal>, float>(), make<Tanh<double, Divide>, double>()},
        {make<Plain<LeakyRelu, float>, float>(), make<Plain<LeakyRelu, double>, double>()},
        {make<Plain<Absolute, float>, float>(), make<Plain<Absolute, double>, double>()},
        {make<Plain<Squared, float>, float>(), make<Plain<Squared, double>, double>()},
    }};
}

extern const KernelTable DIVIDING;
const KernelTable DIVIDING = make_all<Divide>();
#if defined(__AVX512F__)
extern const KernelTable ESTIMATING;
const KernelTable ESTIMATING = make_all<Estimate>();
#endif

}  // namespace anyscore::ANYSCORE_ISA
