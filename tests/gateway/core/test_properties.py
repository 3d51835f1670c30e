"""Properties of sessions, for any clients and engines: what was sampled is what is trained on."""

import random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollart_flow.gateway.core.capture_limits import CaptureLimits
from rollart_flow.gateway.core.exchange import CallKind
from rollart_flow.simulation import run
from tests.dst.captured import CapturePlan, simulate_session
from tests.dst.log import Log

CAPTURES = st.builds(
    CaptureLimits,
    max_calls=st.integers(1, 40),
    max_tokens=st.integers(50, 5000),
    max_under_way=st.integers(1, 9),
    per_request=st.booleans(),
    trained=st.frozensets(st.sampled_from(CallKind)),
)
PLANS = st.builds(
    CapturePlan,
    seed=st.just(0),
    clients=st.integers(1, 3),
    turns=st.integers(1, 6),
    faults=st.sampled_from((0.0, 0.3)),
    workers=st.integers(1, 2),
    updates=st.integers(0, 2),
    context_tokens=st.integers(100, 3000),
    ends_at=st.none() | st.floats(0, 5),
    capture=CAPTURES,
)


@settings(
    max_examples=60,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(PLANS, st.integers(0, 2**64).map(random.Random))
def test_every_sampled_token_is_delivered_or_has_a_reason_whatever_clients_do(
    plan: CapturePlan, chance: random.Random
) -> None:
    # Edits of histories, forks, retries, hang-ups, reordered and repeated calls, updates; the
    # session checks itself (tests/dst/captured_checks.py).
    assert run(simulate_session(plan, Log(), chance), shuffle=True) >= 0
