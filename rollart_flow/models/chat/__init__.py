"""Conversations in tokens: chat templates are rendered, and generated tokens are parsed.

Generated tokens are never encoded again: `renderer` renders only what follows them in a chain.
"""
