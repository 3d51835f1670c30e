"""The resource plane: workers, clusters of workers, and the resources that they are granted."""

from rollart_flow.resources.classes import COMPATIBLE, CPU, Kind
from rollart_flow.resources.cluster import Cluster, TypedCluster
from rollart_flow.resources.declarations import hw_mapping, register, register_serverless
from rollart_flow.resources.handles import Remote, WorkerHandle, start_actor
from rollart_flow.resources.manager import ResourceManager
from rollart_flow.resources.placement import Placement, Request
from rollart_flow.resources.pools import ResourcePool
from rollart_flow.resources.worker import (
    ActorGen,
    ActorGenCls,
    ActorTrain,
    ActorTrainCls,
    EnvironmentCls,
    EnvironmentWorker,
    RewardCls,
    RewardWorker,
    Worker,
)

Environment = EnvironmentCls
Reward = RewardCls
Pool = ResourcePool
"""Names of earlier versions."""

__all__ = [
    "COMPATIBLE", "CPU", "ActorGen", "ActorGenCls", "ActorTrain", "ActorTrainCls", "Cluster",
    "Environment", "EnvironmentCls", "EnvironmentWorker", "Kind", "Placement", "Pool", "Remote",
    "Request", "ResourceManager", "ResourcePool", "Reward", "RewardCls", "RewardWorker",
    "TypedCluster", "Worker", "WorkerHandle", "hw_mapping", "register", "register_serverless",
    "start_actor",
]  # fmt: skip
