// Calls that come again: a forward that was checked once runs with other arrays of the same types, shapes and
// strides, with no Python in between and nothing checked but that.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

#include "arrays.h"
#include "calls.h"
#include "isa.h"

namespace nb = nanobind;

namespace anyscore {
namespace {

// An array that came, and what another must be like to take its place.
struct Place {
    PyTypeObject* of;
    Exchange exchange;  // or none: it has a buffer, as NumPy's arrays have
    nb::dlpack::dtype dtype;
    std::string format;  // of the buffer
    std::vector<Size> shape, strides;  // strides: in elements, of a buffer in bytes

    Place(PyObject* x, const View& view) : of(Py_TYPE(x)), exchange(nullptr), dtype(view.dtype) {
        shape = view.shape, strides = view.strides;
        Py_buffer buffer;
        if (!PyObject_CheckBuffer(x)) {
            exchange = exchange_of(x);
            if (!exchange) throw std::invalid_argument("its arrays are not lent.");
        } else if (PyObject_GetBuffer(x, &buffer, PyBUF_STRIDES | PyBUF_FORMAT) == 0) {
            strides.assign(buffer.strides, buffer.strides + buffer.ndim);
            format = buffer.format;
            PyBuffer_Release(&buffer);
        } else {
            throw nb::python_error();
        }
    }

    // The memory of an array, null if it is of another kind.
    const void* memory(PyObject* x) const {
        if (Py_TYPE(x) != of) return nullptr;
        if (exchange) {
            nb::dlpack::dltensor lent;
            if (exchange(x, &lent)) return PyErr_Clear(), nullptr;
            if (lent.device.device_type != CPU || !(lent.dtype == dtype) || !lent.strides) return nullptr;
            return is_alike(lent.ndim, lent.shape, lent.strides) ? (const char*)lent.data + lent.byte_offset : nullptr;
        }
        Py_buffer lent;
        if (PyObject_GetBuffer(x, &lent, PyBUF_STRIDES | PyBUF_FORMAT)) return PyErr_Clear(), nullptr;
        const void* data = format == lent.format && is_alike(lent.ndim, lent.shape, lent.strides) ? lent.buf : nullptr;
        PyBuffer_Release(&lent);  // whoever calls holds the array
        return data;
    }

private:
    template <class N> bool is_alike(int rank, const N* its_shape, const N* its_strides) const {
        return std::size_t(rank) == shape.size() && std::equal(shape.begin(), shape.end(), its_shape) &&
               std::equal(strides.begin(), strides.end(), its_strides);
    }
};

// The operands that a call may have.
constexpr std::string_view KINDS[] = {"a", "b", "weight", "value", "packed", "stop"};

class Again {
public:
    // A call that `forward` could take, with no mask but the ends of intervals, without biases and dropout; lead: of its
    // output, which is of the type of a, and is made by empty(a, shape). Raises std::invalid_argument where no other call
    // can take its place.
    Again(nb::tuple operands, const std::string& pair, const std::array<double, Settings::COUNT>& numbers,
          const std::vector<Size>& lead, nb::object empty)
        : pair(pair), empty(empty), settings(numbers.data()), arrays(lead, settings.groups) {
        Operands in;
        for (std::size_t i = 0; i < std::size(OPERANDS); i++) {
            nb::handle x = operands[i];
            if (x.is_none()) continue;
            auto* kind = std::find(std::begin(KINDS), std::end(KINDS), OPERANDS[i].name);
            if (kind == std::end(KINDS)) throw std::invalid_argument("the call has operands that are made for it.");
            View& array = in.*OPERANDS[i].view;
            if (!view(x.ptr(), false, array)) throw std::invalid_argument("its arrays are not lent.");
            places[std::size_t(kind - KINDS)].emplace(x.ptr(), array);
            if (*kind != "stop" && Arrays::type(OPERANDS[i].name, array) == Type::F64) sums = Type::F64;
        }
        if (!in.a || !in.b || !in.value || in.a.rank() < 2) throw std::invalid_argument("the call has no output.");
        call = describe(arrays, in, settings, in.a.shape[in.a.shape.size() - 2]);
        output_type = call.a.type;
        if (in.packed) take_packed(call, arrays, in.packed, sums);
        if (arrays.has_copies()) throw std::invalid_argument("its arrays have to be copied.");
        std::vector<Size> sizes = lead;
        sizes.push_back(call.queries), sizes.push_back(call.value_width);
        shape = nb::steal<nb::tuple>(PyTuple_New(Py_ssize_t(sizes.size())));
        for (std::size_t i = 0; i < sizes.size(); i++)
            PyTuple_SET_ITEM(shape.ptr(), Py_ssize_t(i), PyLong_FromLongLong(sizes[i]));
    }

    Again(const Again&) = delete;

    // The output for arrays a, b, weight, value, packed and stop, or None where these are others.
    nb::object run(nb::handle a, nb::handle b, nb::handle weight, nb::handle value, nb::handle packed, nb::handle stop,
                   int threads) const {
        Call now = call;
        now.dots = call.dots && dots();
        const nb::handle operands[] = {a, b, weight, value, packed, stop};
        const void* bounds = nullptr;
        const void** const data_of[] = {&now.a.data,     &now.b.data,      &now.weight.data,
                                        &now.value.data, &now.packed.data, &bounds};
        for (std::size_t i = 0; i < std::size(operands); i++) {
            if (operands[i].is_none() == places[i].has_value()) return nb::none();
            if (!places[i]) continue;
            *data_of[i] = places[i]->memory(operands[i].ptr());
            if (!*data_of[i]) return nb::none();
        }
        now.stop.data = static_cast<const std::int64_t*>(bounds);
        nb::object output = nb::steal(PyObject_CallFunctionObjArgs(empty.ptr(), a.ptr(), shape.ptr(), nullptr));
        if (!output.is_valid()) throw nb::python_error();
        View to;
        if (!view(output.ptr(), true, to) || Arrays::type("output", to) != output_type) return nb::none();
        nb::gil_scoped_release release;
        Block lse = allocate(Size(sizeof(double)), call.problems * call.queries);
        Forward made;
        made.output = to.data, made.output_type = output_type, made.lse = lse.data;
        find(pair, sums).forward(now, made, threads);
        return output;
    }

private:
    std::string pair;
    nb::object empty;
    Settings settings;
    std::array<std::optional<Place>, std::size(KINDS)> places;
    Arrays arrays;  // what the call points to
    Call call;
    Type sums = Type::F32, output_type;
    nb::tuple shape;
};

}  // namespace

void bind_again(nb::module_& module) {
    nb::class_<Again>(module, "Again")
        .def(nb::init<nb::tuple, const std::string&, const std::array<double, Settings::COUNT>&, const std::vector<Size>&,
                      nb::object>())
        .def("__call__", &Again::run, nb::arg("a"), nb::arg("b"), nb::arg("weight").none(), nb::arg("value"),
             nb::arg("packed").none(), nb::arg("stop").none(), nb::arg("threads"));
}

}  // namespace anyscore
