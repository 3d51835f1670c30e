"""Checks of tasks by their known solutions, and new verdicts on attempts that are stored."""
