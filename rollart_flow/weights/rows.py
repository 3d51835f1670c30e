"""Rows of the table `weights`."""

import json
from dataclasses import asdict
from datetime import datetime

import pyarrow as pa

from rollart_flow.schema import to_table
from rollart_flow.weights.base import Manifest


def weights_table(manifest: Manifest, published_at: datetime, *, checkpoint: bool) -> pa.Table:
    """Build the row of `weights` for a published version, not yet committed."""
    row = {
        "policy_version": manifest.version,
        "uri": manifest.uri,
        "manifest": json.dumps([asdict(tensor) for tensor in manifest.tensors]),
        "size_bytes": manifest.size_bytes,
        "checksum": manifest.checksum,
        "checkpoint": checkpoint,
        "published_at": published_at,
        "base_version": None if manifest.adapter is None else manifest.adapter.base,
    }
    return to_table("weights", [row])
