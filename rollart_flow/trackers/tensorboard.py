"""TensorBoard: event files in a folder of the run, with the overview as custom scalars.

A record is one event, so that an event file has it whole or not at all. What the files have is read
when the tracker opens, and not written again.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from rollart_flow.errors import SettingsError
from rollart_flow.metrics.catalog import EVALUATION, METRICS
from rollart_flow.metrics.figures import flat
from rollart_flow.metrics.overview import OVERVIEW
from rollart_flow.registry import Requirement
from rollart_flow.trackers.base import TrackedRun, Tracker, TrackerSink

if TYPE_CHECKING:
    from rollart_flow.metrics.window import RunRecord

_NUMBER = "rollart/record"
"""Tag of the number of the record, in the event of each."""


@dataclass(frozen=True)
class TensorBoardTracker(Tracker):
    """TensorBoard's event files."""

    logdir: str = ""
    """Folder in which the run gets a folder of its name; empty: the folder `tensorboard` of the
    run."""

    name: ClassVar[str] = "tensorboard"
    requirements: ClassVar = (Requirement("tensorboard", ("tensorboard",), "tensorboard"),)

    def open(self, run: TrackedRun) -> TrackerSink:
        """Open a new event file beside those that there are."""
        if not self.logdir and run.folder is None:
            raise SettingsError("tensorboard: the run is in an object store; give logdir=")
        folder = Path(self.logdir) / run.name if self.logdir else Path(run.folder or "")
        return TensorBoardSink(self, folder if self.logdir else folder / "tensorboard")


class TensorBoardSink(TrackerSink):
    def __init__(self, tracker: TensorBoardTracker, folder: Path) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._tracker = tracker
        self._event, self._summary = event_pb2.Event, summary_pb2.Summary
        folder.mkdir(parents=True, exist_ok=True)
        self._numbers = set(_numbers(folder))
        self.written = next(n for n in count() if n + 1 not in self._numbers)
        self._writer = EventFileWriter(str(folder))
        if not self._numbers:
            self._writer.add_event(self._event(summary=_layout()))

    def write(self, record: "RunRecord") -> None:
        """Write one event with every figure and the samples."""
        if record.number in self._numbers:
            return
        summary = self._summary()
        summary.value.add(tag=_NUMBER, simple_value=record.number)
        for name, value in flat(record.figures).items():
            summary.value.add(tag=name, simple_value=value)
        for place, sample in enumerate(self._tracker.samples_of(record)):
            indented = sample.text.replace("\n", "\n    ")
            head = f"{sample.trajectory_id} {sample.domain} {sample.outcome} {sample.reward}"
            text = f"{head}\n\n    {indented}"
            summary.value.append(_text(f"samples/{record.kind}/{place}", text))
        event = self._event(wall_time=record.at_ms / 1000, step=record.step, summary=summary)
        self._writer.add_event(event)
        self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()


def _numbers(folder: Path) -> Iterator[int]:
    """Give the numbers of the records that the event files have."""
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    for path in sorted(folder.glob("events.out.tfevents.*")):
        for event in LegacyEventFileLoader(str(path)).Load():
            for value in event.summary.value:
                if value.tag == _NUMBER:
                    yield int(value.simple_value)


def _text(tag: str, text: str) -> Any:
    """Return the value of a summary that the plugin for texts shows."""
    from tensorboard.plugins.text.summary_v2 import text_pb

    return text_pb(tag, text).value[0]


def _layout() -> Any:
    """Return the overview as the summary that the plugin for custom scalars reads."""
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.plugins.custom_scalar import layout_pb2, metadata

    layout = layout_pb2.Layout()
    for title, charts in OVERVIEW.items():
        category = layout.category.add(title=title)
        for chart, names in charts.items():
            category.chart.add(title=chart).multiline.tag.extend(map(_tags, names))
    summary = Summary()
    summary.value.add(
        tag=metadata.CONFIG_SUMMARY_TAG,
        metadata=metadata.create_summary_metadata(),
        tensor=TensorProto(dtype="DT_STRING", string_val=[layout.SerializeToString()]),
    )
    return summary


def _tags(name: str) -> str:
    """Return the pattern of the tags of a metric: without its minimum, maximum and count."""
    metric = METRICS[name]
    if metric is EVALUATION:
        return r"eval/success.*(?<!/low)(?<!/high)(?<!/count)$"
    return rf"^{name}(/(?!(min|max|count)$)[^/]+)?$" if metric.label else f"^{name}$"
