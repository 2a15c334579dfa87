// anyscore._core: the kernels for Python. Private; anyscore/kernels/cpu.py is its one caller.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "calls.h"
#include "isa.h"
#include "parallel.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace anyscore {

void bind_xla(nb::module_& module);

namespace {

void seed(Inputs& in, nb::int_ seed, Size period, const View& lse) {
    if (in.dropout > 0 || period < 0) in.streams = streams(PyLong_AsUnsignedLongLongMask(seed.ptr()), period, lse);
}

void python_forward(const std::string& pair, View a, View b, View weight, View key_bias, View value, View start,
                    View stop, View keep, double scale, Size groups, double dropout, nb::int_ seed, Size period,
                    View packed, Output output, Output lse, int threads) {
    Inputs in{pair, std::move(a), std::move(b), std::move(weight), std::move(key_bias), std::move(value),
              std::move(start), std::move(stop), std::move(keep), scale, groups, dropout};
    anyscore::seed(in, seed, period, lse);
    nb::gil_scoped_release release;
    forward(in, packed, output, lse, threads);
}

void python_weights(const std::string& pair, View a, View b, View weight, View key_bias, View start, View stop,
                    View keep, double scale, Size groups, View lse, Output output, int threads) {
    Inputs in{pair, std::move(a), std::move(b), std::move(weight), std::move(key_bias), {},
              std::move(start), std::move(stop), std::move(keep), scale, groups};
    nb::gil_scoped_release release;
    weights(in, lse, output, threads);
}

void python_backward(const std::string& pair, View a, View b, View weight, View key_bias, View value,
                     View start, View stop, View keep, double scale, Size groups, double dropout, nb::int_ seed,
                     Size period, View output, View lse, View d_output, View d_lse, Output d_a, Output d_b,
                     Output d_weight, Output d_key_bias, Output d_value, int threads) {
    Inputs in{pair, std::move(a), std::move(b), std::move(weight), std::move(key_bias), std::move(value),
              std::move(start), std::move(stop), std::move(keep), scale, groups, dropout};
    anyscore::seed(in, seed, period, lse);
    Results of{std::move(output), std::move(lse), std::move(d_output), std::move(d_lse)};
    Gradients to{std::move(d_a), std::move(d_b), std::move(d_weight), std::move(d_key_bias), std::move(d_value)};
    nb::gil_scoped_release release;
    backward(in, of, to, threads);
}

void python_prepare_keys(const std::string& pair, View b, Output packed, int threads) {
    nb::gil_scoped_release release;
    prepare_keys(pair, b, packed, threads);
}

}  // namespace
}  // namespace anyscore

NB_MODULE(_core, module) {
    using namespace anyscore;
    module.def("forward", &python_forward, "pair"_a, "a"_a, "b"_a, "weight"_a.none(), "key_bias"_a.none(), "value"_a,
               "start"_a.none(), "stop"_a.none(), "keep"_a.none(), "scale"_a, "groups"_a, "dropout"_a, "seed"_a,
               "period"_a, "packed"_a.none(), "output"_a, "lse"_a, "threads"_a);
    module.def("weights", &python_weights, "pair"_a, "a"_a, "b"_a, "weight"_a.none(), "key_bias"_a.none(),
               "start"_a.none(), "stop"_a.none(), "keep"_a.none(), "scale"_a, "groups"_a, "lse"_a, "output"_a,
               "threads"_a);
    module.def("backward", &python_backward, "pair"_a, "a"_a, "b"_a, "weight"_a.none(), "key_bias"_a.none(), "value"_a,
               "start"_a.none(), "stop"_a.none(), "keep"_a.none(), "scale"_a, "groups"_a, "dropout"_a, "seed"_a,
               "period"_a, "output"_a, "lse"_a, "d_output"_a, "d_lse"_a.none(), "d_a"_a, "d_b"_a,
               "d_weight"_a.none(), "d_key_bias"_a.none(), "d_value"_a, "threads"_a);
    module.def("prepare_keys", &python_prepare_keys, "pair"_a, "b"_a, "packed"_a, "threads"_a);
    module.def("borrow_threads", [](std::uintptr_t parallel) {
        borrow_threads(reinterpret_cast<void (*)(void (*)(void*), void*, unsigned, unsigned)>(parallel));
    }, "parallel"_a);
#ifdef ANYSCORE_XLA
    bind_xla(module);
#endif
    module.def("isas", &isas);
    module.def("isa", &isa);
    module.def("use", &use, "isa"_a);
}
