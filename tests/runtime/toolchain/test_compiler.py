"""Test errors of builds: each names the cause, and what the user can do."""

import os
import platform
import re
import resource
import stat
import subprocess
import sys
import time
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from optgen.runtime.cache import files
from optgen.runtime.toolchain import compiler, library_cache
from optgen.runtime.toolchain.compiler import CompileError

SOURCE = 'extern "C" int answer() { return 42; }\n'
WRONG = 'extern "C" int answer() { return nothing; }\n'


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty cache for this test."""
    monkeypatch.setenv("OPTGEN_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def no_warning_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let optgen warn again of code that it cannot keep."""
    monkeypatch.setattr(files, "_warned_reasons", set())


def use_script_as_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> Path:
    """Set CXX to a shell script; $REAL in the script is the real compiler."""
    path, real = tmp_path / "scripted", compiler.find()
    assert real is not None
    path.write_text(f"#!/bin/sh\nREAL={real[0]}\n{text}\n")
    path.chmod(0o755)
    monkeypatch.setenv("CXX", str(path))
    return path


def error_message(source: str = SOURCE) -> str:
    with pytest.raises(CompileError) as caught:
        library_cache.library("answer", source)
    return str(caught.value)


def log_of(message: str) -> Path:
    """Return the path of the log that an error message names."""
    found = re.search(r"\(log: (.*)\)$", message.partition("\n")[0])
    assert found is not None
    return Path(found[1])


# The compiler's name.


@pytest.mark.parametrize(
    ("chosen", "reason"),
    [
        ("g++ '", r"CXX is \"g\+\+ '\", and a shell could not read it \(No closing quotation\)"),
        ("g++ \\", r"a shell could not read it \(No escaped character\)"),
        ("/nowhere/c++", "'/nowhere/c\\+\\+' is not found: set it to a C"),
        ("''", "'' is not found|'' is a folder"),
        ("/", "'/' is a folder"),
        ("/etc/passwd -O2", "'/etc/passwd' cannot be run"),
        ("-O2 g++", "'-O2' is not found"),
    ],
)
def test_a_name_that_is_no_compiler_is_refused(
    chosen: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", chosen)
    assert compiler.find() is None
    with pytest.raises(library_cache.NoCompilerError, match=reason):
        library_cache.library("answer", SOURCE)


@pytest.mark.parametrize("chosen", ["", "  "])
def test_an_empty_name_counts_as_unset(chosen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    default = compiler.find()
    monkeypatch.setenv("CXX", chosen)
    assert compiler.find() == default


def test_windows_says_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Windows")

    with pytest.raises(library_cache.NoCompilerError, match="run Python in WSL"):
        library_cache.library("answer", SOURCE)


def test_a_path_with_spaces_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spaced = tmp_path / "my tools"
    spaced.mkdir()
    use_script_as_compiler(spaced, monkeypatch, 'exec $REAL "$@"')
    for chosen in (f"{spaced}/scripted", f"'{spaced}/scripted'"):
        monkeypatch.setenv("CXX", chosen)
        assert compiler.find() == [f"{spaced}/scripted"]
        assert library_cache.library("answer", SOURCE).is_file()


def test_the_identity_of_a_command_includes_a_compiler_behind_another_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the compiler behind `env` changes, the identity of the command changes."""
    path = use_script_as_compiler(tmp_path, monkeypatch, 'exec $REAL "$@"')
    monkeypatch.setenv("CXX", f"env {path}")
    command = compiler.find()
    assert command is not None
    assert library_cache.library("answer", SOURCE).is_file()

    before = compiler.identity(command)
    path.write_text(path.read_text() + "\n")
    assert compiler.identity(command) != before


# Time.


def test_a_compiler_that_hangs_is_ended_with_all_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_script_as_compiler(
        tmp_path, monkeypatch, f"sleep 60 & echo $! > {tmp_path}/child; exec sleep 60"
    )
    monkeypatch.setenv("OPTGEN_COMPILE_TIMEOUT", "1")

    message = error_message()

    assert "took longer than 1 seconds and was ended: set OPTGEN_COMPILE_TIMEOUT to more" in message
    assert is_ended(int((tmp_path / "child").read_text()))


def is_ended(pid: int) -> bool:
    """Tell whether a process has ended; a killed one may be a zombie until its new parent waits."""
    for _ in range(100):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False


def test_threads_that_wait_for_a_hanging_build_do_not_build_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hanging build frees the lock for the waiting threads, and none of them builds again."""
    use_script_as_compiler(tmp_path, monkeypatch, f"echo >> {tmp_path}/log; exec sleep 60")
    monkeypatch.setenv("OPTGEN_COMPILE_TIMEOUT", "1")
    begin = time.monotonic()
    builds = [Thread(target=error_message) for _ in range(3)]
    for build in builds:
        build.start()
    for build in builds:
        build.join()

    assert time.monotonic() - begin < 20
    assert (tmp_path / "log").read_text() == "\n"


@pytest.mark.parametrize("text", ["soon", "0", "-1", "nan", "inf"])
def test_a_text_that_is_no_time_limit_is_refused(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPTGEN_COMPILE_TIMEOUT", text)
    assert f"OPTGEN_COMPILE_TIMEOUT is {text!r}: set it to seconds" in error_message()


def test_an_interrupt_ends_the_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_script_as_compiler(tmp_path, monkeypatch, f"echo $$ > {tmp_path}/pid; exec sleep 60")
    build, pid = Thread(target=error_message), tmp_path / "pid"
    build.start()
    while not pid.exists() or not pid.read_text():
        time.sleep(0.01)

    compiler.end_all_compilers()
    build.join(30)

    assert not build.is_alive()
    assert is_ended(int(pid.read_text()))


def test_an_interrupt_ends_a_compiler_that_is_being_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_script_as_compiler(tmp_path, monkeypatch, "exec sleep 60")
    start = compiler._start

    def start_and_interrupt(command: list[str], folder: Path) -> Any:
        process = start(command, folder)
        compiler.end_all_compilers()
        return process

    monkeypatch.setattr(compiler, "_start", start_and_interrupt)
    assert "was killed" in error_message()


# Disk space.


@pytest.mark.parametrize(
    ("printed", "reason"),
    [
        ("fatal error: error writing to x.s: No space left on device", "No space left on device"),
        ("ld: final link failed: Disk quota exceeded", "Disk quota exceeded"),
        ("Cannot create temporary file in /x/: Read-only file system", "Read-only file system"),
        ("File size limit exceeded signal terminated program as", "File too large"),
    ],
)
def test_a_full_disk_or_quota_is_reported(
    printed: str, reason: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_script_as_compiler(tmp_path, monkeypatch, f"echo '{printed}' >&2; exit 1")
    message = error_message()

    assert f"no folder can store a compiled library ({cache}: {reason}; " in message
    assert message.endswith(
        "make room, or set OPTGEN_CACHE_DIR or TMPDIR to a folder that can be written to"
    )
    assert "no C++ compiler" not in message


def test_a_library_goes_to_the_next_folder_if_one_is_full(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_script_as_compiler(
        tmp_path,
        monkeypatch,
        f'case "$*" in *{cache}*) echo "No space left on device" >&2; exit 1;; esac\n'
        'exec $REAL "$@"',
    )

    with pytest.warns(
        UserWarning, match=f"cannot keep .*{cache}: No space left on device.*set OPTG"
    ):
        assert library_cache.library("answer", SOURCE).parent != cache
    assert not list(cache.iterdir())


def test_a_limit_on_the_size_of_files_is_reported(cache: Path) -> None:
    """The system limits the size of files; the compiler itself works."""
    code = f"""
import resource
from optgen.runtime.toolchain import library_cache
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    library_cache.library("answer", {SOURCE!r})
except library_cache.CompileError as error:
    print(error)
"""
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )

    assert f"no folder can store a compiled library ({cache}: File too large" in process.stdout
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 1000  # no limit in this process


def test_temporary_files_of_the_compiler_are_removed_after_the_build(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiler's TMPDIR is a folder in the cache, made for this build."""
    use_script_as_compiler(
        tmp_path, monkeypatch, f'echo "$TMPDIR" > {tmp_path}/tmpdir; exec $REAL "$@"'
    )
    library_cache.library("answer", SOURCE)

    build_folder = Path((tmp_path / "tmpdir").read_text().strip())
    assert build_folder.parent == cache
    assert not build_folder.exists()


# Memory, and compilers that cannot be started.


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("kill -9 $$", "was killed, as the system does if memory runs out: end other programs"),
        ("echo 'fatal error: Killed signal terminated program cc1plus'; exit 1", "was killed"),
        ("echo 'cc1plus: out of memory allocating 65536 bytes'; exit 1", "ran out of memory: end"),
        ("echo 'virtual memory exhausted: Cannot allocate memory'; exit 1", "ran out of memory"),
    ],
)
def test_a_lack_of_memory_is_reported_after_one_try(
    text: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_script_as_compiler(tmp_path, monkeypatch, f"echo >> {tmp_path}/log; {text}")
    assert reason in error_message()
    assert (tmp_path / "log").read_text() == "\n"  # one try: other flags need as much memory


@pytest.mark.parametrize(
    ("output", "way_out"),
    [
        ("xcrun: error: invalid active developer path", "xcode-select --install"),
        ("You have not agreed to the Xcode license agreements.", "xcodebuild -license accept"),
    ],
)
def test_missing_tools_of_xcode_are_reported(
    output: str, way_out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a program stands for the compiler on a Mac without Xcode's tools."""
    use_script_as_compiler(tmp_path, monkeypatch, f"echo '{output}' >&2; exit 1")

    assert way_out in error_message()


def test_a_program_that_cannot_be_started_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = use_script_as_compiler(tmp_path, monkeypatch, "")
    path.write_text("#!/nowhere/sh\n")
    assert "cannot be started (No such file or directory): set CXX to another" in error_message()


# An error in the source, or in the compiler.


def test_a_source_that_a_working_compiler_refuses_is_reported_as_a_defect_of_optgen(
    cache: Path,
) -> None:
    message = error_message(WRONG)
    first_line = message.partition("\n")[0]

    assert (
        "builds other C++17 programs but not the source that optgen generated for `answer`"
        in first_line
    )
    assert "a defect of optgen: report it" in first_line
    assert "CXX" not in message
    assert len(message.splitlines()) < 12
    log = log_of(message)
    assert log.parent == cache
    assert log.read_text().count("-std=c++17") == len(compiler.FLAG_SETS)
    assert "'nothing' was not declared" in log.read_text() or "undeclared" in log.read_text()
    assert log.with_suffix(".cpp").read_text() == WRONG
    assert len(list(cache.iterdir())) == 2
    # A second failure writes the same files, and no additional ones.
    assert error_message(WRONG).partition("\n")[0] == first_line
    assert len(list(cache.iterdir())) == 2


def test_a_compiler_that_is_too_old_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_script_as_compiler(
        tmp_path, monkeypatch, 'case "$*" in *17*) echo "error: no C++17" >&2; exit 1;; esac'
    )
    message = error_message()

    assert (
        "cannot build even a small C++17 program: set CXX to a compiler that knows C++17" in message
    )
    assert "error: no C++17" in log_of(message).read_text()
    assert "defect of optgen" not in message


@pytest.mark.parametrize("status", [0, 3])
def test_a_program_that_is_no_compiler_is_reported(
    status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_script_as_compiler(tmp_path, monkeypatch, f"exit {status}")
    assert "cannot build even a small C++17 program" in error_message()


def test_a_compiler_that_crashes_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_script_as_compiler(
        tmp_path, monkeypatch, 'echo "internal compiler error: Segmentation fault"; exit 1'
    )
    assert "a defect of the compiler: set CXX to another compiler" in error_message()


def test_a_log_outlives_the_temporary_folder_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPTGEN_CACHE_DIR", "/proc/optgen")
    log = log_of(error_message(WRONG))
    try:
        assert stat.S_ISREG(log.stat().st_mode)
        assert log.parent == Path(os.environ.get("TMPDIR", "/tmp"))
    finally:
        log.unlink()
        log.with_suffix(".cpp").unlink()


# Libraries that cannot be used.

CUT = """for each in "$@"; do [ "$last" = -o ] && out=$each; last=$each; done
$REAL "$@" && truncate -s -{bytes} "$out" """
OTHER_LIBRARY = """for each in "$@"; do [ "$last" = -o ] && out=$each; last=$each; done
echo 'extern "C" int answer() { return 42; }' > "$out".cpp
$REAL -shared -fPIC "$out".cpp -o "$out" """
ENDS_WHEN_LOADED = """for each in "$@"; do [ "$last" = -o ] && out=$each; last=$each; done
echo '#include <cstdlib>
__attribute__((constructor)) void end() { abort(); }' > "$out".cpp
$REAL -shared -fPIC "$out".cpp -o "$out" """


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (CUT.format(bytes=1), "it is cut short"),
        (CUT.format(bytes=9000), "it is cut short"),
        (OTHER_LIBRARY, "undefined symbol"),
        (ENDS_WHEN_LOADED, "a process that loads it ends with status -6"),
        ('touch "$(dirname "$(echo "$@" | sed "s/.* -o //")")"/built.so', "it is cut short"),
    ],
    ids=["one byte", "most", "other", "ends", "empty"],
)
def test_a_library_that_is_not_usable_is_an_error_and_not_kept(
    script: str, reason: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiler exits with status 0."""
    use_script_as_compiler(tmp_path, monkeypatch, script)
    message = error_message()

    assert "cannot build even a small C++17 program: set CXX to a compiler" in message
    assert reason in message
    assert reason in log_of(message).read_text()
    assert not list(cache.glob("*.so"))


def test_without_an_interpreter_to_start_a_library_is_trusted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for executable in ("", "/nowhere/python", "/bin/true"):
        monkeypatch.setattr(sys, "executable", executable)
        assert library_cache.library("answer", f"{SOURCE}// {executable}\n").is_file()


# Folders.


def test_a_cache_whose_path_is_not_utf_8_is_used(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/\xff"
    code = """
import torch, optgen, optgen.optim
param = torch.nn.Parameter(torch.ones(5))
optimizer = optgen.optim.SGD([param], lr=0.1)
for _ in range(3):
    param.grad = torch.ones(5)
    optimizer.step()
print(round(param[0].item(), 6), optgen.explain(optimizer))
"""
    process = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environb, b"OPTGEN_CACHE_DIR": folder},
        capture_output=True,
        text=True,
        check=True,
    )

    assert process.stdout == "0.7 group 0: fused C++: CPU tensors, float32\n"
    assert any(name.endswith(b".so") for name in os.listdir(folder))


def test_a_cache_that_cannot_be_made_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("OPTGEN_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.warns(UserWarning, match=r"cannot keep the code that it builds \(.*/file'\)"):
        library_cache.library("answer", SOURCE)
    library_cache.library("answer", SOURCE + "\n")  # warnings are errors
