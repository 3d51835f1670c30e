"""The resource plane: workers, clusters of workers, and which resources they are granted."""

from rollart_flow.resources.classes import COMPATIBLE, CPU, Kind
from rollart_flow.resources.cluster import Cluster, WorkerHandle
from rollart_flow.resources.declarations import hw_mapping, register, register_serverless
from rollart_flow.resources.manager import Pool, ResourceManager
from rollart_flow.resources.worker import (
    ActorGen,
    ActorTrain,
    Environment,
    Placement,
    Request,
    Reward,
    Worker,
)

__all__ = [
    "COMPATIBLE",
    "CPU",
    "ActorGen",
    "ActorTrain",
    "Cluster",
    "Environment",
    "Kind",
    "Placement",
    "Pool",
    "Request",
    "ResourceManager",
    "Reward",
    "Worker",
    "WorkerHandle",
    "hw_mapping",
    "register",
    "register_serverless",
]
