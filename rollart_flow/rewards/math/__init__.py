"""Rewards for mathematics: whether two expressions are equal, whatever their notation."""
