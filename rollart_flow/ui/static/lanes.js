// Drawings along time: spans in lanes, a bar of phases, counts in bins.

import { el, svg } from "./dom.js";
import { number, seconds } from "./format.js";

const WIDTH = 1000, LEFT = 92;

// A figure with a caption and a list of what the colours stand for.
export function figure(caption, drawing, legend) {
  return el("figure", { class: "chart" }, caption && el("figcaption", {}, caption), el("div", { class: "scroll" }, drawing),
    legend && el("ul", { class: "legend" }, legend.map(([label, kind]) => el("li", { class: kind }, svg("svg", { viewBox: "0 0 14 10", "aria-hidden": "true" }, svg("rect", { class: "bar", width: 14, height: 10 })), label))));
}

function axis(end, height, left = LEFT, show = seconds) {
  const marks = [];
  for (const tick of ticks(end)) {
    const x = left + ((WIDTH - left) * tick) / end;
    marks.push(svg("line", { class: "grid", x1: x, x2: x, y1: 0, y2: height }), svg("text", { x: Math.min(x, WIDTH - 4), y: height + 13, "text-anchor": x > WIDTH - 30 ? "end" : x < 20 ? "start" : "middle" }, show(tick)));
  }
  return marks;
}

function ticks(end) {
  if (!(end > 0)) return [];
  const rough = end / 8, size = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((each) => each * size).find((each) => each >= rough);
  return Array.from({ length: Math.floor(end / step) + 1 }, (_, i) => i * step);
}

// Spans in lanes: lanes([{lane, start, end, kind, label, text, href}], ["policy", ...]).
export function lanes(spans, names, title) {
  const end = Math.max(...spans.map((span) => span.end), 1e-9), row = 24, height = names.length * row;
  const x = (at) => LEFT + ((WIDTH - LEFT) * at) / end;
  return svg("svg", { viewBox: `0 0 ${WIDTH} ${height + 18}`, role: "group", "aria-label": title },
    axis(end, height),
    names.map((name, index) => [
      svg("line", { class: "axis", x1: LEFT, x2: WIDTH, y1: (index + 1) * row, y2: (index + 1) * row }),
      svg("text", { x: LEFT - 8, y: index * row + 16, "text-anchor": "end" }, name),
    ]),
    spans.map((span) => {
      const y = names.indexOf(span.lane) * row + 4, width = Math.max(1.5, x(span.end) - x(span.start));
      const text = span.text && width > 7 * span.text.length && svg("text", { class: "inside", x: x(span.start) + width / 2, y: y + 12, "text-anchor": "middle" }, span.text);
      const shown = [svg("title", {}, span.label), svg("rect", { class: `bar ${span.kind}`, x: x(span.start), y, width, height: row - 8, rx: 1.5 }), text];
      return span.href ? svg("a", { href: span.href, "aria-label": span.label }, shown) : svg("g", { role: "img", "aria-label": span.label }, shown);
    }));
}

// Parts of a whole after each other: phases([["wait", 1.5, "s0"], ...]).
export function phases(parts, title) {
  const whole = parts.reduce((sum, [, value]) => sum + value, 0) || 1e-9;
  let at = 0;
  return svg("svg", { viewBox: `0 0 ${WIDTH} 44`, role: "img", "aria-label": `${title}: ${parts.map(([name, value]) => `${name} ${seconds(value)}`).join(", ")}` },
    axis(whole, 26, 0),
    parts.map(([name, value, kind]) => {
      const x = (WIDTH * at) / whole, width = (WIDTH * value) / whole;
      at += value;
      return svg("g", {}, svg("title", {}, `${name}: ${seconds(value)}`), svg("rect", { class: `bar ${kind}`, x, y: 2, width, height: 24 }),
        width > 8 * name.length && svg("text", { class: "inside", x: x + width / 2, y: 18, "text-anchor": "middle" }, name));
    }));
}

// Bars: bars([{at, value, label, href, kind}], ticks): `at` from 0 to `slots`.
export function bars(list, slots, title, { labels = [], height = 120 } = {}) {
  const top = Math.max(...list.map((bar) => bar.value), 1e-9), width = WIDTH / slots;
  const low = Math.min(...list.map((bar) => bar.value), 0), scale = (height - 14) / (top - low);
  const zero = 14 + top * scale;
  return svg("svg", { viewBox: `0 0 ${WIDTH} ${height + 16}`, role: "group", "aria-label": title },
    svg("line", { class: "axis", x1: 0, x2: WIDTH, y1: zero, y2: zero }),
    list.map((bar) => {
      const size = Math.max(Math.abs(bar.value) * scale, 1.5), y = bar.value < 0 ? zero : zero - size;
      const shown = [svg("title", {}, bar.label), svg("rect", { class: `bar ${bar.kind ?? "s0"}`, x: bar.at * width + 1, y, width: Math.max(2, width - 2), height: size }),
        width > 26 && svg("text", { x: (bar.at + 0.5) * width, y: y - 3, "text-anchor": "middle" }, bar.text ?? number(bar.value))];
      return bar.href ? svg("a", { href: bar.href, "aria-label": bar.label }, shown) : svg("g", { role: "img", "aria-label": bar.label }, shown);
    }),
    labels.map(([at, text]) => svg("text", { x: at * width, y: height + 13, "text-anchor": at <= 0 ? "start" : at >= slots ? "end" : "middle" }, text)));
}

// Counts by row and bin, as dots whose size is the count.
export function dots(list, names, slots, title) {
  const row = 18, height = names.length * row, top = Math.max(...list.map((dot) => dot.value), 1);
  return svg("svg", { viewBox: `0 0 ${WIDTH} ${height + 4}`, role: "group", "aria-label": title },
    names.map((name, index) => [
      svg("line", { class: "grid", x1: LEFT, x2: WIDTH, y1: index * row + 10, y2: index * row + 10 }),
      svg("text", { x: LEFT - 8, y: index * row + 14, "text-anchor": "end" }, name),
    ]),
    list.map((dot) => {
      const x = LEFT + 6 + ((WIDTH - LEFT - 12) * dot.at) / slots, y = names.indexOf(dot.row) * row + 10;
      const shown = [svg("title", {}, dot.label), svg("circle", { class: `dot ${dot.kind}`, cx: x, cy: y, r: 2.5 + 5 * Math.sqrt(dot.value / top) })];
      return svg("a", { href: dot.href, "aria-label": dot.label }, shown);
    }));
}
