// Command lines to copy. The interface shows them and never runs one.

import { copyButton, el } from "./dom.js";

const PLAIN = /^[\w@%+=:,./-]+$/;

// A word as a POSIX shell reads it back.
export function word(text) {
  const given = String(text);
  return PLAIN.test(given) ? given : `'${given.replaceAll("'", `'"'"'`)}'`;
}

// Command lines with what each is for: commands([["replay", ["rollart", "replay", handle]]]), where
// `handle` is the list of words by which the user named the run.
export function commands(list) {
  return el("dl", { class: "commands" }, list.map(([what, words]) => {
    const line = words.flat().map(word).join(" ");
    return el("div", {}, el("dt", {}, what), el("dd", {}, el("code", {}, line), copyButton(line)));
  }));
}
