"""Rewards for code: the answer's program against tests, in a box."""
