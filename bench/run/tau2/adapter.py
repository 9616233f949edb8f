"""Run tau2-bench's own simulations and its own grading, with the Python of its environment.

    AGENT_KEY=KEY USER_KEY=KEY python -I adapter.py PLAN.json

The plan is one JSON object:

    domain       upstream's name of it
    arms         [{name, model, url, headers}]: the agents
    user         {model, url, headers, fields}: the model behind upstream's user simulator
    cases        {case: [task, trial]}: all of them, of every arm
    rounds       [[arm, [case, ..]], ..]: an arm goes through these cases before the next round begins
    marks        {task: [mark, ..]}: what the caller says of a task
    attempt      names this call, so that a case begun anew has a case id of its own
    seed, trials, max_steps, temperature: upstream's options
    fields       added to every request of the agent
    threads      simulations at once

The plan's folder gets

    ARM/simulations/CASE.json  a finished simulation as upstream dumps it; it has its name once it is whole
    ARM/results.json           upstream's results file of all of them
    ARM/summary.json           upstream's own figures of that

Upstream's code is used as it is: the agent is a subclass of its own, put into its registry; its own functions
run a simulation, grade it, and write the files. Each trial has the seed that upstream's runner gives it.

Exit code 3: a server is gone. Upstream would write every simulation that is left down as failed.
"""

import json
import os
import random
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

# On import litellm would fetch its price list.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

from loguru import logger
from openai import APIConnectionError, APIStatusError, APITimeoutError
from tau2.agent.llm_agent import LLMAgent
from tau2.config import DEFAULT_MAX_ERRORS
from tau2.data_model.simulation import Results, RewardInfo, SimulationRun, TerminationReason
from tau2.evaluator.evaluator import EvaluationType, evaluate_simulation
from tau2.metrics.agent_metrics import compute_metrics
from tau2.registry import registry
from tau2.run import get_environment_info, get_info, get_tasks, run_task, save_results_summary
from tau2.utils.utils import get_now

Json = dict[str, Any]

SERVER_GONE = 3
# What the proxy, or anything else in between, answers where nobody stands behind it.
_NOBODY_THERE = (502, 503)
_AGENT, _USER = "seam", "user_simulator"


class ServerGone(Exception):
    """Ends the run."""


class UnusableReply(Exception):
    """The agent's reply is no message: the arguments of a call are no JSON object, or it is empty.

    Attributes:
        messages: the conversation as the agent has it.
    """

    def __init__(self, why: str, messages: list[Any]) -> None:
        super().__init__(why)
        self.messages = messages


class Agent(LLMAgent):  # type: ignore[misc]
    """Upstream's agent, which tells its own failures from those of everything around it."""

    def generate_next_message(self, message: Any, state: Any) -> Any:
        """Upstream's; raises UnusableReply where that would end in a parser's error."""
        try:
            reply, state = super().generate_next_message(message, state)
            reply.validate()
        except (ValueError, TypeError) as error:
            raise UnusableReply(f"{type(error).__name__}: {error}", list(state.messages)) from error
        return reply, state


class Replay:
    """A plan at work; root: where its results go."""

    def __init__(self, plan: Mapping[str, Any], root: Path) -> None:
        self._plan, self._root = plan, root
        self._arms = {arm["name"]: arm for arm in plan["arms"]}
        wanted = {task for task, _ in plan["cases"].values()}
        self._tasks = {task.id: task for task in get_tasks(plan["domain"], "base") if task.id in wanted}
        drawn = random.Random(plan["seed"])
        self._seeds = [drawn.randint(0, 1_000_000) for _ in range(plan["trials"])]

    def run(self) -> None:
        """Simulate what is missing, round by round, and write the results of every arm."""
        # No `with`: it would wait for all of them where one says that the server is gone.
        pool = ThreadPoolExecutor(self._plan["threads"])
        for arm, cases in self._plan["rounds"]:
            missing = [case for case in cases if not self._file(arm, case).exists()]
            for _ in pool.map(partial(self._finish, arm), missing):
                pass
        for arm in self._arms:
            self._write(arm)

    def _file(self, arm: str, case: str) -> Path:
        return self._root / arm / "simulations" / f"{case}.json"

    def _finish(self, arm: str, case: str) -> None:
        task, trial = self._plan["cases"][case]
        simulation = self._simulate(arm, case, self._tasks[task], self._seeds[trial])
        simulation.trial = trial
        target = self._file(arm, case)
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.with_suffix(".draft")
        draft.write_text(simulation.model_dump_json(indent=1), "utf-8")
        draft.replace(target)

    def _simulate(self, arm: str, case: str, task: Any, seed: int) -> Any:
        began, user = get_now(), self._plan["user"]
        try:
            return run_task(
                self._plan["domain"],
                task,
                _AGENT,
                _USER,
                llm_agent=_model(self._arms[arm]),
                llm_args_agent=self._arguments(arm)
                | {"api_key": os.environ["AGENT_KEY"], "extra_headers": self._headers(arm, case, task.id)},
                llm_user=_model(user),
                llm_args_user=self._user_arguments()
                | {"api_key": os.environ["USER_KEY"], "extra_headers": user["headers"]},
                max_steps=self._plan["max_steps"],
                max_errors=DEFAULT_MAX_ERRORS,
                evaluation_type=EvaluationType.ALL,
                seed=seed,
            )
        except UnusableReply as error:
            return self._failed(task, seed, began, error)
        except Exception as error:
            if gone := _gone(error):
                raise ServerGone(f"{case}: {gone}") from error
            return _skipped(task, seed, began, error)

    def _arguments(self, arm: str) -> Json:
        """What upstream's agent passes on to litellm, less what is secret or of one simulation."""
        agent = self._arms[arm]
        return {
            "base_url": agent["url"],
            "temperature": self._plan["temperature"],
            "extra_body": self._plan["fields"],
        }

    def _user_arguments(self) -> Json:
        user = self._plan["user"]
        return {"base_url": user["url"], "temperature": 0.0, "extra_body": user["fields"]}

    def _headers(self, arm: str, case: str, task: str) -> dict[str, str]:
        marks = self._plan["marks"].get(task)
        headers = {"X-Case-Id": f"{case}/{arm}/{self._plan['attempt']}", **self._arms[arm]["headers"]}
        return {**headers, "X-Case-Marks": ",".join(marks)} if marks else headers

    def _failed(self, task: Any, seed: int, began: str, error: UnusableReply) -> Any:
        """The simulation that the agent ended; upstream's grader has a reward for it too."""
        simulation = _ended(task, seed, began, error.messages)
        simulation.reward_info = evaluate_simulation(
            simulation, task, EvaluationType.ALL, solo_mode=False, domain=self._plan["domain"]
        )
        simulation.reward_info.info["error"] = str(error)
        return simulation

    def _write(self, arm: str) -> None:
        """Upstream's own results file, and its figures."""
        user = self._plan["user"]
        info = get_info(
            domain=self._plan["domain"],
            agent=_AGENT,
            user=_USER,
            llm_agent=_model(self._arms[arm]),
            llm_args_agent=self._arguments(arm),
            llm_user=_model(user),
            llm_args_user=self._user_arguments(),
            num_trials=self._plan["trials"],
            max_steps=self._plan["max_steps"],
            max_errors=DEFAULT_MAX_ERRORS,
            seed=self._plan["seed"],
        )
        # With the tools, so that unknown names and schema violations can be counted.
        info.environment_info = get_environment_info(self._plan["domain"], include_tool_info=True)
        files = [self._file(arm, case) for case in self._plan["cases"]]
        results = Results(
            info=info,
            tasks=list(self._tasks.values()),
            simulations=[SimulationRun.model_validate_json(file.read_bytes()) for file in files],
        )
        results.save(self._root / arm / "results.json")
        save_results_summary(results, compute_metrics(results), self._root / arm / "summary.json")


def _model(served: Mapping[str, Any]) -> str:
    """Litellm's name of a model behind an OpenAI-compatible server."""
    return f"openai/{served['model']}"


def _ended(task: Any, seed: int, began: str, messages: list[Any]) -> Any:
    """A simulation that did not come to its end, in the form that upstream gives to a failed one."""
    return SimulationRun(
        id=str(uuid4()),
        task_id=task.id,
        start_time=began,
        end_time=get_now(),
        duration=0.0,
        termination_reason=TerminationReason.AGENT_ERROR,
        messages=messages,
        seed=seed,
    )


def _skipped(task: Any, seed: int, began: str, error: Exception) -> Any:
    """A simulation that was given up, as upstream's runner skips one."""
    simulation = _ended(task, seed, began, [])
    simulation.skipped = True
    simulation.reward_info = RewardInfo(reward=0.0, info={"error": f"{type(error).__name__}: {error}"})
    return simulation


def _gone(error: BaseException | None) -> str | None:
    """What says, among the causes of an error, that nobody answers; litellm's own classes don't tell it."""
    while error is not None:
        if isinstance(error, APIConnectionError) and not isinstance(error, APITimeoutError):
            return str(error)
        if isinstance(error, APIStatusError) and error.status_code in _NOBODY_THERE:
            return str(error)
        error = error.__cause__ or error.__context__
    return None


if __name__ == "__main__":
    logger.remove()
    # It would say of every reply that it has no price.
    logger.add(sys.stderr, level="INFO", filter={"": "INFO", "tau2.utils.llm_utils": "WARNING"})
    registry.register_agent(Agent, _AGENT)
    plan = Path(sys.argv[1])
    try:
        Replay(json.loads(plan.read_text("utf-8")), plan.parent).run()
    except ServerGone as gone:
        print(gone, file=sys.stderr, flush=True)
        # Threads that still wait for the server would keep us.
        os._exit(SERVER_GONE)
