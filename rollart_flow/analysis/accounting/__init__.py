"""Expenses of a run and their results, computed from its tables alone.

Each figure is a frame that a reader can go on with in polars: what became of attempts
(`fates`), which resources worked (`use`), what separate places cost (`transfers`), and what all of
it cost (`costs`). `rollart show RUN --accounting` prints them.
"""
