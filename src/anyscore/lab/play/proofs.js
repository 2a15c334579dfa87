// Tab 3, "Two proofs": the dictionary that GAT cannot look up, and the middle of a line.

import { oncePerFrame, whenColoursChange } from "../../plot/heatmap.js";
import { shuffledItems } from "./changes.js";
import { GRID, Picture, REACH } from "./picture.js";
import { formulaOf, keyFeatures, scoresOf, writeFormulas } from "./plane.js";
import { Points, put } from "./points.js";
import { SCORES, softmax } from "./scores.js";
import { decimal } from "./words.js";

const EVEN = 1e-9; // scores closer than this are a tie

/** Return the place of the largest score; −1 for a tie. */
export function winner(scores) {
  let best = 0, second = -Infinity;
  for (let j = 1; j < scores.length; j++) {
    if (scores[j] > scores[best]) [second, best] = [scores[best], j];
    else second = Math.max(second, scores[j]);
  }
  return scores[best] - second > EVEN ? best : -1;
}

// The dictionary. Word i has the number i + 1; a query is (number, 0), a key is (number, value).

export const WORDS = ["ant", "bee", "cat", "dog", "elk", "fox", "gnu", "hen"];

/** Return the parameters of GAT, which is GATv2 with one unit: LeakyReLU(a_q·q + a_k·k). */
export const gat = (a_q, a_k) =>
  ({ W_q: a_q, W_k: a_k, w_v: [1], ...SCORES.gatv2.fixed(2) });

/** GATv2 with two units that look words up: −5 (LeakyReLU(u) + LeakyReLU(−u)) = −4 |u|. */
export const LOOKS_UP = {
  W_q: [-1, 0, 1, 0], W_k: [1, 0, -1, 0], w_v: [-5, -5], ...SCORES.gatv2.fixed(2),
};

/** Return the scores of each query (rows) and key of a dictionary with these values. */
export function dictionaryScores(values, p) {
  const { gatv2 } = SCORES;
  const keys = values.map((value, j) => gatv2.key([j + 1, value], p));
  return values.map((_, i) => {
    const query = gatv2.query([i + 1, 0], p);
    return keys.map((key) => gatv2.score(query, key, p));
  });
}

/** Return how many queries have their own word as the only key of the largest score. */
export const wordsFound = (scores) => scores.filter((row, i) => winner(row) === i).length;

/** Return the keys of one row, from the largest score to the smallest. */
export const ranking = (row) => [...row.keys()].sort((i, j) => row[j] - row[i]);

/** Return the numbers from 1 to the count of words, in another order. */
export const shuffled = () => shuffledItems(WORDS.map((_, i) => i + 1));

// The line

export const LINE = [-2, -1, 0, 1, 2].map((t) => [0.4 + 0.9 * t, 0.5 - 0.7 * t]);
export const ON_LINE = ["dot", "additive", "gaussian"];

/** Return the scores of the keys on the line for a query. */
export function lineScores(name, query) {
  return [...scoresOf(name, query, keyFeatures(name, LINE))];
}

/**
 * Return which key wins at which queries of the grid.
 *
 * winning: the key of the largest score at each node; −1 for a tie. borders: for each two keys, the
 * difference of their scores where no other wins, else NaN; the border of their regions is at 0.
 */
export function regionsOf(name) {
  const features = keyFeatures(name, LINE);
  const all = GRID.map((query) => scoresOf(name, query, features));
  const borders = LINE.flatMap((_, j) => LINE.slice(0, j).map((_, i) =>
    Float64Array.from(all, (scores) => {
      const behind = Math.max(...scores) - Math.max(scores[i], scores[j]);
      return behind < EVEN ? scores[i] - scores[j] : NaN;
    })));
  return { winning: all.map(winner), borders };
}

/** Return the node of a region that is farthest from all borders; undefined for no region. */
export function middleOf(winning, key) {
  const others = GRID.filter((_, at) => winning[at] !== key);
  let best = 0, middle;
  GRID.forEach(([x, y], at) => {
    if (winning[at] !== key) return;
    let room = REACH - Math.max(Math.abs(x), Math.abs(y));
    for (const other of others) room = Math.min(room, Math.hypot(x - other[0], y - other[1]));
    if (room > best) [best, middle] = [room, [x, y]];
  });
  return middle;
}

const START = [1.2, -1.6];
const [WIDTH, HEIGHT, EDGE] = [200, 70, 20]; // of the chart along the line, and around it

/** Return the chart of the scores along the line: points of its curve, and heights of the keys. */
function chart(name, query) {
  const [x0, y0] = LINE[0], [x1, y1] = LINE[4];
  const at = Array.from({ length: 81 }, (_, i) => i / 80);
  const places = at.map((t) => [x0 + t * (x1 - x0), y0 + t * (y1 - y0)]);
  const scores = scoresOf(name, query, keyFeatures(name, places));
  const least = Math.min(...scores), range = Math.max(...scores) - least || 1;
  const curve = at.map((t, i) => [
    (EDGE + t * (WIDTH - 2 * EDGE)).toFixed(1),
    (HEIGHT - EDGE - (scores[i] - least) / range * (HEIGHT - 1.5 * EDGE)).toFixed(1),
  ]);
  return { curve, keys: [0, 20, 40, 60, 80].map((i) => curve[i][1]) };
}

const MIDDLE = {
  dot: "The score is a straight line over the keys, so an end is the highest.",
  additive: "Each feature gives a hill, and the query moves the hills: each key can win.",
  gaussian: "The score falls with the distance to the query: the nearest key wins.",
};

const heatTable = (name, title) => `
<figure class="lookup" data-lookup="${name}">
<figcaption><h4 data-formula="${title}"></h4></figcaption>
<table class="heat"><thead><tr><th scope="col"><span class="unseen">query</span></th>${WORDS.map(
    (word) => `<th scope="col">${word}<br><span class="value"></span></th>`).join("")}</tr></thead>
<tbody>${WORDS.map((word) => `<tr><th scope="row">${word}</th>${
    WORDS.map(() => "<td></td>").join("")}</tr>`).join("")}</tbody></table>
<p class="answer"></p>
<p class="ranking"></p>
</figure>`;

const weightSlider = (name, label, value) => `
<label class="dial"><span data-formula="${label}"></span> <input type="range" name="${name}"
min="-2" max="2" step="0.05" value="${value}"> <output></output></label>`;

const onLine = (name) => `
<section class="view" data-score="${name}" aria-labelledby="line-${name}">
<h4 id="line-${name}">${SCORES[name].title}</h4>
<p class="formula" data-formula="${formulaOf(name)}"></p>
<div class="picture"><canvas aria-hidden="true"></canvas></div>
<svg class="along" viewBox="0 0 ${WIDTH} ${HEIGHT}" aria-hidden="true"><polyline/>${LINE.map(
  (_, j) => {
    const x = EDGE + j * (WIDTH - 2 * EDGE) / 4;
    return `<circle cx="${x}" r="3.5"/><text x="${x}" y="${HEIGHT - 3}">${j + 1}</text>`;
  }).join("")}</svg>
<p class="won"></p>
<p class="says">${MIDDLE[name]}</p>
</section>`;

const PROOFS = `
<h2>Two proofs</h2>
<section aria-labelledby="dictionary-title">
<h3 id="dictionary-title">GAT cannot look a word up; GATv2 can</h3>
<p class="lead">A dictionary gives each word a value. The query is a word; each key holds a word and
its value. The score should find the key of the query’s word. Each row of a table is a query, and
holds its weights in percent; a frame marks the largest.</p>
<p class="theorem"><b>Theorem.</b> GAT ranks the keys in one order for all queries, since LeakyReLU
rises and a<sub>q</sub>·q adds the same number to every key. <cite>Brody, Alon and Yahav 2022, How
attentive are graph attention networks?, theorem 1 and section 4.1</cite></p>
<fieldset class="words"><legend>Look up</legend>${WORDS.map((word, i) => `<label><input type="radio"
name="looked-up" value="${i}"${i === 2 ? " checked" : ""}> ${word}</label>`).join("")}
<button type="button" data-do="shuffle">New dictionary</button></fieldset>
<div class="lookups">
<div>
${heatTable("gat", "GAT: LeakyReLU(a_q·q + a_k·k)")}
<div class="controls" role="group" aria-label="Weights of GAT">
<p>Try to break it: choose the weights of GAT.</p>
${weightSlider("a_q", "a_q, of the query’s word", 0.5)}
${weightSlider("a_word", "a_k, of the key’s word", 0.5)}
${weightSlider("a_value", "a_k, of the key’s value", -0.35)}
<button type="button" data-do="random">Try 1,000 random GATs</button>
<p class="tried" role="status"></p>
</div>
</div>
<div>
${heatTable("gatv2", "GATv2: w·LeakyReLU(W_q q + W_k k)")}
<p class="how">Two units suffice, and no training. With x for the number of a word, in the order of
the alphabet, the units are LeakyReLU(x<sub>k</sub> − x<sub>q</sub>) and
LeakyReLU(x<sub>q</sub> − x<sub>k</sub>), with w = −5 for both. The score is
−4 |x<sub>k</sub> − x<sub>q</sub>|: it is largest at the same word.</p>
</div>
</div>
</section>
<section aria-labelledby="line-title">
<h3 id="line-title">The middle of a line</h3>
<p class="lead">Five keys stand on a line. Drag the query, the diamond, or choose its button and
press arrow keys. Which keys can ever get the most weight? Below each picture are the scores along
the line. “Try every query” parts the plane by the key that wins, and writes its number there.</p>
<p class="theorem"><b>Theorem.</b> A score that is linear in the key is linear along the line, so
its largest value is at an end, for any query. <cite>Brody, Alon and Yahav 2022, How attentive are
graph attention networks?, appendix E.2</cite></p>
<div class="controls">
<ul class="points" aria-label="Points"></ul>
<button type="button" data-do="all" aria-pressed="false">Try every query</button>
<button type="button" data-do="forget">Start again</button>
</div>
<div class="views line">${ON_LINE.map(onLine).join("")}</div>
<p class="unseen" role="status" data-told></p>
</section>`;

const whole = (weight) => String(Math.round(100 * weight));

/** Show the tab in an element. */
export function showProofs(element) {
  element.classList.add("proofs");
  element.innerHTML = PROOFS;
  writeFormulas(element);
  showDictionary(element.querySelector("[aria-labelledby='dictionary-title']"));
  showLine(element.querySelector("[aria-labelledby='line-title']"));
}

function showDictionary(element) {
  const find = (selector) => element.querySelector(selector);
  const tables = [...element.querySelectorAll("[data-lookup]")];
  const sliders = [...element.querySelectorAll("[type='range']")];
  let values = shuffled(), tried = 0, best = 0;

  const chosen = () => Number(find("[name='looked-up']:checked").value);
  const currentGat = () => {
    const [a_q, a_word, a_value] = sliders.map(({ value }) => Number(value));
    return gat([a_q, 0], [a_word, a_value]);
  };
  const count = (p) => {
    tried += 1;
    best = Math.max(best, wordsFound(dictionaryScores(values, p)));
  };

  const fill = (figure, scores) => {
    const query = chosen();
    figure.querySelectorAll(".value").forEach((cell, j) => {
      cell.textContent = `= ${values[j]}`;
    });
    figure.querySelectorAll("tbody tr").forEach((row, i) => {
      const weights = softmax(scores[i]), most = winner(scores[i]);
      row.classList.toggle("chosen", i === query);
      row.querySelectorAll("td").forEach((cell, j) => {
        cell.textContent = whole(weights[j]);
        cell.style.setProperty("--weight", weights[j]);
        cell.classList.toggle("much", weights[j] >= 0.5);
        cell.classList.toggle("most", j === most);
      });
    });
    const most = winner(scores[query]), right = most === query;
    figure.querySelector(".answer").textContent = most < 0
      ? `The query ${WORDS[query]} has no single key of most weight.`
      : `The query ${WORDS[query]} looks at ${WORDS[most]} and reads ${values[most]}: ${
        right ? "right" : `wrong, ${WORDS[query]} = ${values[query]}`}. `
        + `Right for ${wordsFound(scores)} of ${WORDS.length} words.`;
    figure.querySelector(".answer").classList.toggle("right", right);
    figure.querySelector(".answer").classList.toggle("wrong", !right);
    figure.querySelector(".ranking").textContent =
      `Ranking for ${WORDS[query]}: ${ranking(scores[query]).map((j) => WORDS[j]).join(", ")}.`;
  };
  const draw = () => {
    for (const slider of sliders) {
      slider.nextElementSibling.textContent = decimal(Number(slider.value));
    }
    fill(tables[0], dictionaryScores(values, currentGat()));
    fill(tables[1], dictionaryScores(values, LOOKS_UP));
    find(".tried").textContent = tried === 0 ? ""
      : `GATs tried: ${tried.toLocaleString("en")}. The best was right for ${best} of `
        + `${WORDS.length} words.`;
  };
  const later = oncePerFrame(draw);

  element.addEventListener("input", ({ target }) => {
    if (target.type === "range") count(currentGat());
    later();
  });
  for (const figure of tables) {
    figure.addEventListener("click", ({ target }) => {
      const row = target.closest("tbody tr");
      if (!row) return;
      const query = [...row.parentElement.children].indexOf(row);
      find(`[name='looked-up'][value='${query}']`).checked = true;
      later();
    });
  }
  find("[data-do='shuffle']").addEventListener("click", () => {
    values = shuffled();
    later();
  });
  find("[data-do='random']").addEventListener("click", () => {
    const drawn = () => Math.round(80 * Math.random() - 40) / 20; // a place of the slider
    for (let i = 0; i < 1000; i++) {
      for (const slider of sliders) slider.value = drawn();
      count(currentGat());
    }
    later();
  });
  draw();
}

function showLine(element) {
  const find = (selector) => element.querySelector(selector);
  const views = [...element.querySelectorAll(".view")].map((section) => ({
    name: section.dataset.score,
    picture: new Picture(section.querySelector(".picture"), () => later()),
    curve: section.querySelector("polyline"),
    dots: [...section.querySelectorAll("circle")],
    says: section.querySelector(".won"),
    won: new Set(),
    regions: null, // of every query, once they are asked for
  }));
  let told = 0;

  const drawRegions = (picture, { borders, middles }) => {
    for (const border of borders) picture.contours(border, [0], "ink", 1);
    middles.forEach((middle, j) => { if (middle) picture.write(j + 1, middle, "soft"); });
  };
  const tryAll = (view) => {
    view.regions = regionsOf(view.name);
    view.regions.middles = LINE.map((_, j) => middleOf(view.regions.winning, j));
    view.regions.winning.forEach((j) => { if (j >= 0) view.won.add(j); });
  };
  const draw = () => {
    const { places: { query }, active } = points;
    points.show();
    for (const { name, picture, curve, dots, says, won, regions } of views) {
      const scores = lineScores(name, query), weights = softmax(scores), most = winner(scores);
      if (most >= 0) won.add(most);
      const said = [...won].sort().map((j) => j + 1).join(", ");
      says.textContent = `${most < 0 ? "A tie" : `Key ${most + 1} wins`}. Keys that have won: ${
        said || "none"}; ${won.size} of ${LINE.length}.`;
      const heights = chart(name, query);
      curve.setAttribute("points", heights.curve.map((point) => point.join(",")).join(" "));
      dots.forEach((dot, j) => {
        dot.setAttribute("cy", heights.keys[j]);
        dot.setAttribute("r", j === most ? 6 : 3.5);
      });
      if (!picture.wanted(active !== null)) continue;
      picture.begin();
      if (regions) drawRegions(picture, regions);
      picture.axes();
      picture.line([LINE[0], LINE[4]], "ink", 1, [4, 4]);
      LINE.forEach((key, j) => picture.disc(key, 5 + 10 * Math.sqrt(weights[j]), "ink"));
      picture.diamond(query, 7, "wrong");
      if (active) picture.ring(query, 12, "wrong");
    }
  };
  const later = oncePerFrame(draw);
  const tell = () => {
    clearTimeout(told);
    told = setTimeout(() => {
      find("[data-told]").textContent = views.map(({ name, says }) =>
        `${SCORES[name].title}: ${says.textContent}`).join(" ");
    }, 400);
  };
  const points = new Points({ query: [...START] }, (name) => {
    if (name) tell();
    later();
  });
  const all = find("[data-do='all']");

  for (const { picture } of views) {
    LINE.forEach((place, j) => {
      const mark = document.createElement("span");
      mark.className = "mark";
      mark.textContent = j + 1;
      put(mark, place);
      picture.element.append(mark);
    });
    points.addHandles(picture.element);
  }
  points.addButtons(find(".points"));
  all.addEventListener("click", () => {
    const pressed = all.getAttribute("aria-pressed") === "false";
    all.setAttribute("aria-pressed", String(pressed));
    for (const view of views) {
      if (pressed) tryAll(view);
      else view.regions = null;
    }
    tell();
    later();
  });
  find("[data-do='forget']").addEventListener("click", () => {
    Object.assign(points.places, { query: [...START] });
    all.setAttribute("aria-pressed", "false");
    for (const view of views) {
      view.regions = null;
      view.won.clear();
    }
    tell();
    later();
  });
  whenColoursChange(later);
  draw();
}
