"""A configuration is right, or every mistake in it is told with its place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from click.testing import CliRunner
from ruamel.yaml import YAML

from tracecore.agent.catalogue import factories
from tracecore.agent.configuration import ConfigurationError, json_schema, read
from tracecore.agent.options import parse_size
from tracecore.cli.components import command as components
from tracecore.cli.validate import command as validate

GOOD = """\
receivers:
  otlp:
    protocols:
      grpc:
      http:
        endpoint: 127.0.0.1:4318
processors:
  memory_limiter:
    check_interval: 1s
    limit_mib: 512
  transform/stamp:
    error_mode: ignore
    log_statements:
      - context: log
        statements:
          - set(attributes["seen"], true) where IsMatch(body, "x")
  patterndetector:
    patterns:
      host_oom: {window: 3m}
      straggler: {enabled: false}
  batch:
exporters:
  otlphttp:
    endpoint: https://sink.example/otlp
    headers: {authorization: "${env:TOKEN}"}
  file/verdicts:
    path: out.json
    rotation: {max_megabytes: 10}
extensions:
  health_check:
service:
  extensions: [health_check]
  telemetry:
    metrics: {level: none}
  pipelines:
    logs:
      receivers: [otlp]
      processors: [memory_limiter, transform/stamp, patterndetector, batch]
      exporters: [otlphttp, file/verdicts]
    metrics/all:
      receivers: [otlp]
      exporters: [otlphttp]
"""


def problems(tmp_path: Path, text: str, env: dict[str, str] | None = None) -> list[str]:
    path = tmp_path / "agent.yaml"
    path.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        read([path], {"TOKEN": "t"} if env is None else env)
    return [str(problem).removeprefix(f"{path}:") for problem in caught.value.problems]


def test_a_good_configuration_is_read_with_its_defaults(tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text(GOOD)
    configuration, warnings = read([path], {"TOKEN": "secret"})
    assert warnings == ()
    assert sorted(configuration.service.pipelines) == ["logs", "metrics/all"]
    exporter = configuration.of("exporter")["otlphttp"].options
    assert exporter.headers == {"authorization": "secret"}
    assert exporter.timeout == 30_000_000_000
    protocols = configuration.of("receiver")["otlp"].options.protocols
    assert protocols.grpc is not None
    assert protocols.grpc.endpoint == "localhost:4317"
    assert configuration.of("processor")["patterndetector"].options.patterns["host_oom"] == {"window": "3m"}


def test_every_mistake_is_told_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    known = ", ".join(sorted(factory.type for factory in factories() if factory.kind == "processor"))
    found = problems(
        tmp_path,
        """\
receivers:
  otlp:
    protocols:
      htp: {endpoint: localhost}
processors:
  batch: {timeout: 5 seconds, send_batch_size: -1}
  sampler:
exporters:
  otlphttp:
    endpoint: ftp://x
    timeout: 3
    headers: 7
servce: {}
service:
  pipelines:
    logs:
      receivers: [otpl]
      processors: [batch, batch]
      exporters: [otlphttp]
    profiles: {receivers: [otlp], exporters: [otlphttp]}
""",
    )
    assert found == [
        '4:7: no such setting "htp"; did you mean "http"?',
        '6:20: "5 seconds" is no duration; write it like 250ms, 90s or 1h30m',
        "6:48: -1 is too little; at least 0",
        f'7:3: there is no processor "sampler"; there are {known}',
        '11:14: expected a duration such as 5s, got "3"',
        '12:14: expected settings by name, got "7"',
        '13:1: no such section "servce"; did you mean "service"?',
        '17:19: there is no receiver "otpl"; did you mean "otlp"?',
        '18:27: "batch" stands twice in this list',
        "20:5: pipelines of profiles are not supported here; run them in a Collector",
    ]


def test_placeholders_are_refused_by_name(tmp_path: Path) -> None:
    text = GOOD.replace("https://sink.example/otlp", "REPLACE_WITH_OTLP_HTTP_ENDPOINT")
    found = problems(tmp_path, text)
    assert any("REPLACE_WITH_OTLP_HTTP_ENDPOINT is a placeholder" in line for line in found)
    assert found[0].startswith("24:15: ")


@pytest.mark.parametrize(
    ("old", "new", "wanted"),
    [
        ("[otlphttp, file/verdicts]", "[]", "39:18: the pipeline logs has no exporters"),
        ("[health_check]", "[helth_check]", '32:16: there is no extension "helth_check"; did you mean "health_check"?'),
        ("limit_mib: 512", "spike_limit_mib: 5", '9:5: "limit_mib" or "limit_percentage" is missing'),
        ("limit_mib: 512", "limit_mib: 1.5", '10:16: expected a whole number, got "1.5"'),
        ("max_megabytes: 10", "max_megabytes: 0", "28:31: 0 is too little; at least 1"),
        ("path: out.json", "pth: out.json", '27:5: "path" is missing'),
        ("{window: 3m}", "{windw: 3m}", '19:18: no such setting "windw"; did you mean "window"?'),
        ("{window: 3m}", "{window: 10ms}", "19:26: `10ms` is finer than a second; durations are whole seconds"),
        ("host_oom:", "host_om:", '19:7: there is no pattern "host_om"; did you mean "host_oom"?'),
        ("enabled: false", "enabled: 3", "20:28: expected true or false"),
        ("error_mode: ignore", "error_mode: ignored", '12:17: no such value "ignored"; did you mean "ignore"?'),
        ("${env:TOKEN}", "${file:/etc/x}", '25:30: "${file:/etc/x}": only ${env:NAME} can be filled in'),
        ("  batch:\n", "  batch:\n  batch:\n", '22:3: "batch" is given twice'),
        ("- context: log", "- contxt: log", '14:9: no such setting "contxt"; did you mean "context"?'),
    ],
)
def test_a_mistake_is_told_where_it_is(tmp_path: Path, old: str, new: str, wanted: str) -> None:
    assert old in GOOD
    assert wanted in problems(tmp_path, GOOD.replace(old, new, 1))


def test_a_mistake_in_a_statement_points_at_its_character(tmp_path: Path) -> None:
    line = '          - set(attributes["seen"], true) where IsMatch(body, "x")'
    found = problems(tmp_path, GOOD.replace(line, line.replace("IsMatch", "IsMach")))
    assert len(found) == 1
    column = line.index("IsMatch") + 1
    assert found[0].startswith(f"16:{column}: OTTL: ")
    assert "IsMatch" in found[0]


def test_no_yaml_is_told_with_its_place(tmp_path: Path) -> None:
    assert problems(tmp_path, "receivers:\n  a: [1\n")[0].startswith("3:1: not YAML")
    assert problems(tmp_path, "")[0] == "1:1: the file is empty"
    assert problems(tmp_path, "- a\n")[0].startswith("1:1: expected receivers")


def test_a_missing_file_is_a_mistake_not_a_crash(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read([tmp_path / "none.yaml"])


def test_a_value_that_contains_itself_is_refused(tmp_path: Path) -> None:
    assert any(
        "nested too deep" in line for line in problems(tmp_path, "receivers: &a\n  x: *a\nservice: {pipelines: {}}\n")
    )


def test_environment_variables_keep_the_type_yaml_gives_them(tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text(
        GOOD.replace("limit_mib: 512", "limit_mib: ${env:LIMIT}")
        .replace("path: out.json", "path: ${DIR:-/var}/$$x.json")
        .replace("127.0.0.1:4318", "${env:HOST:-127.0.0.1:0}")
    )
    configuration, warnings = read([path], {"LIMIT": "77"})
    assert configuration.of("processor")["memory_limiter"].options.limit_mib == 77
    assert configuration.of("exporter")["file/verdicts"].options.path == "/var/$x.json"
    assert configuration.of("receiver")["otlp"].options.protocols.http.endpoint == "127.0.0.1:0"
    assert [str(w).removeprefix(f"{path}:") for w in warnings] == [
        "25:30: the environment variable TOKEN is not set; it is taken as empty"
    ]


def test_a_later_file_overrides_and_keeps_the_rest(tmp_path: Path) -> None:
    first, second = tmp_path / "a.yaml", tmp_path / "b.yaml"
    first.write_text(GOOD)
    second.write_text("exporters:\n  otlphttp:\n    timeout: 9s\n")
    configuration, _ = read([first, second], {"TOKEN": ""})
    options = configuration.of("exporter")["otlphttp"].options
    assert (options.timeout, options.endpoint) == (9_000_000_000, "https://sink.example/otlp")


def test_unused_components_are_checked_and_not_run(tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text(GOOD.replace("exporters: [otlphttp, file/verdicts]", "exporters: [otlphttp]"))
    configuration, _ = read([path], {"TOKEN": ""})
    assert list(configuration.of("exporter")) == ["otlphttp"]


def test_the_schema_takes_what_is_valid_and_refuses_what_is_not(tmp_path: Path) -> None:
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    document: Any = YAML(typ="safe").load(GOOD)
    assert list(validator.iter_errors(document)) == []
    document["processors"]["batch"] = {"timeout": "soon"}
    document["exporters"]["nothing"] = {}
    assert len(list(validator.iter_errors(document))) == 2


def test_validate_exits_with_0_or_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "x")
    path = tmp_path / "agent.yaml"
    path.write_text(GOOD)
    good = CliRunner().invoke(validate, ["--config", str(path)], standalone_mode=False)
    assert (good.return_value, "valid: 2 pipelines" in good.stderr) == (0, True)
    path.write_text(GOOD.replace("[otlp]", "[otlb]"))
    bad = CliRunner().invoke(validate, ["--config", str(path)], standalone_mode=False)
    assert bad.return_value == 2
    assert f"{path}:37:19:" in bad.stderr
    assert "2 mistakes" in bad.stderr
    assert bad.stdout == ""


def test_components_lists_everything_with_its_options() -> None:
    result = CliRunner().invoke(components, ["--json"], standalone_mode=False)
    listed = msgspec.json.decode(result.stdout)
    assert [(entry["kind"], entry["type"]) for entry in listed] == [(f.kind, f.type) for f in factories()]
    options = {option["name"]: option for entry in listed if entry["type"] == "otlphttp" for option in entry["options"]}
    assert options["retry_on_failure.max_elapsed_time"]["default"] == '"5m"'
    assert options["retry_on_failure.max_elapsed_time"]["about"]


def test_every_option_says_what_it_is_for() -> None:
    result = CliRunner().invoke(components, ["--json"], standalone_mode=False)
    missing = [
        f"{entry['type']}.{option['name']}"
        for entry in msgspec.json.decode(result.stdout)
        for option in entry["options"]
        if not option["about"] and not option["name"].startswith("protocols.grpc.keepalive")
    ]
    assert missing == []


@pytest.mark.parametrize(
    ("text", "size"), [("10Mi", 10 << 20), ("10MiB", 10 << 20), ("64k", 64 << 10), ("2Gi", 2 << 30)]
)
def test_sizes_are_written_as_in_a_pod_or_in_words(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("https://sink.example/otlp", "${env:SINK}", "the environment variable SINK is not set"),
        ("https://sink.example/otlp", "${env:SCHEME}://${env:HOST}", "the environment variables SCHEME and HOST are"),
        ("check_interval: 1s", 'check_interval: "${env:EVERY}"', "the environment variable EVERY is not set"),
        ("limit_mib: 512", "limit_mib: ${env:LIMIT}", "the environment variable LIMIT is not set"),
        ("[otlphttp]", '["${env:EXPORTER}"]', "the environment variable EXPORTER is not set"),
        ("out.json", "${env:PATH_OUT}", "the environment variable PATH_OUT is not set"),
    ],
)
def test_a_variable_that_is_not_set_is_named_where_it_is_the_reason(
    tmp_path: Path, old: str, new: str, said: str
) -> None:
    assert old in GOOD
    (problem,) = problems(tmp_path, GOOD.replace(old, new), {"TOKEN": "t"})
    assert said in problem


def test_a_mistake_of_another_place_does_not_blame_the_environment(tmp_path: Path) -> None:
    text = GOOD.replace("limit_mib: 512", "limit_mib: none")
    (problem,) = problems(tmp_path, text, {})
    assert "environment" not in problem


def test_labels_and_annotations_say_which_attribute_they_become() -> None:
    listed = CliRunner().invoke(components, ["k8sattributes"], standalone_mode=False).stdout.splitlines()
    for kind in ("labels", "annotations"):
        (line,) = [line for line in listed if f"extract.{kind}[].tag_name" in line]
        assert f"`k8s.<from>.{kind}.<key>`" in line


@pytest.mark.parametrize(
    "change", [lambda t: b"\xef\xbb\xbf" + t, lambda t: t.replace(b"\n", b"\r\n"), lambda t: t + b"# caf\xc3\xa9\n"]
)
def test_marks_and_line_ends_of_other_systems_are_read(change: Callable[[bytes], bytes], tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_bytes(change(GOOD.encode()))
    assert read([path], {"TOKEN": "t"})[0].of("receiver")


@pytest.mark.parametrize(
    "data",
    [
        GOOD.encode().replace(b"  ", b"\t"),
        GOOD.encode() + b"\0",
        GOOD.encode("utf-16"),
        GOOD.encode() + b"# caf\xe9\n",
        GOOD.encode().replace(b"127.0.0.1:4318", b"9" * 100_000),
        GOOD.encode().replace(b"[otlp]", b'["a\\n\\x1b[2J"]', 1),
        GOOD.encode().replace(b"127.0.0.1:4318", b"${env:${env:BOMB}}"),
        b"a: &a [x, x]\n" + b"".join(b"%c: &%c [*%c, *%c]\n" % (98 + n, 98 + n, 97 + n, 97 + n) for n in range(24)),
    ],
    ids=["tabs", "nul", "utf-16", "latin-1", "long", "control", "environment", "aliases"],
)
def test_a_mistake_is_one_short_line(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_bytes(data)
    with pytest.raises(ConfigurationError) as caught:
        read([path], {"TOKEN": "t", "BOMB": "${env:BOMB}${env:BOMB}"})
    for problem in map(str, caught.value.problems):
        assert problem.isprintable()
        assert len(problem) < 1000
