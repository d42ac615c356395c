"""Everything is in pyproject.toml but the native library, which is optional.

The sources in csrc/ become one shared library inside the package, `statetrack/_native.so`: plain C
functions, called through ctypes, so that it is bound neither to a Python nor to a torch version.
kernels.cpp is compiled once for each instruction set; the library chooses when it is loaded. A
missing or failing compiler costs speed, never the installation; on Windows nothing is compiled.
"""

import hashlib
import os
import platform
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

FLAGS = ["-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-Wall", "-g0"]
# Not -ffast-math (it changes the whole process) and not -march=native (wheels travel).
FLAGS += ["-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math"]
OPENMP = [] if sys.platform == "darwin" else ["-fopenmp"]
# Extra flags, for instance those of a sanitizer.
EXTRA = os.environ.get("STATETRACK_CFLAGS", "").split()
# The library carries the hash of this header; kernels/library.py refuses one with another hash.
INTERFACE = Path("src/statetrack/kernels/interface.h")
HASH = hashlib.sha256(INTERFACE.read_bytes()).hexdigest()

LEVELS = {"baseline": (4, [])}
EMULATE = False
if platform.machine().lower() in ("x86_64", "amd64"):
    LEVELS["avx2"] = 8, ["-mavx2", "-mfma"]
    LEVELS["avx512"] = 16, [f"-mavx512{part}" for part in ("f", "vl", "dq", "bw")] + ["-mfma"]
    # To test the kernels for 16 lanes on a CPU without AVX-512: the compiler splits their vectors.
    if EMULATE := bool(os.environ.get("STATETRACK_EMULATE_AVX512")):
        LEVELS["avx512"] = 16, ["-mavx2", "-mfma", "-Wno-psabi"]


class BuildNative(build_ext):
    """Compiles the kernels once a level, and names the library without a Python version."""

    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split("."))) + ".so"

    def get_export_symbols(self, ext: Extension) -> list[str]:
        return []  # this is no Python module

    def build_extension(self, ext: Extension) -> None:
        jobs = []  # (source, level)
        for source in ext.sources:
            levels = LEVELS if Path(source).name == "kernels.cpp" else [""]
            jobs += [(source, level) for level in levels]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(lambda job: self.compile(ext, *job), jobs))
        path = Path(self.get_ext_fullpath(ext.name))
        path.parent.mkdir(parents=True, exist_ok=True)
        self.compiler.link_shared_object(
            objects, str(path), target_lang="c++", extra_postargs=[*OPENMP, *EXTRA]
        )

    def compile(self, ext: Extension, source: str, level: str) -> str:
        """The object file of one source, for one level if it is the kernels."""
        lanes, flags = LEVELS[level] if level else (None, OPENMP)
        macros: list[tuple[str, str | None]] = [("INTERFACE_HASH", f'"{HASH}"')]
        macros += [("HAVE_X86_LEVELS", None)] if len(LEVELS) > 1 else []
        macros += [("EMULATE_AVX512", None)] if EMULATE else []
        if level:
            macros += [("LEVEL", level), ("LANES", str(lanes))]
        (result,) = self.compiler.compile(
            [source],
            output_dir=str(Path(self.build_temp) / level),
            macros=macros,
            include_dirs=[str(INTERFACE.parent)],
            extra_postargs=[*FLAGS, *flags, *EXTRA],
            depends=ext.depends,
        )
        return result


class AnyPythonWheel(bdist_wheel):
    """One wheel per platform for every Python 3."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(
    ext_modules=[
        Extension(
            "statetrack._native",
            sorted(str(path) for path in Path("csrc").glob("*.cpp")),
            depends=sorted(str(path) for path in [INTERFACE, *Path("csrc").glob("*.h")]),
            language="c++",
            optional=True,
        )
    ]
    if sys.platform != "win32"  # the flags and vectors are those of GCC and clang
    else [],
    cmdclass={"build_ext": BuildNative, "bdist_wheel": AnyPythonWheel},
)
