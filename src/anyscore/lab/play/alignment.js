// The tab "Where does it look?": models that differ in their score answer one text.

import { bdi, oncePerFrame, paintPixels, whenColoursChange } from "../../plot/heatmap.js";
import { AlignmentMap, cellColours } from "./alignment_map.js";
import { perturbed, shuffledText } from "./changes.js";
import { Task, ends } from "./model.js";
import { SCORES, placeOfMost } from "./scores.js";
import { STEP, showStep } from "./step.js";
import { decimal, percent, tokenLabel, visible } from "./words.js";

const NARROWEST = 9; // pixels of a cell; maps stand below each other rather than have smaller ones
const ROW = 15;
const MARGIN = 22; // pixels of a map beside its cells and the output's tokens
const LETTER = 8;
const SMALLEST = 150; // pixels of a map

/** Return what the answers {title: text} have in common, in one sentence. */
export function verdictOn(answers, target) {
  const texts = Object.values(answers), count = texts.length;
  const different = new Set(texts).size;
  if (target === undefined) {
    if (different === 1) return count === 1 ? "" : `All ${count} models give one answer.`;
    return `${count} models give ${different} different answers.`;
  }
  const right = texts.filter((text) => text === target).length;
  if (right === count) return `The right answer is ${target}. Every model finds it.`;
  if (!right) return `The right answer is ${target}. No model finds it.`;
  const wrong = Object.keys(answers).filter((title) => answers[title] !== target);
  return `The right answer is ${target}. ${right} of ${count} models find it. `
    + `Not so: ${wrong.join(", ")}.`;
}

/** Return in one sentence where a map's model looks at a step. */
export function readingOf({ title, steps, outputs }, step, inputs) {
  const { weights } = steps[step], most = placeOfMost(weights);
  const goal = ends(steps[step]) ? "end its answer" : `write “${outputs[step]}”`;
  return `Darker means a closer look. To ${goal}, the ${title} model looks at “${inputs[most]}” with `
    + `${percent(weights[most])} of its weight.`;
}

const ALIGNMENT = `
<h2>Where does it look?</h2>
<p class="lead">These small models read your text and write an answer, one <span
data-noun></span> at a time. Before each one they <b>look back</b> at your text: a <b>score</b> says
how much each part of your text matters now, and the <b>softmax</b> turns the scores into weights,
shares of 100&nbsp;%. The models differ in the formula of the score and its parameters, and in nothing else.</p>
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
<p class="reading"></p>
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
${STEP}`;

/** Show the tab in an element. */
export function showAlignment(element, data) {
  element.classList.add("alignment");
  element.innerHTML = ALIGNMENT;
  const find = (selector) => element.querySelector(selector);
  const task = new Task(data), field = find("#play-text");
  const noun = { character: "character", word: "word" };
  find("[data-noun]").textContent = noun[data.unit.target] ?? "token";
  find("[data-do='perturb']").textContent = `Change one ${noun[data.unit.source] ?? "token"}`;
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

  let colours = cellColours();
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
    const quoted = strange.map((token) => `“${tokenLabel(token, data.unit.source)}”`);
    find(".strange").textContent = `The models have never seen ${quoted.join(", ")}.`;
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
    paintPixels(find(".legend canvas"), 1, colours.length, (i) => colours[i]);
    look();
  };
  const look = (chosen = at) => {
    const map = Math.min(Math.max(chosen.map, 0), maps.length - 1), { steps } = maps[map];
    const step = Math.min(Math.max(chosen.step, 0), steps.length - 1);
    const key = Math.min(Math.max(chosen.key, 0), inputs.length - 1);
    at = { map, step, key };
    find(".detail").hidden = !inputs.length;
    maps.forEach((other, i) => other.mark(step, key, i === map, inputs));
    find(".reading").textContent = inputs.length ? readingOf(maps[map], step, inputs) : "";
    if (inputs.length) showStep(find(".detail"), maps[map], at, inputs, dialled("temperature"));
  };

  // Pointer and keyboard on a map
  maps.forEach((map, i) => {
    const cells = map.find(".cells");
    const pointed = (event) => {
      const box = cells.getBoundingClientRect(), [width, height] = map.size;
      const step = Math.floor((event.clientY - box.top) / height);
      const key = Math.floor((event.clientX - box.left) / width);
      if (at.map !== i || at.step !== step || at.key !== key) look({ map: i, step, key });
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
  const aloud = (politeness) => () => find(".said").setAttribute("aria-live", politeness);
  find(".maps").addEventListener("focusin", aloud("polite"));
  find(".maps").addEventListener("focusout", aloud("off"));
  find(".charts").addEventListener("click", ({ target: bar }) => {
    const item = bar.closest("[data-chart='scores'] li, [data-chart='weights'] li");
    if (item) look({ ...at, key: [...item.parentElement.children].indexOf(item) });
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

  const later = oncePerFrame(draw);
  new ResizeObserver(later).observe(find(".maps"));
  whenColoursChange(() => {
    colours = cellColours();
    later();
  });
  field.value = data.examples[0]?.source ?? "";
  turned();
  const { steps } = maps[0], middle = Math.floor(steps.length / 2);
  if (inputs.length) look({ map: 0, step: middle, key: placeOfMost(steps[middle].weights) });
}
