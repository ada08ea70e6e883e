"""Replicas of a server on paper: what so many would answer, how soon, and what that would cost.

`graphml simulate` is this package. Discrete events around the engine's own scheduler and the cluster's own
routing and autoscaling; only the seconds of a step are a model, measured by `measure`. Needs no Ray.
"""

from graphml.simulation.arrivals import Arrival, Traffic, arrivals, read_arrivals
from graphml.simulation.cost_model import CostModel
from graphml.simulation.simulated_cluster import Autoscaling, Failures, Simulation, simulate
from graphml.simulation.simulation_report import SimulationReport

__all__ = [
    "Arrival",
    "Autoscaling",
    "CostModel",
    "Failures",
    "Simulation",
    "SimulationReport",
    "Traffic",
    "arrivals",
    "read_arrivals",
    "simulate",
]  # fmt: skip
