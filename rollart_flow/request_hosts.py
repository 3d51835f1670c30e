"""Hosts in heads of requests: a page in a browser of this machine reaches its loopback.

After such a page rebinds its own name to an address of this machine, the name in its requests is
still its own. A server therefore answers requests only that name this machine.
"""

import ipaddress


def host_name(host: str) -> str:
    """Return the name of a Host header without its port, in small letters."""
    name = host.lower()
    return name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]


def is_address(name: str) -> bool:
    """Return whether a name is an IP address, to which no page can rebind its own name."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_loopback(name: str) -> bool:
    """Return whether a name is localhost or an address of loopback."""
    return name == "localhost" or (is_address(name) and ipaddress.ip_address(name).is_loopback)
