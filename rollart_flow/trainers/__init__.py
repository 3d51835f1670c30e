"""Trainers and their optimizer settings; importing this loads no torch."""

from rollart_flow.trainers.optimizer import AdamW, adamw

__all__ = ["AdamW", "adamw"]
