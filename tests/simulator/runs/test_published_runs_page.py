"""The page about published runs says what the shipped tables hold."""

from __future__ import annotations

import csv
import importlib.util
import re
from collections import Counter
from pathlib import Path

from plan3d.simulator.runs.published_runs import columns, read_runs
from plan3d.simulator.runs.run_tasks import Question, questions

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "published_runs.md").read_text(encoding="utf-8")
SOURCES = ROOT / "simulator" / "runs" / "published_runs_sources.csv"
ROW = re.compile(r"^\| \[(\w+)\]\((\S+)\) \| (\w+) \| (\S+) \| (\d+) \|$", re.M)


def test_every_source_of_the_runs_is_listed_with_its_origin_and_rows():
    with SOURCES.open(encoding="utf-8", newline="") as file:
        listed = {(row["source"], row["origin"], int(row["rows"])) for row in csv.DictReader(file)}
    counted = Counter((run.source, run.origin) for run in read_runs())
    assert listed == {(*pair, rows) for pair, rows in counted.items()}


def test_the_site_has_the_table_of_sources():
    spec = importlib.util.spec_from_file_location("printed", ROOT / "docs" / "printed.py")
    printed = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(printed)
    with SOURCES.open(encoding="utf-8", newline="") as file:
        wanted = [
            (row["source"], row["url"], row["origin"], row["licence"], row["rows"])
            for row in csv.DictReader(file)
        ]
    assert ROW.findall(printed.on_page_markdown(PAGE)) == wanted


def test_the_page_counts_as_the_files_do():
    runs = read_runs()
    sources, origins = ({getattr(run, name) for run in runs} for name in ("source", "origin"))
    assert f"{len(runs):,} runs, one a row, of {len(sources)} sources" in PAGE
    assert f"{len(origins)} origins" in PAGE
    assert f"{sum(run.states('step_seconds') for run in runs):,} timed" in PAGE
    assert f"{sum(run.states('peak_bytes') for run in runs):,} with a peak" in PAGE
    assert f"{sum(run.ran_out_of_memory for run in runs)} that ran out of memory" in PAGE
    assert f"the {len(columns())} columns" in PAGE


def test_columns_that_the_page_names_exist():
    section = PAGE.split("## Traps are columns")[1].split("\n## ")[0]
    named = re.findall(r"^\| `(\w+)` \|", section, re.M)
    assert named
    assert set(named) <= set(columns())


def test_the_run_that_the_page_shows_is_predicted(tmp_path):
    shown = re.search(r"^```\n(source,.*?)^```$", PAGE, re.M | re.S)
    assert shown
    path = tmp_path / "runs.csv"
    path.write_text(shown[1], encoding="utf-8")
    (answer,) = questions(read_runs(path))
    assert isinstance(answer, Question), answer
