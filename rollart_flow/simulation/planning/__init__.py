"""Proposals for a pipeline on given hardware: a closed form to start with, then simulations."""
