"""Pages of the site that are made from other files: the tables, and documents at the top level."""

import json
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
TABLES = (
    "trajectories", "batches", "steps", "weights", "events", "bindings", "evaluations",
    "sandboxes", "verdicts", "admissions", "exchanges",
)  # fmt: skip
DOCUMENTS = ("ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the page of the tables and one page for each document."""
    files.append(File.generated(config, "reference/tables.md", content=tables_page()))
    for name in DOCUMENTS:
        text = (ROOT / name).read_text()
        files.append(File.generated(config, name.lower(), content=text.replace("](docs/", "](")))
    return files


def tables_page() -> str:
    """Return the columns of every table, as `schemas/*.json` declare them."""
    parts = ["# Tables", "`schemas/*.json` declare the columns; this page lists them."]
    for table in TABLES:
        fields = json.loads((ROOT / "schemas" / f"{table}.json").read_text())["fields"]
        rows = [f"| `{f['name']}` | {_type(f['type'])} | {_comment(f)} |" for f in fields]
        parts.append("\n".join([f"## {table}\n", "| column | type | meaning |", "|-|-|-|", *rows]))
    return "\n\n".join(parts) + "\n"


def _type(declared: object) -> str:
    if not isinstance(declared, dict):
        return str(declared)
    if declared["type"] == "array":
        return f"list of {_type(declared['elementType'])}"
    if declared["type"] == "struct":
        return "struct of " + ", ".join(f"`{field['name']}`" for field in declared["fields"])
    return f"map of {_type(declared['valueType'])}"


def _comment(field: dict[str, dict[str, str]]) -> str:
    return field.get("metadata", {}).get("comment", "").replace("|", "\\|")
