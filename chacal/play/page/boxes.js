// The boxes of each model after a sentence; where a model is wrong, it shows.

import { $, hue, make, percent } from "./dom.js";
import { set, state } from "./state.js";

export function startBoxes(about) {
  const choices = about.models.map((model) =>
    make("label", { class: "choice" },
      make("input", { type: "checkbox", value: model.name, onchange: choose }),
      make("span", { class: "term", tabindex: 0, "data-tip": `${model.about} It had all boxes right in ${percent(model.exact_match)} of its test stories.` }, model.label)));
  $("choices").replaceChildren(...choices);
  const go = (by) => set({ step: Math.min(+$("step").max, Math.max(1, +$("step").value + by)) });
  $("step").addEventListener("input", () => set({ step: +$("step").value }));
  $("earlier").addEventListener("click", () => go(-1));
  $("later").addEventListener("click", () => go(1));
}

function choose() {
  const models = [...document.querySelectorAll("#choices input:checked")].map((input) => input.value);
  if (!models.length) models.push(state.model);
  set({ models, model: models.includes(state.model) ? state.model : models[0], layer: null, head: null });
}

export function showChoices() {
  for (const input of document.querySelectorAll("#choices input")) {
    input.checked = state.models.includes(input.value);
    input.disabled = !input.checked && state.models.length >= 3;
  }
}

/** The sentence after which the boxes are shown: all of them unless the state says other. */
export function stepOf(story) {
  const last = story.sentences.length;
  return state.step === null ? last : Math.min(Math.max(1, state.step), last);
}

export function showBoxes(about, story) {
  const last = story.sentences.length;
  const step = stepOf(story);
  const slider = $("step");
  slider.max = Math.max(1, last);
  slider.value = step;
  slider.disabled = $("earlier").disabled = $("later").disabled = last < 2;
  slider.setAttribute("aria-valuetext", `after sentence ${step} of ${last}`);
  $("when").textContent = last ? `after sentence ${step} of ${last}` : "";
  $("sentence").textContent = last ? story.sentences[step - 1] : "No sentence yet: say what is in a box.";
  const focused = document.activeElement?.dataset?.at;
  $("models").replaceChildren(...story.told.map((told) => oneModel(about, story, told, step)));
  if (focused) document.querySelector(`[data-at="${focused}"]`)?.focus();
}

function oneModel(about, story, told, step) {
  const facts = about.models.find((model) => model.name === told.model);
  const wrong = step ? told.wrong[step - 1] : 0;
  const verdict = wrong ? `${wrong} of ${story.boxes.length} wrong` : "all right";
  const boxes = story.boxes.map((box, i) => {
    const said = step ? told.told[step - 1][i] : "";
    const truth = step ? story.truth[step - 1][i] : "";
    const right = said === truth;
    const chosen = state.box === box && state.model === told.model;
    const label = `Box ${box}: ${said || "empty"}${right ? "" : `, wrong: it is ${truth || "empty"}`}`;
    const parts = [make("span", { class: "inside" }, said ? make("span", { class: `thing ${hue(said)}` }, said) : make("span", { class: "nothing" }, "–"))];
    if (!right) parts.push(make("span", { class: "truth" }, truth ? `is: ${truth}` : "is empty"));
    return make("button", {
      type: "button", class: `box${right ? "" : " wrong"}`, "aria-pressed": String(chosen), "aria-label": label,
      "data-at": `${told.model} ${box}`, disabled: !step,
      onclick: () => set({ model: told.model, box, layer: null, head: null }),
    }, make("span", { class: "letter" }, box), ...parts);
  });
  return make("div", { class: "model" },
    make("div", { class: "model-head" },
      make("h3", {}, make("span", { class: "term", tabindex: 0, "data-tip": facts.about }, facts.label), told.model === "boxes" && state.gamma !== null ? ` with γ = ${state.gamma.toFixed(2)}` : ""),
      make("span", { class: `verdict${wrong ? " bad" : ""}` }, step ? verdict : "")),
    make("div", { class: "boxes", role: "group", "aria-label": `Boxes, as ${facts.label} says` }, ...boxes));
}
