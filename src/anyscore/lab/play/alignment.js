// The tab "Where does it look?": models that differ in their score answer one text.

import { bdi, drawCells, heatColours, nameTokens, paintPixels } from "../../plot/heatmap.js";
import { drawBars } from "./bars.js";
import { Model, Task, ends } from "./model.js";
import { oncePerFrame, whenLooksChange } from "./picture.js";
import { SCORES } from "./scores.js";
import { decimal, formula, percent, tokenLabel, visible } from "./words.js";

const HEAT_LEVELS = 254;
const NARROWEST = 9; // pixels of a cell; maps stand below each other rather than have smaller ones
const ROW = 15;
const MARGIN = 22; // pixels of a map beside its cells and the output's tokens
const LETTER = 8;
const SMALLEST = 150; // pixels of a map

/** Return the items in a random order, another one if there is another. */
export function shuffledItems(items, random = Math.random) {
  const shuffled = [...items];
  const same = () => shuffled.every((item, i) => item === items[i]);
  if (new Set(items).size < 2) return shuffled;
  while (same()) {
    for (let i = shuffled.length - 1; i > 0; i--) {
      const j = Math.floor(random() * (i + 1));
      [shuffled[i], shuffled[j]] = [shuffled[j], shuffled[i]];
    }
  }
  return shuffled;
}

/** Return a text with its words in another order; a single word has its letters shuffled. */
export function shuffledText(text, random = Math.random) {
  const words = text.split(" ").filter((word) => word);
  if (words.length > 1) return shuffledItems(words, random).join(" ");
  return shuffledItems([...text], random).join("");
}

/** Return tokens with one of them, no space, replaced by another of the most frequent ones. */
export function perturbed(tokens, vocabulary, random = Math.random) {
  const draw = (from) => from[Math.floor(random() * from.length)];
  const places = [...tokens.keys()].filter((i) => tokens[i] !== " ");
  if (!places.length) return tokens;
  const place = draw(places);
  const others = vocabulary.slice(0, 100).filter((x) => x !== " " && x !== tokens[place]);
  return others.length ? tokens.map((token, i) => (i === place ? draw(others) : token)) : tokens;
}

/** Return what the answers {title: text} have in common, in one sentence. */
export function verdictOn(answers, target) {
  const texts = Object.values(answers), count = texts.length;
  const different = new Set(texts).size;
  if (target === undefined) {
    if (different === 1) return count === 1 ? "" : `All ${count} scores give one answer.`;
    return `${count} scores give ${different} different answers.`;
  }
  const right = texts.filter((text) => text === target).length;
  if (right === count) return `The right answer is ${target}. Every score finds it.`;
  if (!right) return `The right answer is ${target}. No score finds it.`;
  const wrong = Object.keys(answers).filter((title) => answers[title] !== target);
  return `The right answer is ${target}. ${right} of ${count} scores find it, and not `
    + `${wrong.join(", ")}.`;
}

const most = (numbers) => numbers.reduce((best, x, i) => (x > numbers[best] ? i : best), 0);

const ALIGNMENT = `
<h2>Where does it look?</h2>
<p class="lead">These small models read your text and write an answer, one <span
data-noun></span> at a time. Before each one they <b>look back</b> at your text: a <b>score</b> says
how well each part of it fits, and the <b>softmax</b> turns scores into weights with the sum
100&nbsp;%. The models differ in the formula of the score, and in nothing else.</p>
<form class="ask">
<label for="play-text">Your text</label>
<input type="text" id="play-text" autocomplete="off" autocapitalize="off" spellcheck="false"
maxlength="200" dir="auto">
<div class="buttons" role="group" aria-label="Change the text">
<button type="button" data-do="shuffle">Shuffle</button>
<button type="button" data-do="perturb"></button>
</div>
<div class="buttons examples" role="group" aria-label="Examples"></div>
</form>
<p class="verdict" role="status"></p>
<p class="strange" hidden></p>
<div class="maps"></div>
<p class="legend" aria-hidden="true"><span>0&nbsp;%</span><canvas></canvas><span>100&nbsp;%</span>
<span>of a row’s weight</span></p>
<p class="how" id="play-how">Your text runs across, the answer downwards. Point at a cell or tap it.
With the keyboard, arrow keys move; Home and End go to the ends of a row.</p>
<div class="dials">
<label class="dial">Temperature τ <input type="range" min="-3" max="3" step="0.1" value="0"
data-dial="temperature"> <output></output></label>
<label class="dial">Bandwidth σ <input type="range" min="-3" max="3" step="0.1" value="0"
data-dial="sigma"> <output></output></label>
<button type="button" data-do="reset">As learned</button>
<p class="how">The temperature divides all scores before the softmax: a high one spreads the look, a
low one sharpens it.<span data-sigma> The bandwidth says how near a key must be to count, in the
scores that measure a distance.</span></p>
</div>
<section class="detail" aria-labelledby="play-step">
<h3 id="play-step"></h3>
<p class="said"></p>
<p class="how"><b data-title></b> <span data-plain></span> The query q says what the model looks for
at this step. The key k says what it knows of one <span data-part></span> of your text.</p>
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
class AlignmentMap {
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
    const at = most(weights);
    look.textContent = `“${this.outputs[step]}” looks at “${inputs[at]}”: ${percent(weights[at])}`;
  }
}

/** Show the tab in an element. */
export function showAlignment(element, data) {
  element.classList.add("alignment");
  element.innerHTML = ALIGNMENT;
  const find = (selector) => element.querySelector(selector);
  const task = new Task(data), field = find("#play-text");
  const noun = { character: "character", word: "word" };
  find("[data-noun]").textContent = noun[data.unit.target] ?? "token";
  const part = noun[data.unit.source] ?? "token";
  find("[data-part]").textContent = part;
  find("[data-do='perturb']").textContent = `Change one ${part}`;
  const scores = data.models.map(({ score }) => score);
  const maps = data.models.map((record) => {
    const repeated = scores.indexOf(record.score) !== scores.lastIndexOf(record.score);
    const name = SCORES[record.score].title;
    return new AlignmentMap(record, repeated ? `${name}, seed ${record.seed}` : name);
  });
  find(".maps").append(...maps.map((map) => map.element));
  const known = new Map(data.examples.filter(({ target }) => target !== null)
    .map(({ source, target }) => [task.tokens(source).join("\n"), task.same(target)]));
  const withSigma = maps.filter((map) => map.model.parameters.sigma);
  const dials = Object.fromEntries(
    [...element.querySelectorAll("[data-dial]")].map((dial) => [dial.dataset.dial, dial]));
  dials.sigma.closest("label").hidden = find("[data-sigma]").hidden = !withSigma.length;
  const dialled = (name) => 2 ** dials[name].value;

  let colours = heatColours(HEAT_LEVELS);
  let inputs = []; // labels of the source's tokens
  let target; // of the source, if it is known
  let at = { map: 0, step: 0, key: 0 };

  // Answers, then pictures of them, then the step that is looked at
  const answer = () => {
    const tokens = task.tokens(field.value);
    inputs = tokens.map((token) => tokenLabel(token, data.unit.source));
    target = known.get(tokens.join("\n"));
    const source = task.encode(tokens);
    for (const map of maps) map.answer(task, source, dialled("temperature"), dialled("sigma"));
    find(".verdict").textContent = tokens.length
      ? visible(verdictOn(Object.fromEntries(maps.map(({ title, text }) => [title, text])), target))
      : "Type a text, or choose an example.";
    const strange = [...new Set(tokens.filter((token) => !task.knows(token)))];
    find(".strange").hidden = !strange.length;
    find(".strange").textContent =
      `The models have never seen ${strange.map((token) => `“${tokenLabel(token, data.unit.source)}”`).join(", ")}.`;
    draw();
  };
  const draw = () => {
    const room = find(".maps").clientWidth;
    if (!room) return; // another tab is in sight
    const longest = Math.max(1, ...maps.flatMap(({ outputs }) => outputs.map((x) => x.length)));
    const side = MARGIN + LETTER * Math.min(longest, 14);
    const width = (across) => Math.floor((room / across - side) / Math.max(1, inputs.length));
    let across = Math.min(maps.length, Math.max(1, Math.floor(room / SMALLEST)));
    while (across > 1 && width(across) < NARROWEST) across--;
    find(".maps").style.setProperty("--across", across);
    const cell = [Math.min(Math.max(width(across), NARROWEST), 2 * ROW), ROW];
    for (const map of maps) map.draw(inputs, cell, colours, target);
    paintPixels(find(".legend canvas"), 1, HEAT_LEVELS + 1, (i) => colours[i]);
    look();
  };
  const look = (chosen = at) => {
    const map = Math.min(Math.max(chosen.map, 0), maps.length - 1), { steps } = maps[map];
    const step = Math.min(Math.max(chosen.step, 0), steps.length - 1);
    const key = Math.min(Math.max(chosen.key, 0), inputs.length - 1);
    at = { map, step, key };
    find(".detail").hidden = !inputs.length;
    maps.forEach((other, i) => other.mark(step, key, i === map, inputs));
    if (inputs.length) tell();
  };

  // The step in detail
  const drawChart = (name, numbers, scale, ends) => {
    const figure = find(`[data-chart="${name}"]`), [top, bottom] = figure.querySelectorAll(".chart > span");
    [top.textContent, bottom.textContent] = ends;
    drawBars(figure.querySelector(".chart ol"), numbers, scale);
    const names = figure.querySelector(".names");
    if (names) {
      nameTokens(names, inputs);
      [...names.children].forEach((item, i) => item.classList.toggle("here", i === at.key));
    }
    return figure.querySelector("p");
  };
  const tell = () => {
    const { title, steps, outputs, keys, p, model: { score } } = maps[at.map];
    const { query, scores, weights } = steps[at.step], token = inputs[at.key], best = most(weights);
    find("#play-step").textContent =
      `${title}, output ${at.step + 1} of ${steps.length}: it writes “${outputs[at.step]}”`;
    find(".said").textContent =
      `It looks most at “${inputs[best]}” (${part} ${best + 1}): ${percent(weights[best])}. `
      + `You chose “${token}” (${part} ${at.key + 1}): ${percent(weights[at.key])}.`;
    find("[data-title]").textContent = `${score.title}:`;
    find("[data-plain]").textContent = score.plain;

    const [least, largest] = [Math.min(...scores), Math.max(...scores)];
    drawChart("scores", scores, { low: least, high: largest, chosen: at.key },
      [decimal(largest), decimal(least)]).textContent = `Score of “${token}”: s = ${decimal(scores[at.key])}`;

    const temperature = dialled("temperature");
    drawChart("weights", weights, { low: 0, high: 1, chosen: at.key }, ["100\u00a0%", "0\u00a0%"])
      .textContent = `Weight of “${token}”: exp(s / τ) / Σ exp(s / τ) = ${percent(weights[at.key])}, `
        + `τ = ${decimal(temperature)}`;

    const terms = score.terms(query, keys[at.key], p), sum = terms.reduce((x, y) => x + y, 0);
    const [low, high] = [Math.min(0, ...terms), Math.max(0, ...terms)];
    const line = drawChart("terms", terms, { low, high, base: 0 }, [decimal(high), decimal(low)]);
    const end = score.sumFormula === "x" ? "" : `, s = ${score.sumFormula} = ${decimal(scores[at.key])}`;
    line.replaceChildren("Σ ", ...formula(score.termFormula), ` = ${decimal(sum)}${end}`,
      document.createElement("br"), ...formula(`with ${score.featureFormula}`));
  };

  // Pointer and keyboard on a map
  maps.forEach((map, i) => {
    const cells = map.find(".cells");
    const pointed = (event) => {
      const box = cells.getBoundingClientRect(), [width, height] = map.size;
      const step = Math.floor((event.clientY - box.top) / height);
      look({ map: i, step, key: Math.floor((event.clientX - box.left) / width) });
    };
    cells.addEventListener("pointermove", (event) => {
      if (event.pointerType !== "touch") pointed(event);
    });
    cells.addEventListener("click", pointed); // a tap, which scrolling is not
    cells.addEventListener("focus", () => look({ ...at, map: i }));
    cells.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || !inputs.length) return;
      const { step, key } = at;
      const to = {
        ArrowUp: [step - 1, key], ArrowDown: [step + 1, key],
        ArrowLeft: [step, key - 1], ArrowRight: [step, key + 1],
        Home: [step, 0], End: [step, inputs.length - 1],
      }[event.key];
      if (!to) return;
      look({ map: i, step: to[0], key: to[1] });
      event.preventDefault();
    });
  });
  // Aloud only while a map has the focus: at each key of the text it would be too much
  find(".maps").addEventListener("focusin", () => find(".said").setAttribute("aria-live", "polite"));
  find(".maps").addEventListener("focusout", () => find(".said").setAttribute("aria-live", "off"));
  find(".charts").addEventListener("click", ({ target: bar }) => {
    const list = bar.closest("[data-chart='scores'] ol, [data-chart='weights'] ol");
    if (list && bar.closest("li")) look({ ...at, key: [...list.children].indexOf(bar.closest("li")) });
  });

  // The text and the dials
  const ask = (text) => {
    field.value = text;
    answer();
  };
  const sayDials = () => {
    const factor = dialled("sigma"), [first] = withSigma;
    dials.temperature.nextElementSibling.textContent = decimal(dialled("temperature"));
    dials.sigma.nextElementSibling.textContent = withSigma.length === 1
      ? decimal(first.model.parameters.sigma * factor) : `× ${decimal(factor)}`;
    for (const dial of Object.values(dials)) {
      dial.setAttribute("aria-valuetext", dial.nextElementSibling.textContent);
    }
  };
  const turned = () => {
    sayDials();
    answer();
  };
  find(".ask").addEventListener("submit", (event) => event.preventDefault());
  field.addEventListener("input", answer);
  find(".examples").append("Examples: ", ...data.examples.slice(0, 3).map(({ source }) => {
    const button = Object.assign(document.createElement("button"), { type: "button" });
    button.append(bdi(visible(source)));
    button.addEventListener("click", () => ask(source));
    return button;
  }));
  const does = {
    shuffle: () => ask(shuffledText(field.value)),
    perturb: () => ask(task.sourceText(
      perturbed(task.tokens(field.value), data.source_vocabulary))),
    reset: () => {
      for (const dial of Object.values(dials)) dial.value = 0;
      turned();
    },
  };
  element.addEventListener("click", ({ target: button }) => does[button.dataset.do]?.());
  for (const dial of Object.values(dials)) dial.addEventListener("input", turned);

  whenLooksChange(find(".maps"), oncePerFrame(() => {
    colours = heatColours(HEAT_LEVELS);
    draw();
  }));
  field.value = data.examples[0]?.source ?? "";
  turned();
  const { steps } = maps[0], middle = Math.floor(steps.length / 2);
  if (inputs.length) look({ map: 0, step: middle, key: most(steps[middle].weights) });
}
