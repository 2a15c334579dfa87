// The kernels of a processor that is not here, or of instructions that it does not own up to, in a program of their
// own: a call comes in as numbers on standard input, and its results go out on standard output. See
// test_elsewhere.py.
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "runtime/call.h"

namespace anyscore::ANYSCORE_ISA {
template <class T> struct Tables {
    static const KernelTable DIVIDING;
};
}

using namespace anyscore;

template <class T> std::vector<T> take(Size count) {
    std::vector<T> x(static_cast<std::size_t>(count));
    if (std::fread(x.data(), sizeof(T), x.size(), stdin) != x.size()) std::abort();
    return x;
}

template <class T> void give(const std::vector<T>& x) { std::fwrite(x.data(), sizeof(T), x.size(), stdout); }

// A result, or where each problem's part of an array starts.
template <class T> std::vector<T> empty(Size count) { return std::vector<T>(static_cast<std::size_t>(count)); }
std::vector<Size> multiples(Size count, Size step) {
    std::vector<Size> at;
    for (Size n = 0; n < count; n++) at.push_back(n * step);
    return at;
}

struct Sizes {
    Size row, type, problems, queries, keys, width, value_width, is_unweighted;
};

// In: the type of what comes in. T: of sums, and of what goes out.
template <class In, class T> void run(const Sizes& s) {
    const Type sums = sizeof(T) == 4 ? Type::F32 : Type::F64, type = Type(s.type);
    const Size n = s.problems;
    const double scale = take<double>(1)[0];
    auto a = take<In>(n * s.queries * s.width), b = take<In>(n * s.keys * s.width), weight = take<In>(s.width);
    auto value = take<In>(n * s.keys * s.value_width), d_output = take<In>(n * s.queries * s.value_width);
    auto at_a = multiples(n, s.queries * s.width), at_b = multiples(n, s.keys * s.width), at_weight = multiples(n, 0);
    auto at_value = multiples(n, s.keys * s.value_width), at_output = multiples(n, s.queries * s.value_width);
    auto each = multiples(n + 1, 1);

    Call call;
    call.problems = call.key_sets = n, call.queries = s.queries, call.keys = s.keys;
    call.width = s.width, call.value_width = s.value_width, call.scale = scale;
    call.a = {a.data(), type, at_a.data(), s.width};
    call.b = {b.data(), type, at_b.data(), s.width};
    if (!s.is_unweighted) call.weight = {weight.data(), type, at_weight.data(), 0};
    call.dots = type == Type::BF16;
    call.value = {value.data(), type, at_value.data(), s.value_width};
    call.key_set = call.first_problem = each.data();
    auto output = empty<T>(n * s.queries * s.value_width), stats = empty<T>(n * 2 * s.queries);
    auto scores = empty<T>(n * s.queries * s.keys);
    Forward made;
    made.output = output.data(), made.output_type = sums, made.stats = stats.data(), made.scores = scores.data();
    const Kernels& kernels = ANYSCORE_ISA::Tables<T>::DIVIDING.of[s.row];
    kernels.forward(call, made, 2);

    auto d_a = empty<T>(n * s.queries * s.width), d_b = empty<T>(n * s.keys * s.width), d_weight = empty<T>(s.width);
    auto d_value = empty<T>(n * s.keys * s.value_width);
    const bool is_first[] = {true, false};  // of the weight, which the problems share
    const bool always[] = {true, true};
    const Size whole[] = {0, n};
    Backward back;
    back.stats = stats.data();
    back.output = {output.data(), sums, at_output.data(), s.value_width};
    back.d_output = {d_output.data(), type, at_output.data(), s.value_width};
    back.d_a = {d_a.data(), at_a.data(), always};
    back.d_b = {d_b.data(), at_b.data(), always};
    if (!s.is_unweighted) back.d_weight = {d_weight.data(), at_weight.data(), is_first};
    back.d_value = {d_value.data(), at_value.data(), always};
    back.of_a = back.tasks = {n, each.data(), each.data()};
    back.of_weight = {1, whole, each.data()};
    kernels.backward(call, back, 2);
    for (auto* x : {&output, &stats, &scores, &d_a, &d_b, &d_weight, &d_value}) give(*x);
}

int main() {
    auto x = take<Size>(8);
    Sizes sizes{x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7]};
    if (sizes.problems > 2) return 2;
    switch (Type(sizes.type)) {
        case Type::F32: run<float, float>(sizes); break;
        case Type::F64: run<double, double>(sizes); break;
        default: run<std::uint16_t, float>(sizes);
    }
}
