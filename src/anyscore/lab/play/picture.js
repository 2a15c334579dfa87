// A picture of the plane: a square canvas with the origin in its middle, in colours of the theme.

export const REACH = 3; // the picture shows x and y from −3 to 3
export const NODES = 49; // of a grid over the picture, in each direction

/** Return the coordinate of a node of the grid. */
export const nodeAt = (i) => REACH * (2 * i / (NODES - 1) - 1);

/**
 * Return the values (NODES²) of a function of x and y at the nodes, row after row from y = −3 on.
 *
 * values: an array that is filled and returned.
 */
export function onGrid(f, values = new Float64Array(NODES * NODES)) {
  for (let row = 0, at = 0; row < NODES; row++) {
    const y = nodeAt(row);
    for (let column = 0; column < NODES; column++, at++) values[at] = f(nodeAt(column), y);
  }
  return values;
}

/**
 * Call segment(x, y, x', y') for each piece of each level set of values on the grid.
 *
 * A level set crosses the edge of a cell where linear interpolation between its ends has the level.
 */
export function contours(values, levels, segment) {
  const side = 2 * REACH / (NODES - 1);
  for (let row = 0; row < NODES - 1; row++) {
    for (let column = 0; column < NODES - 1; column++) {
      const at = row * NODES + column;
      const a = values[at], b = values[at + 1], c = values[at + NODES + 1], d = values[at + NODES];
      const least = Math.min(a, b, c, d), most = Math.max(a, b, c, d);
      for (const level of levels) {
        if (level <= least || level > most) continue;
        const x = nodeAt(column), y = nodeAt(row);
        let first = null;
        const cross = (from, to, x0, y0, x1, y1) => {
          if ((from < level) === (to < level)) return;
          const t = (level - from) / (to - from), point = [x0 + t * (x1 - x0), y0 + t * (y1 - y0)];
          if (first) segment(...first, ...point);
          first = first ? null : point;
        };
        cross(a, b, x, y, x + side, y);
        cross(b, c, x + side, y, x + side, y + side);
        cross(c, d, x + side, y + side, x, y + side);
        cross(d, a, x, y + side, x, y);
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
  return { step, levels };
}

/** Return the channels [r, g, b] of a colour of the theme. */
function channels(name) {
  const probe = document.createElement("span");
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const context = new OffscreenCanvas(1, 1).getContext("2d");
  context.fillStyle = getComputedStyle(probe).color;
  probe.remove();
  context.fillRect(0, 0, 1, 1);
  return [...context.getImageData(0, 0, 1, 1).data].slice(0, 3);
}

const PENS = ["page", "surface", "line", "ink", "soft", "heat", "wrong"];
let palette = null; // {name: "rgb(…)", …, shades: 256 colours from surface to heat}

function paletteOfTheme() {
  const found = Object.fromEntries(PENS.map((name) => [name, channels(`--${name}`)]));
  const { surface, heat } = found;
  const shades = Array.from({ length: 256 }, (_, i) =>
    surface.map((low, c) => low + (heat[c] - low) * i / 255));
  for (const name of PENS) found[name] = `rgb(${found[name].join(" ")})`;
  return { ...found, shades };
}

/** A canvas that shows the plane; coordinates of its methods are those of the plane. */
export class Picture {
  /** Draw on the canvas in an element of the class "picture". */
  constructor(element) {
    this.element = element;
    this.canvas = element.querySelector("canvas");
    this.context = this.canvas.getContext("2d");
    this.tile = new OffscreenCanvas(NODES, NODES);
    this.image = new ImageData(NODES, NODES);
  }

  /** Empty the canvas; return false if the page does not show it. */
  begin() {
    const side = this.element.clientWidth, sharp = Math.min(2, devicePixelRatio || 1);
    if (!side) return false;
    palette ??= paletteOfTheme();
    if (this.canvas.width !== Math.round(side * sharp)) {
      this.canvas.width = this.canvas.height = Math.round(side * sharp);
    }
    this.side = side;
    this.context.setTransform(sharp, 0, 0, sharp, 0, 0);
    this.context.clearRect(0, 0, side, side);
    return true;
  }

  x(x) { return this.side * (1 + x / REACH) / 2; }
  y(y) { return this.side * (1 - y / REACH) / 2; }

  /** Paint shares (NODES²) between 0 and 1, from the page's surface to the colour of heat. */
  heat(shares) {
    const { data } = this.image;
    for (let row = 0, at = 0; row < NODES; row++) {
      for (let column = 0; column < NODES; column++, at++) {
        const shade = palette.shades[Math.round(255 * shares[at])];
        const pixel = 4 * ((NODES - 1 - row) * NODES + column);
        [data[pixel], data[pixel + 1], data[pixel + 2], data[pixel + 3]] = [...shade, 255];
      }
    }
    this.tile.getContext("2d").putImageData(this.image, 0, 0);
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
    context.strokeStyle = palette[pen];
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
    context.fillStyle = palette[pen];
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
    context.fillStyle = palette[pen];
    context.fill();
    this.stroke("page", 2);
  }

  /** Draw a ring around a point. */
  ring([x, y], radius, pen) {
    this.context.beginPath();
    this.context.arc(this.x(x), this.y(y), radius, 0, 2 * Math.PI);
    this.stroke(pen, 2);
  }

  /** Write beside a point, to its right by some pixels. */
  write(text, [x, y], right, pen = "ink") {
    const { context } = this;
    const width = right + 20, left = this.x(x) + (this.x(x) + width > this.side ? -width : right);
    context.font = `600 13px ${getComputedStyle(this.element).fontFamily}`;
    context.textBaseline = "middle";
    context.lineJoin = "round";
    context.strokeStyle = palette.page;
    context.lineWidth = 4;
    context.strokeText(text, left, this.y(y));
    context.fillStyle = palette[pen];
    context.fillText(text, left, this.y(y));
  }
}

/** Return a function that has `draw` called in the next frame, once however often it is asked. */
export function oncePerFrame(draw) {
  let due = false;
  return () => {
    if (due) return;
    due = true;
    requestAnimationFrame(() => {
      due = false;
      draw();
    });
  };
}

/** Redraw when an element of pictures changes its size, or the page its colours. */
export function whenLooksChange(element, redraw) {
  new ResizeObserver(redraw).observe(element);
  const recolour = () => {
    palette = null;
    redraw();
  };
  document.addEventListener("theme", recolour);
  matchMedia("print").addEventListener("change", recolour);
}
