// Numbers, formulas, tokens and texts as a page shows them.

import { detokenise } from "./tokens.js";

const UNSEEN = /(?![\u200c\u200d])[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}]/gu;

/** Return a text with codes in place of invisible characters. */
export const visible = (text) => text.replace(UNSEEN, (character) =>
  `⟨U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);

/** Return a token of a unit as it stands beside a heatmap. */
export function tokenLabel(token, unit) {
  const text = visible(detokenise([token], unit));
  if (/^\p{Zs}$/u.test(text)) return "␣";
  return /^\p{M}/u.test(text) ? `◌${text}` : text; // a mark needs a letter to sit on
}

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
