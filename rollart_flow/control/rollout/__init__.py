"""One attempt at a task, from the reset of its environment to its outcome."""
