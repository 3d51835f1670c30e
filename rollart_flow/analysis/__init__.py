"""Analyses of stored runs, computed from their tables alone."""
