"""Records what mlir-opt-19 and mlir-opt-22 (Debian's mlir-19-tools and mlir-22-tools) answer, for test_mlir.py.

Run it where both are installed: `python tests/support/record_mlir.py`. It rewrites the files in tests/conformance/mlir.
"""

import bisect
import itertools
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import mlir_operations
import mlir_programs

FOLDER = Path(__file__).parent.parent / "conformance" / "mlir"
TOOLS = {"shard": "mlir-opt-22", "mesh": "mlir-opt-19"}


def answer(dialect, text, *options):
    """What a tool prints, and the first line of its errors, without the place."""
    done = subprocess.run([TOOLS[dialect], *options], input=text, capture_output=True, text=True, check=False)
    line = next(iter(done.stderr.splitlines()), "")
    return done.stdout, line.partition("error: ")[2] or None


_PLACE = re.compile(r"<stdin>:(\d+)(?: offset :(\d+))?:\d+: error: (.*)")


def answers(dialect, texts):
    """The first error for each of several texts, or None, by one run of a tool."""
    parts = [*(f"{text}// -----\n" for text in texts[:-1]), texts[-1]]
    starts = list(itertools.accumulate((part.count("\n") for part in parts), initial=1))
    done = subprocess.run(
        [TOOLS[dialect], "--split-input-file"], input="".join(parts), capture_output=True, text=True, check=False
    )
    found = [None] * len(parts)
    for line, offset, message in _PLACE.findall(done.stderr):
        number = bisect.bisect_right(starts, int(line) + (int(offset) - 1 if offset else 0)) - 1
        found[number] = found[number] or message
    return found


def has_tool(dialect):
    return shutil.which(TOOLS[dialect]) is not None


def invalid(dialect, line):
    """A module with an operation that is invalid, in the spelling of a dialect."""
    text = (
        "shard.grid @g(shape = 2x3)\nshard.grid @d(shape = 2x?)\n"
        f"func.func @f(%a: tensor<4x6xf32>) {{\n  {line}\n  return\n}}\n"
    )
    if dialect == "mesh":
        text = text.replace("shard.grid_shape", "mesh.mesh_shape").replace("shard.grid", "mesh.mesh")
        text = (
            text.replace("grid_axes", "mesh_axes").replace("shard.", "mesh.").replace("reduction = b", "reduction = <b")
        )
        text = text.replace("bitwise_and", "bitwise_and>")
    return text


def written():
    """Every text that we write for the files in this folder, and for programs on arrays, by name."""
    from shardwright import mlir
    from shardwright.errors import MLIRError

    for file in sorted(FOLDER.glob("*.mlir")):
        for name, function in mlir.loads(file.read_text()).items():
            for dialect in TOOLS:
                for view in ("local",) if function.is_local else ("global", "local"):
                    try:
                        text = mlir.dumps({name: function.program}, dialect, view)
                    except MLIRError:
                        continue
                    yield f"{file.stem}.{name}.{dialect}.{view}", dialect, text
    for name in mlir_programs.CASES:
        for dialect in TOOLS:
            for view in ("global", "local"):
                text = mlir.dumps({name: mlir_programs.program(name)}, dialect, view)
                yield f"programs.python.{name}.{dialect}.{view}", dialect, text


def read_answers(dialects=TOOLS):
    """For every case of mlir_operations its text, and the first error of each tool, or None."""
    texts = {name: mlir_operations.text(name) for name in mlir_operations.CASES}
    found = {dialect: dict(zip(texts, answers(dialect, list(texts.values())), strict=True)) for dialect in dialects}
    return {name: {"text": text, **{d: found[d][name] for d in found}} for name, text in texts.items()}


def main():
    missing = [tool for dialect, tool in TOOLS.items() if not has_tool(dialect)]
    if missing:
        sys.exit(f"not installed: {', '.join(missing)}")
    cases = json.loads((FOLDER / "invalid_cases.json").read_text())
    found = {dialect: answers(dialect, [invalid(dialect, line) for line in cases.values()]) for dialect in TOOLS}
    recorded = {name: {dialect: found[dialect][at] for dialect in TOOLS} for at, name in enumerate(cases)}
    (FOLDER / "invalid_answers.json").write_text(json.dumps(recorded, indent=1) + "\n")
    (FOLDER / "read_answers.json").write_text(json.dumps(read_answers(), indent=1) + "\n")
    for dialect in TOOLS:
        text = (FOLDER / f"operations.{dialect}.mlir").read_text()
        (FOLDER / f"operations.{dialect}.generic").write_text(answer(dialect, text, "--mlir-print-op-generic")[0])
    texts = {}
    for name, dialect, text in written():
        printed, error = answer(dialect, text)
        assert error is None, f"{name}: {error}\n{text}"
        texts[name] = {"ours": text, "theirs": printed}
    (FOLDER / "written.json").write_text(json.dumps(texts, indent=1) + "\n")


if __name__ == "__main__":
    main()
