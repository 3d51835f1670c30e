"""Registry of sandboxes by name.

    async with await create_sandbox(SandboxSpec()) as box:
        result = await box.exec("python3 -c 'print(6 * 7)'")

To add a variant: its module, and its name below. A package adds one through an entry point of the
group `rollart_flow.sandboxes`. Every variant passes `tests/sandbox/conformance.py`.
"""

from rollart_flow.errors import SettingsError
from rollart_flow.registry import Registry
from rollart_flow.sandbox.base import Sandbox, SandboxSnapshot, SandboxSpec
from rollart_flow.sandbox.variant import SandboxVariant

SANDBOXES: Registry[SandboxVariant] = Registry(
    "sandboxes",
    {
        "bubblewrap": "rollart_flow.sandbox.bubblewrap.variant:VARIANT",
        "docker": "rollart_flow.sandbox.containers.variant:DOCKER",
        "podman": "rollart_flow.sandbox.containers.variant:PODMAN",
        "kubernetes": "rollart_flow.sandbox.kubernetes.variant:VARIANT",
    },
    setting="sandbox",
    kind=SandboxVariant,
)


async def create_sandbox(
    spec: SandboxSpec | None = None,
    *,
    variant: str = "bubblewrap",
    snapshot: SandboxSnapshot | None = None,
) -> Sandbox:
    """Start a box and wait until it answers.

    Args:
        spec: contents and limits; by default the snapshot's, or an empty box on the host's `/usr`.
        variant: name in `SANDBOXES`.
        snapshot: files that the box begins with.

    Raises:
        SettingsError: no variant has the name, this machine cannot create such boxes, or the spec
            names what is not there.
        SandboxError: the box could not be started.
    """
    chosen = SANDBOXES.load(variant)
    if problem := chosen.problem():
        raise SettingsError(f"sandbox={variant!r}: {problem}")
    if spec is None:
        spec = snapshot.spec if snapshot is not None else SandboxSpec()
    return await chosen.create(spec, snapshot)
