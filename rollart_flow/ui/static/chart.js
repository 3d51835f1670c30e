// Line and bar charts of the rows of a view: zoom by drag, points that are links, a table beside.
//
// options: {
//   x: column of the abscissa ("step"),
//   y: columns, each one series: {column: label},
//   by: columns whose values name the series instead, with y: {column: label} of one column; of two,
//     the first has a color for each value and the second a dash,
//   choose: a column of which one value at a time is shown; the reader chooses it, `first` is before,
//   band: [lowest, highest] columns around the first series,
//   kind: "line" (default) or "bars", which are stacked,
//   link: (row) => path of a page, format: (value) => text, caption, along: (value) => text for x,
//   zoom: "local" for a view without the parameters `first` and `last`, by which others are asked
//   again when one zooms; false for a chart without zoom
// }

import { el, fold, link as anchor, svg } from "./dom.js";
import { number } from "./format.js";
import { objects, queryOf, table } from "./table.js";

const [WIDTH, HEIGHT] = [560, 230];
const PLOT = { left: 58, right: WIDTH - 12, top: 10, bottom: HEIGHT - 30 };
const COLORS = 8;
const chosen = new Map(); // the value that a reader chose, by the chart
const hidden = new Map(); // the labels of series that a reader hid, by the chart
let charts = 0;

export function chart(page, name, options) {
  const place = el("figure", { class: "chart", "data-view": name });
  show(place, page, name, options);
  return place;
}

function show(place, page, name, options) {
  const view = page.data.views[name];
  const range = page.states[name];
  const zoomed = range?.first !== undefined;
  const inside = (row) => options.zoom !== "local" || !zoomed || (row[options.x] >= range.first && row[options.x] <= range.last);
  const known = options.choose ? [...new Set(objects(view).map((row) => row[options.choose]))].sort() : [];
  const choice = known.includes(chosen.get(name)) ? chosen.get(name) : known.includes(options.first) ? options.first : known[0];
  const rows = objects(view).filter((row) => inside(row) && (known.length === 0 || row[options.choose] === choice));
  const all = seriesOf(rows, options);
  const series = all.filter((each) => !hidden.get(name)?.has(each.label));
  const caption = options.caption ?? view.title;
  const zoom = async (range) => {
    page.state(name, range === null ? {} : { first: range[0], last: range[1] });
    if (options.zoom !== "local") page.data.views[name] = (await page.fetch([name])).views[name];
    show(place, page, name, options);
  };
  const reset = zoomed && el("button", { type: "button", class: "small", id: `whole-${name}`, onclick: () => zoom(null) }, "whole");
  const choose = (event) => {
    chosen.set(name, event.target.value);
    show(place, page, name, options);
    document.getElementById(`choose-${name}`)?.focus();
  };
  const choices = known.length > 1 && el("select", { id: `choose-${name}`, "aria-label": options.choose, class: "small", onchange: choose },
    known.map((value) => el("option", { value, selected: value === choice }, value)));
  const parts = [el("figcaption", {}, caption, known.length === 1 && `: ${known[0]}`, choices, reset)];
  const toggle = (label) => {
    const labels = hidden.get(name) ?? new Set();
    if (!labels.delete(label)) labels.add(label);
    hidden.set(name, labels);
    const focused = document.activeElement?.id;
    show(place, page, name, options);
    document.getElementById(focused)?.focus();
  };
  parts.push(legend(name, all, options, toggle));
  if (series.every((each) => each.points.length === 0)) parts.push(el("p", { class: "empty" }, "no values"));
  else parts.push(drawn(page, view, rows, series, caption, options, options.zoom === false ? null : zoom));
  place.replaceChildren(
    ...parts.filter(Boolean),
    fold(`table-${name}`, "table", () => table(page, name, { columns: options.link ? { [options.x]: { link: options.link } } : {}, caption, sortable: false, query: false })),
    queryOf(page, name, view),
  );
}

function seriesOf(rows, { x, y, by }) {
  const named = new Map();
  const colors = [], dashes = [];
  const place = (list, value) => (list.includes(value) ? list.indexOf(value) : list.push(value) - 1);
  const put = (label, row, value, color = label, dash = label) => {
    if (!named.has(label)) named.set(label, { label, points: [], style: `s${place(colors, color) % COLORS} d${place(dashes, dash) % 4}` });
    if (typeof value === "number" && typeof row[x] === "number") named.get(label).points.push({ x: row[x], y: value, row });
  };
  for (const row of rows) {
    if (by) put(by.map((column) => row[column]).join(" "), row, row[Object.keys(y)[0]], row[by[0]], row[by.at(-1)]);
    else for (const [column, label] of Object.entries(y)) put(label, row, row[column]);
  }
  for (const each of named.values()) each.points.sort((one, other) => one.x - other.x);
  return [...named.values()];
}

// Numbers at round distances from the lowest to the highest.
export function ticks(low, high, most = 5) {
  if (!(high > low)) return [low];
  const rough = (high - low) / most;
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((each) => each * unit).find((each) => each >= rough);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-9; at += step) found.push(Number(at.toPrecision(12)));
  return found;
}

// The lowest and highest value of each axis, with some room.
function extent(rows, series, { x, kind, band }) {
  const xs = series.flatMap((each) => each.points.map((point) => point.x));
  let ys = series.flatMap((each) => each.points.map((point) => point.y));
  if (band) ys = ys.concat(rows.flatMap((row) => band.map((column) => row[column])).filter((value) => typeof value === "number"));
  if (kind === "bars") {
    const sums = new Map();
    for (const each of series) for (const point of each.points) sums.set(point.x, (sums.get(point.x) ?? 0) + point.y);
    ys = [0, ...sums.values()];
  }
  const [xLow, xHigh] = [Math.min(...xs), Math.max(...xs)];
  let [low, high] = [Math.min(...ys), Math.max(...ys)];
  if (low >= 0 && low < high / 2) low = 0;
  if (low === high) [low, high] = [low - Math.abs(low || 1) / 2, high + Math.abs(high || 1) / 2];
  const room = kind === "bars" ? 0.5 : xLow === xHigh ? 1 : 0;
  return { xLow: xLow - room, xHigh: xHigh + room, low, high: high + (high - low) * 0.04 };
}

function drawn(page, view, rows, series, caption, options, zoom) {
  const bounds = extent(rows, series, options);
  const across = (value) => PLOT.left + ((value - bounds.xLow) / (bounds.xHigh - bounds.xLow)) * (PLOT.right - PLOT.left);
  const up = (value) => PLOT.bottom - ((value - bounds.low) / (bounds.high - bounds.low)) * (PLOT.bottom - PLOT.top);
  const id = `chart-${(charts += 1)}`;
  const format = options.format ?? number;
  const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "group", "aria-labelledby": `${id}-title ${id}-desc` },
    svg("title", { id: `${id}-title` }, caption),
    svg("desc", { id: `${id}-desc` }, described(series, options, format)),
    axes(bounds, across, up, options, format),
    options.band && bandOf(rows, options, across, up),
    options.kind === "bars" ? bars(page, series, across, up, options, format) : lines(page, series, across, up, options, format));
  if (zoom) brush(picture, bounds, zoom);
  return picture;
}

function described(series, { x }, format) {
  const said = series.filter((each) => each.points.length).map(({ label, points }) => {
    const [first, last] = [points[0], points.at(-1)];
    return `${label}: ${format(first.y)} at ${x} ${number(first.x)}, ${format(last.y)} at ${x} ${number(last.x)}`;
  });
  return `${said.join("; ")}. The table below has all values.`;
}

function axes(bounds, across, up, { x, along: shown = number }, format) {
  const level = ticks(bounds.low, bounds.high, 4).map((value) => [
    svg("line", { class: "grid", x1: PLOT.left, x2: PLOT.right, y1: up(value), y2: up(value) }),
    svg("text", { x: PLOT.left - 6, y: up(value) + 4, "text-anchor": "end" }, format(value)),
  ]);
  const along = ticks(bounds.xLow, bounds.xHigh, 7).filter(Number.isInteger).map((value) =>
    svg("text", { x: across(value), y: PLOT.bottom + 15, "text-anchor": "middle" }, shown(value)));
  return svg("g", { "aria-hidden": "true" }, level, along,
    svg("line", { class: "axis", x1: PLOT.left, x2: PLOT.right, y1: PLOT.bottom, y2: PLOT.bottom }),
    svg("text", { x: PLOT.right, y: PLOT.bottom + 24, "text-anchor": "end" }, x));
}

function bandOf(rows, { x, band: [low, high] }, across, up) {
  const known = rows.filter((row) => [row[x], row[low], row[high]].every((value) => typeof value === "number")).sort((a, b) => a[x] - b[x]);
  if (known.length < 2) return null;
  const corners = [...known.map((row) => [row[x], row[high]]), ...known.reverse().map((row) => [row[x], row[low]])];
  return svg("polygon", { class: "band s0", points: corners.map(([a, b]) => `${across(a)},${up(b)}`).join(" ") });
}

function pointed(page, point, label, shape, { x, link }, format) {
  shape.append(svg("title", {}, `${label}: ${format(point.y)}, ${x} ${number(point.x)}`));
  const path = link?.(point.row);
  return path ? svg("a", { href: page.link(path), tabindex: -1, "aria-label": `${label}, ${x} ${number(point.x)}: ${format(point.y)}` }, shape) : shape;
}

function lines(page, series, across, up, options, format) {
  return series.map(({ label, points, style }) => svg("g", { class: style },
    svg("path", { class: "line", d: points.map((point, at) => `${at ? "L" : "M"}${across(point.x).toFixed(1)},${up(point.y).toFixed(1)}`).join("") }),
    points.map((point) => pointed(page, point, label, svg("circle", { class: "dot", cx: across(point.x), cy: up(point.y), r: points.length > 100 ? 1.8 : 3 }), options, format))));
}

function bars(page, series, across, up, options, format) {
  const xs = [...new Set(series.flatMap((each) => each.points.map((point) => point.x)))].sort((a, b) => a - b);
  const gap = Math.min(...xs.slice(1).map((value, at) => value - xs[at]), Infinity);
  const width = Math.max(1, Math.min(40, (across(Number.isFinite(gap) ? gap : 1) - across(0)) * 0.8));
  const below = new Map(xs.map((x) => [x, 0]));
  return series.map(({ label, points, style }) => svg("g", { class: style }, points.filter((point) => point.y > 0).map((point) => {
    const from = below.get(point.x);
    below.set(point.x, from + point.y);
    const shape = svg("rect", { class: "bar", x: across(point.x) - width / 2, width, y: up(from + point.y), height: Math.max(0, up(from) - up(from + point.y)) });
    return pointed(page, point, label, shape, options, format);
  })));
}

// The names of the series; one that is clicked is hidden, or shown again.
function legend(name, series, { kind }, toggle) {
  if (series.length < 2) return null;
  const mark = () => svg("svg", { viewBox: "0 0 14 10", "aria-hidden": "true" }, kind === "bars" ? svg("rect", { class: "bar", width: 10, height: 10 }) : svg("path", { class: "line", d: "M0,5L14,5", "stroke-width": 2 }));
  return el("ul", { class: "legend" }, series.map(({ label, style }, index) => el("li", { class: style },
    el("button", { type: "button", id: `series-${name}-${index}`, "aria-pressed": String(!hidden.get(name)?.has(label)), onclick: () => toggle(label) }, mark(), label))));
}

// Zoom into the part over which a pointer is dragged.
function brush(picture, bounds, zoom) {
  let from = null;
  const mark = svg("rect", { class: "brush", y: PLOT.top, height: PLOT.bottom - PLOT.top, width: 0 });
  picture.append(mark);
  const at = (event) => {
    const box = picture.getBoundingClientRect();
    return Math.min(PLOT.right, Math.max(PLOT.left, ((event.clientX - box.left) / box.width) * WIDTH));
  };
  const value = (place) => bounds.xLow + ((place - PLOT.left) / (PLOT.right - PLOT.left)) * (bounds.xHigh - bounds.xLow);
  picture.addEventListener("pointerdown", (event) => {
    if (event.button === 0) from = at(event);
  });
  picture.addEventListener("pointermove", (event) => {
    if (from === null || Math.abs(at(event) - from) < 4) return;
    picture.setPointerCapture(event.pointerId);
    mark.setAttribute("x", Math.min(from, at(event)));
    mark.setAttribute("width", Math.abs(at(event) - from));
  });
  picture.addEventListener("pointerup", (event) => {
    const begun = from;
    from = null;
    if (begun === null || Math.abs(at(event) - begun) < 4) return;
    const ends = [value(Math.min(begun, at(event))), value(Math.max(begun, at(event)))];
    const range = [Math.max(0, Math.ceil(ends[0])), Math.floor(ends[1])];
    if (range[1] >= range[0]) zoom(range);
    else mark.setAttribute("width", 0);
  });
  picture.addEventListener("pointercancel", () => {
    from = null;
    mark.setAttribute("width", 0);
  });
  picture.addEventListener("dragstart", (event) => event.preventDefault());
}
