"""Run BFCL's own generation, then its own grading, with the Python of its environment.

    BFCL_PROJECT_ROOT=FOLDER OPENAI_API_KEY=KEY python -I adapter.py PLAN.json

The plan is one JSON object:

    arms         [{name, model, url, headers}]: registered as models of these names
    rounds       [[arm, [id, ..]], ..]: an arm goes through these cases before the next round begins
    marks        {id: {case: [mark, ..], empty: [turn, ..]}}: what the caller says of a case and its turns
    attempt      names this call, so that a case begun anew has a case id of its own
    threads, temperature, input_log: upstream's options
    fields       added to every request's body

Upstream's code is used as it is: models are put into its registry with a subclass of its handler for OpenAI's
chat completions, and its own functions choose what is left to do, generate, write and grade.

Exit code 3: the server is gone. Upstream would write every case that is left down as the model's error.
"""

import json
import os
import sys
import threading
from argparse import Namespace
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from bfcl_eval import _llm_response_generation as generation
from bfcl_eval.constants.eval_config import RESULT_PATH
from bfcl_eval.constants.model_config import MODEL_CONFIG_MAPPING, ModelConfig
from bfcl_eval.eval_checker import eval_runner
from bfcl_eval.model_handler.api_inference.openai_completion import OpenAICompletionsHandler
from bfcl_eval.utils import extract_test_category_from_id, load_dataset_entry
from openai import APIConnectionError, APIStatusError, APITimeoutError

Json = dict[str, Any]

SERVER_GONE = 3
# What the proxy, or anything else in between, answers where nobody stands behind it.
_NOBODY_THERE = (502, 503)


class ServerGone(BaseException):
    """Ends the run: not an Exception, which upstream would write down as the case's result."""


def handler_of(arm: Mapping[str, Any], plan: Mapping[str, Any]) -> type:
    """Upstream's handler for chat completions, telling the proxy which case and turn a request is of."""

    class Handler(OpenAICompletionsHandler):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            # Names the environments that calls act on: arms that serve the same model must not share them.
            self.model_name_underline_replaced = arm["name"].replace("-", "_")
            self._at = threading.local()

        def _build_client_kwargs(self) -> Json:
            return {"api_key": os.environ["OPENAI_API_KEY"], "base_url": arm["url"]}

        def inference(self, test_entry: Json, *args: Any, **kwargs: Any) -> Any:
            self._at.case = test_entry["id"]
            return super().inference(test_entry, *args, **kwargs)

        def add_first_turn_message_FC(self, *args: Any, **kwargs: Any) -> Any:
            self._at.turn = 0
            return super().add_first_turn_message_FC(*args, **kwargs)

        def _add_next_turn_user_message_FC(self, *args: Any, **kwargs: Any) -> Any:
            self._at.turn += 1
            return super()._add_next_turn_user_message_FC(*args, **kwargs)

        def generate_with_backoff(self, **kwargs: Any) -> Any:
            try:
                return super().generate_with_backoff(
                    **kwargs, extra_headers=self._headers(), extra_body=plan["fields"]
                )
            except APITimeoutError:
                raise
            except APIConnectionError as error:
                raise ServerGone(f"{arm['url']}: {error}") from error
            except APIStatusError as error:
                if error.status_code in _NOBODY_THERE:
                    raise ServerGone(f"{arm['url']}: {error}") from error
                raise

        def _headers(self) -> dict[str, str]:
            told = plan["marks"].get(self._at.case, {})
            marks = [
                *told.get("case", ()),
                *(["empty_turn"] if self._at.turn in told.get("empty", ()) else ()),
            ]
            headers = {"X-Case-Id": f"{self._at.case}/{arm['name']}/{plan['attempt']}", **arm["headers"]}
            return {**headers, "X-Case-Marks": ",".join(marks)} if marks else headers

    return Handler


def main(plan: Mapping[str, Any]) -> None:
    """Generate what is missing round by round, and grade everything."""
    for arm in plan["arms"]:
        MODEL_CONFIG_MAPPING[arm["name"]] = ModelConfig(
            model_name=arm["model"],
            display_name=arm["name"],
            url=arm["url"],
            org="",
            license="",
            model_handler=handler_of(arm, plan),
            is_fc_model=True,
            underscore_to_dot=True,
        )
    categories = sorted({extract_test_category_from_id(id) for _, ids in plan["rounds"] for id in ids})
    entries = {entry["id"]: entry for category in categories for entry in load_dataset_entry(category)}
    arguments = Namespace(
        temperature=plan["temperature"],
        num_threads=plan["threads"],
        include_input_log=plan["input_log"],
        exclude_state_log=False,
        result_dir=RESULT_PATH,
        # Off, since upstream then rewrites a whole file for each case, which a kill may cut short.
        run_ids=False,
        allow_overwrite=False,
    )
    for arm, ids in plan["rounds"]:
        # Upstream changes what it is given.
        chosen = [deepcopy(entries[id]) for id in ids]
        missing = generation.collect_test_cases(arguments, arm, categories, chosen)
        if missing:
            generation.generate_results(arguments, arm, missing)
    names = [arm["name"] for arm in plan["arms"]]
    eval_runner.main(names, categories, None, None, partial_eval=True)


if __name__ == "__main__":
    try:
        main(json.loads(Path(sys.argv[1]).read_text("utf-8")))
    except ServerGone as gone:
        print(gone, file=sys.stderr, flush=True)
        # Threads that still wait for the server would keep us.
        os._exit(SERVER_GONE)
