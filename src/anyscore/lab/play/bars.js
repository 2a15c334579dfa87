// Bars of numbers side by side; the style sheet draws them from their ends.

/** Draw a bar from `base` to each number on a scale from `low` to `high`; one may be chosen. */
export function drawBars(list, numbers, { low, high, base = low, chosen = -1 }) {
  const at = (x) => (high > low ? (x - low) / (high - low) : 0);
  list.style.setProperty("--base", at(base));
  while (list.children.length > numbers.length) list.lastChild.remove();
  while (list.children.length < numbers.length) list.append(document.createElement("li"));
  numbers.forEach((x, i) => {
    const bar = list.children[i];
    bar.style.setProperty("--from", at(Math.min(x, base)));
    bar.style.setProperty("--to", at(Math.max(x, base)));
    bar.className = `${x < base ? "against" : "for"}${i === chosen ? " here" : ""}`;
  });
}
