"""Settings of the boxes in which environments run code that a model wrote."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields

from rollart_flow.errors import SettingsError
from rollart_flow.fields import Count, Name, NotNegative, check_fields, fitted

_CPU = "CPU"


@dataclass(frozen=True, kw_only=True)
class SandboxSettings:
    """Settings of the workers that make boxes, which exist if a domain opens boxes.

    Raises:
        SettingsError: a setting is out of range, no sandbox has the name, or the affinity names no
            class or different fallbacks for one class.
    """

    sandbox: Name | None = None
    """Kind of the boxes; None: what the variable `ROLLART_SANDBOX` says, or bubblewrap."""
    sandbox_workers: Count = 1
    """Workers that make boxes, for each resource class of `sandbox_affinity`."""
    sandbox_affinity: Mapping[str, str | Sequence[str]] = field(default_factory=dict)
    """Resource class of the boxes by domain, `default` for the others, which is CPU if it is not
    given. If several are given, the first is used, and the others replace it when it is full or
    gone."""
    max_sandboxes: Count | None = None
    """Boxes of one worker at a time, beside further ones of attempts that hold a box; an attempt
    waits for its first box within its time limits. None: as many as attempts need."""
    min_sandboxes: NotNegative = 0
    """Boxes that a worker keeps although no attempt is expected to need them any more."""
    max_sandbox_failures: Count = 8
    """Boxes of a task that fail in a row before the task is attempted no more."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.sandbox is not None:
            from rollart_flow.sandbox.registry import SANDBOXES  # loads asyncio

            SANDBOXES.check(self.sandbox)
        classes = dict[str, Name | tuple[Name, ...]]
        affinity = fitted("sandbox_affinity", classes, self.sandbox_affinity)
        object.__setattr__(self, "sandbox_affinity", affinity)
        self.sandbox_stand_ins()

    def sandbox_class(self, domain: str) -> str:
        """Resource class that the boxes of a domain are bound to."""
        classes = self.sandbox_affinity.get(domain, self.sandbox_affinity.get("default", _CPU))
        return classes if isinstance(classes, str) else classes[0]

    def sandbox_stand_ins(self) -> dict[str, tuple[str, ...]]:
        """The fallback classes that the affinity names, by resource class.

        Raises:
            SettingsError: a domain names no class, or two name different fallbacks for one.
        """
        return declared_stand_ins("sandbox_affinity", self.sandbox_affinity)

    def check_pools(self, pooled: Collection[str], agents: Collection[str]) -> None:
        """Refuse boxes in which no agent can work, and settings of pools that agents do not use.

        Args:
            pooled: names of the domains whose boxes come from pools.
            agents: names of the domains that have an agent.

        Raises:
            SettingsError: boxes of the kind cannot show an agent, the affinity names a domain that
                has agents alone, or a setting of pools is set where no boxes come from pools.
        """
        if agents and self.sandbox is not None:
            self._check_agents_fit(self.sandbox, agents)
        for name in self.sandbox_affinity:
            if name in agents and name not in pooled:
                raise SettingsError(
                    f"sandbox_affinity names {name!r}, but the boxes of its agent are made on the "
                    f"node of the rollout process and not by a pool; remove {name!r} from it"
                )
        if pooled or not agents:
            return
        plain = SandboxSettings()
        for each in fields(self):  # `sandbox` is the kind of an agent's boxes, too
            if each.name != "sandbox" and getattr(self, each.name) != getattr(plain, each.name):
                raise SettingsError(
                    f"{each.name} is a setting of pools, but no pool makes the boxes of agents; "
                    "bound them by init_slots, run_slots and judge_slots of Harness"
                )

    @staticmethod
    def _check_agents_fit(sandbox: str, agents: Collection[str]) -> None:
        from rollart_flow.sandbox.registry import SANDBOXES  # loads asyncio

        if not SANDBOXES.load(sandbox).shows_host_files:
            raise SettingsError(
                f"sandbox={sandbox!r}: its boxes show no file and no socket of the host, which the "
                f"agent of {min(agents)!r} needs; leave it out, or take docker or podman"
            )


def declared_stand_ins(
    setting: str, affinity: Mapping[str, str | Sequence[str]]
) -> dict[str, tuple[str, ...]]:
    """Return the fallback classes that an affinity names, by resource class.

    Raises:
        SettingsError: a domain names no class, or two name different fallbacks for one.
    """
    declared: dict[str, tuple[str, ...]] = {}
    for domain, classes in affinity.items():
        if isinstance(classes, str):
            continue
        if not classes:
            raise SettingsError(f"{setting}[{domain!r}] names no class")
        first, others = classes[0], tuple(classes[1:])
        if declared.setdefault(first, others) != others:
            raise SettingsError(
                f"{setting} names different stand-ins for {first}; name the same ones for "
                "every domain"
            )
    return declared
