"""The resource plane: workers, clusters of workers, and which resources they are granted."""

from rollart_flow.resources.cluster import Cluster, WorkerHandle
from rollart_flow.resources.pools import CPU, classes, grant, grant_all
from rollart_flow.resources.worker import ActorGen, ActorTrain, Placement, Request, Worker

__all__ = [
    "CPU",
    "ActorGen",
    "ActorTrain",
    "Cluster",
    "Placement",
    "Request",
    "Worker",
    "WorkerHandle",
    "classes",
    "grant",
    "grant_all",
]
