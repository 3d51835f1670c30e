"""Games and questions of other packages in one run: GEM, Gymnasium, TextWorld, reasoning-gym.

    rollart run pipelines/text_games.py

The questions come in levels of difficulty, and the curriculum admits those that are solved now and
then. The files of `docs/families.md` have a line for each family. A policy this small learns a
little of Blackjack at most; the run shows that all four are well-formed. Needs
`rollart-flow[games,reasoning,textworld]`.
"""

from rollart_flow import Pipeline, Policy, buffer, reward, rollout, tasks, train
from rollart_flow.algorithms import Curriculum, grpo
from rollart_flow.envs import GemGame, GymnasiumText, ReasoningGym, TextWorld

policy = Policy.tiny(max_context=2048)
prompts = tasks(
    GemGame("GuessTheNumber-v0-easy", brief=True, max_turns=4),
    GymnasiumText("Blackjack-v1", max_turns=4),
    TextWorld(rooms=2, objects=3, quest_length=2, max_turns=4),
    ReasoningGym(("chain_sum", "gcd"), levels=(0, 1)),
    group_size=4,
    curriculum=Curriculum(),
)
trajectories = rollout(prompts, policy, max_tokens=12, max_concurrent=8, step_timeout_s=30)
batches = buffer(reward(trajectories), batch_size=32, alpha=1)
pipeline = Pipeline("text-games", train(batches, policy, grpo(), steps=10))
