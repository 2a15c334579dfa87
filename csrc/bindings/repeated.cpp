// Repeated calls: checked once, then run on other arrays of the same types, shapes and strides. Nothing else is
// checked, and no Python runs in between.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "bindings/arrays.h"
#include "bindings/calls.h"
#include "bindings/layout.h"
#include "bindings/released.h"
#include "runtime/isa.h"

namespace nb = nanobind;

namespace anyscore {
namespace {

// The arrays of a repeated call; the first five have gradients. The seed of dropout follows.
constexpr std::string_view KINDS[] = {"a", "b", "weight", "key_bias", "value", "packed", "start", "stop", "mask"};
constexpr std::size_t FACTORS = 5, VALUE = 4, PACKED = 5, START = 6, SEED = std::size(KINDS);

// A result of a repeated call: its shape, and the layout that arrays of this shape have.
class Result {
public:
    // empty(like, shape) makes the results, of the type `type`.
    Result() = default;
    Result(nb::handle empty, nb::handle like, const std::vector<Size>& sizes, Type type)
        : shape(nb::steal<nb::tuple>(PyTuple_New(Py_ssize_t(sizes.size())))) {
        for (std::size_t i = 0; i < sizes.size(); i++)
            PyTuple_SetItem(shape.ptr(), Py_ssize_t(i), PyLong_FromLongLong(sizes[i]));
        nb::object first = made(empty, like);
        View array = lent(first, true);
        if (Arrays::type("a result", array) != type) throw std::invalid_argument("a result is of another type.");
        Arrays::contiguous("a result", array, sizes);
        layout.emplace(first.ptr(), array, true);
    }

    // Returns a new array, and writes its memory to `data`.
    nb::object make(nb::handle empty, nb::handle like, void*& data) const {
        nb::object array = made(empty, like);
        data = layout->memory(array.ptr());
        if (!data) throw std::invalid_argument("a result has another layout.");
        return array;
    }

    explicit operator bool() const { return layout.has_value(); }

private:
    nb::object made(nb::handle empty, nb::handle like) const {
        PyObject* const arguments[] = {like.ptr(), shape.ptr()};
        nb::object array = nb::steal(PyObject_Vectorcall(empty.ptr(), arguments, 2, nullptr));
        if (!array.is_valid()) throw nb::python_error();
        return array;
    }

    nb::object shape;
    std::optional<ArrayLayout> layout;
};

// A larger call is not kept, and takes long anyway: it has several numbers for each problem, and makes scores once.
constexpr Size MOST_PROBLEMS = 4096, MOST_SCORES = 1 << 16;

// A forward that was checked, and its backward if `trains`, to be run on other arrays.
class RepeatedCall {
public:
    // Keeps a call that `forward` accepts, without edges and biases of scores. The output has the leading
    // dimensions `lead`, and empty(a, shape) makes it in the type of a; the output of a call without values is the
    // scores. If `lengths` is not None, the operand stop is a view of it, and each call passes such lengths as its stop.
    // keeps_scores: whether a backward gets the scores in place of the output. Raises std::invalid_argument for a call
    // that cannot be repeated.
    RepeatedCall(nb::tuple operands, nb::handle lengths, const std::string& pair,
                 const std::array<double, Settings::COUNT>& numbers, const std::vector<Size>& lead, nb::object empty,
                 bool keeps_scores)
        : pair(pair), empty(empty), settings(numbers.data()), arrays(lead, settings.groups) {
        for (std::size_t i = 0; i < std::size(OPERANDS); i++) {
            nb::handle x = operands[i];
            if (x.is_none() || !OPERANDS[i].view) continue;
            auto* kind = std::find(std::begin(KINDS), std::end(KINDS), OPERANDS[i].name);
            if (kind == std::end(KINDS)) throw std::invalid_argument("the call has operands that are made for it.");
            View& array = in.*OPERANDS[i].view;
            nb::handle comes = *kind == "stop" && !lengths.is_none() ? lengths : x;
            View as_it_comes = lent(comes);
            array = lent(x);
            if (array.data != as_it_comes.data) throw std::invalid_argument("its arrays have to be copied.");
            layouts[std::size_t(kind - KINDS)].emplace(comes.ptr(), as_it_comes);
            if (kind < std::begin(KINDS) + START && Arrays::type(OPERANDS[i].name, array) == Type::F64) sums = Type::F64;
        }
        if (arrays.problems > MOST_PROBLEMS) throw std::invalid_argument("the call is too large to be kept.");
        if (!in.a || !in.b || in.a.rank() < 2) throw std::invalid_argument("the call has no output.");
        if (settings.dropout > 0) in.streams.resize(std::size_t(arrays.problems));
        call = describe(arrays, in, settings, in.a.shape[in.a.shape.size() - 2], sums);
        if (in.packed) take_packed(call, arrays, in.packed, sums);
        if (arrays.has_copies()) throw std::invalid_argument("its arrays have to be copied.");
        if (!in.value && arrays.problems * call.queries * call.keys > MOST_SCORES)
            throw std::invalid_argument("the call has too many scores to be kept.");
        output = {empty, operands[0], shape(call.queries, in.value ? call.value_width : call.keys),
                  in.value ? call.a.type : sums};
        describe_backward(operands, keeps_scores);
        // Keeps the shapes of these arrays, not their memory.
        for (auto [name, array] : OPERANDS)
            if (array) (in.*array).owner = {};
        in.streams.clear();
    }

    RepeatedCall(const RepeatedCall&) = delete;

    // Returns the output for operands, arrays of the `KINDS` and a seed, None where the call has none; None if
    // layouts differ.
    nb::object infer(const nb::tuple& operands, int threads) const {
        Call now;
        std::vector<Stream> streams;
        if (!take(operands, now, streams)) return nb::none();
        Forward made;
        made.output_type = call.a.type;
        nb::object found = output.make(empty, operands[0], has_value() ? made.output : made.scores);
        Released released;
        Block block = allocate(Size(sizeof(double)), call.problems * call.queries * 2);
        made.stats = block.data;
        find(pair, sums).forward(now, made, threads);
        return found;
    }

    // Returns (output, stats, scores or None) for arrays as in `infer`; None if their layouts differ, or the call has no
    // repeated backward.
    nb::object forward(const nb::tuple& operands, int threads) const {
        Call now;
        std::vector<Stream> streams;
        if (!trains || !take(operands, now, streams)) return nb::none();
        Forward made;
        made.output_type = call.a.type;
        nb::object of_output = output.make(empty, operands[0], has_value() ? made.output : made.scores),
                   of_stats = stats.make(empty, operands[0], made.stats);
        nb::object of_scores = scores ? scores.make(empty, operands[0], made.scores) : nb::none();
        nb::object all = nb::make_tuple(of_output, of_stats, of_scores);
        Released released;
        find(pair, sums).forward(now, made, threads);
        return all;
    }

    // Returns the gradients of a, b, weight, key_bias and value, each None if the call lacks it; None if layouts
    // differ. Here `kept` is the scores of `forward` if it keeps them, else its output, and None without values;
    // d_output is the gradient of the output.
    nb::object backward(const nb::tuple& operands, nb::handle kept, nb::handle stats, nb::handle d_output,
                        int threads) const {
        Call now;
        std::vector<Stream> streams;
        if (!trains || !take(operands, now, streams, false)) return nb::none();
        now.packed = {};
        View of_kept = has_value() ? lent(kept) : View(), of_stats = lent(stats), upstream = lent(d_output);
        Arrays results(arrays.lead, settings.groups);
        Backward now_back = back;
        if (!has_value()) {
            if (Arrays::type("d_scores", upstream) != sums) throw std::invalid_argument("d_scores has another type.");
            now_back.d_scores = Arrays::contiguous("d_scores", upstream, shape(call.queries, call.keys));
        } else if (scores) {
            if (Arrays::type("scores", of_kept) != sums) throw std::invalid_argument("scores must be those of the forward.");
            now.kept = Arrays::contiguous("scores", of_kept, shape(call.queries, call.keys));
        } else {
            now_back.output = results.rows("output", of_kept, {call.queries, call.value_width}, false);
        }
        if (has_value()) now_back.d_output = results.rows("d_output", upstream, {call.queries, call.value_width}, false);
        if (Arrays::type("stats", of_stats) != sums) throw std::invalid_argument("stats must be those of the forward.");
        now_back.stats = Arrays::contiguous("stats", of_stats, shape(2, call.queries));
        void** const data_of[] = {&now_back.d_a.data, &now_back.d_b.data, &now_back.d_weight.data, &now_back.d_key_bias.data,
                                  &now_back.d_value.data};
        nb::object gradients[FACTORS];
        for (std::size_t i = 0; i < FACTORS; i++)
            gradients[i] = layouts[i] ? slopes[i].make(empty, operands[i], *data_of[i]) : nb::none();
        nb::object all = nb::make_tuple(gradients[0], gradients[1], gradients[2], gradients[3], gradients[4]);
        Released released;
        find(pair, sums).backward(now, now_back, threads);
        return all;
    }

private:
    bool has_value() const { return layouts[VALUE].has_value(); }

    // Describes the backward, if the call can have one: all arrays have the type of the sums, and one tile holds all
    // keys of scores that are kept.
    void describe_backward(nb::tuple operands, bool keeps_scores) {
        if (!arrays.problems || (keeps_scores && call.keys > TILE)) return;
        Gradients to;
        const View* const given[] = {&in.a, &in.b, &in.weight, &in.key_bias, &in.value};
        Output* const gradients[] = {&to.a, &to.b, &to.weight, &to.key_bias, &to.value};
        for (std::size_t i = 0; i < FACTORS; i++) {
            const View& x = *given[i];
            if (!x) continue;
            if (Arrays::type(KINDS[i].data(), x) != sums) return;
            slopes[i] = {empty, operands[i], layouts[i]->shape, sums};
            Output& d = *gradients[i];
            d.given = true, d.data = x.data, d.dtype = x.dtype, d.shape = x.shape, d.strides = dense_strides(x.shape);
        }
        back = describe_gradients(arrays, call, in, settings, sums, to);
        stats = {empty, operands[0], shape(2, call.queries), sums};
        if (keeps_scores) scores = {empty, operands[0], shape(call.queries, call.keys), sums};
        trains = true;
    }

    // Returns the shape (*lead, rows, columns).
    std::vector<Size> shape(Size rows, Size columns) const {
        std::vector<Size> sizes = arrays.lead;
        sizes.push_back(rows), sizes.push_back(columns);
        return sizes;
    }

    // Writes the call of these operands to `now`, which points to the `streams`. Returns false if layouts differ. A
    // forward has packed keys if the first call had; its backward may lack them.
    bool take(const nb::tuple& operands, Call& now, std::vector<Stream>& streams, bool needs_packed = true) const {
        now = call;
        now.dots = call.dots && dots();
        const void* of_mask[3] = {};
        const void** const data_of[] = {&now.a.data,      &now.b.data, &now.weight.data, &now.key_bias.data, &now.value.data,
                                        &now.packed.data, &of_mask[0], &of_mask[1],      &of_mask[2]};
        if (operands.size() != SEED + 1) throw std::invalid_argument("the call has ten operands.");
        for (std::size_t i = 0; i < SEED; i++) {
            if (i == PACKED && !needs_packed) continue;
            nb::handle x = operands[i];
            if (x.is_none() == layouts[i].has_value()) return false;
            if (!layouts[i]) continue;
            *data_of[i] = layouts[i]->memory(x.ptr());
            if (!*data_of[i]) return false;
        }
        now.start.data = static_cast<const std::int64_t*>(of_mask[0]);
        now.stop.data = static_cast<const std::int64_t*>(of_mask[1]);
        now.mask.data = static_cast<const bool*>(of_mask[2]);
        if (settings.dropout > 0) {
            streams = anyscore::streams(seed(operands[SEED]), settings.dropout_period, arrays.problems);
            now.dropout.streams = streams.data();
        }
        return true;
    }

    std::string pair;
    nb::object empty;
    Settings settings;
    std::array<std::optional<ArrayLayout>, std::size(KINDS)> layouts;
    Operands in;  // shapes only
    Arrays arrays;  // owns the offsets of `call`
    Call call;
    Type sums = Type::F32;
    bool trains = false;
    Backward back;  // with null data
    Result output, stats, scores, slopes[FACTORS];  // no scores if they are not kept
};

// Returns whether the exponent of every number is that of a finite one.
template <class Bits> bool are_finite(const View& x, Bits exponent) {
    const std::size_t rank = x.shape.size();
    const bool has_rows = rank > 0 && x.strides[rank - 1] == 1;
    const Size width = has_rows ? x.shape[rank - 1] : 1, rows = width ? x.size() / width : 0;
    std::vector<Size> index(rank, 0);
    auto* row = static_cast<const Bits*>(x.data);
    for (Size n = 0; n < rows; n++) {
        bool is_special = false;
        for (Size d = 0; d < width; d++) is_special |= (row[d] & exponent) == exponent;
        if (is_special) return false;
        for (std::size_t r = has_rows ? rank - 1 : rank; r-- > 0;) {
            row += x.strides[r];
            if (++index[r] < x.shape[r]) break;
            row -= x.strides[r] * x.shape[r], index[r] = 0;
        }
    }
    return true;
}

// Returns whether all numbers of an array are finite; false for an array of another type.
bool is_finite(const View& x) {
    if (x.dtype.code != std::uint8_t(nb::dlpack::dtype_code::Float)) return false;
    if (x.dtype.bits == 32) return are_finite<std::uint32_t>(x, 0x7f800000u);
    return x.dtype.bits == 64 && are_finite<std::uint64_t>(x, 0x7ff0000000000000u);
}

}  // namespace

void bind_repeated(nb::module_& module) {
    module.def("is_finite", [](View x) { return is_finite(x); });
    nb::class_<RepeatedCall>(module, "RepeatedCall")
        .def(nb::init<nb::tuple, nb::handle, const std::string&, const std::array<double, Settings::COUNT>&,
                      const std::vector<Size>&, nb::object, bool>(),
             nb::arg(), nb::arg().none(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg())
        .def("infer", &RepeatedCall::infer, nb::arg("operands"), nb::arg("threads"))
        .def("forward", &RepeatedCall::forward, nb::arg("operands"), nb::arg("threads"))
        .def("backward", &RepeatedCall::backward, nb::arg("operands"), nb::arg("kept").none(), nb::arg("stats"),
             nb::arg("d_output"), nb::arg("threads"));
}

}  // namespace anyscore
