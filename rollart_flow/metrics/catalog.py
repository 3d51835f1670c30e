"""The metrics of a run: name, unit and meaning of each, declared once.

Trackers, the Prometheus endpoint, the dashboard and docs/tracking.md take all names from here. A
name begins with the part of the system that it tells about. A metric has one value, or the spread
of several: their mean under the name itself, their minimum, maximum and count beside it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

GROUPS: Mapping[str, str] = {
    "train": "the training steps, from `steps` and `batches`",
    "eval": "held-out scores, from `evaluations`",
    "rollout": "the attempts that were committed since the step before, from `trajectories`",
    "env": "environments and rewards, from `trajectories`",
    "engine": "generation, from the turns of `trajectories`, and new weights, from `steps`",
    "buffer": "commits, and what left untrained, from `trajectories` and `events`",
    "gateway": "calls of captured agents, from `exchanges`",
    "sandbox": "boxes that ended, from `sandboxes`",
    "time": "the phases of a step, from `steps`",
}
"""Meaning of the first part of a name."""

SPREAD = ("min", "max", "count")
"""Statistics of a spread beside its mean."""
INTERVAL = ("low", "high", "count")
"""Statistics of a score beside its value: the 95% confidence interval, and its episodes."""


@dataclass(frozen=True, slots=True)
class Metric:
    """The declaration of one metric."""

    name: str
    """Group and name, such as "train/loss"."""
    unit: str
    """Unit of the value; empty for a plain number."""
    meaning: str
    label: str = ""
    """Label that tells the values apart, such as "domain"; empty: there is one value."""
    beside: tuple[str, ...] = ()
    """Statistics beside the value: `SPREAD`, `INTERVAL` or none."""

    @property
    def group(self) -> str:
        """First part of the name."""
        return self.name.split("/")[0]


def _spread(name: str, unit: str, meaning: str, label: str = "") -> Metric:
    return Metric(name, unit, meaning, label, SPREAD)


_TRAIN = (
    Metric("train/loss", "", "loss, averaged over the minibatches"),
    Metric("train/value_loss", "", "loss of the critic"),
    Metric("train/grad_norm", "", "norm of the gradient before clipping, of the last minibatch"),
    Metric("train/learning_rate", "", "learning rate"),
    Metric("train/reward", "", "mean reward of the batch"),
    Metric("train/entropy", "nats", "entropy of the policy over action tokens"),
    Metric("train/kl", "nats", "divergence from the behavior policy per token (k3 estimate)"),
    Metric("train/ratio", "", "importance ratio over action tokens"),
    Metric("train/ratio_max", "", "largest importance ratio"),
    Metric("train/clip_fraction", "", "fraction of action tokens whose ratio was clipped"),
    Metric("train/mismatch_kl", "nats", "divergence of the trainer from the engine per token"),
    Metric("train/mismatch_ratio_max", "", "largest ratio of the trainer to the engine"),
    Metric("train/ess", "", "effective sample size of these ratios, as a fraction of the tokens"),
    Metric("train/zero_variance", "", "fraction of groups whose rewards were all equal"),
    Metric("train/staleness", "versions", "mean staleness of the batch"),
    Metric("train/staleness_max", "versions", "largest staleness of the batch"),
    Metric("train/lag", "versions", "mean lag of the batch"),
    Metric("train/lag_max", "versions", "largest lag of the batch"),
    Metric("train/trajectories", "", "trajectories of the batch"),
    Metric("train/tokens", "tokens", "tokens of the batch"),
    Metric("train/action_tokens", "tokens", "tokens of the batch that the policy generated"),
    Metric("train/skipped", "", "1 where the batch could not be trained on"),
    Metric("train/preference_margin", "", "mean implicit reward of preferred trajectories less "
           "that of rejected ones"),
    Metric("train/preference_accuracy", "", "fraction of pairs whose preferred trajectory has the "
           "higher implicit reward"),
    _spread("train/advantage", "", "advantage of a trajectory, averaged over its tokens"),
)  # fmt: skip
_ROLLOUT = (
    _spread("rollout/reward", "", "reward of an attempt", "domain"),
    Metric("rollout/solved", "", "fraction of the attempts that their environment calls solved",
           "domain"),
    _spread("rollout/turns", "turns", "turns of an attempt", "domain"),
    _spread("rollout/tokens", "tokens", "tokens of a chain", "domain"),
    _spread("rollout/action_tokens", "tokens", "generated tokens of a chain", "domain"),
    _spread("rollout/seconds", "s", "time from the start of an attempt to its end", "domain"),
    Metric("rollout/attempts", "", "attempts by their outcome", "outcome"),
    Metric("rollout/wasted", "", "fraction of the generated tokens of attempts that cannot be "
           "trained on"),
    Metric("rollout/tool_errors", "", "fraction of the tool calls that could not be made"),
)  # fmt: skip
_ENV = (
    _spread("env/reset_seconds", "s", "time of a reset", "domain"),
    _spread("env/step_seconds", "s", "time of the environment for an action", "domain"),
    _spread("env/reward_seconds", "s", "time from the end of an attempt to its reward", "domain"),
    Metric("env/failures", "", "attempts that failed or ran out of time, by domain", "domain"),
)
_ENGINE = (
    _spread("engine/generate_seconds", "s", "time of a request", "hardware"),
    Metric("engine/tokens", "tokens", "generated tokens"),
    Metric("engine/tokens_per_second", "tokens/s", "generated tokens by the time of the step"),
    Metric("engine/pull_seconds", "s", "reading new weights, over all engine workers"),
    Metric("engine/exposed_pull_seconds", "s", "part of an update that waited for the weights"),
    Metric("engine/push_seconds", "s", "publishing of the weights that the engines then took"),
)
_BUFFER = (
    Metric("buffer/rows", "", "rows of trajectories that were committed"),
    _spread("buffer/commit_seconds", "s", "time from the reward of an attempt to its commit"),
    Metric("buffer/left", "", "groups and trajectories that left untrained, by reason", "reason"),
)
_GATEWAY = (
    Metric("gateway/calls", "", "calls of captured agents"),
    Metric("gateway/branches", "", "chains that these calls sampled"),
    Metric("gateway/delivered_fraction", "", "fraction of the sampled tokens in rows that can be "
           "trained on"),
    Metric("gateway/mismatches", "tokens", "tokens at which a chain differs from what was sent"),
    Metric("gateway/joins", "", "requests that joined a call under way"),
    Metric("gateway/replays", "", "requests that got a stored answer"),
    Metric("gateway/hang_ups", "", "calls whose client left before its answer"),
    Metric("gateway/refusals", "", "calls without an answer, by kind", "refusal"),
    Metric("gateway/unknown_keys", "", "requests with a key that no attempt under way has"),
    _spread("gateway/first_token_seconds", "s", "time from a call to its first token"),
    _spread("gateway/paused_seconds", "s", "time of a call in which the engines were suspended"),
    _spread("gateway/queue_seconds", "s", "time from a call to its request to the engine"),
    _spread("gateway/call_seconds", "s", "time from a call to its answer"),
)  # fmt: skip
_SANDBOX = (
    Metric("sandbox/boxes", "", "boxes that ended"),
    Metric("sandbox/prewarmed", "", "fraction of the handed out boxes that were made ahead"),
    Metric("sandbox/leaked", "", "processes that commands had left behind"),
    Metric("sandbox/killed", "", "boxes that were ended early, by cause", "cause"),
    _spread("sandbox/wait_seconds", "s", "time from the request for a box to the box"),
    _spread("sandbox/start_seconds", "s", "time from a box's start to its first answer"),
    _spread("sandbox/peak_memory", "MiB", "largest memory of a box"),
)
_TIME = (
    Metric("time/step", "s", "from the end of the previous step to the end of this one"),
    Metric("time/wait", "s", "training waited for its batch"),
    Metric("time/suspend", "s", "until the engines were suspended"),
    Metric("time/update", "s", "the engines swapped weights"),
    Metric("time/resume", "s", "until the engines went on"),
    Metric("time/train", "s", "the training computation"),
    Metric("time/publish", "s", "the step waited for publishing"),
)
EVALUATION = Metric(
    "eval/score", "", "held-out score, such as eval/success/frozenlake", "metric/domain", INTERVAL,
)  # fmt: skip
"""Trackers name a score by its metric: `eval/success/frozenlake`."""

METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        *_TRAIN, EVALUATION, *_ROLLOUT, *_ENV, *_ENGINE, *_BUFFER, *_GATEWAY, *_SANDBOX, *_TIME,
    )
}  # fmt: skip
"""Every metric by its name, in the order of the overview."""
