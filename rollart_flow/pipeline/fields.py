"""Field types of node settings: numbers within bounds, and objects that validate themselves.

Invariant: an object is taken as it is, never copied or converted; a text that stands for an object
is converted once, when the node is built.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from pydantic import Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.control.schedule.schedule import Schedule
from rollart_flow.control.schedule.schedules import named_schedule
from rollart_flow.control.scheduler.curriculum import Curriculum
from rollart_flow.envs.base import Domain
from rollart_flow.models.lora import Adapter, read_adapter
from rollart_flow.models.policy import Policy
from rollart_flow.trainers.optimizer import AdamW


@dataclass(frozen=True)
class _IsA:
    """Take instances of a class as they are."""

    kind: type[Any]

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.is_instance_schema(self.kind)


@dataclass(frozen=True)
class _IsOrNames:
    """Take instances of a class as they are, and convert values that stand for one."""

    kind: type[Any]
    given: tuple[type[Any], ...]
    """Types that are converted to an instance."""
    read: Callable[[Any], Any]
    wanted: str
    """Description of the accepted values, for error messages."""

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._taken)

    def _taken(self, value: object) -> object:
        if isinstance(value, self.kind):
            return value
        if isinstance(value, self.given):
            return self.read(value)
        raise ValueError(f"it should be {self.wanted}, not {type(value).__name__}")


Count: TypeAlias = Annotated[int, Field(ge=1)]
NotNegative: TypeAlias = Annotated[int, Field(ge=0)]
Seconds: TypeAlias = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share: TypeAlias = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Name: TypeAlias = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]*$")]

OfPolicy: TypeAlias = Annotated[Policy, _IsA(Policy)]
OfDomain: TypeAlias = Annotated[Domain, _IsA(Domain)]
OfSchedule: TypeAlias = Annotated[
    Schedule, _IsOrNames(Schedule, (str,), named_schedule, "a schedule or its name")
]
OfAdapter: TypeAlias = Annotated[
    Adapter, _IsOrNames(Adapter, (str, Path), read_adapter, "the folder of an adapter")
]
OfCurriculum: TypeAlias = Annotated[Curriculum, _IsA(Curriculum)]
OfAlgorithm: TypeAlias = Annotated[Algorithm, _IsA(Algorithm)]
OfOptimizer: TypeAlias = Annotated[AdamW, _IsA(AdamW)]
