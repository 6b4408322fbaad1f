// The story as it is typed: what cannot be read is underlined where it stands, and said below.

import { exported } from "./api.js";
import { $, debounce, make } from "./dom.js";
import { set, state } from "./state.js";

export function startEditor(about, draw) {
  const text = $("text");
  const examples = $("examples");
  examples.append(make("option", { value: "" }, "choose…"));
  about.examples.forEach((example, i) => examples.append(make("option", { value: i }, example.title)));
  examples.addEventListener("change", () => {
    const example = about.examples[examples.value];
    if (example) set({ text: example.text, box: example.box, step: null, model: state.models[0], layer: null, head: null });
  });
  text.readOnly = exported;
  const typed = debounce(() => set({ text: text.value, step: null }), 60);
  text.addEventListener("input", () => {
    $("marks").replaceChildren(text.value);
    typed();
  });
  text.addEventListener("scroll", () => ($("marks").scrollTop = text.scrollTop));
  for (const name of ["boxes", "updates"]) {
    const slider = $(`draw-${name}`);
    const show = () => ($(`draw-${name}-out`).value = slider.value);
    slider.addEventListener("input", show);
    slider.max = about[name];
    show();
  }
  for (const id of ["draw", "draw-boxes", "draw-updates"]) $(id).closest("label, button").hidden = exported;
  $("draw").addEventListener("click", () => draw(+$("draw-boxes").value, +$("draw-updates").value));
}

/** The text that the state has, where it is not what stands there already. */
export function showText(examples) {
  const text = $("text");
  if (text.value !== state.text) text.value = state.text;
  const chosen = examples.findIndex((example) => example.text === state.text);
  $("examples").value = chosen < 0 ? "" : String(chosen);
}

export function showReading(story) {
  const marks = [];
  const faults = [];
  const read = [];
  let at = 0;
  for (const clause of story.clauses) {
    const own = story.text.slice(clause.start, clause.end);
    if (clause.fault) {
      const { start, end, what } = clause.fault;
      const word = story.text.slice(start, end);
      marks.push(story.text.slice(at, start), make("mark", {}, word));
      at = end;
      faults.push(make("li", {}, make("strong", {}, `“${word.trim()}”`), ` ${what}`));
    }
    const told = clause.read.join(" ");
    const said = clause.fault ? make("em", {}, "not read") : told || make("em", {}, "nothing new");
    const same = told === own.trim() || told === `${own.trim()}.`;
    read.push(make("li", {}, same ? said : make("span", {}, make("s", {}, own.trim()), " → ", said)));
  }
  marks.push(story.text.slice(at), "\n");
  $("marks").replaceChildren(...marks);
  $("faults").replaceChildren(...faults);
  $("read").replaceChildren(...read);
  const asTyped = story.clauses.every((c) => c.fault || c.read.join(" ") === story.text.slice(c.start, c.end).trim() + ".");
  $("read-box").hidden = asTyped;
  const long = story.updates > story.trained;
  $("long").hidden = !long;
  $("long").textContent = long ? `${story.updates} updates: the models were trained on at most ${story.trained}, so they may err.` : "";
}
