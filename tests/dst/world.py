"""What outlives the processes of a simulated run, and what they all share."""

from dataclasses import dataclass, field
from random import Random

from rollart_flow.control.protocols import Emit
from rollart_flow.types import Event
from tests.dst.log import Log
from tests.dst.monitor import Monitor
from tests.dst.network import Network
from tests.dst.plans import Plan
from tests.dst.tables import Tables, Writer
from tests.dst.weights import FaultyWeightStore


@dataclass
class World:
    """One run over all its lives."""

    plan: Plan
    tables: Tables = field(default_factory=Tables)
    log: Log = field(default_factory=Log)

    def __post_init__(self) -> None:
        plan = self.plan
        # Not the generator that drew the plan, whose numbers would come again.
        self.chance = Random(f"run {plan.seed}")
        self.monitor = Monitor(plan, self.tables, self.log)
        self.network = Network(self.chance, plan.faults)
        self.weights = FaultyWeightStore(self.chance, plan.faults)
        self.writer = Writer(self.tables, self.chance, plan.faults, self.monitor.written)
        self.life = 0
        """Counts resumptions; what a life leaves running has no effect on the next."""

    def end_life(self) -> None:
        """Everything dies. What is not durable is lost, and nothing has an effect any more."""
        self.life += 1
        self.log.end_life()
        self.tables.lose_unwritten()

    def emitter(self) -> Emit:
        """Where the processes of the current life report events."""
        life = self.life

        def emit(event: Event) -> None:
            if life == self.life:
                self.tables.events.append(event)
                self.log.event(event)
                self.monitor.event(event)

        return emit
