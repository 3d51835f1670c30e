"""The overview: what to look at first, in five sections, for every viewer with a layout."""

from collections.abc import Mapping

OVERVIEW: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "train": {
        "reward": ("train/reward", "rollout/reward"),
        "loss": ("train/loss", "train/value_loss"),
        "preferences": ("train/preference_margin", "train/preference_accuracy"),
        "solved": ("rollout/solved",),
        "length": ("rollout/tokens", "rollout/action_tokens"),
    },
    "eval": {"scores": ("eval/score",)},
    "stability": {
        "entropy": ("train/entropy",),
        "divergence": ("train/kl", "train/mismatch_kl"),
        "gradient": ("train/grad_norm",),
        "ratio": ("train/ratio", "train/ratio_max", "train/clip_fraction"),
        "groups without variance": ("train/zero_variance",),
        "staleness": ("train/staleness", "train/staleness_max", "train/lag", "train/lag_max"),
    },
    "performance": {
        "time of a step": ("time/step", "time/train", "time/wait", "time/update", "time/publish"),
        "tokens": ("engine/tokens_per_second",),
        "left untrained": ("buffer/left", "rollout/wasted"),
        "commits": ("buffer/commit_seconds",),
    },
    "inference": {
        "requests": ("engine/generate_seconds",),
        "environments": ("env/step_seconds", "env/reset_seconds", "env/reward_seconds"),
        "failures": ("env/failures",),
        "gateway": (
            "gateway/calls",
            "gateway/delivered_fraction",
            "gateway/mismatches",
            "gateway/unknown_keys",
        ),
        "calls": ("gateway/first_token_seconds", "gateway/call_seconds", "gateway/paused_seconds"),
        "boxes": ("sandbox/boxes", "sandbox/leaked", "sandbox/wait_seconds"),
    },
}
"""Names of metrics by section and chart."""


def overview_text() -> str:
    """Return the overview in Markdown, for viewers that have a description and no layout."""
    lines = ["Where to look first:", ""]
    for section, charts in OVERVIEW.items():
        names = ", ".join(f"`{name}`" for chart in charts.values() for name in chart)
        lines.append(f"- **{section}**: {names}")
    return "\n".join(lines)
