"""Views of the page of events: the events themselves, how many of each, and when."""

from rollart_flow.views.view import View

_FILTERS = {"kind": str, "subject": str, "reason": str}
_NONE = {"kind": "", "subject": "", "reason": ""}
_FILTERED = (
    "events where (:kind = '' or kind = :kind) and (:reason = '' or reason = :reason) "
    "and (:subject = '' or strpos(subject, :subject) > 0)"
)
_BINS = 60
_EPOCH = "date_part('epoch', at)"

ROWS = View(
    "events.rows",
    "Events",
    f"select seq, at, kind, subject, reason, domain, policy_version, step, detail from {_FILTERED}",
    parameters=_FILTERS,
    defaults=_NONE,
    order="at desc, seq desc",
)
COUNTS = View(
    "events.counts",
    "Events by kind and reason",
    "select kind, reason, count(*) as events, min(at) as first, max(at) as last "
    "from events group by kind, reason",
    order="events desc, kind, reason",
)
TIMELINE = View(
    "events.timeline",
    "Events over time",
    f"select kind, cast(floor(({_EPOCH} - :begin) / :width) as int) as bin, "
    f"min(at) as first, max(at) as last, count(*) as events from {_FILTERED} group by kind, bin",
    parameters=_FILTERS,
    defaults=_NONE,
    lookups={
        "begin": f"select min({_EPOCH}) from events",
        "width": f"select case when max({_EPOCH}) > min({_EPOCH}) "
        f"then (max({_EPOCH}) - min({_EPOCH})) / {_BINS} else 1.0 end from events",
    },
    order="kind, bin",
    rows=2_000,
)

VIEWS = (ROWS, COUNTS, TIMELINE)
