// Numbers and formulas as text.

/** Return a number with two decimals and a true minus sign. */
export const decimal = (x) => x.toFixed(2).replace("-", "−");

/** Return a weight in percent. */
export function percent(weight) {
  if (weight < 0.0005) return "0\u00a0%";
  return `${weight < 0.0995 ? (100 * weight).toFixed(1) : Math.round(100 * weight)}\u00a0%`;
}

/** Return a formula as nodes; a letter's subscript follows _, as in W_q. */
export function formula(text) {
  const parts = text.split(/(?<=\p{L})_(\w(?:,\w)?)/u);
  return parts.map((part, i) => {
    if (i % 2 === 0) return part;
    return Object.assign(document.createElement("sub"), { textContent: part });
  });
}
