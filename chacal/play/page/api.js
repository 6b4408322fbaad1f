// Questions to the server, or to answers that were computed ahead (an exported page has no server).

const packed = document.getElementById("ahead");
const known = packed && JSON.parse(await unpacked(packed.textContent));

export const exported = known !== null;

async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

/** Fields without a value are left out, and the rest is in one order: the same question, one key. */
export function keyOf(kind, asked) {
  const given = Object.entries(asked).filter(([, value]) => value !== null && value !== undefined);
  return kind + " " + JSON.stringify(Object.fromEntries(given.sort(([a], [b]) => (a < b ? -1 : 1))));
}

export class Unreachable extends Error {}

function answerAhead(kind, asked) {
  const found = known[keyOf(kind, asked)];
  if (found === undefined) throw new Error("This was not computed ahead. `chacal play` answers it.");
  return found;
}

/** Models were asked one by one: only the exact one has other γ. */
function storyAhead({ text, models, gamma }) {
  const found = models.map((name) => answerAhead("story", { text, models: [name], gamma: name === "boxes" ? gamma : null }));
  return { ...found[0], told: found.map((one) => one.told[0]) };
}

export async function ask(kind, asked = {}) {
  if (known) return kind === "story" ? storyAhead(asked) : answerAhead(kind, asked);
  let answer;
  try {
    const options = { method: "POST", headers: { "content-type": "application/json" } };
    answer = await fetch(`/api/${kind}`, kind === "about" ? {} : { ...options, body: JSON.stringify(asked) });
  } catch {
    throw new Unreachable("the server does not answer");
  }
  const found = await answer.json();
  if (!answer.ok) throw new Error(found.error);
  return found;
}

/** Of questions that overtake each other only the last is answered; the others never come back. */
export function latest() {
  let number = 0;
  return async (kind, asked) => {
    const own = ++number;
    const found = await ask(kind, asked);
    return own === number ? found : new Promise(() => {});
  };
}
