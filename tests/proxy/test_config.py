"""seam.yaml, the environment and flags; and what a mistake in them says."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxy.config import Config, load
from proxy.errors import ConfigError
from proxy.profiles import read_profiles
from proxy.settings import build, config_schema

URL = "http://127.0.0.1:8000"


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting of the machine's."""
    for name in os.environ:
        if name.startswith("SEAM_"):
            monkeypatch.delenv(name)


def written(folder: Path, document: Any) -> Path:
    path = folder / "seam.yaml"
    path.write_text(document if isinstance(document, str) else yaml.safe_dump(document))
    return path


def base(**more: Any) -> dict[str, Any]:
    return {"upstreams": {"default": {"url": URL}}, **more}


def test_flags_win_over_the_environment_and_that_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, base(listen={"port": 1, "host": "127.0.0.2", "drain_seconds": 3}))
    monkeypatch.setenv("SEAM_LISTEN__PORT", "2")
    monkeypatch.setenv("SEAM_LISTEN__HOST", "127.0.0.3")
    listen = load(path, {"listen": {"port": 4}}).listen
    assert (listen.port, listen.host, listen.drain_seconds) == (4, "127.0.0.3", 3)
    assert load(path).listen.port == 2


def test_a_proxy_needs_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load(None, {"upstreams": {"default": {"url": URL}}}).listen.port == 8080
    monkeypatch.setenv("SEAM_UPSTREAMS", json.dumps({"default": {"url": URL}}))
    assert load(None).upstreams["default"].url == URL


def test_upstreams_and_models_may_be_lists_with_names(tmp_path: Path) -> None:
    document = {
        "upstreams": [{"name": "a", "url": URL}, {"name": "b", "url": URL}],
        "models": [{"name": "m", "upstream": "b"}],
    }
    config = load(written(tmp_path, document))
    assert list(config.upstreams) == ["a", "b"]
    assert config.upstream_of("m") == "b"
    assert config.upstream_of("unknown") == "a"


def test_a_configuration_can_not_be_written_to(tmp_path: Path) -> None:
    config = load(written(tmp_path, base()))
    with pytest.raises(ValueError, match="frozen"):
        config.listen.port = 1


def test_off_is_a_word_and_no_boolean(tmp_path: Path) -> None:
    text = f"""
        upstreams: {{default: {{url: "{URL}"}}}}
        models: {{m: {{profile: off}}}}
        decisions: {{sink: off, text: no}}
        reading: off
        on_stale: off
        selection: {{inline: off, locked: true}}
    """
    config = load(written(tmp_path, text))
    assert (config.models["m"].profile, config.decisions.sink, config.on_stale) == ("off", "off", "off")
    assert config.reading.how == "off"
    assert (config.decisions.text, config.selection.inline, config.selection.locked) == (False, False, True)


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (base(lisen={}), "lisen: no such key; nearest: listen"),
        (base(listen={"prot": 1}), "listen.prot: no such key; nearest: port"),
        (
            {"upstreams": {"default": {"url": URL, "timeouts": {"conect": 1}}}},
            "upstreams.default.timeouts.conect: no such key; nearest: connect",
        ),
        (base(models={"m": {"alias": []}}), "models.m.alias: no such key; nearest: aliases"),
        (base(decisions={"samples": 0.5}), "decisions.samples: no such key; nearest: sample"),
        (base(listen={"port": 70_000}), "listen.port: input should be less than or equal to 65535"),
        (base(limits={"body_bytes": 0}), "limits.body_bytes: input should be greater than 0"),
        ({"upstreams": {"default": {"url": "127.0.0.1:8000"}}}, "upstreams.default.url: "),
        ({"upstreams": {}}, "upstreams: "),
        ({}, "upstreams: field required"),
        ({"upsteams": {"default": {"url": URL}}}, "upsteams: no such key; nearest: upstreams"),
        (base(forward="some"), "forward: input should be 'v1' or 'all'"),
        (base(models={"m": {"upstream": "b"}}), "models.m.upstream: no upstream 'b'; there is: default"),
        (base(models={"m": {"aliases": ["x"]}, "n": {"aliases": ["x"]}}), "the name 'x' is m's already"),
        (base(models={"m": {}, "n": {"aliases": ["m"]}}), "the name 'm' is m's already"),
        ({"upstreams": [{"url": URL}, {"url": URL}]}, "the name 'default' stands twice"),
        ("[1, 2]", "a mapping of settings is due, not a list"),
        ("a: [", "not YAML"),
        ("a: \xe9\x00", "not YAML"),
    ],
)
def test_a_mistake_in_the_file_is_one_line_that_names_file_place_and_mend(
    tmp_path: Path, document: Any, words: str
) -> None:
    path = written(tmp_path, document)
    with pytest.raises(ConfigError) as caught:
        load(path)
    line = str(caught.value)
    assert line.startswith(f"{path}: ")
    assert words in line
    assert "\n" not in line


def test_a_file_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file or directory; name another file with --config"):
        load(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("variable", "words"),
    [
        ("SEAM_LISEN__PORT", "SEAM_LISEN__PORT is no setting; nearest: SEAM_LISTEN"),
        ("SEAM_LISTEN__PROT", "listen.prot: no such key; nearest: port"),
        ("SEAM_FORWRAD", "SEAM_FORWRAD is no setting; nearest: SEAM_FORWARD"),
        ("SEAM_UPSTREAMS", "write lists and objects as JSON"),
    ],
)
def test_a_typo_in_the_environment_names_the_nearest_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, words: str
) -> None:
    monkeypatch.setenv(variable, "{9")
    with pytest.raises(ConfigError) as caught:
        load(written(tmp_path, base()))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_file_for_the_command_may_be_named_in_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, base())
    monkeypatch.setenv("SEAM_CONFIG_FILE", str(path))  # read by the command line
    assert load(path).upstreams["default"].url == URL


# Profiles --------------------------------------------------------------------------------------


def profiles_of(folder: Path, **files: str) -> Path:
    made = folder / "profiles"
    made.mkdir(exist_ok=True)
    for name, text in files.items():
        (made / f"{name}.yaml").write_text(text)
    return made


def test_a_bias_may_be_a_number_or_more(tmp_path: Path) -> None:
    folder = profiles_of(
        tmp_path, a="name: a\nbias: -1.5", b="name: b\nbias: {value: 2, apply: logit_bias}", c="name: c"
    )
    found = read_profiles(folder)
    told = {name: p.bias and (p.bias.value, p.bias.apply) for name, p in found.items()}
    assert told == {"a": (-1.5, "auto"), "b": (2.0, "logit_bias"), "c": None}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name: a\nbais: 1", "bais: no such key; nearest: bias"),
        ("name: a\nbias: 101", "bias.value: input should be less than or equal to 100"),
        ("name: a\nbias: .nan", "bias.value: "),
        ("name: a\nentry: {tokens: []}", "entry.tokens: "),
        ("name: a\nentry: {tokens: [-1]}", "entry.tokens.0: "),
        ("name: off", "'off' is reserved; choose another"),
        ("name: inline", "'inline' is reserved; choose another"),
        ("name: a/b", "name: "),
        ("bias: 1", "name: field required"),
        ("[]", "the document: "),
        ("", "the document: "),
        ("name: [", "not YAML"),
    ],
)
def test_a_mistake_in_a_profile_is_one_line_that_names_it(tmp_path: Path, text: str, words: str) -> None:
    folder = profiles_of(tmp_path, p=text)
    with pytest.raises(ConfigError) as caught:
        read_profiles(folder)
    assert str(caught.value).startswith(f"{folder / 'p.yaml'}: ")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_profiles_name_stands_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a profile 'a' stands in another file already"):
        read_profiles(profiles_of(tmp_path, x="name: a", y="name: a"))


def test_a_default_that_is_no_profile_names_those_that_are(tmp_path: Path) -> None:
    folder = profiles_of(tmp_path, a="name: a", b="name: b")
    config = base(profiles={"folder": str(folder)}, models={"m": {"profile": "c"}})
    with pytest.raises(ConfigError, match=r"models\.m\.profile: no profile 'c'; there is: a, b, off"):
        build(written(tmp_path, config), {})


def test_a_folder_that_is_not_there_says_so(tmp_path: Path) -> None:
    config = base(profiles={"folder": str(tmp_path / "none")})
    with pytest.raises(ConfigError, match=r"profiles\.folder: .* is no folder"):
        build(written(tmp_path, config), {})


# Published -------------------------------------------------------------------------------------

DOCS = Path(__file__).parents[2] / "docs"


def test_the_published_schema_is_that_of_the_code() -> None:
    published = (DOCS / "seam.schema.json").read_text("utf-8")
    assert published == json.dumps(config_schema(), indent=2) + "\n", (
        "run: seam schema > docs/seam.schema.json"
    )


def test_a_file_may_name_its_schema(tmp_path: Path) -> None:
    assert load(written(tmp_path, base(**{"$schema": "seam.schema.json"}))).listen.port == 8080
    assert "$schema" in config_schema()["properties"]
    assert config_schema()["additionalProperties"] is False


def test_every_setting_is_documented() -> None:
    page = (DOCS / "configuration.md").read_text("utf-8")
    missing = [setting for setting in settings_of(config_schema()) if f"`{setting}`" not in page]
    assert missing == []


def settings_of(schema: dict[str, Any]) -> list[str]:
    """Every key of the configuration, with dots; a mapping by name is written NAME."""

    def resolved(node: dict[str, Any]) -> dict[str, Any]:
        for option in [node, *node.get("anyOf", ()), *node.get("allOf", ())]:
            if "$ref" in option:
                found: dict[str, Any] = schema["$defs"][option["$ref"].rsplit("/", 1)[1]]
                return found
        return node

    def walk(node: dict[str, Any], prefix: str) -> list[str]:
        node = resolved(node)
        found: list[str] = []
        for key, part in node.get("properties", {}).items():
            inner = walk(part, f"{prefix}{key}.")
            found += inner or [f"{prefix}{key}"]
        more = node.get("additionalProperties")
        if isinstance(more, dict):
            found += walk(more, f"{prefix}NAME.")
        return found

    return walk(schema, "")


def test_the_documented_example_is_valid(tmp_path: Path) -> None:
    page = (DOCS / "configuration.md").read_text("utf-8")
    example = page.split("```yaml\n# seam.yaml\n")[1].split("```")[0]
    assert isinstance(load(written(tmp_path, example)), Config)
    profile = page.split("```yaml\n# profiles/")[1].split("```")[0].split("\n", 1)[1]
    assert read_profiles(profiles_of(tmp_path, example=profile))
