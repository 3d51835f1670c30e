"""Boxes made by bubblewrap: Linux namespaces without a daemon, ready in some 20 ms."""
