"""The order of a training step's phases, the bound on staleness, and who drives both."""
