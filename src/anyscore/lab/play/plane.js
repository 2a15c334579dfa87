// Tab 2, "Draw a score": a query and keys in the plane, and how each score sees the plane.

import { oncePerFrame, whenColoursChange } from "../../plot/heatmap.js";
import { GRID, Picture, roundLevels } from "./picture.js";
import { pointName, Points } from "./points.js";
import { SCORES, placeOfMost, softmax } from "./scores.js";
import { decimal, formula, percent } from "./words.js";

// Hidden layers with a pair of units for each feature. With u = k − q, the pair is
// tanh(u + 1) − tanh(u − 1), a ridge, or LeakyReLU(u) + LeakyReLU(−u) = 0.8 |u|, a fold.
const RIDGES = {
  W_q: [-1, 0, 1, -1, 0, -1, 0, -1, 1, 0, -1, -1],
  W_k: [1, 0, 1, 0, 0, 1, 0, 1],
  w_v: [2, -2, 2, -2],
};
const FOLDS = {
  W_q: [-1, 0, 1, 0, 0, -1, 0, 1],
  W_k: [1, 0, -1, 0, 0, 1, 0, -1],
  w_v: [-1.5, -1.5, -1.5, -1.5],
};

/**
 * What is drawn of each score.
 *
 * p: its parameters; set: those of them that are named beside the formula. with1: the query has a
 * third feature, which is always 1, so that W_q has a column for a constant. says: what its level
 * sets look like.
 */
export const VIEWS = {
  dot: {
    p: {},
    says: "Straight lines at right angles to the query. The key farthest in its direction wins.",
  },
  scaled_dot: {
    p: SCORES.scaled_dot.fixed(2),
    says: "The same lines, √2 times as far apart. The ranking stays; the weights are more even.",
  },
  cosine: {
    p: { tau: 0.25 },
    set: "τ = 0.25",
    says: "Rays from the origin. The length of a key does not count.",
  },
  gaussian: {
    p: { sigma: 1 },
    set: "σ = 1",
    says: "Circles around the query. The nearest key wins.",
  },
  additive: {
    p: RIDGES,
    with1: true,
    set: "q = (x, y, 1)",
    says: "Each feature raises a ridge at the query. The peak is where the ridges cross.",
  },
  gatv2: {
    p: { ...FOLDS, ...SCORES.gatv2.fixed(2) },
    says: "Two units fold the plane along each feature: diamonds around the query.",
  },
};

/** Return the features of places [x, y], as the score reads keys. */
export const keyFeatures = (name, places) =>
  places.map((place) => SCORES[name].key(place, VIEWS[name].p));

/** Return the scores of a query (2) and the features of keys, divided by the temperature. */
export function scoresOf(name, query, features, temperature = 1) {
  const { p, with1 } = VIEWS[name], score = SCORES[name];
  const a = score.query(with1 ? [...query, 1] : query, p);
  const scores = new Float64Array(features.length);
  for (let j = 0; j < scores.length; j++) scores[j] = score.score(a, features[j], p) / temperature;
  return scores;
}

const grids = new Map();

/**
 * Return the picture of a score: its values on the grid, the weights of the keys, and the shares.
 *
 * half: log Σ exp of the keys' scores. shares: the weight that a further key would get at each
 * node, exp(s) / (exp(s) + Σ exp(s_key)); one half where its score is `half`.
 */
export function seen(name, query, keys, temperature = 1) {
  if (!grids.has(name)) grids.set(name, keyFeatures(name, GRID));
  const scores = scoresOf(name, query, keyFeatures(name, keys), temperature);
  const most = Math.max(...scores);
  const half = most + Math.log(scores.reduce((sum, s) => sum + Math.exp(s - most), 0));
  const values = scoresOf(name, query, grids.get(name), temperature);
  const shares = values.map((s) => 1 / (1 + Math.exp(half - s)));
  return { weights: softmax(scores), half, values, shares };
}

/** The lessons: where the points are, and what to see. */
export const LESSONS = {
  between: {
    title: "A key between two others",
    places: { query: [0.8, 0.8], A: [-0.8, 2], B: [0.8, 0.8], C: [2.4, -0.4], D: [-1.8, -1.4] },
    line: ["A", "C"],
    says: "A, B and C stand on one line, and the query is at B. Along a line a dot product only "
      + "rises or only falls, so its largest weight is at A or C and never at B. The additive "
      + "score, GATv2 and a distance have their peak at the query. Move the query and try.",
  },
  longer: {
    title: "Longer vectors",
    places: { query: [1.8, 1.1], A: [1.2, 0.7], B: [2.7, -0.8], C: [-0.9, 1.9], D: [-1.5, -1.4] },
    says: "A points where the query points; B is longer and points elsewhere. Dot products let B "
      + "win, and a longer query makes the weights sharper. Division by √d, as any temperature, "
      + "makes them more even but keeps the ranking. The cosine ignores both lengths.",
  },
  distance: {
    title: "A distance",
    places: { query: [0.8, 0.5], A: [1.3, -0.3], B: [2.5, 1.7], C: [-0.9, 1.7], D: [-1.8, -1.1] },
    says: "A is near the query, and B is far out in its direction. A dot product prefers B. A "
      + "distance asks how near a key is; its length and the place of the origin do not count.",
  },
};

/** Return the formula of a score and the parameters that are set. */
export const formulaOf = (name) =>
  [SCORES[name].formula, VIEWS[name].set].filter(Boolean).join(", ");

/** Write the formulas of all elements that name one. */
export function writeFormulas(element) {
  for (const place of element.querySelectorAll("[data-formula]")) {
    place.append(...formula(place.dataset.formula));
  }
}

const view = (name) => `
<section class="view" data-score="${name}" aria-labelledby="plane-${name}">
<h3 id="plane-${name}">${SCORES[name].title}</h3>
<p class="formula" data-formula="${formulaOf(name)}"></p>
<div class="picture"><canvas aria-hidden="true"></canvas></div>
<ul class="bars"></ul>
<p class="says">${VIEWS[name].says}</p>
</section>`;

const unitsOf = (name) => {
  const { p: { W_q, W_k, w_v }, with1 } = VIEWS[name];
  const number = (x) => String(x).replace("-", "\u2212");
  const cells = (W, width, unit) =>
    Array.from({ length: width }, (_, i) => `<td>${number(W[width * unit + i])}</td>`).join("");
  const rows = w_v.map((w, unit) => `<tr><th scope="row">${unit + 1}</th>`
    + `${cells(W_q, with1 ? 3 : 2, unit)}${cells(W_k, 2, unit)}<td>${number(w)}</td></tr>`);
  return `<table><caption>${SCORES[name].title}</caption><thead>
<tr><th scope="col">unit</th>
<th scope="colgroup" colspan="${with1 ? 3 : 2}">W<sub>q</sub>, for x, y${with1 ? ", 1" : ""}</th>
<th scope="colgroup" colspan="2">W<sub>k</sub>, for x, y</th><th scope="col">w</th></tr>
</thead><tbody>${rows.join("")}</tbody></table>`;
};

const FRAME = `
<h2>Draw a score</h2>
<p class="lead">Each picture is the plane as one score sees it. The diamond is the query, the discs
are keys: a larger disc has more weight. Drag them on any picture, or choose one by its button and
press arrow keys, with Shift for larger steps. A key added where the ground has more colour would
get more weight, and half of all weight on the thick line. Thin lines join places of equal score;
the scores of neighbouring lines differ by 1, or by more where lines would be dense.</p>
<div class="lessons" role="group" aria-label="Lessons">${Object.entries(LESSONS).map(
    ([name, { title }]) =>
      `<button type="button" data-lesson="${name}">${title}</button>`).join("")}
</div>
<p class="lesson" role="status"></p>
<div class="controls">
<ul class="points" aria-label="Points"></ul>
<label class="dial">Temperature <input type="range" min="-2" max="2" step="0.05" value="0"
aria-describedby="temperature-says"> <output></output></label>
<p class="how" id="temperature-says">Scores are divided by the temperature before the softmax. It
changes how even the weights are, and no ranking.</p>
<p class="unseen" role="status" data-told></p>
</div>
<div class="views">${Object.keys(VIEWS).map(view).join("")}</div>
<details><summary>The parameters of the hidden layers</summary>
<p>Both are chosen by hand. Write u for the difference of key and query in one feature. Two units
of the additive score give tanh(u + 1) − tanh(u − 1), a ridge at u = 0. Two units of GATv2 give
LeakyReLU(u) + LeakyReLU(−u) = 0.8 |u|, a fold.</p>
<div class="units">${unitsOf("additive")}${unitsOf("gatv2")}</div>
</details>`;

/** Show the tab in an element. */
export function showPlane(element) {
  element.classList.add("plane");
  element.innerHTML = FRAME;
  writeFormulas(element);
  const find = (selector) => element.querySelector(selector);
  const slider = find(".dial input");
  let lesson = LESSONS.between, keys = null, told = 0;

  const views = [...element.querySelectorAll(".view")].map((section) => {
    const list = section.querySelector(".bars");
    const picture = new Picture(section.querySelector(".picture"), () => later());
    return { name: section.dataset.score, list, picture };
  });
  const names = ["A", "B", "C", "D"];

  const draw = () => {
    const { places, active } = points, temperature = 2 ** slider.value;
    points.show();
    keys = names.map((name) => places[name]);
    find(".dial output").textContent = decimal(temperature);
    for (const { name, picture, list } of views) {
      if (!picture.wanted(active !== null)) continue;
      const { weights, values, shares, half } = seen(name, places.query, keys, temperature);
      picture.begin();
      picture.heat(shares);
      picture.axes();
      picture.contours(values, roundLevels(values, 12), "soft", 0.6);
      picture.contours(values, [half], "ink", 2);
      if (lesson.line) picture.line(lesson.line.map((key) => places[key]), "ink", 1, [4, 4]);
      picture.line([[0, 0], places.query], "wrong", 1.5);
      const radius = (weight) => 4 + 12 * Math.sqrt(weight);
      keys.forEach((key, j) => picture.disc(key, radius(weights[j]), "ink"));
      picture.diamond(places.query, 7, "wrong");
      if (active) {
        const of = weights[names.indexOf(active)];
        picture.ring(places[active], of === undefined ? 12 : radius(of) + 4, "wrong");
      }
      const most = placeOfMost(weights);
      [...list.children].forEach((item, j) => {
        item.style.setProperty("--weight", weights[j]);
        item.lastChild.textContent = percent(weights[j]);
        item.classList.toggle("most", j === most);
      });
    }
  };
  const later = oncePerFrame(draw);

  // Said aloud once a point rests
  const tell = (name) => {
    clearTimeout(told);
    told = setTimeout(() => {
      const [x, y] = points.places[name].map(decimal);
      const most = Object.keys(VIEWS).map((score) => {
        const { weights } = seen(score, points.places.query, keys, 2 ** slider.value);
        const j = placeOfMost(weights);
        return `${SCORES[score].title} ${names[j]} ${percent(weights[j])}`;
      });
      find("[data-told]").textContent =
        `${pointName(name)} at x ${x}, y ${y}. Most weight: ${most.join("; ")}.`;
    }, 400);
  };

  const points = new Points({ ...lesson.places }, (name) => {
    if (name) tell(name);
    later();
  });
  const choose = (name) => {
    lesson = LESSONS[name];
    Object.assign(points.places, lesson.places);
    find(".lesson").textContent = lesson.says;
    for (const button of element.querySelectorAll("[data-lesson]")) {
      button.setAttribute("aria-pressed", String(button.dataset.lesson === name));
    }
    later();
  };

  for (const { picture, list } of views) {
    points.addHandles(picture.element);
    list.innerHTML = names.map((name) => `<li><b>${name}</b> <i></i> <span></span></li>`).join("");
  }
  points.addButtons(find(".points"));
  find(".lessons").addEventListener("click", ({ target }) => {
    if (target.dataset.lesson) choose(target.dataset.lesson);
  });
  slider.addEventListener("input", later);
  whenColoursChange(later);
  choose("between");
}
