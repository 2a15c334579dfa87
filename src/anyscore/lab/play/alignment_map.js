// One model's answer and its heatmap: the text across, the answer downwards.

import { drawCells, heatColours, nameTokens } from "../../plot/heatmap.js";
import { Model, ends } from "./model.js";
import { placeOfMost } from "./scores.js";
import { formula, percent, tokenLabel, visible } from "./words.js";

const HEAT_LEVELS = 254;

/** Return the colours of cells, from those of no weight to those of all. */
export const cellColours = () => heatColours(HEAT_LEVELS);

const MAP = `
<h3></h3>
<p class="formula"></p>
<p class="reply"><bdi></bdi> <span></span></p>
<div class="scroll"><div class="grid">
<ol class="keys" aria-hidden="true"></ol>
<ol class="queries" aria-hidden="true"></ol>
<div class="cells" tabindex="0" role="application" aria-roledescription="heatmap"
aria-describedby="play-how"><canvas aria-hidden="true"></canvas><div class="row"></div>
<div class="cell"></div></div>
</div></div>
<p class="look"></p>`;

/** One model and its heatmap. */
export class AlignmentMap {
  constructor(record, title) {
    this.title = title;
    this.model = new Model(record);
    this.element = document.createElement("div");
    this.element.className = "map";
    this.element.innerHTML = MAP;
    this.find("h3").textContent = title;
    this.find(".formula").append(...formula(record.formula));
    this.find(".cells").setAttribute("aria-label", `Weights of ${title}`);
  }

  find(selector) {
    return this.element.querySelector(selector);
  }

  /** Answer a source, with scores divided by the temperature and σ times a factor. */
  answer(task, source, temperature, factor) {
    const { parameters } = this.model;
    const sigma = parameters.sigma && parameters.sigma * factor;
    this.p = { ...parameters, ...(sigma && { sigma }) };
    Object.assign(this, this.model.answer(source, task.limit, temperature, this.p));
    const tokens = this.steps.filter((step) => !ends(step)).map((step) => task.token(step.token));
    this.text = task.text(tokens);
    this.outputs = this.steps.map((step) =>
      (ends(step) ? "⏎" : tokenLabel(task.token(step.token), task.unit.target)));
  }

  /** Draw the answer's weights in cells [width, height], and whether the answer is right. */
  draw(inputs, [width, height], colours, target) {
    this.size = [width, height];
    const style = this.element.style;
    style.setProperty("--width", `${width}px`);
    style.setProperty("--height", `${height}px`);
    this.element.classList.toggle("upright", inputs.some((token) => [...token].length > 2));
    nameTokens(this.find(".keys"), inputs);
    nameTokens(this.find(".queries"), this.outputs);
    const columns = inputs.length;
    drawCells(this.find("canvas"), this.steps.length, columns, this.size, (i) =>
      colours[Math.round(
        HEAT_LEVELS * Math.sqrt(this.steps[Math.floor(i / columns)].weights[i % columns]))]);
    this.find(".reply bdi").textContent = visible(this.text) || (columns ? "nothing" : "");
    const mark = this.find(".reply span"), right = this.text === target;
    mark.textContent = target === undefined ? "" : right ? "✓ right" : "✗ wrong";
    mark.className = right ? "right" : "wrong";
  }

  /** Mark a step, and a key if the map is the chosen one. */
  mark(step, key, chosen, inputs) {
    const [width, height] = this.size, row = this.find(".row"), cell = this.find(".cell");
    this.element.querySelectorAll(".here").forEach((item) => item.classList.remove("here"));
    this.element.classList.toggle("chosen", chosen);
    const { weights } = this.steps[step] ?? {}, look = this.find(".look");
    row.hidden = cell.hidden = !weights;
    look.textContent = "";
    if (!weights) return;
    this.find(".queries").children[step].classList.add("here");
    this.find(".keys").children[key].classList.add("here");
    row.style.top = cell.style.top = `${step * height}px`;
    cell.style.left = `${key * width}px`;
    const at = placeOfMost(weights);
    look.textContent = `“${this.outputs[step]}” looks at “${inputs[at]}”: ${percent(weights[at])}`;
  }
}
