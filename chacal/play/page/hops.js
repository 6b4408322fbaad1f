// How a model found out: the story word by word, the arcs over it, and the figures beside it.

import { latest, Unreachable } from "./api.js";
import { drawArcs } from "./arcs.js";
import { showFigures, showRow } from "./figures.js";
import { $, make, times } from "./dom.js";
import { set, state } from "./state.js";

const askHops = latest();
const askRows = latest();
let hops = null;
let rows = null;
let preview = null;

export async function updateHops(story, step) {
  $("how").hidden = !step;
  if (!step) return;
  const asked = { text: state.text, model: state.model, step, gamma: state.model === "boxes" ? state.gamma : null };
  try {
    hops = await askHops("hops", { ...asked, box: state.box });
  } catch (error) {
    if (error instanceof Unreachable) throw error;
    hops = null;
    $("tokens").replaceChildren();
    $("arcs").replaceChildren();
    $("summary").textContent = error.message;
    return;
  }
  rows = null;
  showHops();
  rows = await askRows("rows", asked);
}

/** The layer and head that are looked at: those chosen, or those that the answer needs most. */
function looked() {
  const layer = hops.layers[state.layer] ? state.layer : hops.layer;
  const chosen = state.head !== null && hops.layers[layer].heads[state.head];
  const needs = hops.layers[layer].heads.map((head) => head.need);
  const head = chosen ? state.head : layer === hops.layer ? hops.head : needs.indexOf(Math.max(...needs));
  return { layer, head, figure: hops.layers[layer].heads[head] };
}

export function showHops() {
  if (!hops) return;
  preview = null;
  const { layer, head, figure } = looked();
  showTokens(figure);
  $("summary").replaceChildren(...summary(layer, figure));
  showFigures(hops, layer, head, (path) => {
    preview = path;
    showArcs(figure);
  });
  showArcs(figure);
}

function thing(item) {
  return item ? make("span", {}, "holds the ", make("strong", {}, item)) : make("span", {}, "is ", make("strong", {}, "empty"));
}

function summary(layer, figure) {
  const looks = figure.paths[0]?.weights.length ?? 0;
  const right = hops.answer === hops.truth;
  const parts = [`The model says Box ${hops.box} `, thing(hops.answer), right ? ". " : ", but by the story it "];
  if (!right) parts.push(thing(hops.truth), ". ");
  const end = hops.tokens[figure.paths[0]?.tokens.at(-1)] ?? "";
  const last = end === "start" ? "the start, where nothing is said" : `“${end}”`;
  if (hops.gamma !== null) parts.push(`With γ at ${hops.gamma.toFixed(2)} instead of what it was trained with, looks fade out sooner. `);
  if (hops.layers[layer].gamma === null) parts.push("In this layer each word looks back only once. ");
  else if (looks) parts.push(`From the question it looked back ${times(looks)}, to ${last}, all in one layer. `);
  parts.push(make("span", { class: "muted" }, "Each arc is one look; the thicker, the more of the answer came that way."));
  return parts;
}

function showTokens(figure) {
  const lines = [];
  const main = figure.paths[0]?.tokens ?? [];
  hops.tokens.forEach((token, i) => {
    const sentence = hops.sentence[i];
    const answer = sentence >= hops.sentences;
    const line = answer ? hops.sentences : sentence;
    lines[line + 1] ??= make("div", { class: answer ? "line answers" : line < 0 ? "line origin" : "line", "data-line": line < 0 || answer ? "" : line + 1 });
    const place = main.indexOf(i);
    const button = make("button", {
      type: "button", class: `token${place >= 0 ? " on" : ""}${i === hops.question ? " question" : ""}`,
      tabindex: i === hops.question ? 0 : -1, "data-token": i,
      "aria-label": place > 0 ? `${token}, look ${place}` : token,
      onclick: () => answer && set({ box: "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[sentence - hops.sentences], layer: null, head: null }),
      onmouseenter: () => pointAt(i), onfocus: () => pointAt(i),
    }, token);
    if (place > 0) button.append(make("span", { class: "order" }, String(place)));
    if (answer && !lines[line + 1].querySelector(`[data-answer="${sentence}"]`)) lines[line + 1].append(make("span", { class: `pair${i === hops.question ? " asked" : ""}`, "data-answer": sentence }));
    (answer ? lines[line + 1].lastChild : lines[line + 1]).append(button);
  });
  $("tokens").replaceChildren(...lines.filter(Boolean));
}

export function showArcs(figure = hops && looked().figure) {
  if (!figure) return;
  const element = (i) => document.querySelector(`[data-token="${i}"]`);
  const found = new Map();
  figure.paths.forEach((path, rank) => {
    path.flows.forEach((flow, k) => {
      const [from, to] = [path.tokens[k], path.tokens[k + 1]];
      const main = preview === null ? rank === 0 : rank === preview;
      const key = `${from} ${to}`;
      if (found.get(key)?.main) return;
      const label = `look ${k + 1}: “${hops.tokens[from]}” looks at “${hops.tokens[to]}” with weight ${path.weights[k].toFixed(2)}`;
      found.set(key, { from: element(from), to: element(to), flow, main, label });
    });
  });
  drawArcs($("arcs"), $("picture"), [...found.values()].filter((hop) => hop.main || hop.flow > 0.02));
}

function pointAt(token) {
  const { layer, head } = looked();
  for (const old of document.querySelectorAll(".token.seen")) {
    old.classList.remove("seen");
    old.style.removeProperty("--seen");
  }
  if (!rows) return;
  const own = rows.layers[layer][head];
  const entries = own.S.length ? own.S[token] : own.A[token];
  for (const [at, weight] of entries) {
    const seen = document.querySelector(`[data-token="${at}"]`);
    seen?.classList.add("seen");
    seen?.style.setProperty("--seen", Math.max(0.12, weight));
  }
  showRow(hops, token, own);
}

/** Arrow keys go from word to word; one Tab leads in and one leads out. */
export function startHops() {
  $("tokens").addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -4, ArrowDown: 4 }[event.key];
    const from = event.target.closest("[data-token]");
    if (!step || !from) return;
    event.preventDefault();
    const to = document.querySelector(`[data-token="${+from.dataset.token + step}"]`);
    if (!to) return;
    from.tabIndex = -1;
    to.tabIndex = 0;
    to.focus();
  });
  new ResizeObserver(() => showArcs()).observe($("picture"));
}
