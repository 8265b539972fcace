"""One solver in a process of its own: part of a portfolio.

A process, and not a thread, because mixed-integer backends cannot be stopped once they run, and because searches written in
Python would take turns. The child gets its task as JSON and answers with lines of JSON. It does not outlive its parent, and a
Ctrl-C in the terminal reaches the parent only, which then asks its children for the best that they have.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from solvers.errors import InfeasibleBudget, SolverError, UnsupportedGraph
from solvers.graph import Graph
from solvers.solution import Options, Progress, Solution

_GRACE_SECONDS = 2.0
_CHILD = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from solvers.part import main; main()"


@dataclass(frozen=True, slots=True)
class Answer:
    """How a part ended.

    Attributes:
        order: its schedule, or None.
        bound: total cost that it proved no schedule of its scope to be below.
        scope: that scope.
        status: its status in words, or why there is no schedule.
        infeasible: the error, where it found that nothing fits, or nothing that fits.
    """

    order: tuple[int, ...] | None
    bound: float
    scope: str
    status: str
    infeasible: InfeasibleBudget | None = None


class Part:
    """A running child process.

    Attributes:
        name: of the solver.
        graph: what it works on.
    """

    def __init__(
        self, name: str, graph: Graph, budget: int, options: Options, tell: Callable[[Part, Progress | Answer], None]
    ) -> None:
        """Starts the process.

        Args:
            name: of the solver.
            graph: the graph.
            budget: bytes.
            options: all but `progress` count.
            tell: called from another thread with each report, and last with the answer.

        Raises:
            OSError: if no process can be started.
        """
        self.name, self.graph = name, graph
        self._tell = tell
        if not sys.executable:
            raise FileNotFoundError("this Python does not know its own executable")
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _CHILD, json.dumps(sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            process_group=0 if os.name == "posix" else None,
        )
        task = {
            "solver": name,
            "graph": graph.to_json(),
            "budget": budget,
            "until": time.time() + options.time_limit,
            "seed": options.seed,
            "workers": options.workers,
            "starts": [list(start) for start in options.starts],
        }
        self._reader = threading.Thread(target=self._run, args=(json.dumps(task),), daemon=True)
        self._reader.start()

    def ask_to_stop(self) -> None:
        """Asks for the best that it has, at once."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT if os.name == "posix" else signal.SIGTERM)

    def kill(self) -> None:
        """Ends the process, and waits until it has ended."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._reader.join()

    def _run(self, task: str) -> None:
        """Sends the task and passes on what comes back. The child ends when its input does, so that stays open until then."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        answer = None
        try:
            self._process.stdin.write(task + "\n")
            self._process.stdin.flush()
            for line in self._process.stdout:
                message = _read(self.name, json.loads(line))
                if isinstance(message, Answer):
                    answer = message
                    break
                self._tell(self, message)
        except (OSError, ValueError):  # it died, or was killed in the middle of a line
            pass
        try:
            self._process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
        for pipe in (self._process.stdout, self._process.stdin):
            try:
                pipe.close()
            except OSError:
                continue
        lost = Answer(None, -math.inf, "", f"ended without an answer (exit status {self._process.wait()})")
        self._tell(self, answer or lost)


def run_here(name: str, graph: Graph, budget: int, options: Options) -> Answer:
    """Runs a solver in this process.

    Raises:
        KeyboardInterrupt: if it was interrupted before it found anything.
    """
    from solvers.solve import find_solver  # which lists the portfolio, which uses this

    try:
        return _answer_of(find_solver(name)(graph, budget, options))
    except InfeasibleBudget as error:
        return Answer(None, -math.inf, "", "proven infeasible" if error.proven else "nothing found", error)
    except UnsupportedGraph:
        return Answer(None, -math.inf, "", "not for such graphs")
    except SolverError as error:
        return Answer(None, -math.inf, "", f"{type(error).__name__}: {error}")


def _answer_of(solution: Solution) -> Answer:
    return Answer(solution.schedule.order, solution.lower_bound, solution.scope, solution.status.value)


def _read(name: str, row: dict[str, Any]) -> Progress | Answer:
    if "seconds" in row:
        cost, bound = (math.inf if x is None else x for x in (row["cost"], row["bound"]))
        return Progress(name, row["seconds"], cost, bound)
    error = None if row["error"] is None else InfeasibleBudget(**row["error"])
    bound = -math.inf if row["bound"] is None else row["bound"]
    return Answer(None if row["order"] is None else tuple(row["order"]), bound, row["scope"], row["status"], error)


def main() -> None:
    """The child: reads a task, reports while it works, answers, and ends."""
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # backends print banners

    def send(**row: object) -> None:
        lines.write(json.dumps({k: None if isinstance(x, float) and math.isinf(x) else x for k, x in row.items()}) + "\n")
        lines.flush()

    def report(progress: Progress) -> None:
        send(seconds=progress.seconds, cost=progress.cost, bound=progress.lower_bound)

    stopping: list[bool] = []

    def stop(*_: object) -> None:
        if not stopping:  # once is enough
            stopping.append(True)
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, stop)
    task = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        graph = Graph.from_json(task["graph"])
        options = Options(
            time_limit=max(0.01, task["until"] - time.time()),
            seed=task["seed"],
            workers=task["workers"],
            starts=task["starts"],
            progress=report,
        )
        answer = run_here(task["solver"], graph, task["budget"], options)
    except KeyboardInterrupt:
        answer = Answer(None, -math.inf, "", "interrupted before it found anything")
    except Exception as error:  # reported, since nobody reads a child's traceback
        how = "interrupted" if stopping else "failed"  # an interrupt of an import, say, becomes another error
        answer = Answer(None, -math.inf, "", f"{how}: {type(error).__name__}: {error}")
    known = answer.infeasible
    error_row = None if known is None else known.facts
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    send(order=answer.order, bound=answer.bound, scope=answer.scope, status=answer.status, error=error_row)
    os._exit(0)  # a backend's thread that cannot be stopped does not hold up the end


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)
