"""Registry of trackers by name.

    Pipeline("lake", steps, trackers=["tensorboard", "wandb(project='lakes')"])

A tracker is a frozen dataclass derived from `Tracker`; its fields are its settings. To add one
inside the library: its file, and its name below. A package adds one through an entry point of the
group `rollart_flow.trackers`. Its own library is imported when a run is tracked.
"""

from collections.abc import Iterable

from rollart_flow.calls import parse_call
from rollart_flow.errors import SettingsError
from rollart_flow.registry import Registry
from rollart_flow.trackers.base import Tracker

TRACKERS: Registry[type[Tracker]] = Registry(
    "trackers",
    {
        "tensorboard": "rollart_flow.trackers.tensorboard:TensorBoardTracker",
        "wandb": "rollart_flow.trackers.wandb:WandbTracker",
        "trackio": "rollart_flow.trackers.trackio:TrackioTracker",
        "mlflow": "rollart_flow.trackers.mlflow:MlflowTracker",
        "prometheus": "rollart_flow.trackers.prometheus:PrometheusTracker",
        "otel": "rollart_flow.trackers.otel:OtelTracker",
    },
    setting="tracker",
    kind=type,
)


def named_tracker(text: str) -> Tracker:
    """Return the tracker of a text such as "wandb" or "wandb(project='lakes')".

    Raises:
        SettingsError: no tracker has the name, or the arguments are wrong.
    """
    call = parse_call("tracker", text, '"tensorboard" or "wandb(project=\'lakes\')"')
    kind = TRACKERS.load(call.name)
    try:
        tracker = kind(*call.arguments, **call.keywords)  # type: ignore[arg-type]  # checked there
    except (TypeError, SettingsError) as error:
        raise SettingsError(f"tracker {text!r}: {error}") from None
    if not isinstance(tracker, Tracker):
        raise SettingsError(f"tracker {text!r}: {kind.__name__} is no Tracker")
    return tracker


def named_trackers(given: Iterable[Tracker | str]) -> tuple[Tracker, ...]:
    """Return the trackers of texts, each of which may be one already.

    Raises:
        SettingsError: a text is wrong, or two trackers have the same name.
    """
    trackers = tuple(each if isinstance(each, Tracker) else named_tracker(each) for each in given)
    names = [tracker.name for tracker in trackers]
    for name in names:
        if names.count(name) > 1:
            raise SettingsError(f"tracker {name} is given twice; a run has one cursor for each")
    return trackers
