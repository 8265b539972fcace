"""Planned rematerialization for JAX: fit a training step into a memory budget with the least extra work.

Public names are listed here; everything else may move.
"""

from remat_lab.api import plan as plan
from remat_lab.api import value_and_grad as value_and_grad
from remat_lab.audit import Audit as Audit
from remat_lab.audit import audit as audit
from remat_lab.compare import compare as compare
from remat_lab.comparison import Comparison as Comparison
from remat_lab.errors import InvalidArgument as InvalidArgument
from remat_lab.errors import InvalidLoss as InvalidLoss
from remat_lab.errors import InvalidPlanFile as InvalidPlanFile
from remat_lab.errors import PlanMismatch as PlanMismatch
from remat_lab.errors import RematLabError as RematLabError
from remat_lab.errors import UnsupportedEffect as UnsupportedEffect
from remat_lab.errors import UnsupportedJax as UnsupportedJax
from remat_lab.frontier import Frontier as Frontier
from remat_lab.frontier import frontier as frontier
from remat_lab.loops import fori_loop as fori_loop
from remat_lab.loops import scan as scan
from remat_lab.loops import while_loop as while_loop
from remat_lab.max_batch import MaxBatch as MaxBatch
from remat_lab.max_batch import max_batch as max_batch
from remat_lab.plans import Plan as Plan
from remat_lab.remat import remat as remat
from remat_lab.saved import Saved as Saved
from remat_lab.saved import SavedValue as SavedValue
from remat_lab.saved import saved as saved
from remat_lab.stored import load_plan as load_plan
from solvers.errors import InfeasibleBudget as InfeasibleBudget
from solvers.errors import InvalidBudget as InvalidBudget
