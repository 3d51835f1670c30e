"""Autoscaling of a Ray Serve reward application by its number of calls.

Ray Serve counts requests, but a request here is a message with one or more calls, so the replicas
report how many calls they hold. This module imports no other module of the library, since the
policy runs in Ray Serve's controller.
"""

from typing import Any

CALLS = "calls"
"""Name of the metric that a replica reports: its received but unanswered calls."""


def replicas_for_calls(context: Any) -> tuple[float, dict[str, Any]]:
    """Return (replicas, empty state), as an autoscaling policy of Ray Serve.

    One replica remains while any request is pending; limits and delays are those of the
    application.
    """
    calls = sum(context.aggregated_metrics.get(CALLS, {}).values())
    wanted = calls / context.config.get_target_ongoing_requests()
    return max(wanted, float(context.total_num_requests > 0)), {}
