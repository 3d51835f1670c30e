"""The parts of a simulated run that outlive its processes, or that all processes share."""

from dataclasses import dataclass, field
from random import Random

from rollart_flow.control.protocols import Emit
from rollart_flow.types import Event
from tests.dst.log import Log
from tests.dst.monitor import Monitor
from tests.dst.network import Network
from tests.dst.plans import Plan
from tests.dst.stored import OtherRun
from tests.dst.tables import Tables, Writer
from tests.dst.weights import FaultyWeightStore


@dataclass
class World:
    """One run over all its lives."""

    plan: Plan
    tables: Tables = field(default_factory=Tables)
    log: Log = field(default_factory=Log)
    other: OtherRun | None = None
    """The run that the trainer draws from, while the simulation runs."""

    def __post_init__(self) -> None:
        plan = self.plan
        # Another generator than the plan's, whose numbers would repeat.
        self.chance = Random(f"run {plan.seed}")
        self.monitor = Monitor(plan, self.tables, self.log)
        self.network = self._new_network()
        self.weights = FaultyWeightStore(self.chance, plan.faults, self.log)
        self.writer = self._new_writer()
        self.life = 0
        """Number of resumptions; tasks left over from an earlier life have no effect."""

    def end_life(self) -> None:
        """End a life: state that is not durable is lost, and later events are ignored."""
        self.life += 1
        self.writer.end()
        self.writer = self._new_writer()
        self.network.end()
        self.network = self._new_network()
        self.log.end_life()
        self.tables.lose_unwritten()

    def _new_network(self) -> Network:
        return Network(self.chance, self.plan.faults)

    def _new_writer(self) -> Writer:
        return Writer(self.tables, self.chance, self.plan.faults, self.monitor.written)

    def emitter(self) -> Emit:
        """The `Emit` of the processes of the current life."""
        life = self.life

        def emit(event: Event) -> None:
            if life == self.life:
                self.tables.events.append(event)
                self.log.event(event)
                self.monitor.event(event)

        return emit
