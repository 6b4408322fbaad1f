// One tooltip for every term: on pointing at it, on focus, and gone with Escape.

import { $ } from "./dom.js";

const WORDS = {
  gamma: "γ (gamma) says how much of each look is passed on to a further look. At 0 the model looks once, as ordinary attention does. Near 1 it follows a chain to its end.",
  hops: "A look, or hop: one word attends to another. Here: how many looks in a row it took to get to the words that the answer was read from, and how much of the answer came that way.",
  lengths: "A word may also look at itself and wait there. This counts such waits as looks: the share of each length t is (1-γ)γ^(t-1) A^t.",
  paths: "A path: word by word, how attention went from the question back to where the answer stands. The share says how much of all that this head reads came this way.",
  heads: "Attention is done several times side by side (heads), one layer after the other. The dots say how much the answer needs each head: without it, the answer would be less likely.",
  row: "A: where a word looks in one go. All looks: where it ends up when looks are followed by looks (the resolvent).",
  A: "One look: the attention weights of this word, its row of A.",
  S: "All looks together: its row of the resolvent, (1-γ) A (I-γA)⁻¹.",
  sure: "How likely the model thinks its own answer is.",
};

export function startTips() {
  const tip = $("tip");
  const show = (event) => {
    const term = event.target.closest?.("[data-tip]");
    if (!term) return;
    tip.textContent = WORDS[term.dataset.tip] ?? term.dataset.tip;
    tip.hidden = false;
    term.setAttribute("aria-describedby", "tip");
    const at = term.getBoundingClientRect();
    const own = tip.getBoundingClientRect();
    const left = Math.max(8, Math.min(at.left, document.documentElement.clientWidth - own.width - 8));
    const below = at.bottom + own.height + 12 < innerHeight;
    tip.style.left = `${left}px`;
    tip.style.top = `${below ? at.bottom + 6 : Math.max(4, at.top - own.height - 6)}px`;
  };
  const hide = (event) => {
    tip.hidden = true;
    event.target.closest?.("[data-tip]")?.removeAttribute("aria-describedby");
  };
  document.addEventListener("mouseover", show);
  document.addEventListener("focusin", show);
  document.addEventListener("mouseout", hide);
  document.addEventListener("focusout", hide);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") tip.hidden = true;
  });
  for (const term of document.querySelectorAll(".term")) term.tabIndex = 0;
}
