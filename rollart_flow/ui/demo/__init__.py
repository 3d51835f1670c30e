"""The demonstration run: a run folder with rows of every kind."""
