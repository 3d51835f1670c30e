"""The model card of an exported version: where its weights come from, for those who load them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import polars as pl

from rollart_flow.store import Run, RunInfo

_FRONT = """---
library_name: transformers
pipeline_tag: {task}
tags: [reinforcement-learning, rollart_flow]
---
"""
_USE = """```python
from transformers import {model}, {reader}

model = {model}.from_pretrained("FOLDER")
{name} = {reader}.from_pretrained("FOLDER")
```

`vllm serve FOLDER` serves it. `generation_config.json` samples as the run's rollout did."""
_LICENCE = (
    "None is set. Add `license:` to the head of this file; the licence of the initial policy, if "
    "that was pretrained, binds this one too."
)


_TEXT = {
    "task": "text-generation",
    "model": "AutoModelForCausalLM",
    "reader": "AutoTokenizer",
    "name": "tokenizer",
}
_IMAGES = {
    "task": "image-text-to-text",
    "model": "AutoModelForImageTextToText",
    "reader": "AutoProcessor",
    "name": "processor",
}
"""Names on the card of a model for text, and of one that takes images too."""


def model_card(run: Run, version: int, *, lora: bool, images: bool = False) -> str:
    """Return the text of README.md for a version of a run.

    Args: `lora` says whether an adapter was merged, `images` whether the model takes images.
    """
    names = _IMAGES if images else _TEXT
    info = run.info
    what = "with the LoRA adapter of its evaluation merged" if lora else "without any adapter"
    if not _adapted(info):
        what = "trained by reinforcement learning"
    sections = {
        f"{info.name}, version {version}": f"A policy {what}, exported by rollart_flow.",
        "Use": _USE.format(**names),
        "Provenance": table_of(("what", "value"), _provenance(info, version)),
        "Evaluation": _scores(run, version, adapted=_adapted(info)),
        "Packages": table_of(("package", "version"), info.versions.items()),
        "Licence": _LICENCE,
        "Settings": f"```json\n{json.dumps(info.settings, indent=2)}\n```",
    }
    titles = ("#", *["##"] * (len(sections) - 1))
    parts = zip(titles, sections.items(), strict=True)
    return _FRONT.format(**names) + "".join(
        f"\n{mark} {title}\n\n{text}\n" for mark, (title, text) in parts
    )


def _provenance(info: RunInfo, version: int) -> Iterable[tuple[str, object]]:
    settings = info.settings
    yield "run", info.name
    yield "pipeline", info.pipeline
    yield "seed", info.seed
    yield "version", f"{version}, the weights after training step {version}"
    if info.parent is not None:
        yield "forked from", f"step {info.parent.step} of {info.parent.uri}"
    yield "initial policy", settings.get("policy", {}).get("path") or "made from scratch"
    nodes = settings.get("nodes", {}).values()
    for node in nodes:
        if node["kind"] == "tasks":
            yield "domains", ", ".join(domain["name"] for domain in node["domains"])
        if node["kind"] == "train":
            yield "algorithm", node["algorithm"]["name"]
    yield "made", info.created_at.isoformat(timespec="seconds")
    yield "status at export", info.status
    for key, value in info.overrides.items():
        yield f"-s {key}", value


def _scores(run: Run, version: int, *, adapted: bool) -> str:
    at = pl.col("policy_version") == version
    rows = run.evaluations.filter(at).sort("domain", "metric").collect()
    if rows.is_empty():
        return "The run did not evaluate this version."
    ends = pl.format("{} to {}", pl.col("low").round(4), pl.col("high").round(4)).fill_null("-")
    cells = rows.select("domain", "metric", pl.col("value").round(4), ends, "n")
    said = table_of(("domain", "metric", "value", "95% interval", "episodes"), cells.iter_rows())
    return f"{said}\n\nMeasured with the LoRA adapter." if adapted else said


def _adapted(info: RunInfo) -> bool:
    """Whether the run's versions are evaluated with a LoRA adapter."""
    nodes: Iterable[Mapping[str, Any]] = info.settings.get("nodes", {}).values()
    return any(node.get("lora") is not None for node in nodes)


def table_of(headings: tuple[str, ...], rows: Iterable[Iterable[object]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def _cell(value: object) -> str:
    """A value in a cell, where a bar or a line break would end it."""
    return " ".join(str(value).replace("|", "\\|").split())
