"""Models of what the control plane talks to: engines, environments, scoring."""
