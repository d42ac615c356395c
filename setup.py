"""Everything is in pyproject.toml but the native library, which is optional.

The sources in csrc/, if there are any, are built into one shared library inside the package. A
missing or failing compiler costs speed, never the installation.
"""

from pathlib import Path

from setuptools import Extension, setup

sources = sorted(str(path) for path in Path("csrc").glob("*.cpp"))

setup(
    ext_modules=[
        Extension(
            "statetrack._native",
            sources,
            language="c++",
            extra_compile_args=["-O3", "-std=c++17", "-fno-math-errno", "-fno-trapping-math"],
            optional=True,
        )
    ]
    if sources
    else []
)
