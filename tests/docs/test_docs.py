"""The code blocks of README and docs run, in order, and print what the text says."""

import contextlib
import io
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import shardwright as sw

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"```(?P<kind>\w+)\n(?P<body>.*?)```", re.S)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_blocks_print_what_the_page_says(page, tmp_path):
    names, printed, above = {}, None, []
    for block in BLOCK.finditer(page.read_text()):
        if block["kind"] == "python":
            assert not printed, f"{page.name} prints something that it does not show:\n{printed}"
            out = io.StringIO()
            if '__name__ == "__main__"' in block["body"]:  # a script
                script = tmp_path / "script.py"
                script.write_text(block["body"])
                run = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True, timeout=180)
                printed = run.stdout
                continue
            with contextlib.redirect_stdout(out):
                exec(compile(block["body"], str(page), "exec"), names)
            printed = None if out.getvalue() in above else out.getvalue()
        elif block["kind"] == "text" and printed is None:
            above.append(block["body"])  # perhaps shown before the code that prints it
        elif block["kind"] == "text":
            assert printed == block["body"]
            printed = None
    assert not printed, f"{page.name} prints something that it does not show:\n{printed}"


def test_the_core_from_scratch_checks_itself():
    page = ROOT / "docs" / "from_scratch.py"
    names = {}
    exec(compile(page.read_text(), str(page), "exec"), names)
    assert names["total"].shape == (2, 1, 4, 5)


def test_the_picture_in_the_readme_is_the_librarys():
    import numpy as np

    x = sw.shard(np.zeros((6, 10), np.float32), sw.Mesh(data=2, model=4), sw.P("data", "model"))
    shown = [block["body"] for block in BLOCK.finditer((ROOT / "README.md").read_text()) if block["kind"] == "text"]
    assert any(body.startswith(sw.picture(x) + "\n") for body in shown)


@pytest.mark.parametrize("page", sorted((ROOT / "examples").glob("*.py")), ids=lambda page: page.name)
def test_examples_run_and_say_that_they_are_right(page, capfd):
    runpy.run_path(str(page), run_name="__main__")
    checks = [line for line in capfd.readouterr().out.splitlines() if line.endswith((": True", ": False"))]
    assert checks
    assert all(line.endswith("True") for line in checks)
