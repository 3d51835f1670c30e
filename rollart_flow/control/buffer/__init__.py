"""Committed trajectories that no batch holds yet."""
