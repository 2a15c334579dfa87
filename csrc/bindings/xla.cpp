// The core as targets of XLA's foreign function interface: JAX calls these without Python.
//
// The attribute `names` gives the order of operands. All operands have the rank of the output, with leading
// dimensions of 1 where they broadcast. vmap adds leading dimensions to all operands or to some.
#include <nanobind/nanobind.h>
#include <xla/ffi/api/ffi.h>

#include <cstring>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "bindings/calls.h"
#include "runtime/parallel.h"

namespace nb = nanobind;
namespace ffi = xla::ffi;

namespace anyscore {
namespace {

nb::dlpack::dtype dtype_of(ffi::DataType type) {
    using Code = nb::dlpack::dtype_code;
    auto made = [](Code code, int bits) { return nb::dlpack::dtype{std::uint8_t(code), std::uint8_t(bits), 1}; };
    switch (type) {
        case ffi::DataType::F32: return made(Code::Float, 32);
        case ffi::DataType::F64: return made(Code::Float, 64);
        case ffi::DataType::F16: return made(Code::Float, 16);
        case ffi::DataType::BF16: return made(Code::Bfloat, 16);
        case ffi::DataType::S32: return made(Code::Int, 32);
        case ffi::DataType::S64: return made(Code::Int, 64);
        case ffi::DataType::U32: return made(Code::UInt, 32);
        case ffi::DataType::PRED: return made(Code::Bool, 8);
        default: throw std::invalid_argument("an operand has a dtype that the core does not know.");
    }
}

template <class V> V view(ffi::AnyBuffer buffer) {
    V to;
    to.data = buffer.untyped_data();
    to.dtype = dtype_of(buffer.element_type());
    to.shape.assign(buffer.dimensions().begin(), buffer.dimensions().end());
    to.strides = dense_strides(to.shape);
    to.given = true;
    return to;
}

Output result(ffi::RemainingRets results, std::size_t i) {
    auto found = results.get<ffi::AnyBuffer>(i);
    if (!found.has_value()) throw std::invalid_argument("a result is missing.");
    return view<Output>(**found);
}

// The operands by name; other operands stay absent.
struct NamedOperands : Operands {
    View seed, counter, output, stats, scores, d_output, d_stats, d_scores;

    NamedOperands(ffi::RemainingArgs operands, std::string_view names) {
        std::istringstream all{std::string(names)};
        std::string name;
        for (std::size_t i = 0; all >> name; i++) {
            auto found = operands.get<ffi::AnyBuffer>(i);
            if (!found.has_value()) throw std::invalid_argument(name + " is missing.");
            slot(name) = view<View>(*found);
        }
    }

    View& slot(const std::string& name) {
        for (auto [known, view] : OPERANDS)
            if (view && name == known) return this->*view;
        std::pair<const char*, View*> others[] = {{"seed", &seed},       {"counter", &counter},  {"output", &output},
                                                  {"stats", &stats},     {"scores", &scores},    {"d_output", &d_output},
                                                  {"d_stats", &d_stats}, {"d_scores", &d_scores}};
        for (auto [known, slot] : others)
            if (name == known) return *slot;
        throw std::invalid_argument("there is no operand " + name + ".");
    }
};

// Returns the offset of problem n in an array (*lead or 1, …).
Size offset(const View& x, const std::vector<Size>& lead, Size n) {
    Size at = 0;
    for (std::size_t r = lead.size(); r-- > 0; n /= lead[r])
        if (x.shape[r] != 1) at += n % lead[r] * x.strides[r];
    return at;
}

// Returns one stream for each problem of stats. seed: (*lead or 1, 2), low word first; counter: (*lead or 1). So a
// problem draws the same numbers in any batch and on any device. origin: (*lead or 1, 2), the first query and key; or
// absent. All are words of 32 bits.
std::vector<Stream> streams_of(const NamedOperands& x, const View& stats) {
    std::vector<Size> lead(stats.shape.begin(), stats.shape.end() - 2);
    auto fits = [&](const View& pair) { return pair.rank() + 1 == stats.rank() && pair.shape.back() == 2; };
    if (!fits(x.seed) || x.counter.rank() + 2 != stats.rank())
        throw std::invalid_argument("seed and counter do not fit stats.");
    if (x.origin && (!fits(x.origin) || x.origin.dtype.bits != 32))
        throw std::invalid_argument("origin must be words of 32 bits (..., 2), of the rank of seed.");
    Size problems = 1;
    for (Size n : lead) problems *= n;
    std::vector<Stream> streams(std::size_t(problems), Stream{});
    for (Size n = 0; n < problems; n++) {
        auto words = [&](const View& of) { return static_cast<const std::uint32_t*>(of.data) + offset(of, lead, n); };
        Stream& stream = streams[std::size_t(n)];
        stream.seed = words(x.seed)[0] | std::uint64_t(words(x.seed)[1]) << 32, stream.counter = *words(x.counter);
        if (x.origin) stream.first_query = words(x.origin)[0], stream.first_key = words(x.origin)[1];
    }
    return streams;
}

// Copies an operand to the full `lead` if vmap did not batch it and the kernel needs it in full.
struct ExpandedOperand {
    std::vector<char> memory;

    ExpandedOperand(View& x, const std::vector<Size>& lead) {
        if (!x) return;
        std::vector<Size> shape = x.shape;
        std::copy(lead.begin(), lead.end(), shape.begin());
        if (shape == x.shape) return;
        Size count = 1, row = 1, bytes = x.dtype.bits / 8;
        for (Size n : shape) count *= n;
        for (std::size_t r = lead.size(); r < shape.size(); r++) row *= shape[r];
        memory.resize(std::size_t(count * bytes));
        for (Size n = 0; n * row < count; n++)
            std::memcpy(memory.data() + n * row * bytes, (const char*)x.data + offset(x, lead, n) * bytes,
                        std::size_t(row * bytes));
        x.data = memory.data(), x.shape = shape, x.strides = dense_strides(shape);
    }
};

// Returns the common leading dimensions of arrays (*lead or 1, …).
std::vector<Size> lead_of(std::initializer_list<const View*> arrays, std::size_t rank) {
    std::vector<Size> lead(rank, 1);
    for (const View* array : arrays)
        for (std::size_t r = 0; r < rank && *array; r++)
            if (array->shape[r] != 1) lead[r] = array->shape[r];
    return lead;
}

// As `Settings.numbers` of anyscore/call/operands.py.
using Numbers = ffi::Span<const double>;

Settings settings(Numbers numbers) {
    if (numbers.size() != Settings::COUNT) throw std::invalid_argument("the settings are not as many as the core knows.");
    return Settings(numbers.begin());
}

int threads() { return int(std::max(1u, std::thread::hardware_concurrency())); }

template <class Work> ffi::Error guarded(Work work) {
    OwnThreads own;
    try {
        work();
        return ffi::Error::Success();
    } catch (const std::exception& error) {
        return ffi::Error(ffi::ErrorCode::kInvalidArgument, error.what());
    }
}

ffi::Error xla_forward(ffi::RemainingArgs operands, ffi::RemainingRets results, std::string_view pair,
                       std::string_view names, Numbers numbers) {
    return guarded([&] {
        NamedOperands x(operands, names);
        Settings s = settings(numbers);
        std::size_t next = 0;
        Outputs to;
        if (x.value) to.output = result(results, next++);
        to.stats = result(results, next++);
        if (next < results.size()) to.scores = result(results, next);
        if (s.dropout > 0) x.streams = streams_of(x, to.stats);
        forward(std::string(pair), x, s, to, threads());
    });
}

// Returns the next result as the gradient of an input. Where vmap batches a gradient, the input is batched too, or is
// shared by the batch.
Output gradient(ffi::RemainingRets results, std::size_t& next, View& input) {
    if (!input) return {};
    Output to = result(results, next++);
    if (to.shape.size() != input.shape.size()) throw std::invalid_argument("a gradient has not the rank of its input.");
    for (std::size_t r = 0; r < to.shape.size(); r++)
        if (input.shape[r] != to.shape[r]) input.shape[r] = to.shape[r], input.strides[r] = 0;
    return to;
}

ffi::Error xla_backward(ffi::RemainingArgs operands, ffi::RemainingRets results, std::string_view pair,
                        std::string_view names, Numbers numbers) {
    return guarded([&] {
        NamedOperands x(operands, names);
        Settings s = settings(numbers);
        Output d_a = result(results, 0);
        std::vector<Size> lead = lead_of({&x.stats, &d_a}, std::size_t(x.stats.rank()) - 2);
        ExpandedOperand stats(x.stats, lead), scores(x.scores, lead), d_stats(x.d_stats, lead), d_scores(x.d_scores, lead);
        if (s.dropout > 0) x.streams = streams_of(x, x.stats);
        std::size_t next = 0;
        Gradients to;
        to.a = gradient(results, next, x.a);
        to.b = gradient(results, next, x.b);
        to.weight = gradient(results, next, x.weight);
        to.key_bias = gradient(results, next, x.key_bias);
        to.value = gradient(results, next, x.value);
        to.bias = gradient(results, next, x.bias);
        to.c = gradient(results, next, x.c);
        Results of{x.output, x.stats, x.scores, x.d_output, x.d_stats, x.d_scores};
        backward(std::string(pair), x, s, of, to, threads());
    });
}

ffi::Error xla_prepare_keys(ffi::RemainingArgs operands, ffi::RemainingRets results, std::string_view pair,
                            std::string_view names) {
    return guarded([&] {
        NamedOperands x(operands, names);
        Output packed = result(results, 0);
        prepare_keys(std::string(pair), x.b, packed, threads());
    });
}

// Operands: b, packed, and start, the number of keys before these `count`. The result has the memory of packed where
// possible.
ffi::Error xla_append_keys(ffi::RemainingArgs operands, ffi::RemainingRets results, std::string_view pair,
                           std::string_view names, std::int64_t count) {
    return guarded([&] {
        NamedOperands x(operands, names);
        Output packed = result(results, 0);
        if (packed.shape != x.packed.shape || packed.dtype != x.packed.dtype)
            throw std::invalid_argument("the result is not like packed.");
        if (packed.data != x.packed.data)
            std::memcpy(packed.data, x.packed.data, std::size_t(packed.size() * (packed.dtype.bits / 8)));
        if (x.start.rank() != 0 || x.start.dtype.code != std::uint8_t(nb::dlpack::dtype_code::Int))
            throw std::invalid_argument("start must be an integer ().");
        const Size start = x.start.dtype.bits == 32 ? *static_cast<const std::int32_t*>(x.start.data)
                                                    : *static_cast<const std::int64_t*>(x.start.data);
        append_keys(std::string(pair), x.b, packed, {start, count}, threads());
    });
}

// pair: the name of the normalizer.
ffi::Error xla_sparse(ffi::RemainingArgs operands, ffi::RemainingRets results, std::string_view pair, std::string_view) {
    return guarded([&] {
        auto scores = operands.get<ffi::AnyBuffer>(0);
        if (!scores.has_value()) throw std::invalid_argument("scores are missing.");
        Output weights = result(results, 0);
        sparse(pair == "sparsemax" ? 1 : 2, view<View>(*scores), weights, threads());
    });
}

auto bind_call() {
    return ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attr<std::string_view>("pair").Attr<std::string_view>("names");
}

XLA_FFI_DEFINE_HANDLER(kForward, xla_forward, bind_call().Attr<Numbers>("numbers"));
XLA_FFI_DEFINE_HANDLER(kBackward, xla_backward, bind_call().Attr<Numbers>("numbers"));
XLA_FFI_DEFINE_HANDLER(kPrepareKeys, xla_prepare_keys, bind_call());
XLA_FFI_DEFINE_HANDLER(kAppendKeys, xla_append_keys, bind_call().Attr<std::int64_t>("count"));
XLA_FFI_DEFINE_HANDLER(kSparse, xla_sparse, bind_call());

}  // namespace

void bind_xla(nb::module_& module) {
    module.def("xla_targets", [] {
        nb::dict targets;
        auto add = [&](const char* name, auto* handler) { targets[name] = nb::capsule(reinterpret_cast<void*>(handler)); };
        add("forward", kForward), add("backward", kBackward), add("prepare_keys", kPrepareKeys), add("sparse", kSparse);
        add("append_keys", kAppendKeys);
        return targets;
    });
}

}  // namespace anyscore
