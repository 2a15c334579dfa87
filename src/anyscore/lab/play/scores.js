// The scoring functions of the library by name, each as features that meet and a sum of terms.
//
//   score(q, k) = outer(Σ_i term(i, a, b))        a = query(q),  b = key(k)
//
// The maps `query` and `key` read one token; only the terms meet. Vectors are arrays of numbers. A
// matrix is one array, row after row. `p` holds the parameters of a score by the library's names.

/** Return W x; W has `width` columns, and x meets those from the column `first` on. */
export function linear(W, x, first = 0, width = x.length) {
  const y = new Float64Array(W.length / width);
  for (let row = 0; row < y.length; row++) {
    let sum = 0;
    for (let i = 0, at = row * width + first; i < x.length; i++, at++) sum += W[at] * x[i];
    y[row] = sum;
  }
  return y;
}

/** Return softmax(scores / temperature). */
export function softmax(scores, temperature = 1) {
  const most = scores.reduce((a, b) => Math.max(a, b), -Infinity);
  const weights = Float64Array.from(scores, (s) => Math.exp((s - most) / temperature));
  const sum = weights.reduce((a, b) => a + b, 0);
  return weights.map((w) => w / sum);
}

/** Return the place of the largest number. */
export const placeOfMost = (numbers) =>
  numbers.reduce((best, x, i) => (x > numbers[best] ? i : best), 0);

/** Return the parameters of a score, from the tensors {name: array} of a layer of the width d. */
export function parametersOf(name, tensors, d) {
  const p = { ...SCORES[name].fixed(d) };
  for (const [tensor, values] of Object.entries(tensors)) {
    const [field] = tensor.split(".");
    if (field.startsWith("log_")) p[field.slice(4)] = Math.exp(values[0]);
    else p[field] = values;
  }
  return p;
}

const norm = (x) => Math.hypot(...x);
const unit = (x) => { const n = norm(x); return Float64Array.from(x, (v) => (n ? v / n : 0)); };
const lifted = (x, sigma) => { // the point of the hyperboloid above x / σ
  const y = Float64Array.from(x, (v) => v / sigma);
  return Float64Array.of(...y, Math.sqrt(1 + norm(y) ** 2));
};
const leakyReLU = (x, slope) => (x > 0 ? x : slope * x);
const squared = (x) => x * x;

/**
 * One scoring function.
 *
 * title, formula: for display; the formula is the library's.
 * plain: the idea in one sentence without mathematics.
 * featureFormula: the features a of the query and b of the key; by default they are the tokens.
 * termFormula: term i. sumFormula: the score from the sum x of the terms.
 * query, key: maps of one token (x, p) → features; by default x itself.
 * term: (i, a, b, p) → number. outer: (sum, p) → score; by default the sum.
 * fixed: d → the parameters that layers of the width d do not learn.
 */
class Score {
  constructor(parts) {
    const same = (x) => x;
    const usual = { query: same, key: same, featureFormula: "a = q, b = k" };
    Object.assign(this, usual, { outer: same, sumFormula: "x", fixed: () => ({}) }, parts);
  }

  /** Return the terms of the features a and b; `outer` of their sum is the score. */
  terms(a, b, p) {
    return Float64Array.from(a, (_, i) => this.term(i, a, b, p));
  }

  /** Return the score of the features a and b. */
  score(a, b, p) {
    let sum = 0;
    for (let i = 0; i < a.length; i++) sum += this.term(i, a, b, p);
    return this.outer(sum, p);
  }
}

export const SCORES = {
  dot: new Score({
    title: "Dot product",
    formula: "q·k",
    plain: "Features of equal sign speak for a key, and long keys speak louder.",
    termFormula: "a_i b_i",
    term: (i, a, b) => a[i] * b[i],
  }),
  scaled_dot: new Score({
    title: "Scaled dot product",
    formula: "q·k / √d",
    plain: "A dot product, divided so that wide vectors do not shout.",
    termFormula: "a_i b_i / √d",
    term: (i, a, b, p) => p.scale * a[i] * b[i],
    fixed: (d) => ({ scale: 1 / Math.sqrt(d) }),
  }),
  bilinear: new Score({
    title: "Bilinear",
    formula: "q·W k",
    plain: "A learned matrix turns the key before the dot product.",
    termFormula: "a_i b_i / √d",
    featureFormula: "a = q, b = W k",
    key: (k, p) => linear(p.W, k),
    term: (i, a, b, p) => p.scale * a[i] * b[i],
    fixed: (d) => ({ scale: 1 / Math.sqrt(d) }),
  }),
  cosine: new Score({
    title: "Cosine",
    formula: "cos(q, k) / τ",
    plain: "Only the angle between query and key counts, not their lengths.",
    termFormula: "a_i b_i / τ",
    featureFormula: "a = q / ‖q‖, b = k / ‖k‖",
    query: unit,
    key: unit,
    term: (i, a, b, p) => a[i] * b[i] / p.tau,
  }),
  trilinear: new Score({
    title: "Trilinear",
    formula: "w·[q; k; q⊙k]",
    plain: "The query, the key and their product are weighed and added.",
    termFormula: "w_q,i a_i + w_k,i b_i + w_p,i a_i b_i",
    term: (i, a, b, p) => p.w_q[i] * a[i] + p.w_k[i] * b[i] + p.w_p[i] * a[i] * b[i],
  }),
  gaussian: new Score({
    title: "Gaussian",
    formula: "−‖q − k‖² / 2σ²",
    plain: "Near keys win: every squared difference speaks against a key.",
    termFormula: "−(a_i − b_i)² / 2σ²",
    term: (i, a, b, p) => -squared(a[i] - b[i]) / (2 * squared(p.sigma)),
  }),
  laplace: new Score({
    title: "Laplace",
    formula: "−‖q − k‖₁ / σ",
    plain: "Near keys win, and one odd feature does little harm.",
    termFormula: "−|a_i − b_i| / σ",
    term: (i, a, b, p) => -Math.abs(a[i] - b[i]) / p.sigma,
  }),
  euclidean: new Score({
    title: "Euclidean",
    formula: "−‖q − k‖ / σ",
    plain: "Near keys win, by the distance as a ruler measures it.",
    termFormula: "(a_i − b_i)² / σ²",
    sumFormula: "−√x",
    term: (i, a, b, p) => squared((a[i] - b[i]) / p.sigma),
    outer: (x) => -Math.sqrt(x),
  }),
  student_t: new Score({
    title: "Student’s t",
    formula: "−(ν + 1)/2 · log(1 + ‖q − k‖² / νσ²)",
    plain: "Near keys win, but far keys are never quite forgotten.",
    termFormula: "(a_i − b_i)² / νσ²",
    sumFormula: "−(ν + 1)/2 · log(1 + x)",
    term: (i, a, b, p) => squared((a[i] - b[i]) / p.sigma) / p.nu,
    outer: (x, p) => -(p.nu + 1) / 2 * Math.log1p(x),
    fixed: (d) => ({ nu: Math.sqrt(2 * d) }),
  }),
  lorentz: new Score({
    title: "Lorentz",
    formula: "−β · arcosh(−⟨q̂, k̂⟩)",
    plain: "Near keys win, in a curved space that has room for trees.",
    termFormula: "± (a_i − b_i)² / 2",
    sumFormula: "−β · arcosh(1 + x)",
    featureFormula: "a = q̂, b = k̂, the points above q / σ and k / σ",
    query: (q, p) => lifted(q, p.sigma),
    key: (k, p) => lifted(k, p.sigma),
    term: (i, a, b) => squared(a[i] - b[i]) / (i < a.length - 1 ? 2 : -2),
    outer: (x, p) => -p.scale * 2 * Math.asinh(Math.sqrt(Math.max(x, 0) / 2)),
    fixed: (d) => ({ scale: Math.sqrt((d + 2) / 2) }),
  }),
  additive: new Score({
    title: "Additive",
    formula: "w·tanh(W_q q + W_k k)",
    plain: "Query and key are added, and each unit answers within limits, by a tanh.",
    termFormula: "w_i tanh(a_i + b_i)",
    featureFormula: "a = W_q q, b = W_k k",
    query: (q, p) => linear(p.W_q, q),
    key: (k, p) => linear(p.W_k, k),
    term: (i, a, b, p) => p.w_v[i] * Math.tanh(a[i] + b[i]),
  }),
  concat: new Score({
    title: "Concat",
    formula: "w·tanh(W [q; k])",
    plain: "The additive score, with one matrix for query and key.",
    termFormula: "w_i tanh(a_i + b_i)",
    featureFormula: "a = W_1 q, b = W_2 k, with W = [W_1, W_2]",
    query: (q, p) => linear(p.W, q, 0, 2 * q.length),
    key: (k, p) => linear(p.W, k, k.length, 2 * k.length),
    term: (i, a, b, p) => p.w_v[i] * Math.tanh(a[i] + b[i]),
  }),
  gatv2: new Score({
    title: "GATv2",
    formula: "w·LeakyReLU(W_q q + W_k k)",
    plain: "Query and key are added, and each unit bends its answer once, at zero.",
    termFormula: "w_i LeakyReLU(a_i + b_i)",
    featureFormula: "a = W_q q, b = W_k k",
    query: (q, p) => linear(p.W_q, q),
    key: (k, p) => linear(p.W_k, k),
    term: (i, a, b, p) => p.w_v[i] * leakyReLU(a[i] + b[i], p.negative_slope),
    fixed: () => ({ negative_slope: 0.2 }),
  }),
};
