// The difference of two texts by words, and unified diffs by lines.

import { el } from "./dom.js";

const MOST = 1500; // words of each text, beyond which only the common beginning and end count

function words(text) {
  return text.match(/\S+\s*|\s+/g) ?? []; // a blank belongs to its word, so that blanks alone are no common part
}

// Parts of two texts: [kind, text] with kind same, left or right.
export function compared(first, second) {
  const [a, b] = [words(first), words(second)];
  let head = 0, tail = 0;
  while (head < a.length && head < b.length && a[head] === b[head]) head++;
  while (tail < a.length - head && tail < b.length - head && a[a.length - 1 - tail] === b[b.length - 1 - tail]) tail++;
  const middle = between(a.slice(head, a.length - tail), b.slice(head, b.length - tail));
  const parts = [["same", a.slice(0, head).join("")], ...middle, ["same", tail ? a.slice(-tail).join("") : ""]];
  return parts.filter(([, text]) => text);
}

function between(a, b) {
  if (!a.length || !b.length || a.length > MOST || b.length > MOST) return [["left", a.join("")], ["right", b.join("")]];
  const width = b.length + 1, longest = new Uint16Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i--) for (let j = b.length - 1; j >= 0; j--) {
    longest[i * width + j] = a[i] === b[j] ? longest[(i + 1) * width + j + 1] + 1 : Math.max(longest[(i + 1) * width + j], longest[i * width + j + 1]);
  }
  const parts = [];
  const add = (kind, text) => (parts.at(-1)?.[0] === kind ? (parts.at(-1)[1] += text) : parts.push([kind, text]));
  let i = 0, j = 0;
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) add("same", a[i++]), j++;
    else if (j >= b.length || (i < a.length && longest[(i + 1) * width + j] >= longest[i * width + j + 1])) add("left", a[i++]);
    else add("right", b[j++]);
  }
  return parts;
}

// Two texts in one, with what only one of them has marked as deleted or inserted.
export function difference(first, second) {
  const names = { same: "span", left: "del", right: "ins" };
  return el("pre", { class: "said", tabindex: 0 }, compared(first, second).map(([kind, text]) => el(names[kind], {}, text)));
}

// A unified diff with its lines coloured.
export function unified(text) {
  const kind = (line) => (/^(\+\+\+|---)/.test(line) ? "dim" : line.startsWith("+") ? "added" : line.startsWith("-") ? "removed" : line.startsWith("@@") ? "hunk" : null);
  return el("pre", { class: "diff", tabindex: 0 }, text.split("\n").map((line) => el("span", { class: kind(line) }, `${line}\n`)));
}
