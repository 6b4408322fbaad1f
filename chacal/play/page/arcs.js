// Arcs between words: one arc is one look back, as wide as what it carries.

import { svg } from "./dom.js";

/** Where an element stands inside the picture. */
function place(element, frame) {
  const at = element.getBoundingClientRect();
  return { x: at.left - frame.left + at.width / 2, top: at.top - frame.top, bottom: at.bottom - frame.top, middle: at.top - frame.top + at.height / 2, half: at.width / 2 };
}

/** From one word to an earlier one: over the words of its line, or around the right side. */
function curve(from, to, width, straight) {
  if (straight) return `M${from.x} ${from.top} C${from.x} ${to.bottom + 6} ${to.x} ${from.top - 6} ${to.x} ${to.bottom + 4}`;
  if (Math.abs(from.middle - to.middle) < 4) {
    const height = Math.min(40, 12 + Math.abs(from.x - to.x) / 6);
    return `M${from.x} ${from.top} C${from.x} ${from.top - height} ${to.x} ${to.top - height} ${to.x} ${to.top - 3}`;
  }
  const up = from.middle > to.middle;
  const [y1, y2] = up ? [from.top, to.bottom + 4] : [from.bottom, to.top - 4];
  const bend = Math.min(width * 0.3, 24 + Math.abs(y1 - y2) * 0.35);
  const side = Math.min(width - 4, Math.max(from.x, to.x) + bend);
  return `M${from.x} ${y1} C${side} ${y1 + (up ? -18 : 18)} ${side} ${y2 + (up ? 18 : -18)} ${to.x} ${y2}`;
}

/**
 * Draw arcs into an SVG that lies over a picture.
 *
 * hops: {from, to, flow, main, label} with elements as ends; straight: for a grid, row to row.
 */
export function drawArcs(canvas, picture, hops, straight = false) {
  const frame = picture.getBoundingClientRect();
  canvas.setAttribute("width", frame.width);
  canvas.setAttribute("height", frame.height);
  canvas.setAttribute("viewBox", `0 0 ${frame.width} ${frame.height}`);
  const arrow = (id) => svg("marker", { id, viewBox: "0 0 8 8", refX: 5, refY: 4, markerWidth: 7, markerHeight: 7, markerUnits: "userSpaceOnUse", orient: "auto" }, svg("path", { d: "M0 0 L8 4 L0 8 z", class: id }));
  canvas.replaceChildren(svg("defs", {}, arrow("arrow-main"), arrow("arrow-other")));
  const ordered = [...hops].sort((a, b) => a.main - b.main || a.flow - b.flow);
  for (const { from, to, flow, main, label } of ordered) {
    const path = svg("path", {
      d: curve(place(from, frame), place(to, frame), frame.width, straight),
      class: main ? "arc main" : "arc", "stroke-width": (1 + 6 * flow).toFixed(2),
      "marker-end": `url(#arrow-${main ? "main" : "other"})`, "data-flow": flow,
    }, svg("title", {}, label));
    path.style.opacity = Math.min(1, 0.18 + 0.82 * flow).toFixed(3);
    canvas.append(path);
  }
}
