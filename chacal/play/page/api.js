// Questions to the server, or to answers that were computed ahead (an exported page has no server).

const ahead = document.getElementById("ahead");
const known = ahead ? JSON.parse(ahead.textContent) : null;

export const exported = known !== null;

/** Fields without a value are left out, and the rest is in one order: the same question, one key. */
export function keyOf(kind, asked) {
  const given = Object.entries(asked).filter(([, value]) => value !== null && value !== undefined);
  return kind + " " + JSON.stringify(Object.fromEntries(given.sort(([a], [b]) => (a < b ? -1 : 1))));
}

export class Unreachable extends Error {}

export async function ask(kind, asked = {}) {
  if (known) {
    const found = known[keyOf(kind, asked)];
    if (found === undefined) throw new Error("this page has no answer to that; `chacal play` has");
    return found;
  }
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
