// Arrays of a call checked, turned into plain data, and passed to the kernels.
#include "bindings/calls.h"

#include <cstring>
#include <limits>

#include "runtime/isa.h"
#include "runtime/own_formulas.h"

namespace anyscore {

Kernels find(const std::string& pair, Type sums) {
    int row = pair_row(pair);
    if (row < PAIRS) return kernels(sums).of[row];
    if (Kernels own = find_own(pair, sums); own.forward) return own;
    std::string names;
    for (std::string_view name : PAIR_NAMES) names += (names.empty() ? "" : ", ") + std::string(name);
    throw std::invalid_argument("pair is \"" + pair + "\", expected one of " + names + ".");
}

namespace {

// Returns the type of the sums, which is that of stats; stats also has the leading dimensions.
Type type_of_sums(const View& stats) {
    Type type = Arrays::type("stats", stats);
    if (type != Type::F32 && type != Type::F64) Arrays::refuse("stats", "must be float32 or float64");
    if (stats.rank() < 2 || stats.shape.end()[-2] != 2) Arrays::refuse("stats", "must have shape (*lead, 2, T_q)");
    return type;
}

std::vector<Size> lead_of(const View& stats) { return {stats.shape.begin(), stats.shape.end() - 2}; }

// Returns the shape (*lead, T_q, columns).
std::vector<Size> rows_of(const View& stats, Size columns) {
    std::vector<Size> shape = lead_of(stats);
    shape.push_back(stats.shape.back()), shape.push_back(columns);
    return shape;
}

// Returns the shape of scores: (*lead, T_q, keys), or (*lead, edges) for a graph.
std::vector<Size> scores_of(const View& stats, const Call& call) {
    std::vector<Size> shape = rows_of(stats, call.keys);
    if (call.is_graph()) shape.erase(shape.end() - 2);
    return shape;
}

// Returns the edges. Checks every index, as kernels follow them.
Edges edges_of(Arrays& arrays, Operands& in, Size queries, Size rows) {
    const Size count = in.col.size();
    Edges edges;
    edges.rows = rows;
    edges.rowptr = arrays.integers("rowptr", in.rowptr, queries + 1, 0, count, true);
    if (edges.rowptr[0] != 0 || edges.rowptr[queries] != count)
        Arrays::refuse("rowptr", "must begin with 0 and end with the number of edges");
    edges.col = arrays.integers("col", in.col, count, 0, rows - 1);
    if (!in.colptr) return edges;
    edges.colptr = arrays.integers("colptr", in.colptr, rows + 1, 0, count, true);
    if (edges.colptr[0] != 0 || edges.colptr[rows] != count)
        Arrays::refuse("colptr", "must begin with 0 and end with the number of edges");
    edges.order = arrays.integers("order", in.order, count, 0, count - 1);
    edges.row = arrays.integers("row", in.row, count, 0, queries - 1);
    return edges;
}

}  // namespace

Call describe(Arrays& arrays, Operands& in, const Settings& s, Size queries, Type sums) {
    Call call;
    call.problems = arrays.problems;
    call.queries = queries;
    if (in.a.rank() < 2 || in.b.rank() < 2) Arrays::refuse("a and b", "must have rank 2 or more");
    call.width = in.a.shape.back();
    const Size rows = in.b.shape[in.b.shape.size() - 2];
    call.keys = in.rowptr ? in.col.size() : rows;
    call.a = arrays.rows("a", in.a, {queries, call.width}, false);
    call.b = arrays.rows("b", in.b, {rows, call.width}, true);
    if (in.weight) call.weight = arrays.rows("weight", in.weight, {call.width}, false);
    if (in.key_bias) call.key_bias = arrays.numbers("key_bias", in.key_bias, rows, true);
    if (in.value) {
        call.value = arrays.rows("value", in.value, {rows, -1}, true);
        call.value_width = in.value.shape.back();
    }
    if (in.rowptr) {
        if (in.start || in.stop || in.mask || in.origin || s.diagonal)
            Arrays::refuse("col", "must come without bounds, mask, origin and a bias of diagonals");
        call.edges = edges_of(arrays, in, queries, rows);
        call.start = arrays.bound_for_all(call.edges.rowptr), call.stop = arrays.bound_for_all(call.edges.rowptr + 1);
        if (in.bias) call.bias = arrays.bias_of_edges(in.bias, call.keys, s.after);
        if (in.c) call.c = arrays.rows("c", in.c, {call.keys, call.width}, false);
    } else {
        if (in.c) Arrays::refuse("c", "is for the edges of a graph");
        if (in.bias) call.bias = arrays.bias(in.bias, queries, call.keys, s.diagonal, s.after);
        call.start = arrays.bound("start", in.start, queries);
        call.stop = arrays.bound("stop", in.stop, queries);
        call.mask = arrays.mask(in.mask, queries, call.keys);
    }
    call.scale = s.scale;
    if (s.outer >= 0) call.outer = s.outer < double(Outer::OWN) ? Outer(int(s.outer)) : Outer::OWN;
    if (call.outer == Outer::OWN) call.own_outer = find_outer(s.outer, sums);
    if (!(s.outer >= 0) || (call.outer == Outer::OWN && !call.own_outer))  // also of NaN
        Arrays::refuse("outer", "is not known to the core");
    if (call.outer != Outer::NONE && !(s.outer_scale > 0 && s.outer_scale <= std::numeric_limits<double>::max()))
        Arrays::refuse("outer_scale", "must be > 0 and finite");
    call.outer_scale = s.outer_scale;
    if (s.normalizer < 0 || s.normalizer > 2) Arrays::refuse("normalizer", "must be 0, 1 or 2");
    call.normalizer = Normalizer(s.normalizer), call.sigmoid_bias = s.sigmoid_bias;
    if (s.dropout_period < 0) Arrays::refuse("dropout_period", "must be ≥ 0");
    if (!(s.dropout >= 0 && s.dropout < 1)) Arrays::refuse("dropout", "must be in [0, 1)");
    if (s.dropout > 0 && Size(in.streams.size()) != arrays.problems)
        Arrays::refuse("streams", "must be one for each problem");
    for (const Stream& stream : in.streams)
        if (stream.first_key % 4) Arrays::refuse("origin", "must have a first key that is a multiple of 4");
    call.dropout = {s.dropout, in.streams.data()};
    if (call.has_terms())
        arrays.key_set_per_problem(call);
    else
        arrays.key_sets(call, in.b);
    auto is_half = [](const View& array, const Rows& rows) { return !array || rows.type == Type::BF16; };
    call.dots = dots() && !in.rowptr && is_half(in.a, call.a) && is_half(in.b, call.b) && is_half(in.value, call.value);
    Size elements;
    if (__builtin_mul_overflow(call.problems, queries, &elements) ||
        __builtin_mul_overflow(elements, call.is_graph() ? 1 : call.keys + 1, &elements) ||
        __builtin_mul_overflow(elements, call.width + call.value_width + 1, &elements))
        Arrays::refuse("the call", "is too large");
    return call;
}

Backward describe_gradients(Arrays& arrays, const Call& call, const Operands& in, const Settings& s, Type sums,
                            Gradients& to) {
    Backward back;
    back.d_a = arrays.gradient("d_a", to.a, in.a, sums, false);
    back.d_b = arrays.gradient("d_b", to.b, in.b, sums, true);
    back.d_weight = arrays.gradient("d_weight", to.weight, in.weight, sums, false);
    back.d_key_bias = arrays.gradient("d_key_bias", to.key_bias, in.key_bias, sums, true);
    back.d_value = arrays.gradient("d_value", to.value, in.value, sums, true);
    back.d_bias = arrays.gradient("d_bias", to.bias, in.bias, sums, false);
    back.d_c = arrays.gradient("d_c", to.c, in.c, sums, false);
    const bool has_terms = to.c && to.c.size();  // an empty array may have strides of 0, as one that broadcasts
    for (Size n = 0; has_terms && n < arrays.problems; n++)
        if (!back.d_c.is_first[n]) Arrays::refuse("c", "must have the leading dimensions of stats");
    if (call.is_graph() && !call.edges.colptr) Arrays::refuse("colptr, order and row", "must be given for gradients");
    back.of_a = arrays.groups_by({&to.a}, false);
    if (to.weight) back.of_weight = arrays.groups_by({&to.weight}, false);
    std::vector<const View*> of_keys{&to.b};
    if (to.value) of_keys.push_back(&to.value);
    if (to.key_bias) of_keys.push_back(&to.key_bias);
    if (to.bias && s.diagonal) back.of_diagonals = arrays.groups_by({&to.bias}, false);
    if (to.bias && !s.diagonal) of_keys.push_back(&to.bias);
    back.tasks = arrays.groups_by(of_keys, true);
    return back;
}

void take_packed(Call& call, Arrays& arrays, View& packed, Type sums) {
    if (call.has_terms()) Arrays::refuse("packed", "must come without c");
    call.packed = arrays.rows("packed", packed, {(call.is_graph() ? call.edges.rows : call.keys) + 1, call.width}, true);
    if (call.packed.type != sums) Arrays::refuse("packed", "must have the type of stats");
}

namespace {

// Returns the kernels for the type of a result (..., keys), and its number of rows.
std::pair<SparseKernels, Size> sparse_kernels(int power, const Output& to) {
    if (power != 1 && power != 2) Arrays::refuse("power", "must be 1 or 2");
    Type type = Arrays::type("the result", to);
    if (type != Type::F32 && type != Type::F64) Arrays::refuse("the result", "must be float32 or float64");
    if (to.rank() < 1) Arrays::refuse("the result", "must have rank 1 or more");
    Arrays::contiguous("the result", to, to.shape);
    Size keys = to.shape.back();
    return {kernels(type).sparse, keys ? to.size() / keys : 0};
}

// Returns the data of a C-contiguous array of another's type and shape.
const void* alike(const char* name, const View& array, const View& other) {
    if (Arrays::type(name, array) != Arrays::type(name, other)) Arrays::refuse(name, "must have the type of the result");
    return Arrays::contiguous(name, array, other.shape);
}

}  // namespace

std::vector<Stream> streams(std::uint64_t seed, Size period, Size problems) {
    std::vector<Stream> all;
    for (Size n = 0; n < problems; n++) all.push_back({seed, std::uint64_t(n) % std::uint64_t(period ? period : 1)});
    return all;
}

std::vector<Stream> streams(std::uint64_t seed, Size period, const View& stats, View& origin) {
    type_of_sums(stats);
    if (period < 0) Arrays::refuse("dropout_period", "must be ≥ 0");
    Arrays arrays(lead_of(stats), 1);
    std::vector<Stream> all = streams(seed, period, arrays.problems);
    if (!origin) return all;
    const std::int64_t* first = arrays.integers("origin", origin, 2, 0, std::numeric_limits<std::uint32_t>::max());
    for (Stream& stream : all) stream.first_query = first[0], stream.first_key = first[1];
    return all;
}

void forward(const std::string& pair, Operands& in, const Settings& s, Outputs& to, int threads) {
    Type sums = type_of_sums(to.stats);
    Arrays arrays(lead_of(to.stats), s.groups);
    Call call = describe(arrays, in, s, to.stats.shape.back(), sums);
    if (in.packed) take_packed(call, arrays, in.packed, sums);
    if (bool(in.value) != bool(to.output)) Arrays::refuse("output", "must be given with value, and only with it");
    Forward made;
    made.stats = Arrays::contiguous("stats", to.stats, to.stats.shape);
    if (to.output) {
        made.output = Arrays::contiguous("output", to.output, rows_of(to.stats, call.value_width));
        made.output_type = Arrays::type("output", to.output);
    }
    if (to.scores) {
        made.scores = Arrays::contiguous("scores", to.scores, scores_of(to.stats, call));
        if (Arrays::type("scores", to.scores) != sums) Arrays::refuse("scores", "must have the type of stats");
    }
    find(pair, sums).forward(call, made, threads);
}

void backward(const std::string& pair, Operands& in, const Settings& s, Results& of, Gradients& to, int threads) {
    Type sums = type_of_sums(of.stats);
    Arrays arrays(lead_of(of.stats), s.groups);
    Call call = describe(arrays, in, s, of.stats.shape.back(), sums);
    Backward back = describe_gradients(arrays, call, in, s, sums, to);
    back.stats = Arrays::contiguous("stats", of.stats, of.stats.shape);
    if (of.scores) {
        if (call.is_graph()) Arrays::refuse("scores", "must come without edges");
        if ((call.bias.after && call.outer != Outer::NONE) || call.outer == Outer::OWN)
            Arrays::refuse("scores", "do not show the slopes of the outer function");
        if (Arrays::type("scores", of.scores) != sums) Arrays::refuse("scores", "must have the type of stats");
        call.kept = Arrays::contiguous("scores", of.scores, scores_of(of.stats, call));
    }
    if (in.value) {
        if (of.output || !of.scores || call.keys > TILE)
            back.output = arrays.rows("output", of.output, {call.queries, call.value_width}, false);
        back.d_output = arrays.rows("d_output", of.d_output, {call.queries, call.value_width}, false);
    }
    if (of.d_stats) {
        if (Arrays::type("d_stats", of.d_stats) != sums) Arrays::refuse("d_stats", "must have the type of stats");
        back.d_stats = Arrays::contiguous("d_stats", of.d_stats, of.stats.shape);
    }
    if (of.d_scores) {
        if (Arrays::type("d_scores", of.d_scores) != sums) Arrays::refuse("d_scores", "must have the type of stats");
        back.d_scores = Arrays::contiguous("d_scores", of.d_scores, scores_of(of.stats, call));
    }
    auto clear = [](const Output& one) {
        if (one) std::memset(one.data, 0, std::size_t(one.size() * (one.dtype.bits / 8)));
    };
    clear(to.bias);
    if (!arrays.problems) {  // no problem contributes to any gradient
        for (const Output& one : {to.a, to.b, to.weight, to.key_bias, to.value, to.c}) clear(one);
        return;
    }
    find(pair, sums).backward(call, back, threads);
}

void sparse(int power, const View& s, Output& w, int threads) {
    auto [kernels, rows] = sparse_kernels(power, w);
    const void* from = alike("s", s, w);
    kernels.forward(power, from, rows, w.shape.back(), w.data, threads);
}

void sparse_backward(int power, const View& w, const View& dw, Output& ds, int threads) {
    auto [kernels, rows] = sparse_kernels(power, ds);
    const void *of_w = alike("w", w, ds), *of_dw = alike("dw", dw, ds);
    kernels.backward(power, of_w, of_dw, rows, ds.shape.back(), ds.data, threads);
}

namespace {

// Returns the data of a C-contiguous array of the type of key.
void* dense(const char* name, const View& array, const EnergyOperands& x, const std::vector<Size>& shape) {
    if (Arrays::type(name, array) != Arrays::type("key", x.key)) Arrays::refuse(name, "must have the type of key");
    return Arrays::contiguous(name, array, shape);
}

const EnergyKernels& energy_kernels(const EnergyOperands& x) { return kernels(Arrays::type("key", x.key)).energies; }

// Returns the arrays of a step as plain data, checked against each other.
Energies describe(const EnergyOperands& x) {
    const Type type = Arrays::type("key", x.key);
    if (type != Type::F32 && type != Type::F64) Arrays::refuse("key", "must be float32 or float64");
    if (x.key.rank() != 3) Arrays::refuse("key", "must have shape (B, T_k, h)");
    if (x.feature.rank() != 3) Arrays::refuse("feature", "must have shape (B, T_k, m)");
    Energies of;
    of.batch = x.key.shape[0], of.keys = x.key.shape[1], of.width = x.key.shape[2], of.features = x.feature.shape[2];
    of.key = dense("key", x.key, x, x.key.shape);
    of.feature = dense("feature", x.feature, x, {of.batch, of.keys, of.features});
    of.stacked = dense("stacked", x.stacked, x, {of.batch, of.features, of.width});
    of.vector = dense("vector", x.vector, x, {of.width});
    if (x.spans.dtype != nanobind::dtype<std::int64_t>()) Arrays::refuse("spans", "must be int64");
    of.spans = static_cast<const std::int64_t*>(Arrays::contiguous("spans", x.spans, {of.batch, 2}));
    for (Size item = 0; item < of.batch; item++)
        if (of.start(item) < 0 || of.stop(item) > of.keys) Arrays::refuse("spans", "must be within the keys");
    return of;
}

}  // namespace

void energies(const EnergyOperands& x, Output& to, int threads) {
    Energies of = describe(x);
    of.energies = dense("energies", to, x, {of.batch, of.keys});
    energy_kernels(x).forward(of, threads);
}

void energies_backward(const EnergyOperands& x, const View& upstream, Output& d_key, Output& d_feature, Output& d_stacked,
                       Output& d_vector, int threads) {
    Energies of = describe(x);
    of.upstream = dense("upstream", upstream, x, {of.batch, of.keys});
    if (d_key) of.d_key = dense("d_key", d_key, x, x.key.shape);
    of.d_feature = dense("d_feature", d_feature, x, x.feature.shape);
    of.d_stacked = dense("d_stacked", d_stacked, x, x.stacked.shape);
    of.d_vector = dense("d_vector", d_vector, x, {of.batch, of.width});
    energy_kernels(x).backward(of, threads);
}

void append_keys(const std::string& pair, View& b, Output& packed, const NewKeys& keys, int threads) {
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
    if (keys.start < 0 || keys.count < 0 || keys.count > call.keys) Arrays::refuse("b", "has no room for so many keys");
    call.a = call.b = arrays.rows("b", b, {call.keys, call.width}, false);
    arrays.key_set_per_problem(call);
    shape[shape.size() - 2] += 1;
    void* to = Arrays::contiguous("packed", packed, shape);
    find(pair, sums).prepare(call, to, keys, threads);
}

void prepare_keys(const std::string& pair, View& b, Output& packed, int threads) {
    append_keys(pair, b, packed, {0, b.rank() < 2 ? 0 : b.shape[b.shape.size() - 2]}, threads);
}

}  // namespace anyscore
