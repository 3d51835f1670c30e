"""How the bytes of a call reach an endpoint. One short file each, found by the URL's scheme."""

from rollart_flow.serverless.transports.base import Transport
from rollart_flow.serverless.transports.registry import check_url, open_transport, public_address

__all__ = ["Transport", "check_url", "open_transport", "public_address"]
