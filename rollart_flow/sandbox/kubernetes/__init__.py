"""Kubernetes: a box is a pod, and each of its commands an exec over a websocket."""
