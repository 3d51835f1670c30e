"""Named queries over the tables of a run, which the pages of `rollart ui` show.

A view is SQL with named parameters, and the text that is run is the text that is shown: it can be
given to `rollart query`. A module of this package holds the views of one page. How to add one:

    REWARDS = View(
        "step.rewards", "Rewards of the groups",
        "select group_id, avg(reward) as reward from trajectories "
        "where seq < :cut and policy_version_start >= :oldest group by group_id",
        parameters={"step": int},                      # values that the caller gives
        lookups={"cut": "select max(seq) from batches where step = :step", ...},
        order="reward desc, group_id",                 # the order unless the reader sorts
    )

    reader = ViewReader(run.snapshot())
    rows = reader.read(REWARDS, {"step": 3}, Page(offset=50, sort="-reward"))
    rows.frame, rows.query, rows.more

A lookup is a query with one value, which is run first; its value stands in the text as a literal,
so that polars can pass over files whose rows cannot match. Queries name the columns that they need:
`token_ids`, `logprobs` and `turns` of `trajectories` are most of a run, and are read for few rows.
"""
