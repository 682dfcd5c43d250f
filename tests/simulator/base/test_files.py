"""What is read comes in through one door: bounded, regular, plain; anything else is one line."""

import ast
import gzip
import os
import zlib
from pathlib import Path

import pytest
from syntax import tree_of

from plan3d.simulator.base import documents, files
from plan3d.simulator.base.csv_files import MOST_CELLS, parse_csv
from plan3d.simulator.base.documents import parse_json, parse_toml, parse_yaml
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.base.files import (
    SHIPPED,
    attached,
    exists,
    is_file,
    is_folder,
    read_bytes,
    read_pieces,
    read_text,
)

ROOT = Path(__file__).parents[3]
READS = {
    "open",
    "fdopen",
    "read_text",
    "read_bytes",
    "decompress",
    "decompressobj",
    "loadtxt",
    "genfromtxt",
}
READS |= {"load", "safe_load", "loads", "DictReader", "reader", "GzipFile", "Loader"}
"""Names of calls that open or parse files."""
METHODS = {"open", "read_text", "read_bytes"}
OF_OTHERS = {"json", "yaml", "tomllib", "csv", "gzip", "zlib", "io", "np", "os", "Path"}
DOOR = {"files.py", "documents.py", "csv_files.py"}
OPENS = {
    ("plan3d/__main__.py", "open"): "the stream that the shell closed",
    ("plan3d/cli/main.py", "os.open"): "the stream that the reader closed",
    ("plan3d/screens/output.py", "open"): "whether a file can be written",
    ("plan3d/tuning/loop.py", "open"): "writes a log",
    ("plan3d/web/pool.py", "json.loads"): "replies of its processes",
    ("plan3d/web/worker.py", "json.loads"): "questions of the server, and its own record",
    ("plan3d/web/worker.py", "os.fdopen"): "the pipe to the server",
    ("search/whatif/sweep.py", "read_bytes"): "the points of its own processes",
    ("search/whatif/sweep_file.py", "open"): "adds a row",
    ("simulator/calibration/readers/files.py", "read_text"): "the text of nccl-tests",
    ("simulator/calibration/measure/recording.py", "open"): "adds a row",
    **{
        ("simulator/calibration/measure/recording.py", call): "runs where there is no plan3d"
        for call in ("read_bytes", "csv.DictReader")
    },
    **{
        ("search/sampling/pretrained_policy.py", call): "weights of the package"
        for call in ("open", "np.load")
    },
}
"""Calls outside the door, and why."""


def calls(path):
    """Calls in a file that may open or parse another one, as they are written."""
    text = path.read_text(encoding="utf-8")
    for node in ast.walk(tree_of(path)) if any(f"{name}(" in text for name in READS) else ():
        function = node.func if isinstance(node, ast.Call) else None
        if isinstance(function, ast.Name) and function.id == "open":
            yield "open"
        elif isinstance(function, ast.Attribute) and function.attr in READS:
            of = function.value.id if isinstance(function.value, ast.Name) else ""
            if of in OF_OTHERS:
                yield f"{of}.{function.attr}"
            elif function.attr in METHODS:
                yield function.attr


def test_files_are_read_through_one_door():
    found = set()
    for folder in ("plan3d", "simulator", "search", "hardware_profiles"):
        for path in (ROOT / folder).rglob("*.py"):
            if path.parent.name != "base" or path.name not in DOOR:
                place = str(path.relative_to(ROOT))
                found |= {(place, call) for call in calls(path)}
    assert found == set(OPENS)


@pytest.mark.parametrize("kind", ["fifo", "/dev/zero", "folder", "none", "nul\0name"])
def test_only_regular_files_are_read(tmp_path, kind):
    path = Path(kind) if kind.startswith(("/", "nul")) else tmp_path / kind
    if kind == "fifo":
        os.mkfifo(path)
    if kind == "folder":
        path.mkdir()
    with pytest.raises(InputError, match=r"cannot be read \("):
        read_bytes(path)


def test_the_size_of_a_file_is_bounded_packed_or_not(tmp_path):
    path = tmp_path / "x"
    for content, problem in (
        (b"x" * 1001, "larger than 0.001 MB"),
        (gzip.compress(bytes(1001)), "larger than 0.001 MB"),
        (gzip.compress(gzip.compress(b"x"))[:-3], "cannot be unpacked"),
        (gzip.compress(b"x")[:12] + b"\xff" * 8, "cannot be unpacked"),
        (b"\x1f\x8b" + zlib.compress(b"x"), "cannot be unpacked"),
    ):
        path.write_bytes(content)
        with pytest.raises(InputError, match=problem):
            read_bytes(path, most=1000)
    for content in (b"x" * 1000, gzip.compress(b"x" * 1000)):
        path.write_bytes(content)
        assert read_bytes(path, most=1000) == b"x" * 1000


def test_a_hundred_gigabytes_are_refused_without_being_unpacked(tmp_path):
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(bytes(10**6)) * 1000)
    with pytest.raises(InputError, match="larger than 64 MB"):
        read_bytes(path)


def test_text_is_utf_8_with_or_without_a_mark(tmp_path):
    path = tmp_path / "x"
    for content in (b"caf\xc3\xa9", b"\xef\xbb\xbfcaf\xc3\xa9"):
        path.write_bytes(content)
        assert read_text(path) == "café"
    path.write_bytes(b"ab\xff")
    assert read_text(path, errors="replace") == "ab\ufffd"
    with pytest.raises(InputError, match="byte 3 is not UTF-8"):
        read_text(path)
    path.write_bytes("café".encode("utf-16"))
    with pytest.raises(InputError, match="it is UTF-16; save it as UTF-8"):
        read_text(path, "--plan x")


DIGITS = "9" * 41
TENFOLD = "l0: &l0 1\n" + "".join(
    f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 20)}]\n" for i in range(1, 9)
)
"""Aliases of which each stands for twenty of the one before."""
DOCUMENTS = (
    (parse_json, "{'a': 1}", "is not JSON"),
    (parse_json, "[" * 100_000, r"is not JSON \(nested too deep"),
    (parse_json, "[" * 65 + "]" * 65, "deeper than 64"),
    (parse_json, "9" * 5000, "is not JSON"),
    (parse_json, f'{{"a": [{DIGITS}]}}', "more than 40 digits"),
    (parse_json, f"[{'[],' * 3_000_000}[]]", "more than 3,000,000 values"),
    (parse_toml, "a = 09", "is not TOML"),
    (parse_toml, ".".join("a" * 50_000) + " = 1", "a key has more than 64 parts"),
    (parse_toml, f"a = {{{'.'.join(chr(34) * 2 for _ in range(99))} = 1}}", "more than 64 parts"),
    (parse_toml, "a = " + "[" * 1000 + "]" * 1000, "is not TOML"),
    (parse_toml, "a = 0x" + "f" * 5000, "more than 40 digits"),
    (parse_toml, "#" * 1_000_001, "more than 1,000,000 characters"),
    (parse_yaml, TENFOLD, r"is not YAML \(line 5: the alias \*l3 stands for too much"),
    (parse_yaml, "a: &x [*x]", r"the alias \*x stands for too much"),
    (parse_yaml, "a: &x {b: *x}", r"the alias \*x stands for too much"),
    (parse_yaml, "a: *x", "undefined alias"),
    (parse_yaml, "a: !include b.yaml", r"\(line 1: the tag !include is not read: write out"),
    (parse_yaml, "a: 0b_", "is not YAML"),
    (parse_yaml, "a: 2001-13-45", "is not YAML"),
    (parse_yaml, "a: 0x" + "f" * 5000, "more than 40 digits"),
    (parse_yaml, "0x" + "f" * 500 + ": 1", "more than 40 digits"),
    (parse_yaml, "a: !!binary aGk=", "has a bytes"),
    (parse_yaml, "a: !!set {b, c}", "has a set"),
    (parse_yaml, "a: !!python/object/apply:os.system [ls]", "is not YAML"),
    (parse_yaml, "[" * 5000, r"is not YAML \(line 1: it is nested deeper than 64 levels"),
    (parse_yaml, "? [a]\n: 1", "is not YAML"),
    (parse_yaml, "\x1b", "is not YAML"),
    (parse_yaml, "#" * 100_001, "more than 100,000 characters"),
)


def test_aliases_of_yaml_are_what_they_stand_for():
    text = "a: &x {b: 1, c: &y [2, 3]}\nd: *x\ne:\n  <<: *x\n  b: 4\n  f: *y\n"
    inner = {"b": 1, "c": [2, 3]}
    outer = {"b": 4, "c": [2, 3], "f": [2, 3]}
    assert parse_yaml(text, "x.y") == {"a": inner, "d": inner, "e": outer}


@pytest.mark.parametrize(("parse", "text", "problem"), DOCUMENTS, ids=range(len(DOCUMENTS)))
def test_documents_are_plain_and_bounded(parse, text, problem):
    with pytest.raises(InputError, match=f"^x.y: .*{problem}") as error:
        parse(text, "x.y")
    assert len(str(error.value)) < 300


def test_documents_are_read_as_they_are():
    assert parse_json('{"a": [1, 2.5, null, "x"]}', "") == {"a": [1, 2.5, None, "x"]}
    assert parse_toml("a.b = 1\nc = [0.1, 0.2]", "") == {"a": {"b": 1}, "c": [0.1, 0.2]}
    assert parse_yaml("a:\n- 1\n- {b: true}\n", "") == {"a": [1, {"b": True}]}
    prose = f"a = '{'See section 3.1. ' * 1000}'"
    assert len(parse_toml(prose, "")["a"]) == 17_000
    assert documents.DEEPEST == 64
    parse_json("[" * 64 + "]" * 64, "")


def test_tables_have_lines_columns_and_comments():
    table = parse_csv('# of me\na,b\n\n1,"x\ny"\n# c\n3\n', "x.csv")
    assert table.header == ["a", "b"]
    assert table.rows == [(5, ["1", "x\ny"]), (7, ["3"])]
    assert table.records("x.csv") == [{"a": "1", "b": "x\ny"}, {"a": "3", "b": ""}]
    assert parse_csv("", "x").records("x") == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a,a\n", "column 'a' is there 2 times"),
        ("a\n1,2\n", "line 2 has 2 cells, not 1"),
        ("a\n" + "x" * 200_000, "is not CSV"),
        ("a\n" + "," * MOST_CELLS, "more than 2,000,000 cells"),
        ("," * 20_000 + "\n" + "x\n" * 100, "more than 2,000,000 cells"),
        ('a\n"', ""),
    ],
)
def test_tables_are_bounded(text, problem):
    if not problem:
        assert parse_csv(text, "x").records("x") == [{"a": ""}]
        return
    with pytest.raises(InputError, match=f"^x.csv: .*{problem}"):
        parse_csv(text, "x.csv").records("x.csv")


def test_a_question_with_files_of_its_own_has_no_others(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x").write_text("of the disk")
    with attached({"y": "carried", "z": ""}) as unread:
        assert read_bytes(Path("y")) == read_bytes(tmp_path / "y") == b"carried"
        assert list(read_pieces(Path("y"))) == ["carried"]
        assert [is_file("x"), is_file("y"), exists("x"), exists("y")] == [False, True] * 2
        assert not is_folder(tmp_path)
        assert read_bytes(Path(files.__file__).with_name("errors.py"))
        for outside in (tmp_path / "x", Path("/etc/passwd"), Path(SHIPPED[0], "..", "x")):
            with pytest.raises(InputError, match="a question to a server carries its files"):
                read_bytes(outside)
            with pytest.raises(InputError, match="carries its files"):
                list(read_pieces(outside))
        with pytest.raises(InputError, match="larger than"):
            read_bytes(Path("y"), most=6)
    assert unread == ["z"]
    assert read_bytes(Path("x")) == b"of the disk"
    assert is_file("x")
    assert is_folder(tmp_path)
