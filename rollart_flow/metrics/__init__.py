"""Figures of a run, computed from the rows of its tables, with one name for each everywhere."""
