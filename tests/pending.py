"""The pending groups of a sample buffer, which no component asks for but tests count."""

from rollart_flow.control.buffer.sample_buffer import SampleBuffer


def complete_groups(buffer: SampleBuffer) -> int:
    """Number of pending groups that have all members."""
    return buffer._pending.complete


def pending_ids(buffer: SampleBuffer) -> frozenset[str]:
    """Ids of pending trajectories."""
    return frozenset(key for group in buffer._pending.groups for key in group.samples)
