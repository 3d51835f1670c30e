"""Recipes of algorithms: one file each, with the loss, its advantage and the defaults of a paper.

A module of this folder defines the function of its own name, which makes an `Algorithm`; it is then
`rollart_flow.algorithms.NAME`, without another file to change. A loss that only one recipe uses
stands beside it; shared parts are in `losses`, `advantages`, `corrections` and `parts`.

Every recipe raises SettingsError if a value is out of its range, or settings contradict each other.
"""
