// The kernels of one instruction set. A pair is one line here, once for each type of the sums.
#include "gradients.h"
#include "tanh.h"

namespace anyscore::ANYSCORE_ISA {

template <class Scorer, class T> constexpr Kernels make() {
    return {forward<Scorer, T>, weights<Scorer, T>, backward<Scorer, T>, prepare<Scorer, T>};
}

extern const KernelTable TABLE;
const KernelTable TABLE = {{
    {make<Plain<Product, float>, float>(), make<Plain<Product, double>, double>()},
    {make<Tanh<float>, float>(), make<Tanh<double>, double>()},
    {make<Plain<LeakyRelu, float>, float>(), make<Plain<LeakyRelu, double>, double>()},
    {make<Plain<Absolute, float>, float>(), make<Plain<Absolute, double>, double>()},
    {make<Plain<Squared, float>, float>(), make<Plain<Squared, double>, double>()},
}};

}  // namespace anyscore::ANYSCORE_ISA
