"""Transports that carry a call to an endpoint, selected by the URL's scheme."""

from rollart_flow.serverless.transports.base import Transport
from rollart_flow.serverless.transports.registry import check_url, open_transport, public_address

__all__ = ["Transport", "check_url", "open_transport", "public_address"]
