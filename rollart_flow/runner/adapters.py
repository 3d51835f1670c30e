"""The run's own copy of the LoRA adapter that it evaluates with.

With its own copy, a run can be resumed, replayed, and moved after the original folder is gone.
Invariant: the copy has the adapter fingerprint that `run.json` records.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from rollart_flow.errors import SettingsError, WeightsError
from rollart_flow.models.lora import CONFIG_FILE, TENSORS_FILE, Adapter, merged, read_adapter
from rollart_flow.store.layout import adapter_uri, policy_uri
from rollart_flow.weights.atomic import put_folder
from rollart_flow.weights.folder_store import local_path, made

if TYPE_CHECKING:
    from rollart_flow.pipeline import Pipeline
    from rollart_flow.store import Run


def copy_adapter(pipeline: Pipeline, uri: str) -> None:
    """Copy a pipeline's adapter, if it has one, into its run; the run must have its policy.

    Raises:
        SettingsError: the adapter fits another model, or was changed since the pipeline was built.
        StoreError: the copy cannot be written.
    """
    from rollart_flow.models.folder import load_folder

    if pipeline.evaluate is None or (adapter := pipeline.evaluate.lora) is None:
        return
    merged(load_folder(local_path(policy_uri(uri)))[1], adapter)

    def fill(folder: Path) -> None:
        for name in (CONFIG_FILE, TENSORS_FILE):
            shutil.copyfile(Path(adapter.folder) / name, folder / name)

    with made(adapter_uri(uri)) as folder:
        put_folder(folder, fill)
        if read_adapter(folder).fingerprint != adapter.fingerprint:
            raise SettingsError(f"lora: {adapter.folder!r} was changed meanwhile; start again")


def stored_adapter(run: Run, node: str) -> Adapter | None:
    """Return the adapter that a node of a run sampled its tokens with, or None without one.

    Raises:
        WeightsError: the copy in the run's folder is missing or is not the recorded adapter.
    """
    recorded = run.info.settings["nodes"][node].get("lora")
    if recorded is None:
        return None
    try:
        adapter = read_adapter(local_path(adapter_uri(run.uri)))
    except SettingsError as error:
        raise WeightsError(f"the run's adapter cannot be read: {error.message}") from error
    if adapter.fingerprint != recorded["fingerprint"]:
        raise WeightsError(
            f"the adapter in {adapter_uri(run.uri)} is not the one that sampled these tokens; "
            "restore it from a copy"
        )
    return adapter
