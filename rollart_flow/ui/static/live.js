// Follow a run that grows: ask for the number of its newest row, and show the page again on a new one.

import { get, part } from "./api.js";
import { say } from "./dom.js";

const EVERY_MS = 2000;
let timer = null;

export function follow(page, refresh) {
  clearTimeout(timer);
  if (page.at !== null || !page.route.run || page.data.status !== "running") return;
  timer = setTimeout(async () => {
    if (document.hidden || isBusy()) return follow(page, refresh);
    try {
      const now = await get(`run/${part(page.route.run)}/now`);
      if (now.cut !== page.data.cut || now.status !== page.data.status) return refresh();
      tell(page.data.status, "");
    } catch (error) {
      // The run is gone, or the server may come back: the page stays as it is, and says so.
      tell("not followed", error.message);
    }
    follow(page, refresh);
  }, EVERY_MS);
}

function tell(text, why) {
  const status = document.getElementById("status");
  if (!status || status.textContent === text) return;
  status.textContent = text;
  status.title = why;
  if (why) say(why);
}

// Whether the reader holds something that would be lost: a selection, or a pressed button.
function isBusy() {
  return !getSelection().isCollapsed || document.querySelector("main :active, #time:active") !== null;
}
