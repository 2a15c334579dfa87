// Heatmaps: colours of the theme, cells on canvases, tokens along the sides, and when to draw.

/** Return a colour of the theme as [red, green, blue], 0 to 255. */
export function themeColour(name) {
  const probe = document.createElement("span");
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  canvas.fillStyle = getComputedStyle(probe).color;
  probe.remove();
  canvas.fillRect(0, 0, 1, 1);
  return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
}

/** Return the colours of the levels 0 to `levels`; level √w · levels stands for the weight w. */
export function heatColours(levels) {
  const [low, high] = ["--surface", "--heat"].map(themeColour);
  return Array.from({ length: levels + 1 }, (_, level) =>
    low.map((x, i) => x + ((high[i] - x) * level) / levels));
}

/** Paint one pixel for each cell, row after row, in the colour of its number. */
export function paintPixels(canvas, rows, columns, colour) {
  canvas.width = columns;
  canvas.height = rows;
  const context = canvas.getContext("2d"), image = context.createImageData(columns, rows);
  for (let i = 0; i < rows * columns; i++) {
    image.data.set(colour(i), 4 * i);
    image.data[4 * i + 3] = 255;
  }
  context.putImageData(image, 0, 0);
}

/** Draw cells of a size in CSS pixels, sharp on the screen, with gaps between all but small ones. */
export function drawCells(canvas, rows, columns, [width, height], colour) {
  const gap = Math.min(width, height) > 5 ? 1 : 0;
  const most = Math.max(columns * width, rows * height);
  const sharp = most > 6000 ? 1 : Math.min(2, devicePixelRatio || 1);
  canvas.width = columns * width * sharp;
  canvas.height = rows * height * sharp;
  canvas.style.width = `${columns * width}px`;
  canvas.style.height = `${rows * height}px`;
  const context = canvas.getContext("2d");
  context.scale(sharp, sharp);
  let last = null;
  for (let i = 0; i < rows; i++) {
    for (let j = 0; j < columns; j++) {
      const found = colour(i * columns + j);
      if (found !== last) context.fillStyle = `rgb(${found.map(Math.round).join(" ")})`;
      last = found;
      context.fillRect(j * width, i * height, width - gap, height - gap);
    }
  }
}

/** Return a text that keeps its direction from the texts around it. */
export const bdi = (text) =>
  Object.assign(document.createElement("bdi"), { textContent: text });

/** Write the tokens of a side as the items of a list; items that stay are not made anew. */
export function nameTokens(list, tokens) {
  while (list.children.length > tokens.length) list.lastChild.remove();
  tokens.forEach((token, i) => {
    if (i === list.children.length) {
      list.append(document.createElement("li"));
      list.lastChild.append(bdi(""));
    }
    const item = list.children[i];
    if (item.title === token) return;
    item.title = item.firstChild.textContent = token;
  });
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

/** Redraw when the page changes its colours, for another theme or for paper. */
export function whenColoursChange(redraw) {
  document.addEventListener("theme", redraw);
  matchMedia("print").addEventListener("change", redraw);
}
