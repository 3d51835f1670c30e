"""A gateway by hand: a policy served to any client, whose calls a run records."""

from rollart_flow.runner.gateway.recorder import GatewayResult
from rollart_flow.runner.gateway.serving import GatewayAddresses, serve_policy
from rollart_flow.runner.gateway.settings import GatewaySettings

__all__ = ["GatewayAddresses", "GatewayResult", "GatewaySettings", "serve_policy"]
