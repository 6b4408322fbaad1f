// The figures beside the arcs: looks in a row, paths, heads, and one word's row.

import { $, make, percent } from "./dom.js";
import { set, state } from "./state.js";

function bar(label, share, most, extra = {}) {
  const fill = make("span", { class: "fill" });
  fill.style.width = `${Math.max(1, (100 * share) / most)}%`;
  return make("div", { class: "bar", ...extra }, make("span", { class: "bar-label" }, label), make("span", { class: "track" }, fill), make("span", { class: "bar-value" }, percent(share)));
}

export function showFigures(hops, layer, head, onPreview) {
  const figure = hops.layers[layer].heads[head];
  showBars(hops, figure);
  $("lengths").onchange = () => showBars(hops, figure);
  $("paths").replaceChildren(...figure.paths.map((path, rank) => pathItem(hops, path, rank, onPreview)));
  $("summarised").hidden = figure.summarised < 0.005;
  $("summarised").textContent = `${percent(figure.summarised)} came through summaries of whole blocks, which no path shows.`;
  $("heads").replaceChildren(...hops.layers.map((own, i) => layerRow(own, i, layer, head)));
}

function showBars(hops, figure) {
  const end = figure.paths[0]?.tokens.at(-1);
  const source = figure.sources.find((one) => one.token === end) ?? figure.sources[0];
  if (!source) return $("hops-chart").replaceChildren(make("p", { class: "muted" }, "It looks at nothing in particular."));
  const waits = $("lengths").checked;
  const shares = waits ? source.lengths : source.hops;
  const most = Math.max(...shares);
  const bars = shares.map((share, i) => ({ share, count: waits ? i + 1 : i })).filter((one) => one.share >= 0.005);
  $("hops-chart").replaceChildren(
    make("p", { class: "muted" }, `to get to “${hops.tokens[source.token]}” (${percent(source.share)} of what is read)`),
    ...bars.slice(0, 14).map(({ share, count }) => bar(String(count), share, most, { "data-hops": count })),
    ...(bars.length > 14 ? [make("p", { class: "muted" }, `… and ${bars.length - 14} longer`)] : []));
}

function pathItem(hops, path, rank, onPreview) {
  const words = path.tokens.map((token) => hops.tokens[token]);
  const parts = [words[0]];
  path.weights.forEach((weight, i) => parts.push(" ", make("span", { class: "weight" }, `→ ${weight.toFixed(2)}`), " ", words[i + 1]));
  const show = () => onPreview(rank);
  const hide = () => onPreview(null);
  return make("li", {}, make("button", { type: "button", class: "path", onmouseenter: show, onfocus: show, onmouseleave: hide, onblur: hide },
    make("strong", {}, percent(path.share)), " ", ...(path.weights.length ? parts : [words[0], " itself"])));
}

function layerRow(own, i, layer, head) {
  const most = Math.max(...own.heads.map((one) => one.need), 0.05);
  const buttons = own.heads.map((one, h) => {
    const dot = make("span", { class: "dot" });
    dot.style.opacity = Math.max(0.12, one.need / most).toFixed(2);
    const need = one.need >= 0.05 ? "the answer needs it" : "the answer does not need it";
    return make("button", { type: "button", "aria-pressed": String(i === layer && h === head), "aria-label": `Layer ${i + 1}, head ${h + 1}: ${need}`, onclick: () => set({ layer: i, head: h }) }, dot, `${h + 1}`);
  });
  const kind = own.gamma === null ? "looks once" : "follows chains";
  return make("div", { class: "layer" }, make("span", { class: "layer-name" }, `Layer ${i + 1} `, make("span", { class: "muted" }, kind)), make("span", { class: "head-buttons" }, ...buttons));
}

export function showRow(hops, token, own) {
  const list = (title, tip, entries) => entries.length
    ? [make("h4", {}, make("span", { class: "term", "data-tip": tip, tabindex: 0 }, title)), ...entries.slice(0, 5).map(([at, weight]) => bar(hops.tokens[at], weight, 1))] : [];
  $("row").replaceChildren(
    make("p", {}, make("strong", {}, `“${hops.tokens[token]}”`)),
    ...list("one look (A)", "A", own.A[token]),
    ...list("all looks", "S", own.S.length ? own.S[token] : []));
}

export function startGamma(about) {
  const exact = about.models[0];
  const slider = $("gamma");
  $("gamma-own").textContent = `trained with ${exact.gamma}`;
  slider.addEventListener("input", () => set({ gamma: +slider.value === exact.gamma ? null : +slider.value }));
}

export function showGamma(about) {
  const own = about.models[0].gamma;
  $("gamma-box").hidden = state.model !== about.models[0].name;
  $("gamma").value = state.gamma ?? own;
  $("gamma-out").value = (state.gamma ?? own).toFixed(2);
}
