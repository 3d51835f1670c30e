"""Engines by the name that a pipeline uses. Heavy modules are loaded only when they are chosen."""

from rollart_flow.engines.base import Engine
from rollart_flow.errors import SettingsError
from rollart_flow.models.policy import Policy

ENGINES = ("embedded",)


def build_engine(policy: Policy, folder: str, *, seed: int) -> Engine:
    """The engine that `policy.engine` names, serving the model in `folder` as version 0.

    Raises:
        SettingsError: no engine has that name.
    """
    if policy.engine == "embedded":
        from rollart_flow.engines.embedded import EmbeddedEngine

        return EmbeddedEngine.from_folder(
            folder, seed=seed, dtype=policy.dtype, max_context=policy.max_context
        )
    raise SettingsError(f"no engine {policy.engine!r}; there are {', '.join(ENGINES)}")
