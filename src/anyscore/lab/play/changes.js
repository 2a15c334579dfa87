// Changes of a text at random, to see whether an answer survives them.

/** Return the items in a random order, another one if there is another. */
export function shuffledItems(items, random = Math.random) {
  const shuffled = [...items];
  const same = () => shuffled.every((item, i) => item === items[i]);
  if (new Set(items).size < 2) return shuffled;
  while (same()) {
    for (let i = shuffled.length - 1; i > 0; i--) {
      const j = Math.floor(random() * (i + 1));
      [shuffled[i], shuffled[j]] = [shuffled[j], shuffled[i]];
    }
  }
  return shuffled;
}

/** Return a text with its words in another order; a single word has its letters shuffled. */
export function shuffledText(text, random = Math.random) {
  const words = text.split(" ").filter((word) => word);
  if (words.length > 1) return shuffledItems(words, random).join(" ");
  return shuffledItems([...text], random).join("");
}

/** Return tokens with one of them, no space, replaced by another of the most frequent ones. */
export function perturbed(tokens, vocabulary, random = Math.random) {
  const draw = (from) => from[Math.floor(random() * from.length)];
  const places = [...tokens.keys()].filter((i) => tokens[i] !== " ");
  if (!places.length) return tokens;
  const place = draw(places);
  const others = vocabulary.slice(0, 100).filter((x) => x !== " " && x !== tokens[place]);
  return others.length ? tokens.map((token, i) => (i === place ? draw(others) : token)) : tokens;
}
