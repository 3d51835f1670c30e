"""The resource plane: workers, clusters of workers, and which resources they are granted."""

from rollart_flow.resources.classes import COMPATIBLE, CPU, Kind
from rollart_flow.resources.cluster import Cluster, WorkerHandle
from rollart_flow.resources.declarations import hw_mapping, register, register_serverless
from rollart_flow.resources.manager import ResourceManager, ResourcePool
from rollart_flow.resources.worker import (
    ActorGen,
    ActorTrain,
    EnvironmentWorker,
    Placement,
    Request,
    RewardWorker,
    Worker,
)

Environment = EnvironmentWorker
Reward = RewardWorker
Pool = ResourcePool
"""The names of ROLLART's Listing 1 and of earlier versions."""

__all__ = [
    "COMPATIBLE",
    "CPU",
    "ActorGen",
    "ActorTrain",
    "Cluster",
    "Environment",
    "EnvironmentWorker",
    "Kind",
    "Placement",
    "Pool",
    "Request",
    "ResourceManager",
    "ResourcePool",
    "Reward",
    "RewardWorker",
    "Worker",
    "WorkerHandle",
    "hw_mapping",
    "register",
    "register_serverless",
]
