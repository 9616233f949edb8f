"""`seam check` and the other commands: what they print, and how they end."""

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from proxy.check import check, table
from proxy.cli import cli
from proxy.settings import build
from tests.proxy.commands import run_seam
from tests.redis_server import Server, needs_redis
from tests.seam import written
from tests.upstream import Reply, Upstream, compact, said

GOOD = {"name": "strict", "entry": {"tokens": [7]}, "bias": {"value": -1.5, "apply": "logit_bias"}}


async def checked(tmp_path: Path, upstream: Upstream, profile: dict[str, Any]) -> tuple[list[str], str]:
    findings = await check(build(written(tmp_path, upstream.url, {}, [profile]), {}))
    return findings.problems, table(findings)


async def test_a_good_configuration_ends_with_0_and_a_table(tmp_path: Path) -> None:
    async with Upstream([said("x")], repeat_last=True, lists=["m"]) as upstream:
        path = written(tmp_path, upstream.url, {}, [GOOD])
        code, out, err = await run_seam("check", "--config", str(path))
        assert (code, err) == (0, "")
        assert upstream.url in out
        assert "model m" in out
        assert "profile strict" in out
        assert out.endswith("no problems\n")


def test_a_problem_ends_with_1_and_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, "http://127.0.0.1:9", {}, [GOOD])
    result = run("check", "--config", str(path), "--json")
    assert result.exit_code == 1
    document = json.loads(result.output)
    assert document["ok"] is False
    assert "http://127.0.0.1:9" in document["problems"][0]


async def test_a_server_that_wants_a_key_says_where_to_name_it(tmp_path: Path) -> None:
    async with Upstream([Reply(401, body=b"{}")], repeat_last=True) as upstream:
        problems, _ = await checked(tmp_path, upstream, GOOD)
        assert "api_key_env" in problems[0]


async def test_a_profile_for_a_model_that_nobody_lists_is_a_problem(tmp_path: Path) -> None:
    async with Upstream([], lists=["m"]) as upstream:
        problems, _ = await checked(tmp_path, upstream, {"name": "p", "model": "other"})
        assert problems == ["profile p: no upstream lists its model 'other'"]


async def test_a_bias_that_can_not_be_given_is_a_problem(tmp_path: Path) -> None:
    async with Upstream([], lists=["m"]) as upstream:
        problems, shown = await checked(tmp_path, upstream, {"name": "p", "bias": 1})
        assert len(problems) == 1
        assert problems[0].startswith("profile p on m: ")
        assert f"problem: {problems[0]}" in shown


async def test_a_token_that_the_server_refuses_is_named(tmp_path: Path) -> None:
    refusal = compact({"error": {"message": "token id out of vocabulary"}})
    refuses = Reply(refuses_id="7", body=refusal, else_body=said("x").body)
    async with Upstream([refuses], repeat_last=True, lists=["m"]) as upstream:
        problems, _ = await checked(tmp_path, upstream, GOOD)
        assert any("7" in problem and "out of vocabulary" in problem for problem in problems)


@needs_redis
async def test_a_store_that_does_not_answer_is_a_problem_and_its_password_is_not_told(tmp_path: Path) -> None:
    redis = Server(tmp_path)
    redis.start()
    try:
        async with Upstream([], lists=["m"]) as upstream:
            config = {"state": redis.url, "listen": {"workers": 2}}
            path = written(tmp_path, upstream.url, config, [{"name": "s", "sri": True}])
            found = await check(build(path, {}))
            assert (found.problems, ("state", "Redis", "answers") in found.rows) == ([], True)
            redis.stop()
            path = written(tmp_path, upstream.url, {"state": redis.url.replace("://", "://:redis-pass@")})
            found = await check(build(path, {}))
            (told,) = found.problems
            assert told.startswith("state.store: ")
            assert str(redis.port) in told
            assert "redis-pass" not in table(found)
    finally:
        redis.stop()


async def test_a_bias_of_zero_is_no_problem(tmp_path: Path) -> None:
    async with Upstream([], lists=["m"]) as upstream:
        problems, _ = await checked(tmp_path, upstream, {"name": "p", "bias": 0})
        assert problems == []


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


@pytest.mark.parametrize("command", [(), ("serve",), ("check",), ("schema",)])
def test_every_command_has_help(command: tuple[str, ...]) -> None:
    shown = run(*command, "--help")
    assert shown.exit_code == 0
    assert "Usage:" in shown.output


def test_the_version_is_told() -> None:
    assert run("--version").output.endswith(f"version {version('seam')}\n")


def test_the_schema_is_printed() -> None:
    assert json.loads(run("schema").output)["title"] == "seam.yaml"


@pytest.mark.parametrize("arguments", [("serv",), ("serve", "--prot", "1"), ("serve", "--port", "x")])
def test_a_wrong_command_line_ends_with_2(arguments: tuple[str, ...]) -> None:
    assert run(*arguments).exit_code == 2
