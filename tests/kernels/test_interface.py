"""The reader of the C header."""

from __future__ import annotations

import ctypes

import pytest

from statetrack.kernels.interface import CONSTANTS, KERNELS, STRUCTURES, read

HEADER = """// a comment
#pragma once
#include <stdint.h>
typedef struct {
  const float* data;  // one
  int64_t token, head;
} View;
#define MOST 8  // of them
typedef struct {
  View x;
  const float *a, *b;
  double eps;
} Norm;
#define KERNELS(X) \\
  X(forward, Norm) \\
  X(backward, Norm)
"""


def test_structures_kernels_and_constants():
    structures, kernels, constants = read(HEADER)
    assert structures["View"]._fields_ == [
        ("data", ctypes.c_void_p),
        ("token", ctypes.c_int64),
        ("head", ctypes.c_int64),
    ]
    assert structures["Norm"]._fields_ == [
        ("x", structures["View"]),
        ("a", ctypes.c_void_p),
        ("b", ctypes.c_void_p),
        ("eps", ctypes.c_double),
    ]
    assert kernels == {"forward": "Norm", "backward": "Norm"}
    assert constants == {"MOST": 8}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("double eps;", "float eps;"),
        ("double eps;", "int eps;"),
        ("double eps;", "double eps[2];"),
        ("double eps;", "double eps : 3;"),
        ("double eps;", "double eps"),
        ("double eps;", "union { double eps; int64_t n; };"),
        ("double eps;", "float **eps;"),
        ("double eps;", "unsigned int64_t eps;"),
        ("double eps;", "double;"),
        ("#define MOST 8", "#define MOST 8.5"),
        ("#pragma once", "#pragma pack(1)"),
        ("X(forward, Norm)", "Y(forward, Norm)"),
        ("typedef struct {\n  View", "typedef struct __attribute__((packed)) {\n  View"),
    ],
)
def test_anything_else_is_an_error(old, new):
    assert old in HEADER
    with pytest.raises(ValueError, match="cannot read"):
        read(HEADER.replace(old, new))


def test_the_header_of_the_library():
    assert set(KERNELS.values()) | {"View", "Part", "Call"} == set(STRUCTURES)
    for name, structure in STRUCTURES.items():  # no field is passed over
        fields = [field for field, _ in structure._fields_]
        assert len(fields) == len(set(fields)), name
    assert CONSTANTS == {"MAX_WIDTH": 8, "SLSTM_KEPT": 7}
