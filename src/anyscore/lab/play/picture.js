// A picture of the plane: a square canvas with the origin in its middle, in colours of the theme.

import { heatColours, paintPixels, themeColour, whenColoursChange } from "../../plot/heatmap.js";

export const REACH = 3; // the picture shows x and y from −3 to 3
export const NODES = 41; // of a grid over the picture, in each direction

/** Return the coordinate of a node of the grid. */
export const nodeAt = (i) => REACH * (2 * i / (NODES - 1) - 1);

/** The nodes [x, y] of the grid (NODES²), row after row from y = −3 on. */
export const GRID = Array.from({ length: NODES * NODES }, (_, at) =>
  [nodeAt(at % NODES), nodeAt(Math.floor(at / NODES))]);

/**
 * Call segment(x, y, x', y') for each piece of each level set of values on the grid.
 *
 * A level set crosses a side of a cell where linear interpolation between two nodes has the level.
 * Cells with a value that is NaN are left out.
 */
export function contours(values, levels, segment) {
  const size = 2 * REACH / (NODES - 1);
  const ends = new Float64Array(8); // up to four crossings, of a saddle
  for (let row = 0; row < NODES - 1; row++) {
    for (let column = 0; column < NODES - 1; column++) {
      const at = row * NODES + column;
      const a = values[at], b = values[at + 1], c = values[at + NODES + 1], d = values[at + NODES];
      const least = Math.min(a, b, c, d), most = Math.max(a, b, c, d);
      const x = nodeAt(column), y = nodeAt(row);
      for (const level of levels) {
        if (!(least < level && level <= most)) continue;
        let n = 0;
        if ((a < level) !== (b < level)) {
          ends[n++] = x + size * (level - a) / (b - a);
          ends[n++] = y;
        }
        if ((b < level) !== (c < level)) {
          ends[n++] = x + size;
          ends[n++] = y + size * (level - b) / (c - b);
        }
        if ((c < level) !== (d < level)) {
          ends[n++] = x + size * (level - d) / (c - d);
          ends[n++] = y + size;
        }
        if ((d < level) !== (a < level)) {
          ends[n++] = x;
          ends[n++] = y + size * (level - a) / (d - a);
        }
        for (let i = 0; i < n; i += 4) segment(ends[i], ends[i + 1], ends[i + 2], ends[i + 3]);
      }
    }
  }
}

/** Return round levels between the values: whole multiples of 1, 2, 5, 10, …, at most `count`. */
export function roundLevels(values, count) {
  let least = Infinity, most = -Infinity;
  for (const value of values) {
    least = Math.min(least, value);
    most = Math.max(most, value);
  }
  let step = 1;
  for (let i = 0; (most - least) / step > count; i++) step *= [2, 2.5, 2][i % 3];
  const levels = [];
  for (let n = Math.ceil(least / step); n * step <= most; n++) levels.push(n * step);
  return levels;
}

const PENS = ["page", "soft", "ink", "wrong"];
const DARKEST = 255;
let pens = null; // {name: CSS colour}, of the theme
let shades = null; // DARKEST + 1 colours

function readTheme() {
  pens = Object.fromEntries(
    PENS.map((name) => [name, `rgb(${themeColour(`--${name}`).join(" ")})`]));
  shades = heatColours(DARKEST);
}

/** A canvas that shows the plane; coordinates of its methods are those of the plane. */
export class Picture {
  /**
   * Draw on the canvas in an element of the class "picture".
   *
   * redraw: is called when the picture has a new size or comes into sight.
   */
  constructor(element, redraw) {
    this.element = element;
    this.canvas = element.querySelector("canvas");
    this.context = this.canvas.getContext("2d", { alpha: false });
    this.tile = document.createElement("canvas"); // a pixel for each node
    this.side = 0; // in CSS pixels; 0 while the page hides the picture
    whenColoursChange(() => { pens = null; });
    new ResizeObserver(([{ contentRect }]) => {
      this.side = contentRect.width;
      redraw();
    }).observe(element);
    this.inSight = true;
    new IntersectionObserver(([{ isIntersecting }]) => {
      this.inSight = isIntersecting;
      redraw();
    }).observe(element);
  }

  /** Return whether to draw now; a picture out of sight may wait until the hand rests. */
  wanted(busy) { return this.side > 0 && (this.inSight || !busy); }

  /** Empty the canvas. */
  begin() {
    if (!pens) readTheme();
    const sharp = Math.min(2, devicePixelRatio || 1), side = Math.round(this.side * sharp);
    if (this.canvas.width !== side) this.canvas.width = this.canvas.height = side;
    this.context.setTransform(sharp, 0, 0, sharp, 0, 0);
    this.context.fillStyle = pens.page;
    this.context.fillRect(0, 0, this.side, this.side);
  }

  x(x) { return this.side * (1 + x / REACH) / 2; }
  y(y) { return this.side * (1 - y / REACH) / 2; }

  /** Paint weights (NODES²) as heatmaps do: colours follow their square roots. */
  heat(weights) {
    paintPixels(this.tile, NODES, NODES, (pixel) => {
      const column = pixel % NODES, row = NODES - 1 - (pixel - column) / NODES; // y grows upwards
      return shades[Math.round(DARKEST * Math.sqrt(weights[row * NODES + column]))];
    });
    const node = this.side / (NODES - 1); // a pixel's middle is a node
    this.context.drawImage(this.tile, -node / 2, -node / 2, this.side + node, this.side + node);
  }

  axes() {
    this.line([[-REACH, 0], [REACH, 0]], "soft", 0.5);
    this.line([[0, -REACH], [0, REACH]], "soft", 0.5);
  }

  /** Draw a line through points of the plane. */
  line(points, pen, width, dashes = []) {
    const { context } = this;
    context.beginPath();
    points.forEach(([x, y], i) => context[i ? "lineTo" : "moveTo"](this.x(x), this.y(y)));
    this.stroke(pen, width, dashes);
  }

  /** Draw the level sets of values on the grid. */
  contours(values, levels, pen, width) {
    const { context } = this;
    context.beginPath();
    contours(values, levels, (x0, y0, x1, y1) => {
      context.moveTo(this.x(x0), this.y(y0));
      context.lineTo(this.x(x1), this.y(y1));
    });
    this.stroke(pen, width);
  }

  stroke(pen, width, dashes = []) {
    const { context } = this;
    context.strokeStyle = pens[pen];
    context.lineWidth = width;
    context.setLineDash(dashes);
    context.stroke();
    context.setLineDash([]);
  }

  /** Draw a disc of a radius in pixels, in a ring of the page's colour. */
  disc([x, y], radius, pen) {
    const { context } = this;
    context.beginPath();
    context.arc(this.x(x), this.y(y), radius, 0, 2 * Math.PI);
    context.fillStyle = pens[pen];
    context.fill();
    this.stroke("page", 2);
  }

  /** Draw a diamond, the mark of the query. */
  diamond([x, y], radius, pen) {
    const { context } = this, left = this.x(x), top = this.y(y);
    context.beginPath();
    context.moveTo(left, top - radius);
    context.lineTo(left + radius, top);
    context.lineTo(left, top + radius);
    context.lineTo(left - radius, top);
    context.closePath();
    context.fillStyle = pens[pen];
    context.fill();
    this.stroke("page", 2);
  }

  /** Write a text with its middle at a point. */
  write(text, [x, y], pen) {
    this.context.font = "600 22px sans-serif";
    this.context.textAlign = "center";
    this.context.textBaseline = "middle";
    this.context.fillStyle = pens[pen];
    this.context.fillText(text, this.x(x), this.y(y));
  }

  /** Draw a ring around a point. */
  ring([x, y], radius, pen) {
    this.context.beginPath();
    this.context.arc(this.x(x), this.y(y), radius, 0, 2 * Math.PI);
    this.stroke(pen, 2);
  }
}
