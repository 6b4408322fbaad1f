// What the page shows, kept in its address: a view can be sent to someone, and goes back and forth.

const START = {
  view: "story", text: null, models: ["boxes", "boxes-dense"], step: null, model: "boxes", box: null,
  gamma: null, layer: null, head: null, seed: 0, place: 127,
};

export const state = { ...START };

const numbers = new Set(["step", "gamma", "layer", "head", "seed", "place"]);
const listeners = [];

export function onChange(listener) {
  listeners.push(listener);
}

/** Change some of it; the address follows, and everyone who draws is told what changed. */
export function set(changes) {
  const changed = Object.keys(changes).filter((key) => String(state[key]) !== String(changes[key]));
  if (!changed.length) return;
  Object.assign(state, changes);
  history.replaceState(null, "", "#" + written());
  listeners.forEach((listener) => listener(new Set(changed)));
}

export function written() {
  const words = new URLSearchParams();
  for (const [key, value] of Object.entries(state)) {
    if (value !== null && String(value) !== String(START[key])) words.set(key, String(value));
  }
  return words.toString();
}

/** What an address says; what it does not say is as at the start. */
export function read() {
  const found = { ...START };
  for (const [key, value] of new URLSearchParams(location.hash.slice(1))) {
    if (!(key in START)) continue;
    if (numbers.has(key)) found[key] = Number.isFinite(+value) ? +value : START[key];
    else found[key] = key === "models" ? value.split(",").filter(Boolean).slice(0, 3) : value;
  }
  return found;
}
