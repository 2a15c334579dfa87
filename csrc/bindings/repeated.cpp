// Repeated calls: checked once, then run on other arrays of the same types, shapes and strides. Nothing else is
// checked, and no Python runs in between.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
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

// The operands of a repeated call; the first four have gradients.
constexpr std::string_view KINDS[] = {"a", "b", "weight", "value", "packed", "stop"};
constexpr std::size_t FACTORS = 4, PACKED = 4;
using Given = std::array<nb::handle, std::size(KINDS)>;

// A larger call is not kept: it has several numbers for each problem, and takes long anyway.
constexpr Size MOST_PROBLEMS = 4096;

// A forward that was checked, to be run on other arrays.
class Again {
public:
    // Keeps a call that `forward` accepts, without biases and dropout, and with no mask but the ends of intervals.
    // The output has the leading dimensions `lead`, and empty(a, shape) makes it in the type of a. The operand stop
    // is a view of `lengths`, unless that is None; each call passes its own lengths. Raises std::invalid_argument for
    // a call that cannot be repeated.
    Again(nb::tuple operands, nb::handle lengths, const std::string& pair,
          const std::array<double, Settings::COUNT>& numbers, const std::vector<Size>& lead, nb::object empty)
        : pair(pair), empty(empty), settings(numbers.data()), arrays(lead, settings.groups) {
        for (std::size_t i = 0; i < std::size(OPERANDS); i++) {
            nb::handle x = operands[i];
            if (x.is_none()) continue;
            auto* kind = std::find(std::begin(KINDS), std::end(KINDS), OPERANDS[i].name);
            if (kind == std::end(KINDS)) throw std::invalid_argument("the call has operands that are made for it.");
            View& array = in.*OPERANDS[i].view;
            nb::handle comes = *kind == "stop" && !lengths.is_none() ? lengths : x;
            View as_it_comes = lent(comes);
            array = lent(x);
            if (array.data != as_it_comes.data) throw std::invalid_argument("its arrays have to be copied.");
            places[std::size_t(kind - KINDS)].emplace(comes.ptr(), as_it_comes);
            if (*kind != "stop" && Arrays::type(OPERANDS[i].name, array) == Type::F64) sums = Type::F64;
        }
        if (arrays.problems > MOST_PROBLEMS) throw std::invalid_argument("the call is too large to be kept.");
        if (!in.a || !in.b || !in.value || in.a.rank() < 2) throw std::invalid_argument("the call has no output.");
        call = describe(arrays, in, settings, in.a.shape[in.a.shape.size() - 2]);
        output_type = call.a.type;
        if (in.packed) take_packed(call, arrays, in.packed, sums);
        if (arrays.has_copies()) throw std::invalid_argument("its arrays have to be copied.");
        output_shape = tuple(shape(call.queries, call.value_width));
        stats_shape = tuple(shape(2, call.queries));
        // Keeps the shapes of these arrays, not their memory.
        for (auto [name, array] : OPERANDS)
            if (array) (in.*array).owner = {};
    }

    Again(const Again&) = delete;

    // Returns the output for arrays a, b, weight, value, packed and lengths; None if their layouts differ.
    nb::object run(nb::handle a, nb::handle b, nb::handle weight, nb::handle value, nb::handle packed, nb::handle lengths,
                   int threads) const {
        Call now;
        if (!take({a, b, weight, value, packed, lengths}, now)) return nb::none();
        nb::object output = make(a, output_shape);
        View to;
        if (!view(output.ptr(), true, to) || Arrays::type("output", to) != output_type) return nb::none();
        Released released;
        Block stats = allocate(Size(sizeof(double)), call.problems * call.queries * 2);
        Forward made;
        made.output = to.data, made.output_type = output_type, made.stats = stats.data;
        find(pair, sums).forward(now, made, threads);
        return output;
    }

protected:
    // Returns the shape (*lead, rows, columns).
    std::vector<Size> shape(Size rows, Size columns) const {
        std::vector<Size> sizes = arrays.lead;
        sizes.push_back(rows), sizes.push_back(columns);
        return sizes;
    }

    static nb::tuple tuple(const std::vector<Size>& sizes) {
        nb::tuple shape = nb::steal<nb::tuple>(PyTuple_New(Py_ssize_t(sizes.size())));
        for (std::size_t i = 0; i < sizes.size(); i++)
            PyTuple_SET_ITEM(shape.ptr(), Py_ssize_t(i), PyLong_FromLongLong(sizes[i]));
        return shape;
    }

    // Writes the call of these arrays to `now`. Returns false if their layouts differ. A forward has packed keys if
    // the first call had; its backward may lack them.
    bool take(const Given& operands, Call& now, bool needs_packed = true) const {
        now = call;
        now.dots = call.dots && dots();
        const void* bounds = nullptr;
        const void** const data_of[] = {&now.a.data,     &now.b.data,      &now.weight.data,
                                        &now.value.data, &now.packed.data, &bounds};
        for (std::size_t i = 0; i < operands.size(); i++) {
            if (i == PACKED && !needs_packed) continue;
            if (operands[i].is_none() == places[i].has_value()) return false;
            if (!places[i]) continue;
            *data_of[i] = places[i]->memory(operands[i].ptr());
            if (!*data_of[i]) return false;
        }
        now.stop.data = static_cast<const std::int64_t*>(bounds);
        return true;
    }

    nb::object make(nb::handle like, nb::handle shape) const {
        nb::object made = nb::steal(PyObject_CallFunctionObjArgs(empty.ptr(), like.ptr(), shape.ptr(), nullptr));
        if (!made.is_valid()) throw nb::python_error();
        return made;
    }

    std::string pair;
    nb::object empty;
    Settings settings;
    std::array<std::optional<ArrayLayout>, std::size(KINDS)> places;
    Operands in;  // shapes only
    Arrays arrays;  // owns the offsets of `call`
    Call call;
    Type sums = Type::F32, output_type;
    nb::tuple output_shape, stats_shape;
};

// A forward and a backward that were checked. All arrays have the type of the sums.
class TrainAgain : public Again {
public:
    // keeps_scores: whether a backward gets the scores in place of the output; then one tile must hold all keys.
    TrainAgain(nb::tuple operands, const std::string& pair, const std::array<double, Settings::COUNT>& numbers,
               const std::vector<Size>& lead, nb::object empty, bool keeps_scores)
        : Again(operands, nb::none(), pair, numbers, lead, empty) {
        if (keeps_scores && call.keys > TILE) throw std::invalid_argument("its scores cannot stand for its output.");
        if (keeps_scores) scores_shape = tuple(shape(call.queries, call.keys));
        Gradients to;
        const View* const given[] = {&in.a, &in.b, &in.weight, &in.value};
        Output* const gradients[] = {&to.a, &to.b, &to.weight, &to.value};
        for (std::size_t i = 0; i < FACTORS; i++) {
            const View& x = *given[i];
            if (!x) continue;
            if (Arrays::type(KINDS[i].data(), x) != sums) throw std::invalid_argument("its sums are of another type.");
            shapes[i] = tuple(places[i]->shape);
            Output& d = *gradients[i];
            d.given = true, d.data = x.data, d.dtype = x.dtype, d.shape = x.shape, d.strides = dense_strides(x.shape);
        }
        if (!arrays.problems) throw std::invalid_argument("the call computes nothing.");
        back = describe_gradients(arrays, call, in, settings, sums, to);
    }

    // Returns (output, stats, scores or None) for arrays as in Again::run; None if their layouts differ.
    nb::object forward(nb::handle a, nb::handle b, nb::handle weight, nb::handle value, nb::handle packed, nb::handle stop,
                       int threads) const {
        Call now;
        if (!take({a, b, weight, value, packed, stop}, now)) return nb::none();
        nb::object output = make(a, output_shape), stats = make(a, stats_shape);
        nb::object scores = keeps_scores() ? make(a, scores_shape) : nb::none();
        Forward made;
        made.output = written(output), made.output_type = output_type, made.stats = written(stats);
        if (keeps_scores()) made.scores = written(scores);
        nb::object all = nb::make_tuple(output, stats, scores);
        Released released;
        find(pair, sums).forward(now, made, threads);
        return all;
    }

    // Returns the gradients of a, b, weight and value, each None if the call lacks it; None if layouts differ. Here
    // `kept` is the scores of `forward` if it keeps them, else its output; d_output is the gradient of the output.
    nb::object backward(nb::handle a, nb::handle b, nb::handle weight, nb::handle value, nb::handle stop, nb::handle kept,
                        nb::handle stats, nb::handle d_output, int threads) const {
        Call now;
        const Given operands = {a, b, weight, value, nb::none(), stop};
        if (!take(operands, now, false)) return nb::none();
        now.packed = {};
        View of_kept = lent(kept), of_stats = lent(stats), upstream = lent(d_output);
        Arrays results(arrays.lead, settings.groups);
        Backward now_back = back;
        if (keeps_scores()) {
            if (Arrays::type("scores", of_kept) != sums) throw std::invalid_argument("scores must be those of the forward.");
            now.kept = Arrays::contiguous("scores", of_kept, shape(call.queries, call.keys));
        } else {
            now_back.output = results.rows("output", of_kept, {call.queries, call.value_width}, false);
        }
        now_back.d_output = results.rows("d_output", upstream, {call.queries, call.value_width}, false);
        if (Arrays::type("stats", of_stats) != sums) throw std::invalid_argument("stats must be those of the forward.");
        now_back.stats = Arrays::contiguous("stats", of_stats, shape(2, call.queries));
        void** const data_of[] = {&now_back.d_a.data, &now_back.d_b.data, &now_back.d_weight.data, &now_back.d_value.data};
        nb::object gradients[FACTORS];
        for (std::size_t i = 0; i < FACTORS; i++) {
            gradients[i] = places[i] ? make(operands[i], shapes[i]) : nb::none();
            if (places[i]) *data_of[i] = written(gradients[i]);
        }
        nb::object all = nb::make_tuple(gradients[0], gradients[1], gradients[2], gradients[3]);
        Released released;
        find(pair, sums).backward(now, now_back, threads);
        return all;
    }

private:
    bool keeps_scores() const { return scores_shape.is_valid(); }

    void* written(nb::handle x) const {
        View to = lent(x, true);
        if (Arrays::type("a result", to) != sums) throw std::invalid_argument("a result is of another type.");
        return to.data;
    }

    Backward back;  // with null data
    nb::tuple shapes[FACTORS];
    nb::object scores_shape;  // null if scores are not kept
};

}  // namespace

void bind_again(nb::module_& module) {
    nb::class_<Again>(module, "Again")
        .def(nb::init<nb::tuple, nb::handle, const std::string&, const std::array<double, Settings::COUNT>&,
                      const std::vector<Size>&, nb::object>(),
             nb::arg(), nb::arg().none(), nb::arg(), nb::arg(), nb::arg(), nb::arg())
        .def("__call__", &Again::run, nb::arg("a"), nb::arg("b"), nb::arg("weight").none(), nb::arg("value"),
             nb::arg("packed").none(), nb::arg("lengths").none(), nb::arg("threads"));
    nb::class_<TrainAgain>(module, "TrainAgain")
        .def(nb::init<nb::tuple, const std::string&, const std::array<double, Settings::COUNT>&, const std::vector<Size>&,
                      nb::object, bool>())
        .def("forward", &TrainAgain::forward, nb::arg("a"), nb::arg("b"), nb::arg("weight").none(), nb::arg("value"),
             nb::arg("packed").none(), nb::arg("stop").none(), nb::arg("threads"))
        .def("backward", &TrainAgain::backward, nb::arg("a"), nb::arg("b"), nb::arg("weight").none(), nb::arg("value"),
             nb::arg("stop").none(), nb::arg("kept"), nb::arg("stats"), nb::arg("d_output"), nb::arg("threads"));
}

}  // namespace anyscore
