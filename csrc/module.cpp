// anyscore._core: the kernels for Python. Private; anyscore/kernels/cpu.py is its one caller.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>

#include "arrays.h"
#include "isa.h"
#include "parallel.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace anyscore {
namespace {

int pair_index(const std::string& pair) {
    const char* names[PAIRS] = {"product", "tanh", "leaky_relu", "absolute", "squared"};
    for (int i = 0; i < PAIRS; i++)
        if (pair == names[i]) return i;
    throw std::invalid_argument("pair is \"" + pair + "\", expected product, tanh, leaky_relu, absolute or squared.");
}

const Kernels& find(const std::string& pair, Type type) { return kernels().of[pair_index(pair)][type == Type::F64]; }

// The type that sums are taken in, and the leading dimensions, are those of the log-sum-exp.
Type type_of_sums(const View& lse) {
    Type type = Arrays::type("lse", lse);
    if (type != Type::F32 && type != Type::F64) Arrays::refuse("lse", "must be float32 or float64");
    if (lse.rank() < 1) Arrays::refuse("lse", "must have shape (*lead, T_q)");
    return type;
}

std::vector<Size> lead_of(const View& lse) { return {lse.shape.begin(), lse.shape.end() - 1}; }

// value: or none, where only scores are wanted.
struct Inputs {
    View &a, &b, &weight, &key_bias, &value, &start, &stop, &keep;
    double scale;
};

Call describe(Arrays& arrays, const Inputs& in, Size queries) {
    Call call;
    call.problems = arrays.problems;
    call.queries = queries;
    if (in.a.rank() < 2 || in.b.rank() < 2) Arrays::refuse("a and b", "must have rank 2 or more");
    call.width = in.a.shape.back();
    call.keys = in.b.shape[in.b.shape.size() - 2];
    call.a = arrays.rows("a", in.a, {queries, call.width}, false);
    call.b = arrays.rows("b", in.b, {call.keys, call.width}, true);
    if (in.weight) call.weight = arrays.rows("weight", in.weight, {call.width}, false);
    if (in.key_bias) call.key_bias = arrays.numbers("key_bias", in.key_bias, call.keys, true);
    if (in.value) {
        call.value = arrays.rows("value", in.value, {call.keys, -1}, true);
        call.value_width = in.value.shape.back();
    }
    call.start = arrays.bound("start", in.start, queries);
    call.stop = arrays.bound("stop", in.stop, queries);
    call.keep = arrays.keep(in.keep, queries, call.keys);
    call.scale = in.scale;
    arrays.key_sets(call, in.b);
    Size elements;
    if (__builtin_mul_overflow(call.problems, queries, &elements) ||
        __builtin_mul_overflow(elements, call.keys + 1, &elements) ||
        __builtin_mul_overflow(elements, call.width + call.value_width + 1, &elements))
        Arrays::refuse("the call", "is too large");
    return call;
}

Dropout dropout_of(double rate, nb::int_ seed, Size period) {
    if (!(rate >= 0 && rate < 1)) Arrays::refuse("dropout", "must be in [0, 1)");
    if (period < 0) Arrays::refuse("period", "must be ≥ 0");
    return {rate, PyLong_AsUnsignedLongLongMask(seed.ptr()), period ? period : 1};
}

void forward(const std::string& pair, View a, View b, View weight, View key_bias, View value, View start,
             View stop, View keep, double scale, Size groups, double dropout, nb::int_ seed, Size period, View packed, Output output, Output lse, int threads) {
    Type sums = type_of_sums(lse);
    Arrays arrays(lead_of(lse), groups);
    Call call = describe(arrays, {a, b, weight, key_bias, value, start, stop, keep, scale}, lse.shape.back());
    call.dropout = dropout_of(dropout, seed, period);
    if (packed) {
        call.packed = arrays.rows("packed", packed, {call.keys + 1, call.width}, true);
        if (call.packed.type != sums) Arrays::refuse("packed", "must have the type of lse");
    }
    std::vector<Size> shape = arrays.lead;
    shape.push_back(call.queries);
    void* to_lse = Arrays::contiguous("lse", lse, shape);
    shape.push_back(call.value_width);
    void* to = Arrays::contiguous("output", output, shape);
    Type type = Arrays::type("output", output);
    const Kernels& kernels = find(pair, sums);
    nb::gil_scoped_release release;
    kernels.forward(call, to, type, to_lse, threads);
}

void weights(const std::string& pair, View a, View b, View weight, View key_bias, View start, View stop,
             View keep, double scale, Size groups, View lse, Output output, int threads) {
    View none;
    Type sums = type_of_sums(lse);
    Arrays arrays(lead_of(lse), groups);
    Call call = describe(arrays, {a, b, weight, key_bias, none, start, stop, keep, scale}, lse.shape.back());
    std::vector<Size> shape = lse.shape;
    const void* of_rows = Arrays::contiguous("lse", lse, shape);
    shape.push_back(call.keys);
    void* to = Arrays::contiguous("output", output, shape);
    if (Arrays::type("output", output) != sums) Arrays::refuse("output", "must have the type of lse");
    const Kernels& kernels = find(pair, sums);
    nb::gil_scoped_release release;
    kernels.weights(call, of_rows, to, threads);
}

void backward(const std::string& pair, View a, View b, View weight, View key_bias, View value,
              View start, View stop, View keep, double scale, Size groups, double dropout,
              nb::int_ seed, Size period, View output, View lse, View d_output, View d_lse, Output d_a,
              Output d_b, Output d_weight, Output d_key_bias, Output d_value, int threads) {
    Type sums = type_of_sums(lse);
    Arrays arrays(lead_of(lse), groups);
    Call call = describe(arrays, {a, b, weight, key_bias, value, start, stop, keep, scale}, lse.shape.back());
    call.dropout = dropout_of(dropout, seed, period);
    Backward back;
    back.lse = Arrays::contiguous("lse", lse, lse.shape);
    back.output = arrays.rows("output", output, {call.queries, call.value_width}, false);
    back.d_output = arrays.rows("d_output", d_output, {call.queries, call.value_width}, false);
    if (d_lse) {
        if (Arrays::type("d_lse", d_lse) != sums) Arrays::refuse("d_lse", "must have the type of lse");
        back.d_lse = Arrays::contiguous("d_lse", d_lse, lse.shape);
    }
    back.d_a = arrays.gradient("d_a", d_a, a, sums, false);
    back.d_b = arrays.gradient("d_b", d_b, b, sums, true);
    back.d_weight = arrays.gradient("d_weight", d_weight, weight, sums, false);
    back.d_key_bias = arrays.gradient("d_key_bias", d_key_bias, key_bias, sums, true);
    back.d_value = arrays.gradient("d_value", d_value, value, sums, true);
    if (!arrays.problems) {  // nothing reaches any of them
        for (const Output& one : {d_a, d_b, d_weight, d_key_bias, d_value})
            if (one) std::memset(one.data, 0, std::size_t(one.size() * (one.dtype.bits / 8)));
        return;
    }
    back.of_a = arrays.groups_by({&d_a}, false);
    if (d_weight) back.of_weight = arrays.groups_by({&d_weight}, false);
    std::vector<const View*> of_keys{&d_b, &d_value};
    if (d_key_bias) of_keys.push_back(&d_key_bias);
    back.tasks = arrays.groups_by(of_keys, true);
    const Kernels& kernels = find(pair, sums);
    nb::gil_scoped_release release;
    kernels.backward(call, back, threads);
}

void prepare_keys(const std::string& pair, View b, Output packed, int threads) {
    Type sums = Arrays::type("packed", packed);
    if (sums != Type::F32 && sums != Type::F64) Arrays::refuse("packed", "must be float32 or float64");
    if (b.rank() < 2) Arrays::refuse("b", "must have rank 2 or more");
    std::vector<Size> shape = b.shape, lead(shape.begin(), shape.end() - 2);
    Arrays arrays(lead, 1);
    Call call;
    call.problems = arrays.problems;
    call.queries = 1;
    call.keys = shape[shape.size() - 2];
    call.width = shape.back();
    call.a = call.b = arrays.rows("b", b, {call.keys, call.width}, false);
    arrays.each_its_own(call);
    shape[shape.size() - 2] += 1;
    void* to = Arrays::contiguous("packed", packed, shape);
    const Kernels& kernels = find(pair, sums);
    nb::gil_scoped_release release;
    kernels.prepare(call, to, threads);
}

}  // namespace
}  // namespace anyscore

NB_MODULE(_core, module) {
    using namespace anyscore;
    module.def("forward", &forward, "pair"_a, "a"_a, "b"_a, "weight"_a.none(), "key_bias"_a.none(), "value"_a,
               "start"_a.none(), "stop"_a.none(), "keep"_a.none(), "scale"_a, "groups"_a, "dropout"_a, "seed"_a,
               "period"_a, "packed"_a.none(), "output"_a, "lse"_a, "threads"_a);
    module.def("weights", &weights, "pair"_a, "a"_a, "b"_a, "weight"_a.none(), "key_bias"_a.none(),
               "start"_a.none(), "stop"_a.none(), "keep"_a.none(), "scale"_a, "groups"_a, "lse"_a, "output"_a,
               "threads"_a);
    module.def("backward", &backward, "pair"_a, "a"_a, "b"_a, "weight"_a.none(), "key_bias"_a.none(), "value"_a,
               "start"_a.none(), "stop"_a.none(), "keep"_a.none(), "scale"_a, "groups"_a, "dropout"_a, "seed"_a,
               "period"_a, "output"_a, "lse"_a, "d_output"_a, "d_lse"_a.none(), "d_a"_a, "d_b"_a,
               "d_weight"_a.none(), "d_key_bias"_a.none(), "d_value"_a, "threads"_a);
    module.def("prepare_keys", &prepare_keys, "pair"_a, "b"_a, "packed"_a, "threads"_a);
    module.def("borrow_threads", [](std::uintptr_t parallel) {
        borrow_threads(reinterpret_cast<void (*)(void (*)(void*), void*, unsigned, unsigned)>(parallel));
    }, "parallel"_a);
    module.def("isas", &isas);
    module.def("isa", &isa);
    module.def("use", &use, "isa"_a);
}
