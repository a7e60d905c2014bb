"""The lab's engine for a real GPU: which server answers, and what an image takes from the machine's Python."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import struct
import tarfile
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from ansible_collections.trtllm.fleet.plugins.plugin_utils.serving.role_data import load_tables
from lab.engine import admission, machine_python, trtllm_serve

ROW = load_tables().releases["1.2"]
PYTHON = "/opt/machine/python"

# --- which server answers -----------------------------------------------------------------------------------------


class Started(Exception):
    """A server was started, with this command."""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Return a folder with a model of another family, which needs no vocabulary."""
    header = json.dumps({"w": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}})
    (tmp_path / "a.safetensors").write_bytes(struct.pack("<Q", len(header)) + header.encode() + b"abcd")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "num_hidden_layers": 24}))
    return tmp_path


@pytest.fixture
def serve(model: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that serves until the first child but admission.py, and returns its name and command."""

    def start(_: Any, name: str, command: list[str], environment: Mapping[str, str] | None = None) -> None:
        if name not in ("admission", "nginx"):
            raise Started(name, command)

    monkeypatch.setattr(trtllm_serve, "gpu_count", lambda: 2)
    monkeypatch.setattr(trtllm_serve, "gpu_memory_mib", lambda: 81559)
    monkeypatch.setattr(trtllm_serve.Processes, "start", start)
    monkeypatch.setattr(trtllm_serve, "nginx_configuration", lambda values: "")
    monkeypatch.setenv("LAB_ENGINE_LOAD_SECONDS", "0")
    for name in ("FAULT", "FAULT_FILE", "KV_TOKENS", "LAYERS", "MODEL_ID", "SEQUENTIAL"):
        monkeypatch.delenv(f"LAB_ENGINE_{name}", raising=False)

    def run(python: str, **flags: Any) -> tuple[str, list[str]]:
        monkeypatch.setattr(trtllm_serve, "PYTHON", python)
        flags = {"extra_llm_api_options": None, "host": "127.0.0.1", "port": 0, **flags}
        monkeypatch.setattr(trtllm_serve, "bind", lambda host, port: (io.BytesIO(), "127.0.0.1:1"))
        with pytest.raises(Started) as started:
            trtllm_serve.serve(ROW, str(model), **flags)
        name, command = started.value.args
        return name, command

    return run


def option(command: list[str], name: str) -> str:
    return command[command.index(f"--{name}") + 1]


def test_mocker_answers_without_the_machines_python(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_ENGINE_KV_TOKENS", "4096")
    name, command = serve("")
    assert (name, command[1:3]) == ("frontend", ["-m", "dynamo.frontend"])


def test_transformers_answers_with_the_machines_python(serve: Any, model: Path) -> None:
    name, command = serve(PYTHON, tensor_parallel_size=2)
    assert name == "transformers"
    assert command[:3] == [PYTHON, "/opt/machine/torch_server.py", str(model)]
    assert option(command, "name") == model.name
    assert option(command, "layers") == "4"
    assert option(command, "kv-tokens") == "32768"
    assert option(command, "requests") == "256"
    assert option(command, "memory-fraction") == "0.9"
    assert "--sequential" not in command


def test_options_and_environment_reach_transformers(
    serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "options.yml").write_text(
        "{max_batch_size: 8, kv_cache_config: {free_gpu_memory_fraction: 0.5}, max_seq_len: 2048}"
    )
    for name, value in {"LAYERS": "0", "KV_TOKENS": "4096", "MODEL_ID": "other", "SEQUENTIAL": "1"}.items():
        monkeypatch.setenv(f"LAB_ENGINE_{name}", value)
    _, command = serve(PYTHON, extra_llm_api_options=str(tmp_path / "options.yml"))
    assert [option(command, each) for each in ("name", "layers", "kv-tokens", "requests", "memory-fraction")] == [
        *("other", "0", "4096", "8", "0.5")
    ]
    assert command[-1] == "--sequential"


def test_iterations_of_transformers_are_read() -> None:
    """Otherwise an instance with long responses would seem to hang."""
    assert admission.TOKENS.findall(b"lab_engine_iterations_total 33\n") == [b"33"]


# --- the machine's Python -----------------------------------------------------------------------------------------


class Distribution(metadata.Distribution):
    """A distribution in memory, or with its files in a folder."""

    def __init__(self, name: str, requires: list[str], folder: Path | None = None, files: str | None = None) -> None:
        lines = [f"Name: {name}", "Version: 1", *(f"Requires-Dist: {each}" for each in requires)]
        self.texts = {"METADATA": "Metadata-Version: 2.1\n" + "\n".join(lines) + "\n", "RECORD": files}
        self.folder = folder or Path("/nowhere")

    def read_text(self, filename: str) -> str | None:
        return self.texts.get(filename)

    def locate_file(self, path: str | os.PathLike[str]) -> Path:
        return self.folder / path


def test_closure_follows_requirements_extras_and_markers(capsys: pytest.CaptureFixture[str]) -> None:
    installed = {
        "torch": [
            "Typing_Extensions>=4",
            "cuda-toolkit[cublas]==13; platform_system == 'Linux'",
            "pytest; extra == 'test'",
        ],
        "typing-extensions": [],
        "cuda-toolkit": ["nvidia-cublas; extra == 'cublas'", "nvidia-nvcc; extra == 'nvcc'", "gone"],
        "nvidia-cublas": ["torch"],
        "win": [],
    }

    def find(name: str) -> metadata.Distribution:
        if name not in installed:
            raise metadata.PackageNotFoundError(name)
        return Distribution(name, installed[name])

    found = machine_python.closure(["torch"], find)
    assert list(found) == ["cuda-toolkit", "nvidia-cublas", "torch", "typing-extensions"]
    assert capsys.readouterr().err == "Not installed, and left out: gone\n"


def test_files_of_a_package(tmp_path: Path) -> None:
    listed = [
        "torch/a.py",
        "torch/lib/x.so",
        "torch/include/x.h",
        "torch/lib/x.a",
        "../../bin/torchrun",
        "torch/gone.py",
    ]
    cached = Path(importlib.util.cache_from_source(str(tmp_path / "torch/a.py")))
    for path in (*(tmp_path / each for each in listed[:4]), cached):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    record = "\n".join(f"{each},," for each in [*listed, f"torch/__pycache__/{cached.name}"])
    files = dict(machine_python.package_files(Distribution("torch", [], tmp_path, record)))
    assert sorted(map(str, files)) == sorted(
        ["packages/torch/a.py", f"packages/torch/__pycache__/{cached.name}", "packages/torch/lib/x.so"]
    )
    assert files[PurePosixPath("packages/torch/lib/x.so")] == tmp_path / "torch/lib/x.so"
    with pytest.raises(ValueError, match="apt-package has no RECORD"):
        list(machine_python.package_files(Distribution("apt-package", [])))


def test_files_of_the_standard_library(tmp_path: Path) -> None:
    folder = tmp_path / "python3.12"
    kept = ["os.py", "json/decoder.py", "lib-dynload/_ssl.so"]
    for name in [*kept, "test/a.py", "ctypes/test/a.py", "site-packages/a.py", "config-3.12/a.a", "_tkinter.x.so"]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    (folder / "sitecustomize.py").symlink_to("/nowhere/sitecustomize.py")
    files = dict(machine_python.library_files(folder))
    assert sorted(map(str, files)) == sorted(f"lib/python3.12/{each}" for each in kept)


LDD = """\
\tlinux-vdso.so.1 (0x00007ffd)
\tlibc10.so => /opt/torch/lib/libc10.so (0x00007f12)
\tlibcuda.so.1 => /usr/lib/libcuda.so.1 (0x00007f12)
\tlibnvidia-ml.so.1 => not found
\tlibcudart.so.13 => not found
\tlibmpi.so.40 => not found
\tlibz.so.1 => /usr/lib/libz.so.1 (0x00007f12)
\tlibc.so.6 => /usr/lib/libc.so.6 (0x00007f12)
\t/lib64/ld-linux-x86-64.so.2 (0x00007f12)
"""


def test_shared_libraries_without_those_of_driver_and_packages() -> None:
    outputs = {Path("a.so"): LDD, Path("static"): "\tnot a dynamic executable\n"}
    found, missing = machine_python.shared_libraries(outputs, {"libc10.so", "libcudart.so.13"}, outputs.__getitem__)
    assert found == {
        "libz.so.1": Path("/usr/lib/libz.so.1"),
        "libc.so.6": Path("/usr/lib/libc.so.6"),
        "ld-linux-x86-64.so.2": Path("/lib64/ld-linux-x86-64.so.2"),
    }
    assert missing == {"libmpi.so.40"}


@pytest.mark.parametrize("name", ["libcuda.so.1", "libcuda.so", "libnvidia-ptxjitcompiler.so.1", "libnvcuvid.so.1"])
def test_libraries_of_the_driver(name: str) -> None:
    assert machine_python.DRIVER.match(name)


@pytest.mark.parametrize("name", ["libcudart.so.13", "libcublas.so.13", "libcudnn.so.9", "libtorch_cuda.so"])
def test_libraries_of_packages(name: str) -> None:
    assert not machine_python.DRIVER.match(name)


def test_layers_stay_below_the_limit() -> None:
    sizes = {PurePosixPath(name): size for name, size in {"d": 1, "a": 6, "b": 4, "c": 20, "e": 9}.items()}
    names = [[str(path) for path in layer] for layer in machine_python.layers(sizes, 10)]
    assert names == [["a", "b"], ["c"], ["d", "e"]]
    assert machine_python.layers({}) == [[]]


def test_context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    source, web = tmp_path / "python3.12", tmp_path / "web"
    source.write_bytes(b"\x7fELF program")
    source.chmod(0o755)
    (web / "fastapi").mkdir(parents=True)
    (web / "fastapi/a.py").write_text("a")
    files = dict.fromkeys(map(PurePosixPath, ("bin/python", "lib/ld-linux-x86-64.so.2", "packages/a.py")), source)
    monkeypatch.setattr(machine_python, "layers", lambda sizes: [[path] for path in sizes])
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w|") as archive:
        machine_python.write(archive, files, web)
    stream.seek(0)
    with tarfile.open(fileobj=stream) as archive:
        members = {member.name: member for member in archive}
        texts = {
            name: archive.extractfile(name).read().decode()  # type: ignore[union-attr]
            for name in ("Dockerfile", "python", "torch_server.py")
        }
    assert set(members) == {
        *("Dockerfile", "python", "torch_server.py", "web/fastapi/a.py"),
        *("layer-0/bin/python", "layer-1/lib/ld-linux-x86-64.so.2", "layer-2/packages/a.py"),
    }
    assert {members["layer-0/bin/python"].mode, members["python"].mode} == {0o755}
    assert "\nCOPY layer-0 /opt/machine\nCOPY layer-1 /opt/machine\nCOPY layer-2 /opt/machine\n" in texts["Dockerfile"]
    assert "@" not in texts["Dockerfile"].split("FROM")[1].partition("RUN")[0]
    assert "exec /opt/machine/lib/ld-linux-x86-64.so.2 --library-path /opt/machine/lib " in texts["python"]
    assert capsys.readouterr().err == "3 files, 0.00 GB, 3 layers\n"
