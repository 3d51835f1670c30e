"""How the files of tests are spread over the processes of pytest-xdist.

Files of a group go to one process, in their order, which does once what all of them need. What
takes longest goes first, so that no process is left with it at the end.
"""

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

GROUPS: dict[str, tuple[str, ...]] = {
    "the Ray that tests share": (
        "tests/runner/test_restarts.py",
        "tests/runner/test_kills.py",
        "tests/runner/test_sandboxes.py",
        "tests/runner/test_bad_input.py",
        "tests/runner/test_sent.py",
        "tests/runner/test_sliding.py",
        "tests/runner/test_pictures.py",
        "tests/runner/executors/test_private_ray.py",
        "tests/runner/executors/test_ray_cluster.py",
        "tests/trainers/checkpoint/test_publishing.py",
        "tests/resources/test_handles.py",
        "tests/resources/test_serverless_methods.py",
        # from its second test on a Ray with GPUs
        "tests/runner/test_placement.py",
        "tests/resources/test_gpus.py",
    ),
    "a Ray of two classes": (
        # starts it for its last test
        "tests/pipelines/test_gallery.py",
        "tests/operators/test_rebinding.py",
        "tests/resources/test_cluster.py",
        "tests/resources/test_listing_1.py",
        "tests/runner/test_processes.py",
        "tests/runner/test_hybrid.py",
    ),
    "a Ray of three nodes": (
        "tests/resources/test_devices.py",
        "tests/resources/test_manager.py",
    ),
    "ranks of trainers": (
        "tests/trainers/backends/megatron/",
        "tests/trainers/backends/test_fsdp2.py",
        "tests/trainers/test_layout.py",
    ),
    "the code of the package, parsed": (
        "tests/test_layers.py",
        "tests/test_names.py",
        "tests/test_variants.py",
    ),
    "imports of the providers' SDKs": (
        "tests/gateway/wires/test_chat.py",
        "tests/gateway/wires/test_google.py",
        "tests/gateway/wires/test_messages.py",
        "tests/gateway/wires/test_responses.py",
        "tests/gateway/server/test_clients.py",
        "tests/gateway/server/test_compaction.py",
        "tests/runner/gateway/test_serving.py",
        "tests/cli/test_gateway.py",
    ),
}
"""Files, and folders of files, by what they need."""

LONGEST = (
    "the Ray that tests share",
    "ranks of trainers",
    "a Ray of two classes",
    "tests/runner/test_waits.py",
    "tests/runner/test_adapter_versions.py",
    "tests/runner/test_stored.py",
    "tests/chaos/test_quick.py",
    "tests/weights/mooncake/test_store.py",
    "tests/docs/test_blocks.py",
    "tests/engines/vllm/test_engine.py",
    "tests/serverless/transports/test_serve.py",
    "tests/sandbox/test_containers.py",
    "tests/sandbox/test_bubblewrap.py",
    "a Ray of three nodes",
    "imports of the providers' SDKs",
    "tests/dst/test_fuzzer.py",
    "tests/s3/test_pictures.py",
    "tests/store/test_older_runs.py",
    "tests/trackers/test_libraries.py",
    "tests/runner/executors/test_inline.py",
    "tests/store/test_maintenance.py",
    "tests/store/test_properties.py",
    "tests/test_plugins.py",
    "tests/test_wheel.py",
    "tests/operators/test_buffer.py",
    "tests/test_hostile_values.py",
    "tests/trainers/test_ranks.py",
    "tests/cli/test_init.py",
    "tests/cli/test_simulate.py",
    "tests/control/test_end_to_end.py",
    "tests/test_gpu_benchmarks.py",
)
"""Groups and files that take longest, the longest one first; others follow by name."""


def group_of(nodeid: str) -> str:
    """The group of a test: that of its file, or the file itself."""
    file = nodeid.split("::", 1)[0]
    return next((name for name, files in GROUPS.items() if file.startswith(files)), file)


def longest_first(items: list[pytest.Item]) -> None:
    """Order tests by their groups, then by the groups' files; those of a file stay in order."""
    ranks = {name: rank for rank, name in enumerate(LONGEST)}

    def rank(item: pytest.Item) -> tuple[int, int]:
        group = group_of(item.nodeid)
        files = GROUPS.get(group, ())
        place = next((at for at, file in enumerate(files) if item.nodeid.startswith(file)), 0)
        return ranks.get(group, len(ranks)), place

    items.sort(key=rank)


class ByGroup(LoadFileScheduling):  # type: ignore[misc]
    """Gives a process one group after the other."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


def scheduler(config: pytest.Config, log: Producer) -> ByGroup | None:
    """The scheduler of `--dist loadfile`."""
    return ByGroup(config, log) if config.getvalue("dist") == "loadfile" else None
