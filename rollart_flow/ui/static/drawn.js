// Rows that a step drew from another stored run, or earlier ones of the run itself, with links to them.

import { part } from "./api.js";
import { link } from "./dom.js";
import { number } from "./format.js";

// The data of a page, with the runs that rows of a view were drawn from if it has any.
export async function withSources(page, data, view) {
  const found = data.views[view].rows.length ? await page.get("sources") : { sources: {} };
  return { ...data, ...found };
}

// A table of drawn rows; `name(row)` is the id of the trajectory, after the name of its source and a slash.
// A run that is not served is named by its address, without a link.
export function drawn(page, view, name, columns) {
  const sources = page.data.sources;
  const to = (row) => {
    const path = `trajectory/${part(name(row).split("/").slice(1).join("/"))}`;
    if (row.source_run === null) return page.link(page.run(path));
    const served = sources[row.source_run];
    return served ? `/run/${part(served)}/${path}` : null; // at its newest moment, not at that of this run
  };
  return page.table(view, {
    columns: {
      advantage: { format: number },
      lag: { format: (value) => (value === null ? "exempt" : number(value)) },
      source_run: { label: "drawn from", format: (value, row) => link(to(row), value === null ? "this run" : sources[value] ?? value) },
      source_seq: { label: "its seq" }, source_version: { label: "version of its table" },
      source_rescored: { label: "rewards of the rescoring" },
      ...columns,
    },
  });
}
