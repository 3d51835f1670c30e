"""Processes of one's own for code of the user that may hang or crash. Neither Ray nor torch."""
