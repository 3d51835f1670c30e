"""Places of environments by their ids."""

registry: dict[str, str] = {}
