"""The inference workers of a run: commands to all of them, and the way of a request to one."""
