// The page: what changed in the state is asked for and drawn, and nothing else.

import { ask, exported, latest, Unreachable } from "./api.js";
import { showBoxes, showChoices, startBoxes, stepOf } from "./boxes.js";
import { showPath, startChain, updateChain } from "./chain.js";
import { $ } from "./dom.js";
import { showReading, showText, startEditor } from "./editor.js";
import { showGamma, startGamma } from "./figures.js";
import { showHops, startHops, updateHops } from "./hops.js";
import { onChange, read, set, state, written } from "./state.js";
import { startTips } from "./tips.js";

const askStory = latest();
let about = null;
let story = null;

const touches = (changed, ...names) => names.some((name) => changed.has(name));

async function update(changed) {
  try {
    $("view-story").setAttribute("aria-pressed", String(state.view === "story"));
    $("view-chain").setAttribute("aria-pressed", String(state.view === "chain"));
    $("story-view").hidden = state.view !== "story";
    $("chain-view").hidden = state.view !== "chain";
    $("link").href = "#" + written();
    if (state.view === "chain") await updateChainView(changed);
    else await updateStoryView(changed);
    online();
  } catch (error) {
    if (error instanceof Unreachable) offline();
    else tell(error.message);
  }
}

async function updateChainView(changed) {
  if (touches(changed, "view", "seed", "gamma")) await updateChain();
  else showPath();
}

async function updateStoryView(changed) {
  showText(about.examples);
  showChoices();
  showGamma(about);
  if (touches(changed, "view", "text", "models", "gamma")) {
    story = await askStory("story", { text: state.text, models: state.models, gamma: state.gamma });
    showReading(story);
  }
  const step = stepOf(story);
  if (!story.boxes.includes(state.box)) state.box = boxOf(step);
  showBoxes(about, story);
  if (touches(changed, "view", "text", "gamma", "step", "model", "box", "models")) await updateHops(story, step);
  else showHops();
}

/** Where nobody clicked yet: the example's box, or else the fullest of chances to see a chain. */
function boxOf(step) {
  const example = about.examples.find((one) => one.text === state.text);
  const held = step ? story.truth[step - 1].findLastIndex(Boolean) : -1;
  return example?.box ?? story.boxes[Math.max(0, held)];
}

let waiting = 0;

function offline() {
  tell("The server does not answer. Start `chacal play` again; this page goes on by itself.");
  clearTimeout(waiting);
  waiting = setTimeout(() => (about ? update(new Set(["view"])) : start()), 1000);
}

function online() {
  $("offline").hidden = true;
}

function tell(message) {
  $("offline").textContent = message;
  $("offline").hidden = false;
}

async function draw(boxes, updates) {
  try {
    const seed = Math.floor(Math.random() * 1e6);
    set({ text: await ask("draw", { seed, boxes, updates }), step: null, box: null, layer: null, head: null });
  } catch (error) {
    tell(error.message);
  }
}

let started = false;

async function start() {
  try {
    about = await ask("about");
  } catch {
    return offline();
  }
  if (!started) {
    started = true;
    startTips();
    startEditor(about, draw);
    startBoxes(about);
    startGamma(about);
    startHops();
    startChain(about);
    onChange(update);
    $("view-story").addEventListener("click", () => set({ view: "story" }));
    $("view-chain").addEventListener("click", () => set({ view: "chain" }));
    addEventListener("hashchange", adopt);
    if (exported) {
      $("foot").firstChild.textContent = "Computed ahead: `chacal play` answers stories of your own. ";
      for (const id of ["gamma", "chain-gamma"]) [$(id).step, $(id).max] = ["0.1", "0.9"];
    }
  }
  adopt();
}

/** What the address says. */
function adopt() {
  const found = read();
  const known = new Set(about.models.map((model) => model.name));
  found.models = found.models.filter((name) => known.has(name));
  if (!found.models.length) found.models = [about.models[0].name];
  if (!found.models.includes(found.model)) found.model = found.models[0];
  found.text ??= about.examples[0].text;
  Object.assign(state, found);
  update(new Set(["view"]));
}

start();
