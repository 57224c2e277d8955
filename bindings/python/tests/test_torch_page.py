"""The programs of the page about PyTorch, `PYTORCH.md`, as its readers run them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
from consonance.torch._group import _IS_BACKEND  # noqa: E402

pytestmark = pytest.mark.skipif(not _IS_BACKEND, reason="PyTorch finds the backend by itself since 2.14")

PAGE = Path(__file__).parent.parent / "PYTORCH.md"
PROGRAMS = {
    name: (launcher, text)
    for text, name, launcher in re.findall(
        r"^```python\n(# (\w+)\.py: (torchrun|python)\b.*?)^```$", PAGE.read_text(), re.M | re.S
    )
}

# The lines that each program must print, beside ending well.
PRINTS = {
    "restarts": ["to 6 after 1 restarts"],
    "faults": ["step 3: ", "LostError: ", "replica 1 "],
    "compiled": ["rank 0: compiled", "rank 1: compiled"],
    "with_accelerate": ["accelerate on consonance: [0, 1]", "accelerate says gloo"],
    "with_lightning": ["lightning on consonance: [0, 1]"],
    "with_trainer": ["trainer on consonance: 2 steps"],
    "with_ray": ["ray: [[3.0, 3.0, 3.0], [3.0, 3.0, 3.0]]"],
    "with_ray_train": ["ray train: done"],
}

# The packages of the programs that need one.
NEEDS = {
    "with_accelerate": "accelerate",
    "with_lightning": "lightning",
    "with_trainer": "lightning",
    "with_ray": "ray",
    "with_ray_train": "ray",
}


def test_the_page_has_these_programs():
    assert PROGRAMS.keys() == PRINTS.keys()


@pytest.mark.parametrize("name", PRINTS)
def test_a_program_of_the_page_runs(name, tmp_path):
    if package := NEEDS.get(name):
        pytest.importorskip(package, reason=f"pip install {package} runs its programs of PYTORCH.md")
    launcher, text = PROGRAMS[name]
    file = tmp_path / f"{name}.py"
    file.write_text(text)
    command = [sys.executable, str(file)]
    if launcher == "torchrun":
        options = ["--standalone", "--nproc-per-node=2", "--max-restarts=3", "--monitor-interval=0.1"]
        command[1:1] = ["-m", "torch.distributed.run", *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CHECKPOINTS": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    for text in PRINTS[name]:
        assert text in done.stdout, done.stdout + done.stderr
