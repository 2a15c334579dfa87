// Weights are drawn on canvases; what is chosen is in the controls, and in `at` the cell looked at.
import {
  bdi, drawCells, heatColours, nameTokens, paintPixels, themeColour, whenColoursChange,
} from "./heatmap.js";

const $ = (id) => document.getElementById(id);
const data = JSON.parse($("data").textContent);
const MISSING = 255;
const THUMB = 64; // pixels of a small picture; larger heads show the largest weight of each part
const root = document.documentElement;
let at = null; // {row, column}
let cell = 16;
let colours = null;

const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
const unpacked = new Map();
const shown = (layer, example) => {
  const found = data.layers[layer].examples[example];
  if (!unpacked.has(found)) unpacked.set(found, bytes(found.weights));
  const [heads, rows, columns] = found.shape;
  const all = unpacked.get(found), size = rows * columns;
  const of = (head) => all.subarray(head * size, (head + 1) * size);
  return { heads, rows, columns, of, queries: found.queries, keys: found.keys };
};
const now = () => shown($("layer").selectedIndex, $("example").selectedIndex);
const label = (labels, i) => (labels ? labels[i] : String(i));
// Numbers are from 1 on; of what was chosen, those in the model. Chosen from the end on: −1, −2, …
const number = (n) => (n < 0 ? `\u2212${-n}` : String(n + 1));
const headNumber = (layer, i) => number((data.layers[layer].heads || [])[i] ?? i);
const exampleName = (i) => {
  const chosen = data.numbers;
  if (!chosen) return `${i + 1} of ${data.examples}`;
  const call = Math.floor(i / chosen.length);
  return number(chosen[i % chosen.length]) + (call ? `, call ${call + 1}` : "");
};
const percent = (level) => {
  if (level === MISSING) return "not a number";
  const share = 100 * (level / data.levels) ** 2;
  if (share >= 99.95) return "100\u00a0%";
  return `${share === 0 ? "0" : share.toPrecision(2)}\u00a0%`;
};

const mix = () => {
  colours = [...heatColours(data.levels), themeColour("--wrong")]; // the last is of MISSING
};
const small = (weights, rows, columns) => {
  const down = Math.ceil(rows / THUMB), across = Math.ceil(columns / THUMB);
  const height = Math.ceil(rows / down), width = Math.ceil(columns / across);
  const most = new Uint8Array(height * width);
  for (let i = 0; i < rows; i++) {
    for (let j = 0; j < columns; j++) {
      const place = Math.floor(i / down) * width + Math.floor(j / across);
      most[place] = Math.max(most[place], weights[i * columns + j]);
    }
  }
  return [height, width, most];
};

// One head
const tokens = (labels, count) => Array.from({ length: count }, (_, i) => label(labels, i));
const draw = () => {
  const { rows, columns, of, queries, keys } = now(), head = $("head").selectedIndex;
  const room = Math.min(document.querySelector("main").clientWidth - 130, 900);
  cell = Math.max(Math.min(Math.floor(room / columns), 34), 14);
  const most = Math.max(rows, columns);
  if (cell * most > 12000) cell = Math.max(1, Math.floor(12000 / most));
  $("map").style.setProperty("--cell", `${cell}px`);
  $("map").style.setProperty("--letters", `${Math.min(14, Math.max(10, cell - 3))}px`);
  $("map").classList.toggle("bare", cell < 10);
  nameTokens($("keys"), tokens(keys, columns));
  nameTokens($("queries"), tokens(queries, rows));
  const weights = of(head);
  drawCells($("canvas"), rows, columns, [cell, cell], (i) => colours[weights[i]]);
  const layer = $("layer").selectedIndex, { name } = data.layers[layer];
  $("weights-title").replaceChildren(bdi(name), `, head ${headNumber(layer, head)}`);
  if (at && (at.row >= rows || at.column >= columns)) at = null;
  tell();
};
const tell = () => {
  const { rows, columns, of, queries, keys } = now();
  document.querySelectorAll(".map .here").forEach((item) => item.classList.remove("here"));
  $("cursor").hidden = $("most").hidden = !at;
  if (!at) {
    $("said").textContent = `${rows} ${rows === 1 ? "query" : "queries"}, ${columns} ${columns === 1 ? "key" : "keys"}.`;
    return;
  }
  const weights = of($("head").selectedIndex).subarray(at.row * columns, (at.row + 1) * columns);
  const strong = (text) => {
    const element = document.createElement("b");
    element.append(bdi(text));
    return element;
  };
  $("said").replaceChildren(
    "Query ", strong(label(queries, at.row)), ` (${at.row + 1}) looks at key `,
    strong(label(keys, at.column)), ` (${at.column + 1}): `, strong(percent(weights[at.column])));
  $("keys").children[at.column].classList.add("here");
  $("queries").children[at.row].classList.add("here");
  $("cursor").style.left = `${at.column * cell}px`;
  $("cursor").style.top = `${at.row * cell}px`;
  const order = [...weights.keys()].filter((j) => weights[j] && weights[j] !== MISSING);
  order.sort((i, j) => weights[j] - weights[i]);
  $("most-title").replaceChildren("Where ", bdi(label(queries, at.row)), " looks most");
  $("most-list").replaceChildren(...order.slice(0, 5).map((j) => {
    const item = document.createElement("li"), name = document.createElement("span");
    name.append(bdi(label(keys, j)), ` (${j + 1})`);
    item.append(name, percent(weights[j]));
    return item;
  }));
  if (!order.length) $("most-list").append("Nowhere.");
};
const look = (row, column) => {
  const { rows, columns } = now();
  at = {
    row: Math.min(Math.max(row, 0), rows - 1),
    column: Math.min(Math.max(column, 0), columns - 1),
  };
  tell();
};
const pointed = (event) => {
  const box = $("canvas").getBoundingClientRect();
  look(Math.floor((event.clientY - box.top) / cell), Math.floor((event.clientX - box.left) / cell));
};
const bring = () => { // what the keyboard chose comes into sight, beside the labels
  const scroll = $("scroll"), left = $("queries").offsetWidth, top = $("keys").offsetHeight;
  const x = at.column * cell, y = at.row * cell;
  scroll.scrollLeft = Math.min(Math.max(scroll.scrollLeft, x + cell + left - scroll.clientWidth + 4), x);
  scroll.scrollTop = Math.min(Math.max(scroll.scrollTop, y + cell + top - scroll.clientHeight + 4), y);
};
const move = (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const { columns } = now(), { row, column } = at || { row: 0, column: 0 };
  const to = {
    ArrowUp: [row - 1, column], ArrowDown: [row + 1, column],
    ArrowLeft: [row, column - 1], ArrowRight: [row, column + 1],
    Home: [row, 0], End: [row, columns - 1],
  }[event.key];
  if (to) {
    look(...(at ? to : [0, 0]));
    bring();
  } else if (event.key === "PageUp" || event.key === "PageDown") {
    const layer = $("layer").selectedIndex + (event.key === "PageUp" ? -1 : 1);
    if (layer >= 0 && layer < data.layers.length) choose(layer, $("head").selectedIndex);
  } else return;
  event.preventDefault();
};

// All heads
const overview = () => {
  const example = $("example").selectedIndex;
  $("overview").replaceChildren(...data.layers.map(({ name }, layer) => {
    const { heads, rows, columns, of } = shown(layer, example);
    const group = document.createElement("div"), title = document.createElement("h3");
    group.className = "layer";
    title.append(bdi(name));
    const row = document.createElement("div");
    row.className = "heads";
    for (let head = 0; head < heads; head++) {
      const button = document.createElement("button"), canvas = document.createElement("canvas");
      button.type = "button";
      canvas.setAttribute("aria-hidden", "true");
      const [height, width, levels] = small(of(head), rows, columns);
      paintPixels(canvas, height, width, (i) => colours[levels[i]]);
      const text = `head ${headNumber(layer, head)}`;
      button.append(canvas, text);
      button.setAttribute("aria-label", `${name}, ${text}`);
      button.addEventListener("click", () => choose(layer, head));
      row.append(button);
    }
    row.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      const next = by && row.children[[...row.children].indexOf(document.activeElement) + by];
      if (next) {
        next.focus();
        event.preventDefault();
      }
    });
    group.append(title, row);
    return group;
  }));
  press();
};
const press = () => {
  document.querySelectorAll(".layer").forEach((group, layer) => {
    group.querySelectorAll("button").forEach((button, head) => {
      const chosen = layer === $("layer").selectedIndex && head === $("head").selectedIndex;
      button.setAttribute("aria-pressed", String(chosen));
    });
  });
};

// What is chosen
const options = (select, texts) => select.replaceChildren(...texts.map((text) => new Option(text)));
const choose = (layer, head) => {
  $("layer").selectedIndex = layer;
  const { heads } = now();
  const of = data.layers[layer].heads ? "" : ` of ${heads}`;
  options($("head"), Array.from({ length: heads }, (_, i) => headNumber(layer, i) + of));
  $("head").selectedIndex = Math.min(head, heads - 1);
  draw();
  press();
};
const redraw = () => {
  mix();
  paintPixels($("scale"), 1, MISSING, (i) => colours[i]);
  draw();
  overview();
};
options($("layer"), data.layers.map(({ name }) => name));
options($("example"), Array.from({ length: data.examples }, (_, i) => exampleName(i)));
$("layer").addEventListener("change", () => choose($("layer").selectedIndex, $("head").selectedIndex));
$("head").addEventListener("change", () => { draw(); press(); });
$("example").addEventListener("change", () => {
  choose($("layer").selectedIndex, $("head").selectedIndex);
  overview();
});
$("choose").addEventListener("submit", (event) => event.preventDefault());
$("cells").addEventListener("pointermove", (event) => {
  if (event.pointerType !== "touch") pointed(event);
});
$("cells").addEventListener("click", pointed); // a tap, which scrolling is not
$("cells").addEventListener("keydown", move);
whenColoursChange(redraw);
let wide = root.clientWidth;
addEventListener("resize", () => {
  if (root.clientWidth !== wide) draw();
  wide = root.clientWidth;
});
$("without").hidden = true;
$("examples").hidden = data.examples === 1 && !data.numbers;
["choose", "one", "all"].forEach((id) => { $(id).hidden = false; });
mix();
choose(0, 0);
redraw();
