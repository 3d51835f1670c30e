"""Predictions from a stored run: its tables, fitted to the models' parameters."""
