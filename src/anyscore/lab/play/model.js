// The laboratory's recurrent model: a GRU each way over the source, one over the target, attention.

import { SCORES, linear, parametersOf, placeOfMost, softmax } from "./scores.js";
import { detokenise, tokenise } from "./tokens.js";

const PAD = 0, BEGIN = 1, END = 2, UNKNOWN = 3, FIRST = 4;

/** Return the numbers of a tensor, which base64 keeps as little-endian float16. */
export function float16(base64) {
  const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
  const view = new DataView(bytes.buffer);
  return Float64Array.from({ length: bytes.length / 2 }, (_, i) => {
    const bits = view.getUint16(2 * i, true);
    const sign = bits & 0x8000 ? -1 : 1, exponent = (bits >> 10) & 31, fraction = bits & 1023;
    if (exponent === 31) return fraction ? NaN : sign * Infinity;
    if (exponent === 0) return sign * fraction * 2 ** -24;
    return sign * (1024 + fraction) * 2 ** (exponent - 25);
  });
}

/** The sides of a task: texts to the numbers of tokens, and back. */
export class Task {
  constructor({ unit, source_vocabulary, target_vocabulary, limit }) {
    Object.assign(this, { unit, limit, target: target_vocabulary });
    this.numbers = new Map(source_vocabulary.map((token, i) => [token, i + FIRST]));
  }

  /** Return the tokens of a source. */
  tokens(text) {
    return tokenise(text, this.unit.source);
  }

  /** Return the text of the tokens of a source. */
  sourceText(tokens) {
    return detokenise(tokens, this.unit.source);
  }

  /** Return the number of each token of a source. */
  encode(tokens) {
    return tokens.map((token) => this.numbers.get(token) ?? UNKNOWN);
  }

  /** Return whether models have seen a token of a source. */
  knows(token) {
    return this.numbers.has(token);
  }

  /** Return the token of a number of a target. */
  token(number) {
    return number < FIRST ? "<unk>" : this.target[number - FIRST];
  }

  /** Return the text of the tokens of a target. */
  text(tokens) {
    return detokenise(tokens, this.unit.target);
  }

  /** Return the tokens of a text in the form in which answers are compared. */
  same(text) {
    return detokenise(tokenise(text, this.unit.target), this.unit.target);
  }
}

const sigmoid = (x) => 1 / (1 + Math.exp(-x));
const affine = (W, x, bias) => {
  const y = linear(W, x);
  for (let i = 0; i < y.length; i++) y[i] += bias[i];
  return y;
};
const join = (x, y) => {
  const z = new Float64Array(x.length + y.length);
  z.set(x);
  z.set(y, x.length);
  return z;
};

/** One direction of a GRU over embedded tokens. The part of a token alone is computed once. */
class GRU {
  constructor(tensors, name, embedding, direction = "") {
    const of = (kind) => tensors[`${name}.${kind}_l0${direction}`];
    Object.assign(this, { W: of("weight_hh"), bias: of("bias_hh") });
    const inputs = new Map(), W_i = of("weight_ih"), b_i = of("bias_ih");
    const width = W_i.length / b_i.length;
    this.input = (token) => {
      if (!inputs.has(token)) {
        const x = embedding.subarray(token * width, (token + 1) * width);
        inputs.set(token, affine(W_i, x, b_i));
      }
      return inputs.get(token);
    };
    this.zeros = new Float64Array(this.bias.length / 3);
  }

  /** Return the state after a token. */
  step(token, state) {
    const n = state.length, x = this.input(token), h = affine(this.W, state, this.bias);
    const after = new Float64Array(n);
    for (let i = 0; i < n; i++) {
      const reset = sigmoid(x[i] + h[i]), update = sigmoid(x[n + i] + h[n + i]);
      const next = Math.tanh(x[2 * n + i] + reset * h[2 * n + i]);
      after[i] = next + update * (state[i] - next);
    }
    return after;
  }

  /** Return the states after each of the tokens. */
  states(tokens) {
    let state = this.zeros;
    return tokens.map((token) => (state = this.step(token, state)));
  }
}

/** A trained model with one score. */
export class Model {
  /** record: one of the page's models, with base64 tensors. */
  constructor({ score, hidden, tensors }) {
    const t = Object.fromEntries(
      Object.entries(tensors).map(([name, { data }]) => [name, float16(data)]));
    const part = (prefix) => Object.fromEntries(Object.entries(t)
      .filter(([name]) => name.startsWith(prefix))
      .map(([name, values]) => [name.slice(prefix.length), values]));
    this.score = SCORES[score];
    this.parameters = parametersOf(score, part("attention."), hidden);
    this.forwards = new GRU(t, "encoder", t["source_embedding.weight"]);
    this.backwards = new GRU(t, "encoder", t["source_embedding.weight"], "_reverse");
    this.decoder = new GRU(t, "decoder", t["target_embedding.weight"]);
    const layer = (name) => (x) => affine(t[`${name}.weight`], x, t[`${name}.bias`]);
    this.toKeys = layer("to_keys");
    this.combine = layer("combine");
    this.toLogits = layer("to_logits");
  }

  /** Return the keys of the numbers of a source. */
  encode(source) {
    const forwards = this.forwards.states(source);
    const backwards = this.backwards.states([...source].reverse()).reverse();
    return forwards.map((state, i) => this.toKeys(join(state, backwards[i])));
  }

  /**
   * Answer the numbers of a source, the likeliest token each time.
   *
   * temperature: divides the scores before the softmax. parameters: of the score; by default those
   * that the model learned.
   *
   * Returns {keys, steps}: the keys' features, and for each step its token's number, the query's
   * features, scores and weights. The last token is END unless the limit ended the output. An empty
   * source has no steps.
   */
  answer(source, limit, temperature = 1, parameters = this.parameters) {
    const values = this.encode(source);
    const keys = values.map((key) => this.score.key(key, parameters));
    const steps = [];
    let state = this.decoder.zeros, token = BEGIN;
    while (keys.length && steps.length < limit && token !== END) {
      state = this.decoder.step(token, state);
      const query = this.score.query(state, parameters);
      const scores = Float64Array.from(keys, (key) => this.score.score(query, key, parameters));
      const weights = softmax(scores, temperature);
      const context = new Float64Array(state.length);
      values.forEach((value, j) => {
        for (let i = 0; i < context.length; i++) context[i] += weights[j] * value[i];
      });
      const logits = this.toLogits(this.combine(join(context, state)).map(Math.tanh));
      logits[PAD] = logits[BEGIN] = -Infinity;
      token = placeOfMost(logits);
      steps.push({ token, query, scores, weights });
    }
    return { keys, steps };
  }
}

/** Return whether a step ends the output. */
export const ends = (step) => step.token === END;
