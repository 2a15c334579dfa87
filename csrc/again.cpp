// Calls that come again: a forward that was checked once runs with other arrays of the same types, shapes and
// strides, with no Python in between and nothing checked but that.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

#include "arrays.h"
#include "calls.h"

namespace nb = nanobind;

namespace anyscore {
namespace {

using Lent = nb::dlpack::dltensor;

// An array that came, and what another must be like to take its place.
struct Place {
    PyTypeObject* of;
    Exchange exchange;
    nb::dlpack::dtype dtype;
    std::vector<Size> shape, strides;

    // The memory of an array, null if it is another kind of array.
    const void* memory(nb::handle x) const {
        Lent lent;
        if (Py_TYPE(x.ptr()) != of) return nullptr;
        if (exchange(x.ptr(), &lent)) return PyErr_Clear(), nullptr;
        bool same = lent.device.device_type == CPU && lent.dtype == dtype && std::size_t(lent.ndim) == shape.size() &&
                    lent.strides && std::equal(shape.begin(), shape.end(), lent.shape) &&
                    std::equal(strides.begin(), strides.end(), lent.strides);
        return same ? (const char*)lent.data + lent.byte_offset : nullptr;
    }
};

// The operands that a call may have.
constexpr std::string_view KINDS[] = {"a", "b", "weight", "value", "packed"};

class Again {
public:
    // As `forward` of module.cpp: the call that it took, without masks, biases and dropout. Raises
    // std::invalid_argument where another cannot take its place, as its arrays are not lent or have to be copied.
    Again(nb::tuple operands, const std::string& pair, const std::array<double, Settings::COUNT>& numbers, nb::tuple results)
        : pair(pair), settings(numbers.data()) {
        Operands in;
        for (std::size_t i = 0; i < std::size(OPERANDS); i++) {
            nb::handle x = operands[i];
            auto* kind = std::find(std::begin(KINDS), std::end(KINDS), OPERANDS[i].name);
            if (kind == std::end(KINDS) && !x.is_none()) throw std::invalid_argument("the call has more operands.");
            if (x.is_none()) continue;
            View& view = in.*OPERANDS[i].view;
            Exchange exchange = exchange_of(x.ptr());
            if (!exchange || !anyscore::view(x.ptr(), false, view)) throw std::invalid_argument("its arrays are not lent.");
            places[kind - KINDS] = Place{Py_TYPE(x.ptr()), exchange, view.dtype, view.shape, view.strides};
        }
        Output output, lse;
        if (!view(nb::handle(results[0]).ptr(), true, output) || !view(nb::handle(results[1]).ptr(), true, lse))
            throw std::invalid_argument("its results are not lent.");
        arrays.emplace(std::vector<Size>(lse.shape.begin(), lse.shape.end() - 1), settings.groups);
        call = describe(*arrays, in, settings, lse.shape.back());
        sums = Arrays::type("lse", lse), output_type = Arrays::type("output", output);
        if (in.packed) call.packed = arrays->rows("packed", in.packed, {call.keys + 1, call.width}, true);
        if (in.packed && call.packed.type != sums) throw std::invalid_argument("packed must have the type of lse.");
        if (arrays->has_copies()) throw std::invalid_argument("its arrays have to be copied.");
        rows = lse.size();
        shape = nb::steal<nb::tuple>(PyTuple_New(output.rank()));
        for (Size i = 0; i < output.rank(); i++)
            PyTuple_SET_ITEM(shape.ptr(), i, PyLong_FromLongLong(output.shape[std::size_t(i)]));
    }

    Again(const Again&) = delete;

    // The output for arrays a, b, weight, value and packed, or None where these are others.
    nb::object run(nb::handle a, nb::handle b, nb::handle weight, nb::handle value, nb::handle packed, int threads) const {
        Call now = call;
        const nb::handle operands[] = {a, b, weight, value, packed};
        Rows* const rows_of[] = {&now.a, &now.b, &now.weight, &now.value, &now.packed};
        for (std::size_t i = 0; i < std::size(operands); i++) {
            if (operands[i].is_none() == places[i].has_value()) return nb::none();
            if (!places[i]) continue;
            rows_of[i]->data = places[i]->memory(operands[i]);
            if (!rows_of[i]->data) return nb::none();
        }
        static PyObject* new_empty = PyUnicode_InternFromString("new_empty");
        nb::object output = nb::steal(PyObject_CallMethodOneArg(a.ptr(), new_empty, shape.ptr()));
        if (!output.is_valid()) throw nb::python_error();
        View to;
        if (!view(output.ptr(), true, to) || Arrays::type("output", to) != output_type) return nb::none();
        nb::gil_scoped_release release;
        Block lse = allocate(Size(sizeof(double)), rows);
        Forward made;
        made.output = to.data, made.output_type = output_type, made.lse = lse.data;
        find(pair, sums).forward(now, made, threads);
        return output;
    }

private:
    std::string pair;
    Settings settings;
    std::array<std::optional<Place>, std::size(KINDS)> places;
    std::optional<Arrays> arrays;  // what the call points to
    Call call;
    Type sums, output_type;
    Size rows;
    nb::tuple shape;
};

}  // namespace

void bind_again(nb::module_& module) {
    nb::class_<Again>(module, "Again")
        .def(nb::init<nb::tuple, const std::string&, const std::array<double, Settings::COUNT>&, nb::tuple>())
        .def("__call__", &Again::run, nb::arg("a"), nb::arg("b"), nb::arg("weight").none(), nb::arg("value"),
             nb::arg("packed").none(), nb::arg("threads"));
}

}  // namespace anyscore
