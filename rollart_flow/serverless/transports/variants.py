"""The descriptions of the built-in reward transports; loads no library of a transport."""

from rollart_flow.registry import Requirement
from rollart_flow.serverless.transports.base import TransportVariant

_PACKAGE = "rollart_flow.serverless.transports"
_HTTP = (Requirement("httpx2", ("httpx2",), "serverless"),)

HTTP = TransportVariant(f"{_PACKAGE}.http:open_transport", "http://host:port/path", _HTTP)
HTTPS = TransportVariant(f"{_PACKAGE}.http:open_transport", "https://...", _HTTP)
FC = TransportVariant(f"{_PACKAGE}.http:open_transport", "fc://...", _HTTP)
LAMBDA = TransportVariant(
    f"{_PACKAGE}.aws:open_transport",
    "lambda://name?region=...",
    (Requirement("boto3", ("boto3",), "serverless"),),
)
SERVE = TransportVariant(f"{_PACKAGE}.serve:open_transport", "serve://app")
LOCAL = TransportVariant(f"{_PACKAGE}.local:open_transport", "local://module:function")
