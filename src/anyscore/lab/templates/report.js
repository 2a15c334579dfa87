"use strict";
// Draws the curves and the alignments, and draws them again when the theme changes.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const systemDark = matchMedia("(prefers-color-scheme: dark)");
  const narrow = matchMedia("(max-width: 40rem)");
  const symbols = ["circle", "square", "diamond", "triangle-up", "cross", "x", "triangle-down",
    "star", "pentagon", "hexagon"];
  const config = { displayModeBar: false, responsive: true };
  const byName = new Map(data.scores.map((score, i) => [score.name, { ...score, i: i % 10 }]));
  const ordered = data.order.map((name) => byName.get(name));
  const words = data.unit === "word";

  // The style sheet knows the colours: ask it what a name stands for in the present theme.
  const probe = document.body.appendChild(document.createElement("span"));
  probe.hidden = true;
  const colour = (name) => {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
  };
  const sans = getComputedStyle(document.body).fontFamily;
  const canvas = document.createElement("canvas").getContext("2d");
  const widest = (texts, size) => {
    canvas.font = `${size}px ${sans}`;
    return Math.max(0, ...texts.map((text) => canvas.measureText(text).width));
  };
  // Plotly reads some HTML in its texts: tokens must not be taken for it. The isolates keep a
  // right-to-left token from turning round what stands beside it.
  const plain = (text) =>
    "\u2068" + text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;") + "\u2069";

  const layout = (extra) => ({
    autosize: true,
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: sans, size: 13, color: colour("ink") },
    hoverlabel: {
      bgcolor: colour("page"),
      bordercolor: colour("soft"),
      font: { family: sans, size: 14, color: colour("ink") },
      align: "left",
    },
    hovermode: "closest",
    dragmode: false,
    showlegend: false,
    ...extra,
  });
  const axis = (extra) => ({
    fixedrange: true,
    gridcolor: colour("line"),
    linecolor: colour("line"),
    zeroline: false,
    tickfont: { color: colour("soft") },
    automargin: true,
    ...extra,
  });
  const marker = (score) => ({ color: colour(`c${score.i}`), symbol: symbols[score.i], size: 8 });

  function line(score, key, label, digits, factor, style) {
    return {
      type: "scatter",
      mode: style.mode,
      name: score.name,
      x: score.epochs.map((epoch) => epoch.epoch),
      y: score.epochs.map((epoch) => (epoch[key] === null ? null : epoch[key] * factor)),
      marker: marker(score),
      line: { color: colour(`c${score.i}`), width: style.width, dash: style.dash },
      hovertemplate: `<b>${plain(score.name)}</b><br>epoch %{x}<br>${label} %{y:.${digits}f}` +
        (factor === 100 ? " %" : "") + "<extra></extra>",
    };
  }

  function curves(id, traces, yaxis) {
    const last = Math.max(1, ...data.scores.flatMap((s) => s.epochs.map((e) => e.epoch)));
    Plotly.react(id, traces, layout({
      margin: { l: 46, r: 12, t: 12, b: 44 },
      xaxis: axis({
        title: { text: "epoch", font: { size: 13 } },
        range: [0.7, last + 0.3],
        dtick: Math.ceil(last / 10),
        tick0: 1,
        showgrid: false,
      }),
      yaxis: axis(yaxis),
    }), config);
  }

  function drawMatch() {
    const solid = { mode: "lines+markers", width: 2.2, dash: "solid" };
    const traces = ordered.map((s) =>
      line(s, "valid_exact_match", "validation exact match", 1, 100, solid));
    const top = Math.max(0, ...traces.flatMap((trace) => trace.y));
    curves("match", traces, top > 40 ? { range: [0, 103] } : { rangemode: "tozero" });
  }

  function drawLoss() {
    const solid = { mode: "lines+markers", width: 2.2, dash: "solid" };
    const dotted = { mode: "lines", width: 1.4, dash: "dot" };
    const traces = ordered.flatMap((s) => [
      line(s, "train_loss", "training loss", 3, 1, dotted),
      line(s, "valid_loss", "validation loss", 3, 1, solid),
    ]);
    const values = traces.flatMap((trace) => trace.y).filter((y) => y !== null);
    const low = Math.min(...values), high = Math.max(...values);
    if (!(low > 0 && high / low > 4)) {
      curves("loss", traces, { rangemode: "tozero" });
      return;
    }
    const steps = high / low > 400 ? [1] : high / low > 20 ? [1, 3] : [1, 2, 5];
    const ticks = [-6, -5, -4, -3, -2, -1, 0, 1, 2, 3].flatMap((power) =>
      steps.map((step) => Number(`${step}e${power}`)));
    curves("loss", traces, { type: "log", tickvals: ticks, ticktext: ticks.map(String) });
  }

  function drawTrade() {
    const exact = data.measure === "exact_match";
    const factor = exact ? 100 : 1;
    const points = ordered.filter((s) => s.quality !== null && s.step_ms !== null);
    const x = points.map((s) => s.step_ms);
    const y = points.map((s) => s.quality * factor);
    const high = Math.max(...y), low = Math.min(...y);
    const bar = Math.max(...points.map((s) => s.margin * factor));
    const span = high - low + 3 * bar || 1;
    const right = 1.25 * Math.max(...x);
    const near = narrow.matches ? 0.5 : 0.22;
    // Names stand to the right of their points; where two would touch, the left one's to its left.
    const side = points.map((_, i) => points.some((_, j) =>
      Math.abs(y[i] - y[j]) < 0.07 * span && x[j] - x[i] < near * right &&
      (x[j] > x[i] || (x[j] === x[i] && j < i))) ? "left" : "right");
    Plotly.react("trade", [{
      type: "scatter",
      mode: "markers+text",
      x, y,
      text: points.map((s) => ` ${plain(s.name)} `),
      textposition: side.map((where) => `middle ${where}`),
      textfont: { size: 14, color: colour("ink") },
      cliponaxis: false,
      marker: {
        color: points.map((s) => colour(`c${s.i}`)),
        symbol: points.map((s) => symbols[s.i]),
        size: 12,
        opacity: 1,
      },
      error_y: {
        type: "data",
        array: points.map((s) => s.margin * factor),
        color: colour("soft"),
        thickness: 1.2,
        width: 5,
      },
      hovertemplate: "%{text}<br>%{x:.1f} ms per step<br>" +
        (exact ? "%{y:.1f} % exact match" : "chrF %{y:.1f}") + "<extra></extra>",
    }], layout({
      margin: { l: 54, r: 12, t: 12, b: 48 },
      xaxis: axis({
        title: { text: "milliseconds per training step", font: { size: 13 } },
        range: [0, right],
      }),
      yaxis: axis({
        title: { text: exact ? "exact match on the test set, %" : "chrF on the test set",
          font: { size: 13 } },
        range: [Math.max(0, low - 0.15 * span - bar),
          Math.min(exact ? 102 : Infinity, high + 0.1 * span + bar)],
      }),
    }), config);
  }

  function describe(score, example, source) {
    const looks = example.output.map(([, name], t) => {
      const k = example.weights[t].indexOf(Math.max(...example.weights[t]));
      return `${name} at ${source[k][1]}`;
    });
    return `Attention weights of ${score.name}. Each output token looks most at: ` +
      `${looks.join("; ")}.`;
  }

  function heat(div, score, example, source) {
    const small = words ? 12 : 11;
    const rows = source.map(([label]) => label);
    const columns = example.output.map(([label]) => label);
    const left = Math.ceil(widest(rows, small)) + 10;
    const top = words ? Math.ceil(widest(columns, small)) + 12 : 22;
    const cell = words ? 22 : rows.length > 32 ? 14 : rows.length > 20 ? 16 : 18;
    const height = top + rows.length * cell + 4;
    div.style.height = `${height}px`;
    const ticks = (labels, extra) => axis({
      tickmode: "array",
      tickvals: labels.map((_, i) => i),
      ticktext: labels.map(plain),
      tickfont: { size: small, color: colour("ink") },
      showgrid: false,
      ticks: "",
      automargin: false,
      ...extra,
    });
    Plotly.react(div, [{
      type: "heatmap",
      z: source.map((_, k) => example.weights.map((row) => row[k])),
      text: source.map(([, from], k) => example.output.map(([, to], t) => {
        const weight = example.weights[t][k];
        return `output <b>${plain(to)}</b><br>source <b>${plain(from)}</b><br>` +
          `weight <b>${weight === null ? "not a number" : weight.toFixed(3)}</b>`;
      })),
      hovertemplate: "%{text}<extra></extra>",
      colorscale: [0, 1, 2, 3, 4].map((i) => [i / 4, colour(`h${i}`)]),
      zmin: 0,
      zmax: 1,
      xgap: 1,
      ygap: 1,
      showscale: false,
    }], layout({
      height,
      margin: { l: left, r: 2, t: top, b: 2 },
      xaxis: ticks(columns, { side: "top", range: [-0.5, columns.length - 0.5],
        tickangle: words ? -90 : 0 }),
      yaxis: ticks(rows, { range: [rows.length - 0.5, -0.5] }),
    }), config);
  }

  const element = (tag, name, text) => {
    const made = document.createElement(tag);
    made.className = name;
    if (text !== undefined) made.textContent = text;
    return made;
  };

  function drawAlignments() {
    const chosen = Number(document.getElementById("item").value);
    const panels = document.getElementById("panels");
    const source = data.sources[chosen];
    const shown = ordered.filter((score) => chosen < score.examples.length);
    document.querySelectorAll(".item").forEach((item, i) => { item.hidden = i !== chosen; });
    panels.querySelectorAll(".heat").forEach((div) => Plotly.purge(div));
    panels.replaceChildren();
    const longest = Math.max(1, ...shown.map((s) => s.examples[chosen].output.length));
    const step = words ? 20 : narrow.matches ? 11 : 15;
    const width = widest(source.map(([label]) => label), words ? 12 : 11) + 12 + longest * step;
    panels.style.setProperty("--panel", `${Math.max(Math.ceil(width), words ? 190 : 150)}px`);
    const drawn = shown.map((score) => {
      const example = score.examples[chosen];
      const figure = element("figure", "panel");
      const caption = element("figcaption", "");
      const mark = document.createElementNS("http://www.w3.org/2000/svg", "svg");
      mark.setAttribute("class", `mark c${score.i}`);
      mark.setAttribute("viewBox", "-8 -8 16 16");
      mark.setAttribute("aria-hidden", "true");
      mark.appendChild(document.createElementNS("http://www.w3.org/2000/svg", "use"))
        .setAttribute("href", `#mark-${score.i}`);
      const right = example.right;
      caption.append(mark, score.name,
        element("span", `verdict ${right ? "right" : "wrong"}`, right ? "✓ right" : "✗ wrong"));
      const output = element("p", "output");
      const text = element("bdi", "", example.text);
      text.dir = "auto";
      output.append(text);
      const div = element("div", "heat");
      div.setAttribute("role", "img");
      div.setAttribute("aria-label", describe(score, example, source));
      figure.append(caption, output, div);
      panels.append(figure);
      return () => heat(div, score, example, source);
    });
    drawn.forEach((draw) => draw()); // once all panels have their width
  }

  const has = (id) => document.getElementById(id) !== null;
  function drawAll() {
    if (has("match")) { drawMatch(); drawLoss(); }
    if (has("trade")) drawTrade();
    if (has("item")) drawAlignments();
  }

  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : systemDark.matches);
  const button = document.getElementById("theme");
  function label() {
    button.textContent = isDark() ? "Light theme" : "Dark theme";
  }
  function setTheme(theme) {
    if (theme) root.dataset.theme = theme; else delete root.dataset.theme;
    label();
    drawAll();
  }
  button.hidden = false;
  button.addEventListener("click", () => setTheme(isDark() ? "light" : "dark"));
  systemDark.addEventListener("change", () => setTheme(root.dataset.theme));
  narrow.addEventListener("change", drawAll);
  // Paper is light.
  let before;
  addEventListener("beforeprint", () => { before = root.dataset.theme; setTheme("light"); });
  addEventListener("afterprint", () => setTheme(before));

  if (has("item")) {
    const item = document.getElementById("item");
    document.querySelector(".chooser").hidden = false;
    item.addEventListener("change", drawAlignments);
    const go = (by) => {
      item.selectedIndex = (item.selectedIndex + by + item.length) % item.length;
      drawAlignments();
    };
    document.getElementById("previous").addEventListener("click", () => go(-1));
    document.getElementById("next").addEventListener("click", () => go(1));
  }
  setTheme(root.dataset.theme);
})();
