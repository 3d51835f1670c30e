"""The control plane assembled with models of a scenario's hardware."""
