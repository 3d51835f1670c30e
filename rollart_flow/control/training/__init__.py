"""Training steps: the controller that drives each one through the phases of its schedule."""
