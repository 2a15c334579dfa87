// One step in detail: the scores of all keys, their softmax, and the terms of one score.

import { nameTokens } from "../../plot/heatmap.js";
import { drawBars } from "./bars.js";
import { placeOfMost } from "./scores.js";
import { decimal, formula, percent } from "./words.js";

export const STEP = `
<section class="detail" aria-labelledby="play-step">
<h3 id="play-step"></h3>
<p class="said"></p>
<p class="how"><b data-title></b> <span data-plain></span> The query q says what the model looks for
at this step. The key k says what it knows of one place of your text.</p>
<div class="charts">
<figure data-chart="scores"><figcaption><b>1. Scores</b> <span>A taller bar fits better; only the
differences count.</span></figcaption>
<div class="chart"><span></span><ol aria-hidden="true"></ol><span></span></div>
<ol class="names" aria-hidden="true"></ol><p></p></figure>
<figure data-chart="weights"><figcaption><b>2. Weights</b> <span>The softmax of the
scores.</span></figcaption>
<div class="chart"><span></span><ol aria-hidden="true"></ol><span></span></div>
<ol class="names" aria-hidden="true"></ol><p></p></figure>
<figure data-chart="terms"><figcaption><b>3. Terms of one score</b> <span>Each bar is a feature
that speaks for or against.</span></figcaption>
<div class="chart"><span></span><ol aria-hidden="true"></ol><span></span></div><p></p></figure>
</div>
</section>`;

/** Show a step of a map's answer, and a key of it; inputs: names of the keys. */
export function showStep(section, map, { step, key }, inputs, temperature) {
  const { title, steps, outputs, keys, p, model: { score } } = map;
  const { query, scores, weights } = steps[step], most = placeOfMost(weights);
  const write = (selector, text) => { section.querySelector(selector).textContent = text; };
  write("#play-step", `${title}, output ${step + 1} of ${steps.length}: it writes “${outputs[step]}”`);
  const place = (j) => `“${inputs[j]}” (place ${j + 1}): ${percent(weights[j])}`;
  write(".said", `It looks most at ${place(most)}. You chose ${place(key)}.`);
  write("[data-title]", `${score.title}:`);
  write("[data-plain]", score.plain);

  const draw = (name, numbers, scale, ends, ...words) => {
    const figure = section.querySelector(`[data-chart="${name}"]`);
    figure.querySelectorAll(".chart > span").forEach((end, i) => { end.textContent = ends[i]; });
    drawBars(figure.querySelector(".chart ol"), numbers, scale);
    figure.querySelector("p").replaceChildren(...words);
    const names = figure.querySelector(".names");
    if (!names) return;
    nameTokens(names, inputs);
    [...names.children].forEach((item, j) => item.classList.toggle("here", j === key));
  };
  const [least, largest] = [Math.min(...scores), Math.max(...scores)], s = decimal(scores[key]);
  draw("scores", scores, { low: least, high: largest, chosen: key },
    [decimal(largest), decimal(least)], `Score of “${inputs[key]}”: s = ${s}`);
  draw("weights", weights, { low: 0, high: 1, chosen: key }, [percent(1), percent(0)],
    `Weight of “${inputs[key]}”: exp(s / τ) / Σ exp(s / τ) = ${percent(weights[key])}, `
    + `τ = ${decimal(temperature)}`);
  const terms = score.terms(query, keys[key], p), sum = terms.reduce((x, y) => x + y, 0);
  const [low, high] = [Math.min(0, ...terms), Math.max(0, ...terms)];
  const outer = score.sumFormula === "x" ? "" : ` = x, s = ${score.sumFormula} = ${s}`;
  draw("terms", terms, { low, high, base: 0 }, [decimal(high), decimal(low)],
    "Σ ", ...formula(score.termFormula), ` = ${decimal(sum)}${outer}`,
    document.createElement("br"), ...formula(`with ${score.featureFormula}`));
}
