"""The wires of providers: requests become `ModelCall`s, and answers become their JSON and streams.

A wire is a pure function of values: no input or output, no clock. Its JSON and its stream are made
from one list of neutral events (`events`), so that they cannot differ.
"""
