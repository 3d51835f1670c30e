// Elements of the page. Text is only ever set as text: no function here takes markup. Controls in it,
// which could hide text or turn its direction, are shown as names.

import { visible } from "./format.js";

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked") element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  add(element, children);
  return element;
}

function add(element, child) {
  if (child === null || child === undefined || child === false) return;
  if (Array.isArray(child)) child.forEach((each) => add(element, each));
  else element.append(child instanceof Node ? child : document.createTextNode(visible(child)));
}

// An element of HTML: el("a", {href: "/runs", class: "x", onclick: f}, "text", other).
export function el(name, attributes, ...children) {
  return fill(document.createElement(name), attributes, children);
}

// An element of SVG.
export function svg(name, attributes, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

// A link to a page of this application; other addresses become plain text.
export function link(href, ...children) {
  if (!href?.startsWith("/") || href.startsWith("//")) return el("span", {}, ...children);
  return el("a", { href }, ...children);
}

const open = new Map(); // whether each part that can be folded is open, by its id

// A part that can be folded; it stays open when the page is shown again. `content` may be a
// function, which is called when the part is opened for the first time.
export function fold(id, summary, content, opened = false) {
  const part = el("details", { id, open: open.get(id) ?? opened }, el("summary", {}, summary));
  const show = () => {
    if (part.open && part.children.length === 1) add(part, typeof content === "function" ? content() : content);
  };
  part.addEventListener("toggle", () => {
    open.set(id, part.open);
    show();
  });
  show();
  return part;
}

// Say something to whoever sees or hears the page.
export function say(text) {
  const place = document.getElementById("message");
  place.textContent = text;
  clearTimeout(say.timer);
  say.timer = setTimeout(() => (place.textContent = ""), 4000);
}

export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Browsers give the clipboard to secure origins only; http on another host is none.
    const area = el("textarea", { class: "offscreen" }, text);
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  say("copied");
}

export function copyButton(text, label = "copy") {
  return el("button", { type: "button", class: "small", onclick: () => copy(text) }, label);
}
