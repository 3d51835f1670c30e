"""Views of the page of one trajectory.

A trajectory is found by its id, and the list columns are read of its row alone.
"""

from rollart_flow.views import chain, conversation, spans, story
from rollart_flow.views.view import View

_ID = {"trajectory": str}
_EPISODE = {"episode": "select min(episode_id) from trajectories where trajectory_id = :trajectory"}
_FIRST = {
    **_EPISODE,
    "first": "select min(trajectory_id) from trajectories "
    "where episode_id = :episode and coalesce(branch, 0) = 0",
}

HEAD = View(
    "trajectory.head",
    "The row of the trajectory",
    "select trajectory_id, episode_id, group_id, task_id, domain, split, attempt, branch, parent, "
    "shared_tokens, outcome, reason, error, policy_version_start, policy_version_end, reward, "
    "reward_parts, solved, suspicions, task, env_seed, env_version, sampling, created_at, "
    "finished_at, scored_at, committed_at, reset_s, tool_calls, tool_errors, rewritten_at, "
    "delivered_fraction, images, diff, verifier, seq, array_length(token_ids) as tokens, "
    "array_sum(action_mask) as action_tokens, array_length(turns) as turns "
    "from trajectories where trajectory_id = :trajectory",
    parameters=_ID,
    order="seq",
)
TRAINED = View(
    "trajectory.trained",
    "Steps that trained on it",
    "select b.step, b.position, array_mean(b.advantage) as advantage, b.weight, b.staleness, "
    "b.lag, b.policy_version, b.trained_version, b.committed_at as batched_at, s.finished_at, "
    "s.ratio_mean as step_ratio_mean, s.ratio_max as step_ratio_max "
    "from (select * from batches where trajectory_id = :trajectory) as b "
    "left join steps as s on b.step = s.step",
    parameters=_ID,
    order="step",
)
DRAWN = View(
    "trajectory.drawn",
    "Steps that drew it from a stored run",
    "select step, position, array_mean(advantage) as advantage, weight, staleness, lag, "
    "source_run, source_seq, source_version, source_rescored from batches "
    "where trajectory_id = :trajectory and source_seq is not null",
    parameters=_ID,
    order="step",
)
TURNS = View(
    "trajectory.turns",
    "Turns",
    "with said as (select unnest(turns) as turn from trajectories "
    "where trajectory_id = :trajectory) select row_number() over (order by turn.start) - 1 as "
    "number, turn.start as start, turn.end as end, turn.reward as reward, "
    "turn.generate_s as generate_s, turn.step_s as step_s, turn.hardware as hardware, "
    "turn.worker as worker, turn.finish_reason as finish_reason from said",
    parameters=_ID,
    order="number",
)
BRANCHES = View(
    "trajectory.branches",
    "Branches of the episode",
    "select t.trajectory_id, coalesce(t.branch, 0) as branch, t.parent, t.shared_tokens, "
    "t.outcome, t.reason, t.reward, array_length(t.token_ids) as tokens, "
    "array_sum(t.action_mask) as action_tokens, array_length(t.turns) as turns, b.step "
    "from (select * from trajectories where episode_id = :episode) as t "
    "left join (select trajectory_id, min(step) as step from batches group by trajectory_id) as b "
    "on t.trajectory_id = b.trajectory_id",
    parameters=_ID,
    lookups=_EPISODE,
    order="branch",
)
CALLS = View(
    "trajectory.calls",
    "Calls of the agent",
    "select number, kind, evidence, parent, trajectory_id, wire, client, "
    "answer_end - answer_start as sampled, trained_tokens, answer_start, answer_end, refusal, "
    "error, queue_s, call_s, joins, replays, mismatches, "
    "concat_ws(', ', case when hung_up then 'the client left' end, case when control then 'text "
    "of the gateway' end) as note, "
    "requested, effective, request, answer from exchanges where episode_id = :episode",
    parameters=_ID,
    lookups=_EPISODE,
    order="number",
)
BOXES = View(
    "trajectory.boxes",
    "Boxes",
    "select sandbox_id, variant, node, pool, prewarmed, wait_s, execs, exec_s, peak_memory_mb, "
    "killed_by, leaked, error, created_at, ready_at, leased_at, ended_at "
    "from sandboxes where trajectory_id = :first",
    parameters=_ID,
    lookups=_FIRST,
    order="created_at, sandbox_id",
)
VERDICTS = View(
    "trajectory.verdicts",
    "Verdicts",
    "select source, kind, key, passed, value, seconds, message, verifier, judged_at, seq "
    "from verdicts where trajectory_id = :first",
    parameters=_ID,
    lookups=_FIRST,
    order="seq",
)
EVENTS = View(
    "trajectory.events",
    "Events of the trajectory and its group",
    "select at, kind, subject, reason, step, policy_version, detail, seq from events "
    "where subject = :trajectory or subject = :episode or subject = :group",
    parameters=_ID,
    lookups={
        **_EPISODE,
        "group": "select min(group_id) from trajectories where trajectory_id = :trajectory",
    },
    order="at, seq",
)
NEIGHBOURS = View(
    "trajectory.neighbours",
    "Attempts before and after in the group",
    "select max(case when attempt < :attempt then trajectory_id end) as previous, "
    "min(case when attempt > :attempt then trajectory_id end) as next "
    "from trajectories where group_id = :group and coalesce(branch, 0) = 0",
    parameters=_ID,
    lookups={
        "attempt": "select min(attempt) from trajectories where trajectory_id = :trajectory",
        "group": "select min(group_id) from trajectories where trajectory_id = :trajectory",
    },
)
STORY = View(
    "trajectory.story",
    "What became of it",
    function=story.story,
    parameters=_ID,
)
MESSAGES = View(
    "trajectory.messages",
    "Conversation",
    function=conversation.conversation,
    parameters={**_ID, "turn": int},
    defaults={"turn": 1},
)
SPANS = View(
    "trajectory.spans",
    "Where its time went",
    function=spans.spans_of_trajectory,
    parameters=_ID,
    rows=500,
)
TOKENS = View(
    "trajectory.tokens",
    "Tokens",
    function=chain.tokens,
    parameters=_ID,
    rows=400,
)
REPLAYED = View(
    "trajectory.replayed",
    "Logprobs of the trainer",
    function=chain.replayed,
    parameters=_ID,
)

VIEWS = (
    HEAD, STORY, TRAINED, DRAWN, MESSAGES, SPANS, TOKENS, REPLAYED, TURNS, BRANCHES, CALLS, BOXES,
    VERDICTS, EVENTS, NEIGHBOURS,
)  # fmt: skip
