"""How many replicas a reward application of Ray Serve has: as many as its calls take.

Ray Serve counts requests, and a request here is a message of one call or of many; so the replicas
say how many calls they hold. Loads nothing, since the policy runs in Ray Serve's controller.
"""

from typing import Any

CALLS = "calls"
"""Name of the figure that a replica reports: calls that it has and has not answered."""


def replicas_for_calls(context: Any) -> tuple[float, dict[str, Any]]:
    """(replicas, no state): an autoscaling policy of Ray Serve.

    One replica stays while anything is on its way; limits and delays are those of the application.
    """
    calls = sum(context.aggregated_metrics.get(CALLS, {}).values())
    wanted = calls / context.config.get_target_ongoing_requests()
    return max(wanted, float(context.total_num_requests > 0)), {}
