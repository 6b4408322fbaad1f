// The pointer grid: every number says where to look in the row above.

import { exported, latest } from "./api.js";
import { drawArcs } from "./arcs.js";
import { $, make, times } from "./dom.js";
import { set, state } from "./state.js";

const askChain = latest();
let chain = null;
let own = 0;

export function startChain(about) {
  own = about.chain_gamma;
  $("chain-draw").addEventListener("click", () => set({ seed: (state.seed + 1) % (exported ? 4 : 100000) }));
  const slider = $("chain-gamma");
  slider.addEventListener("input", () => set({ gamma: +slider.value === own ? null : +slider.value }));
  $("grid").addEventListener("keydown", (event) => {
    const from = event.target.closest("[data-place]");
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -chain.block_size, ArrowDown: chain.block_size }[event.key];
    if (!from || !step) return;
    event.preventDefault();
    const place = +from.dataset.place + step;
    if (place < 0 || place >= chain.symbols.length) return;
    set({ place });
    document.querySelector(`[data-place="${place}"]`).focus();
  });
  new ResizeObserver(() => chain && showPath()).observe($("grid"));
}

export async function updateChain() {
  $("chain-gamma").value = state.gamma ?? own;
  $("chain-gamma-out").value = (state.gamma ?? own).toFixed(2);
  chain = await askChain("chain", { seed: state.seed, gamma: state.gamma });
  showGrid();
}

export function showGrid() {
  const rows = [];
  for (let row = 0; row < chain.blocks; row++) {
    const cells = [];
    for (let column = 0; column < chain.block_size; column++) {
      const place = row * chain.block_size + column;
      const right = chain.told[place] === chain.values[place];
      const symbol = row ? String(+chain.symbols[place] + 1) : "abcdefgh"[+chain.symbols[place].slice(1)];
      cells.push(make("td", {}, make("button", {
        type: "button", "data-place": place, class: `cell${row ? "" : ` value hue-${chain.values[place] % 8}`}${right ? "" : " wrong"}`,
        tabindex: place === state.place ? 0 : -1, "aria-label": `Row ${row + 1}, column ${column + 1}: ${symbol}${right ? "" : ", answered wrong"}`,
        onclick: () => set({ place }),
      }, symbol)));
    }
    rows.push(make("tr", {}, make("th", { scope: "row" }, row ? String(row + 1) : "values"), ...cells));
  }
  $("grid").tBodies[0].replaceChildren(...rows);
  showPath();
}

export function showPath() {
  if (!chain) return;
  const place = Math.min(Math.max(0, Math.round(state.place)), chain.symbols.length - 1);
  const cell = (at) => document.querySelector(`[data-place="${at}"]`);
  for (const old of document.querySelectorAll(".cell.lit, .cell[aria-current]")) {
    old.classList.remove("lit");
    old.removeAttribute("aria-current");
    old.tabIndex = -1;
  }
  chain.routes[place].forEach((at) => cell(at).classList.add("lit"));
  cell(place).setAttribute("aria-current", "true");
  cell(place).tabIndex = 0;
  const path = chain.paths[place];
  const hops = path.flows.map((flow, k) => ({
    from: cell(path.tokens[k]), to: cell(path.tokens[k + 1]), flow: Math.max(0.15, flow), main: true,
    label: `look ${k + 1}, weight ${path.weights[k].toFixed(2)}`,
  }));
  drawArcs($("chain-arcs"), $("chain-arcs").parentElement, hops, true);
  const letters = "abcdefgh";
  const [said, truth] = [letters[chain.told[place]], letters[chain.values[place]]];
  const looks = path.weights.length;
  const needed = chain.routes[place].length - 1;
  $("chain-summary").replaceChildren(
    `This number leads to the value `, make("strong", {}, truth), `. The model says `, make("strong", {}, said),
    said === truth ? ". " : ", which is wrong. ",
    needed ? `It looked back ${times(looks)} in one layer${looks < needed ? `, but ${needed} looks are needed` : ""}. ` : "It is a value itself. ",
    `${chain.told.filter((one, i) => one === chain.values[i]).length} of ${chain.told.length} answers are right.`);
}
