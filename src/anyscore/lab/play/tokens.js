// Text to tokens and back, by the rules of the laboratory.

const SPACES = /[\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+/u;
const MARK = /[\p{P}\p{S}]/u; // each punctuation mark or symbol is its own kind
const APOSTROPHES = ["'", "’"];
const GLUE = "\uffed"; // opens a word token that stood right after the one before, with no space
const ESCAPE = "\uffee"; // opens a word token that stood apart but itself begins with one of the two

/** Return the tokens of a text; unit is "character", "word", "token" or "label". */
export function tokenise(text, unit) {
  const chunks = text.normalize("NFC").split(SPACES).filter((chunk) => chunk);
  if (unit === "character") return [...chunks.join(" ")];
  if (unit === "token") return chunks;
  if (unit === "label") return chunks.length ? [chunks.join(" ")] : [];
  return chunks.flatMap((chunk) => pieces(chunk).map((piece, i) => {
    if (i) return GLUE + piece;
    return piece.startsWith(GLUE) || piece.startsWith(ESCAPE) ? ESCAPE + piece : piece;
  }));
}

/** Return the text of tokens. */
export function detokenise(tokens, unit) {
  if (unit === "character") return tokens.join("");
  if (unit !== "word") return tokens.join(" ");
  return tokens.map((token, i) => {
    const glued = token.startsWith(GLUE);
    return (i && !glued ? " " : "") + token.slice(glued || token.startsWith(ESCAPE) ? 1 : 0);
  }).join("");
}

/** Cut a chunk without spaces into words and marks; an apostrophe inside a word closes its left. */
function pieces(chunk) {
  const runs = [];
  for (const character of chunk) {
    const kind = MARK.test(character) ? character : "";
    if (runs.length && runs.at(-1).kind === kind) runs.at(-1).text += character;
    else runs.push({ kind, text: character });
  }
  const found = [];
  runs.forEach(({ kind, text }, i) => {
    const inside = APOSTROPHES.includes(text) && runs[i - 1]?.kind === "" && runs[i + 1]?.kind === "";
    if (inside) found.push(found.pop() + text);
    else found.push(text);
  });
  return found;
}
