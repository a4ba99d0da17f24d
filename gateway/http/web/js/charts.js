// Small charts of columns, drawn as SVG; beside each stands a table with the same figures for who cannot see it.

import { h, replace, svg } from "./dom.js";

const HEIGHT = 190, LEFT = 54, BOTTOM = 22, TOP = 10, LABEL_PX = 74;

// `rows`: [{ label, values: [one, two?], told }]; values of a row stand on each other. `cap`: a line, where it is not null.
export function columns({ title, rows, format, cap = null, legend = [] }) {
  const place = h("div.chart-place");
  // Drawn for the width that there is: what is scaled has letters that nobody can read.
  new ResizeObserver(([entry]) => {
    const width = Math.round(entry.contentRect.width);
    if (width > 0) replace(place, picture({ title, rows, format, cap, width }));
  }).observe(place);
  return h("figure.stack", {}, h("figcaption", {}, h("h2", {}, title)), place, legend.length > 0 && h("p.legend", { "aria-hidden": "true" }, legend.map(([name, text]) => h("span", { class: name || null }, text))),
    h("table.sr", {}, h("caption", {}, title), h("tbody", {}, rows.filter((row) => sum(row.values) > 0).map((row) => h("tr", {}, h("th", { scope: "row" }, row.label), h("td", {}, row.told))))));
}

function picture({ title, rows, format, cap, width }) {
  const top = nice(Math.max(...rows.map((row) => sum(row.values)), cap ?? 0, 0));
  const y = (value) => HEIGHT - BOTTOM - (value / top) * (HEIGHT - BOTTOM - TOP);
  const step = (width - LEFT) / Math.max(rows.length, 1);
  const each = Math.max(1, Math.ceil(LABEL_PX / step));
  return svg("svg.chart", { width, height: HEIGHT, role: "img", "aria-label": title },
    [0, top / 2, top].map((value) => [svg("line.axis", { x1: LEFT, x2: width, y1: y(value), y2: y(value) }), svg("text", { x: LEFT - 7, y: y(value) + 4, "text-anchor": "end" }, format(value))]),
    rows.map((row, at) => svg("g", {}, svg("title", {}, `${row.label}: ${row.told}`), svg("rect.hit-area", { x: LEFT + at * step, y: TOP, width: step, height: HEIGHT - TOP - BOTTOM }), stacked(row.values, LEFT + at * step, step, y),
      (rows.length - 1 - at) % each === 0 && LEFT + at * step + step / 2 > LABEL_PX / 2 && svg("text", { x: Math.min(LEFT + at * step + step / 2, width - 20), y: HEIGHT - 6, "text-anchor": "middle" }, row.label))),
    cap !== null && svg("line.cap", { x1: LEFT, x2: width, y1: y(cap), y2: y(cap) }));
}

const sum = (values) => values.reduce((all, one) => all + one, 0);

function stacked(values, x, step, y) {
  let below = 0;
  return values.map((value, at) => {
    const from = y(below), to = y(below + value);
    below += value;
    return value > 0 && svg("rect", { class: `column${at ? " two" : ""}`, x: x + step * 0.14, width: Math.max(1, step * 0.72), y: to, height: Math.max(1, from - to), rx: Math.min(3, step / 6) });
  });
}

// The next round number above a value.
function nice(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 2.5, 5, 10].map((one) => one * power).find((one) => one >= value);
}

// A bar from nothing to all.
export function bar(share, label) {
  const part = Math.max(0, Math.min(1, share));
  return h("span.bar", { class: part > 0.9 ? "high" : null, role: "img", "aria-label": label }, svg("svg", { viewBox: "0 0 100 8", width: "100%", height: "8", preserveAspectRatio: "none" }, svg("rect", { x: 0, y: 0, width: part * 100, height: 8 })));
}
