"""A run in S3: tables, weights and checkpoints lie in a bucket, and no machine keeps anything.

    export AWS_ENDPOINT_URL_S3=http://127.0.0.1:8333    # unless the bucket is at AWS
    rollart doctor --store s3://BUCKET/runs
    rollart run pipelines/s3_store.py --store s3://BUCKET/runs --name mine
    rollart query mine "SELECT count(*) AS n FROM trajectories" --store s3://BUCKET/runs

Any pipeline can run there: the store is said on the command line or in ROLLART_STORE. This one has
the settings that suit a store where each commit is a request: larger micro-batches, and fewer
versions that are kept.
"""

from rollart_flow import Pipeline, Policy, buffer, reward, rollout, tasks, train
from rollart_flow.algorithms import grpo
from rollart_flow.envs import Arithmetic
from rollart_flow.trainers.optimizer import adamw

policy = Policy.tiny(warm_start=20)
prompts = tasks(Arithmetic(ops=("%",), right=(2,)), group_size=8)
scored = reward(rollout(prompts, policy, max_tokens=4))
batches = buffer(scored, batch_size=64, alpha=1, commit_rows=256, commit_ms=500)
optimizer = adamw(lr=2e-3)
steps = train(
    batches, policy, grpo(), steps=20, optimizer=optimizer, checkpoint_every=20, keep_versions=2
)
pipeline = Pipeline("in-s3", steps)
