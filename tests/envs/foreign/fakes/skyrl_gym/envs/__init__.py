"""Environments of the stand-in."""

from skyrl_gym.envs import registration as registration
