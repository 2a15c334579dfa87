// anyscore._core: the kernels for Python. Private: only anyscore/kernels/cpu.py calls it.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <stdexcept>

#include "bindings/calls.h"
#include "bindings/released.h"
#include "runtime/isa.h"
#include "runtime/own_formulas.h"
#include "runtime/parallel.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace anyscore {

void bind_xla(nb::module_& module);
void bind_repeated(nb::module_& module);
void bind_append(nb::module_& module);

namespace {

// Returns a view of an array from Python; an absent one for None.
template <class V> V borrowed(const char* name, nb::handle x) {
    V to;
    if (!x.is_none() && !view(x.ptr(), std::is_same_v<V, Output>, to))
        throw std::invalid_argument(std::string(name) + " must be an array on the CPU" +
                                    (std::is_same_v<V, Output> ? " that can be written to." : "."));
    return to;
}

// Returns views of a tuple's arrays, one for each name.
template <class V, std::size_t N> std::array<V, N> borrowed(const char* const (&names)[N], const nb::tuple& from) {
    if (from.size() < N) throw std::invalid_argument("a tuple of arrays is too short.");
    std::array<V, N> to;
    for (std::size_t i = 0; i < N; i++) to[i] = borrowed<V>(names[i], from[i]);
    return to;
}

// Returns the operands of a call. stats: its shape gives the number of problems.
Operands operands(const nb::tuple& from, const Settings& s, const View& stats) {
    if (from.size() < std::size(OPERANDS)) throw std::invalid_argument("a tuple of operands is too short.");
    Operands x;
    std::uint64_t key = 0;
    for (std::size_t i = 0; i < std::size(OPERANDS); i++) {
        auto [name, view] = OPERANDS[i];
        if (view)
            x.*view = borrowed<View>(name, from[i]);
        else if (s.dropout > 0)
            key = seed(from[i]);
    }
    if (s.dropout > 0) x.streams = streams(key, s.dropout_period, stats, x.origin);
    return x;
}

using Numbers = std::array<double, Settings::COUNT>;

void python_forward(nb::tuple from, const std::string& pair, const Numbers& numbers, nb::tuple results, int threads) {
    Settings s(numbers.data());
    auto [output, stats, scores] = borrowed<Output>({"output", "stats", "scores"}, results);
    Operands x = operands(from, s, stats);
    Outputs to{std::move(output), std::move(stats), std::move(scores)};
    Released released;
    forward(pair, x, s, to, threads);
}

void python_backward(nb::tuple from, const std::string& pair, const Numbers& numbers, nb::tuple results, nb::tuple upstream,
                     nb::tuple gradients, int threads) {
    Settings s(numbers.data());
    auto [output, stats, scores] = borrowed<View>({"output", "stats", "scores"}, results);
    auto [d_output, d_stats, d_scores] = borrowed<View>({"d_output", "d_stats", "d_scores"}, upstream);
    auto [d_a, d_b, d_weight, d_key_bias, d_value, d_bias, d_c] =
        borrowed<Output>({"d_a", "d_b", "d_weight", "d_key_bias", "d_value", "d_bias", "d_c"}, gradients);
    Operands x = operands(from, s, stats);
    Results of{std::move(output),   std::move(stats),   std::move(scores),
               std::move(d_output), std::move(d_stats), std::move(d_scores)};
    Gradients to{std::move(d_a),     std::move(d_b),    std::move(d_weight), std::move(d_key_bias),
                 std::move(d_value), std::move(d_bias), std::move(d_c)};
    Released released;
    backward(pair, x, s, of, to, threads);
}

void python_prepare_keys(const std::string& pair, View b, Output packed, int threads) {
    Released released;
    prepare_keys(pair, b, packed, threads);
}

void python_append_keys(const std::string& pair, View b, Output packed, Size start, Size count, int threads) {
    Released released;
    append_keys(pair, b, packed, {start, count}, threads);
}

void python_sparse(int power, View s, Output w, int threads) {
    Released released;
    sparse(power, s, w, threads);
}

void python_sparse_backward(int power, View w, View dw, Output ds, int threads) {
    Released released;
    sparse_backward(power, w, dw, ds, threads);
}

// Returns the operands of a step: key, feature, stacked, vector and spans.
EnergyOperands energy_operands(const nb::tuple& from) {
    auto [key, feature, stacked, vector, spans] = borrowed<View>({"key", "feature", "stacked", "vector", "spans"}, from);
    return {std::move(key), std::move(feature), std::move(stacked), std::move(vector), std::move(spans)};
}

void python_energies(nb::tuple from, Output to, int threads) {
    EnergyOperands x = energy_operands(from);
    Released released;
    energies(x, to, threads);
}

void python_energies_backward(nb::tuple from, View upstream, nb::tuple gradients, int threads) {
    EnergyOperands x = energy_operands(from);
    auto [d_key, d_feature, d_stacked, d_vector] =
        borrowed<Output>({"d_key", "d_feature", "d_stacked", "d_vector"}, gradients);
    Released released;
    energies_backward(x, upstream, d_key, d_feature, d_stacked, d_vector, threads);
}

}  // namespace
}  // namespace anyscore

NB_MODULE(_core, module) {
    using namespace anyscore;
    nb::set_leak_warnings(false);  // repeated calls may outlive the interpreter's last collection
    module.def("forward", &python_forward, "operands"_a, "pair"_a, "numbers"_a, "results"_a, "threads"_a);
    module.def("backward", &python_backward, "operands"_a, "pair"_a, "numbers"_a, "results"_a, "upstream"_a, "to"_a,
               "threads"_a);
    module.def("prepare_keys", &python_prepare_keys, "pair"_a, "b"_a, "packed"_a, "threads"_a);
    module.def("append_keys", &python_append_keys, "pair"_a, "b"_a, "packed"_a, "start"_a, "count"_a, "threads"_a);
    module.def("sparse", &python_sparse, "power"_a, "scores"_a, "weights"_a, "threads"_a);
    module.def("sparse_backward", &python_sparse_backward, "power"_a, "weights"_a, "upstream"_a, "to"_a, "threads"_a);
    module.def("energies", &python_energies, "operands"_a, "to"_a, "threads"_a);
    module.def("energies_backward", &python_energies_backward, "operands"_a, "upstream"_a, "to"_a, "threads"_a);
    module.def(
        "borrow_threads",
        [](std::uintptr_t parallel) {
            borrow_threads(reinterpret_cast<void (*)(void (*)(void*), void*, unsigned, unsigned)>(parallel));
        },
        "parallel"_a);
    bind_repeated(module);
    bind_append(module);
#ifdef ANYSCORE_XLA
    bind_xla(module);
#endif
    module.def(
        "register_pair",
        [](const std::string& name, bool is_double, std::uintptr_t library) {
            register_pair(name, is_double ? Type::F64 : Type::F32, reinterpret_cast<OwnPair*>(library));
        },
        "name"_a, "is_double"_a, "library"_a);
    module.def(
        "register_outer",
        [](double number, bool is_double, std::uintptr_t function) {
            register_outer(number, is_double ? Type::F64 : Type::F32, reinterpret_cast<OwnOuter>(function));
        },
        "number"_a, "is_double"_a, "function"_a);
    module.attr("headers") = ANYSCORE_HEADERS;
    module.def("isas", &isas);
    module.def("isa", &isa);
    module.def("missing_isa", &missing_isa);
    module.def("use", &use, "isa"_a);
}
