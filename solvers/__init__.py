"""Rematerialization planning on graphs: what to keep, free and recompute under a memory budget. Does not import JAX.

Public names are listed here; everything else may move.
"""

from solvers.errors import InfeasibleBudget as InfeasibleBudget
from solvers.errors import InvalidBudget as InvalidBudget
from solvers.errors import InvalidGraph as InvalidGraph
from solvers.errors import InvalidOption as InvalidOption
from solvers.errors import InvalidSchedule as InvalidSchedule
from solvers.errors import SolverError as SolverError
from solvers.errors import UnsupportedGraph as UnsupportedGraph
from solvers.graph import Graph as Graph
from solvers.graph import Node as Node
from solvers.graph import training_chain as training_chain
from solvers.schedule import Compute as Compute
from solvers.schedule import Free as Free
from solvers.schedule import Schedule as Schedule
from solvers.simulate import Simulation as Simulation
from solvers.simulate import simulate as simulate
from solvers.solution import Options as Options
from solvers.solution import Progress as Progress
from solvers.solution import Solution as Solution
from solvers.solution import Status as Status
from solvers.solve import available as available
from solvers.solve import solve as solve
