"""Agents that are programs: each profile says how one is started and pointed at the gateway."""
