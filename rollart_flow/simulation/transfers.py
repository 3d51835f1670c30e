"""Models of the transfer of new weights from training to the inference workers.

The invariant: a time depends on the model's size and the workers' degree alone, and a larger model
never takes less.
"""

from dataclasses import dataclass

from rollart_flow.simulation.hardware import SimulatedModel

GIB = float(1 << 30)


@dataclass(frozen=True, slots=True)
class WeightTransfer:
    """Times of the transfer of new weights from training to the inference workers.

    The defaults are those of ROLLART Table 4 per GiB: a push over the 200 Gbps link between the
    clusters, and the pulls of all workers from the store. Pulls of buckets that have been pushed
    are hidden behind the rollout; the update itself waits for the last bucket's pull and the copy
    into the device's memory.
    """

    push_s_per_gib: float = 2.2
    pull_s_per_gib: float = 0.49
    bucket_gib: float = 1.0
    """ROLLART section 6.3."""
    copy_gib_s: float = 12.0
    """Copy from host memory into a device, per device [GiB/s]; assumed, PCIe for two devices."""
    sharded: bool = True
    """Whether each device copies its share of the weights alone, and not all of them."""
    several_pull: float = 1.0
    """Time of a byte that a worker of several devices pulls, over that of a worker of one."""
    several_copy: float = 1.0
    """The same for the copy into the devices' memory."""
    start_s: float = 0.0
    """Part of the pulls that does not depend on the size [s]."""
    streamed: bool = True
    """Whether buckets are pulled during the rollout; if not, all after the suspension."""

    def push_s(self, model: SimulatedModel) -> float:
        """Transfer from the training workers to the store [s]."""
        return self.push_s_per_gib * model.weight_bytes / GIB

    def pull_s(self, model: SimulatedModel, degree: int = 1) -> float:
        """Transfer from the store to all inference workers, summed over workers [s].

        Args:
            degree: tensor-parallel degree of each worker.
        """
        return self.start_s + self._bytes_pulled_s(model.weight_bytes, degree)

    def exposed_s(self, model: SimulatedModel, degree: int) -> float:
        """The part of the pull that no rollout can hide [s]."""
        if not self.streamed:
            return self.pull_s(model, degree)
        size = model.weight_bytes
        last_s = self.start_s + self._bytes_pulled_s(min(self.bucket_gib * GIB, size), degree)
        copied_s = size / (degree if self.sharded else 1) / GIB / self.copy_gib_s
        return last_s + (self.several_copy if degree > 1 else 1.0) * copied_s

    def _bytes_pulled_s(self, size: float, degree: int) -> float:
        factor = self.several_pull if degree > 1 else 1.0
        return factor * self.pull_s_per_gib * size / GIB


MOONCAKE = WeightTransfer()
"""Transfer across clusters through the store (ROLLART Table 4)."""

INTRA_CLUSTER = WeightTransfer(push_s_per_gib=0.0, pull_s_per_gib=0.155, streamed=False)
"""Transfer within one cluster over InfiniBand: 9.442 s for 61.02 GiB (ROLLART Table 3, RDMA)."""
